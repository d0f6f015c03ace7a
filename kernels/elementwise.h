// What the CPU and CUDA elementwise kernels share: the operations, the optimizer step and the
// simplification of several layouts walked together. Host code only; no device API.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels {

enum class UnaryOp : std::uint8_t {
  relu,    ///< max(x, 0); NaN stays NaN
  affine,  ///< alpha * x + beta, one fused rounding
};

enum class BinaryOp : std::uint8_t {
  add,
  sub,
  mul,
  relu_backward,  ///< a = gradient, b = forward output: b <= 0 ? 0 : a (NaN in b passes a)
};

/// One step of stochastic gradient descent on one parameter. Per element
///   g   = gradient + weight_decay * value
///   buf = first_step ? g : momentum * buf + g
///   value -= learning_rate * buf
/// and where mask is 0: value = 0 (positive zero) and buf = 0. Each line is one fused multiply-add
/// in the compute type (double for f64, else float). `momentum_buffer` has the dtype and layout of
/// `value`; without one buf = g. `mask` holds u8 zeros and ones in the layout of `value`.
struct SgdStep {
  View value;
  ConstView gradient;  // dtype and sizes of value, any strides
  void* momentum_buffer = nullptr;
  const void* mask = nullptr;
  double learning_rate = 0, momentum = 0, weight_decay = 0;
  bool first_step = false;
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
