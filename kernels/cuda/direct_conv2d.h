// Dense direct convolution in plain f32 FMA for problems too small to fill the device otherwise:
// forward, and backward-data of stride-1 problems by the same kernel.
#pragma once

#include <cuda_runtime_api.h>
#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/types.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace zerone::kernels::cuda {

enum class DirectPass : std::uint8_t { forward, backward_data };

/// Empty if the pass can run, else the reason. Takes f32, one group, any strides, padding, dilation
/// and kernel whose input tile fits 64 KB of shared memory; backward-data only with stride 1. A
/// function of its arguments alone. Correct for any n; meant for up to about 64K output pixels.
[[nodiscard]] std::string_view direct_conv2d_reject(const Conv2dShape& shape, DirectPass pass,
                                                    DType dtype);

/// How a pass over one shape is cut and launched; immutable.
struct DirectConv2d;

/// Cuts a pass for the current device: about 3 us of host time, once a shape. Returns
/// cudaErrorInvalidValue for a problem that the device cannot run; where direct_conv2d_reject is
/// empty, every device can.
[[nodiscard]] cudaError_t direct_conv2d_plan(const Conv2dShape& shape, DirectPass pass,
                                             std::shared_ptr<const DirectConv2d>& plan);

/// y = activation(conv(x, w) + bias); every element of y is written. y may alias no input, and
/// bases need only the alignment of f32. No workspace. Bitwise repeatable for one shape on one
/// device model; batch size and device may change the order of summation.
[[nodiscard]] cudaError_t direct_conv2d_forward(const DirectConv2d& plan, const Conv2dForward& args,
                                                cudaStream_t stream);

/// dx = the gradient of x, gated if asked; every element of dx is written. Otherwise as
/// direct_conv2d_forward.
[[nodiscard]] cudaError_t direct_conv2d_backward_data(const DirectConv2d& plan,
                                                      const Conv2dBackwardData& args,
                                                      cudaStream_t stream);

}  // namespace zerone::kernels::cuda
