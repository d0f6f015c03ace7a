// The weight of the convolution that computes backward-data as a forward pass.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/types.h>

namespace zerone::kernels::cuda {

/// out[c, k, r, s] = w[k, c, kh - 1 - r, kw - 1 - s] for a convolution without groups: out is a
/// (c_in, c_out, kh, kw) weight with strides `out_strides`, w lies at shape.w_strides. = semantics,
/// no overlap. With stride 1, dx = conv(dy, out) at padding dilation * (k - 1) - padding.
[[nodiscard]] cudaError_t flip_weight(const Conv2dShape& shape, const void* w, void* out,
                                      const std::array<std::int64_t, 4>& out_strides, DType dtype,
                                      cudaStream_t stream);

}  // namespace zerone::kernels::cuda
