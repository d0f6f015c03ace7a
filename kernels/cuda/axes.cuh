// Index spaces of strided operands that kernels walk together.
#pragma once

#include <algorithm>
#include <array>

#include <zerone/kernels/elementwise.h>
#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda {

/// Points of collapsed axes and their offsets in each operand. The innermost axis may be taken in
/// steps of `width` elements.
template <int Operands>
struct Axes {
  int rank = 1;
  bool wide = false;  // 2^31 points or more: plain 64-bit division
  FastDivisor divisors[max_rank];
  std::int64_t sizes[max_rank] = {1};
  std::int64_t strides[Operands][max_rank] = {};

  Axes() = default;
  explicit Axes(const CollapsedAxes<Operands>& axes, int width = 1)
      : rank(std::max(axes.rank, 1)), wide(axes.numel() >= std::int64_t{1} << 31) {
    for (int i = 0; i < axes.rank; ++i) {
      const std::int64_t step = i == axes.rank - 1 ? width : 1;
      sizes[i] = axes.sizes[i] / step;
      if (!wide && sizes[i] > 0) divisors[i] = FastDivisor(static_cast<std::uint32_t>(sizes[i]));
      for (int k = 0; k < Operands; ++k) strides[k][i] = axes.strides[k][i] * step;
    }
  }

  __device__ __forceinline__ void offsets(std::int64_t index,
                                          std::int64_t (&result)[Operands]) const {
#pragma unroll
    for (int k = 0; k < Operands; ++k) result[k] = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      const std::int64_t quotient =
          wide ? index / sizes[axis] : divisors[axis].quotient(static_cast<std::uint32_t>(index));
      const std::int64_t at = index - quotient * sizes[axis];
#pragma unroll
      for (int k = 0; k < Operands; ++k) result[k] += at * strides[k][axis];
      index = quotient;
    }
#pragma unroll
    for (int k = 0; k < Operands; ++k) result[k] += index * strides[k][0];
  }
};

/// Layouts without one axis (its size taken as 1), collapsed together; ordered by the first.
template <int Operands>
CollapsedAxes<Operands> collapse_without(int axis,
                                         const std::array<const Layout*, Operands>& layouts) {
  std::array<Layout, Operands> rest;
  std::array<const Layout*, Operands> pointers;
  for (int k = 0; k < Operands; ++k) {
    rest[k] = *layouts[k];
    rest[k].sizes[axis] = 1;
    pointers[k] = &rest[k];
  }
  return collapse_axes<Operands>(pointers);
}

/// Whether every stride but those of the dense innermost axis, if `inner_dense`, steps over whole
/// vectors.
template <int Operands>
bool in_vectors(const CollapsedAxes<Operands>& axes, bool inner_dense, int width) {
  for (int i = 0; i < axes.rank; ++i) {
    const bool inner = inner_dense && i == axes.rank - 1;
    for (int k = 0; k < Operands; ++k) {
      const std::int64_t stride = axes.strides[k][i];
      if (inner ? stride != 1 || axes.sizes[i] % width != 0 : stride % width != 0) return false;
    }
  }
  return true;
}

inline int power_of_two_from(std::int64_t least, int most) {
  int power = 1;
  while (power < most && power < least) power *= 2;
  return power;
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace zerone::kernels::cuda
