// Sums, means and the mean-square error.
#pragma once

#include <initializer_list>

#include <zerone/autograd/tape.h>
#include <zerone/ops/implementation.h>

namespace zerone {

/// @name Sums and means
/// Floating-point tensors in any layout. f32 and 16-bit types accumulate in f32 or wider, in an
/// order that depends on sizes only: results repeat bit for bit. A sum over nothing is 0.
/// @code
/// const Tensor x = Tensor::normal(context, {2, 3, 4});
/// const double total = sum(x).value().item();
/// const Var rows = sum(x, {0, -1});              // [3]
/// const Var kept = sum(x, {1}, true);            // [2, 1, 4]
/// const Var loss = mean_square_error(x, Tensor::zeros(context, {2, 3, 4}));
/// const double average = mean(x).value().item();
/// @endcode
/// @{
/// Sum of all elements: a scalar (rank 0).
Var sum(const Var& x);
/// Sum over some axes; `keep` keeps them with size 1.
Var sum(const Var& x, std::initializer_list<int> axes, bool keep = false);
Var mean(const Var& x);
/// mean((a - b)^2): a scalar. Same shapes; no broadcasting. The mean of nothing is NaN.
Var mean_square_error(const Var& a, const Var& b);
/// @}

/// x summed over the axes that broadcasting `shape` to x's shape repeats; x itself if none.
Tensor sum_to(const Tensor& x, const Shape& shape);
/// y = x summed over the axes where y's size is 1 and x's is not; y has x's rank.
void sum_into(Tensor& y, const Tensor& x, double scale = 1);

// --- implementation lists -----------------------------------------------------------------------

enum class ReduceOp : std::uint8_t { sum, squared_error_sum, squared_error_backward };

struct ReduceDesc {
  ReduceOp op{};
  DType dtype{};
  std::int64_t in = 0, out = 0;  // elements
  bool operator==(const ReduceDesc&) const = default;
  std::size_t hash() const;
};
struct ReduceArgs {
  kernels::View out{};
  kernels::ConstView x{};
  kernels::ConstView other{};      // the second operand of a squared error
  const void* upstream = nullptr;  // squared_error_backward: the scalar gradient
  double scale = 1;
};
std::string to_string(const ReduceDesc&);

using ReduceList = ImplementationList<ReduceDesc, ReduceArgs>;
const ReduceList& reduce_list();

namespace reduce_cpu {
std::span<const ReduceList::Row> rows();
}
namespace reduce_cuda {
std::span<const ReduceList::Row> rows();
}

}  // namespace zerone
