// Views that the tape follows, and copies into another layout.
#pragma once

#include <initializer_list>

#include <zerone/autograd/tape.h>

namespace zerone {

/// @name Views on the tape
/// As the Tensor members of the same names; nothing is copied, except where noted.
/// @code
/// Tape tape;
/// const Var x = tape.leaf(Tensor::normal(context, {2, 3, 4, 5}));  // (N,C,H,W)
/// const Var nhwc = permute(x, {0, 2, 3, 1});                      // [2, 4, 5, 3], nothing copied
/// const Var first = slice(x, 0, 0, 1);                            // [1, 3, 4, 5]
/// const Var flat = reshape(x, {2, -1});                           // [2, 60]
/// const Var wide = expand(first, {7, 3, 4, 5});
/// const Var dense = contiguous(nhwc), image = contiguous_nhwc(x);
/// @endcode
/// @{
Var permute(const Var& x, std::initializer_list<int> axes);
Var reshape(const Var& x, const Shape& shape);
Var reshape(const Var& x, std::initializer_list<std::int64_t> sizes);
Var slice(const Var& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step = 1);
Var expand(const Var& x, const Shape& shape);
/// x itself if row-major, else a row-major copy.
Var contiguous(const Var& x);
/// x itself if its memory order is NHWC, else a copy that is.
Var contiguous_nhwc(const Var& x);
/// @}

}  // namespace zerone
