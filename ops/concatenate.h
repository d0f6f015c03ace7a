// Tensors joined along an axis.
#pragma once

#include <initializer_list>
#include <span>

#include <zerone/autograd/tape.h>

namespace zerone {

/// The inputs, at least one, one behind the other along `axis` (negative: from the end): a new
/// tensor whose size there is the sum of theirs. They share their context, any one type of the six,
/// their rank (1 to 8) and all other sizes; a size along `axis` may be 0. Any layouts, views and
/// known zeros, of which a result of nothing else is one, too. The result lies in the memory order
/// of the largest input without gaps (the first of equals), row-major if there is none. Bits are
/// copied, whatever they mean; each input costs one copy. An input's gradient is its slice of the
/// result's gradient, a view where nothing else contributes.
///
/// ShapeError, DTypeError and DeviceError name the index of the input and its opposite.
/// @code
/// const Tensor a = Tensor::normal(context, {2, 3}), b = Tensor::zeros(context, {2, 1});
/// const Var y = concatenate({a, b}, -1);  // [2, 4]
/// @endcode
/// @{
Var concatenate(std::span<const Var> inputs, int axis);
Var concatenate(std::initializer_list<Var> inputs, int axis);
/// @}

}  // namespace zerone
