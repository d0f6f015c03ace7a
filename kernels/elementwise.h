// What the CPU and CUDA elementwise kernels share: the operations and the simplification of
// several layouts walked together. Host code only; no device API.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels {

/// elementwise_formulas.h defines what each computes. NaN gives NaN.
enum class UnaryOp : std::uint8_t {
  relu,        ///< max(x, 0)
  affine,      ///< alpha * x + beta, one fused rounding
  leaky_relu,  ///< x > 0 ? x : alpha * x
  clamp,       ///< x limited to [alpha, beta]; alpha <= beta
  exp,
  log,
  sigmoid,  ///< 1 / (1 + e^-x)
  tanh,
  silu,       ///< x * sigmoid(x)
  gelu_erf,   ///< x * P(x), with P the distribution function of the standard normal
  gelu_tanh,  ///< x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2
};

/// Of a gradient, a is the gradient of the output; "of y" takes the forward output as b, "of x" the
/// input. The gradients of exp and log are mul of y and div of x.
enum class BinaryOp : std::uint8_t {
  add,
  sub,
  mul,
  div,
  relu_backward,        ///< of y: b <= 0 ? 0 : a (NaN in b passes a)
  leaky_relu_backward,  ///< of x, or of y where alpha >= 0: b > 0 ? a : alpha * a
  clamp_backward,       ///< of x: alpha <= b <= beta ? a : 0
  sigmoid_backward,     ///< of y
  tanh_backward,        ///< of y
  silu_backward,        ///< of x
  gelu_erf_backward,    ///< of x
  gelu_tanh_backward,   ///< of x
};

/// `Operands` layouts of equal sizes, walked together: axes ordered by the first operand's stride
/// (outermost first), size-1 axes dropped, neighbors merged where every operand allows it. A
/// problem of one element has rank 0.
template <int Operands>
struct CollapsedAxes {
  int rank = 0;
  std::array<std::int64_t, max_rank> sizes{};
  std::array<std::array<std::int64_t, max_rank>, Operands> strides{};

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= sizes[i];
    return n;
  }
};

template <int Operands>
CollapsedAxes<Operands> collapse_axes(const std::array<const Layout*, Operands>& layouts) {
  CollapsedAxes<Operands> sorted;
  const Layout& first = *layouts[0];
  for (int axis = 0; axis < first.rank; ++axis) {
    const std::int64_t size = first.sizes[axis];
    if (size == 1) continue;
    int at = sorted.rank++;
    for (; at > 0 && sorted.strides[0][at - 1] < first.strides[axis]; --at) {
      sorted.sizes[at] = sorted.sizes[at - 1];
      for (auto& strides : sorted.strides) strides[at] = strides[at - 1];
    }
    sorted.sizes[at] = size;
    for (int k = 0; k < Operands; ++k) sorted.strides[k][at] = layouts[k]->strides[axis];
  }

  CollapsedAxes<Operands> merged;
  for (int axis = 0; axis < sorted.rank; ++axis) {
    const int last = merged.rank - 1;
    bool joins = last >= 0;
    for (int k = 0; joins && k < Operands; ++k) {
      joins = merged.strides[k][last] == sorted.strides[k][axis] * sorted.sizes[axis];
    }
    const int at = joins ? last : merged.rank++;
    merged.sizes[at] = joins ? merged.sizes[at] * sorted.sizes[axis] : sorted.sizes[axis];
    for (int k = 0; k < Operands; ++k) merged.strides[k][at] = sorted.strides[k][axis];
  }
  return merged;
}

}  // namespace zerone::kernels
