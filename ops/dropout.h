// Dropout.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <zerone/autograd/tape.h>
#include <zerone/ops/implementation.h>

namespace zerone {

/// Training: every element of x is 0 with probability p (in steps of 2^-32), else x / (1 - p): the
/// product x * 0 or x * (1 / (1 - p)), so that a dropped NaN or infinity is NaN and a dropped -1 is
/// -0; p = 1 drops all. The gradient drops and scales alike. Not training, or with p = 0: x itself.
///
/// Floating-point x in any layout. The result lies like x, row-major if x has gaps; one pass, after
/// a copy in that case. Which elements are dropped depends on the context's seed, on how much was
/// drawn before (a call draws as many positions as x has elements, none where it gives x itself)
/// and on an element's place in the result's memory: not on the device, the type or the number of
/// threads. Each replay of a graph draws anew. For the gradient a byte for four elements is kept.
///
/// Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15
/// (2014). Errors: DTypeError; ShapeError if p is not in [0, 1].
/// @code
/// const Tensor x = Tensor::normal(context, {64, 64});
/// const Var y = dropout(x, 0.25);         // a quarter 0, the rest x / 0.75
/// const Var z = dropout(x, 0.25, false);  // x
/// @endcode
Var dropout(const Var& x, double p, bool training = true);

// --- implementation list ------------------------------------------------------------------------

struct DropoutDesc {
  DType dtype{};
  std::int64_t numel = 0;
  bool backward = false;
  bool operator==(const DropoutDesc&) const = default;
  std::size_t hash() const;
};
/// Elements in the order of memory.
struct DropoutArgs {
  void* out = nullptr;
  const void* x = nullptr;             // backward: dy
  std::uint8_t* flags = nullptr;       // forward: written, unless null
  const std::uint8_t* kept = nullptr;  // backward: the flags
  std::uint32_t highest_kept = 0;      // forward: see kernels/dropout.h
  double scale = 1;
};
std::string to_string(const DropoutDesc&);

using DropoutList = ImplementationList<DropoutDesc, DropoutArgs>;
const DropoutList& dropout_list();
namespace dropout_cpu {
std::span<const DropoutList::Row> rows();
}
namespace dropout_cuda {
std::span<const DropoutList::Row> rows();
}

}  // namespace zerone
