// Dense direct weight gradient in plain f32 FMA for problems too small to fill the device
// otherwise.
#pragma once

#include <cuda_runtime_api.h>
#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/types.h>

#include <memory>
#include <string_view>

namespace zerone::kernels::cuda {

/// Empty if the problem can run, else the reason. Takes f32, one group, any strides, padding,
/// dilation and kernel whose input rows fit 64 KB of shared memory. A function of its arguments
/// alone. Correct for any n; meant for up to about 4K output pixels.
[[nodiscard]] std::string_view direct_conv2d_weight_reject(const Conv2dShape& shape, DType dtype);

/// How one shape is cut and launched; immutable.
struct DirectConv2dWeight;

/// Cuts a shape for the current device. Returns cudaErrorInvalidValue for a problem that the device
/// cannot run; where direct_conv2d_weight_reject is empty, every device can.
[[nodiscard]] cudaError_t direct_conv2d_weight_plan(
    const Conv2dShape& shape, std::shared_ptr<const DirectConv2dWeight>& plan);

/// dw = the gradient of w; every element of dw is written (zeros for an empty batch). dw may alias
/// no input, and bases need only the alignment of f32. No workspace. Bitwise repeatable for one
/// shape on one device model.
[[nodiscard]] cudaError_t direct_conv2d_backward_weight(const DirectConv2dWeight& plan,
                                                        const Conv2dBackwardWeight& args,
                                                        cudaStream_t stream);

}  // namespace zerone::kernels::cuda
