// The oracle on the GPU: every pass as its definition, any strides, groups, dilation and padding,
// all four float types. Sums are accumulated in double in an order that the shape fixes, and
// rounded once. = semantics; results must not overlap operands. No workspace. Float dtypes only
// (else cudaErrorInvalidValue).
#pragma once

#include <cuda_runtime_api.h>

#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/pointwise.h>

namespace zerone::kernels::cuda::reference {

[[nodiscard]] cudaError_t conv2d_forward(const Conv2dShape& shape, const Conv2dForward& args,
                                         cudaStream_t stream);
[[nodiscard]] cudaError_t conv2d_backward_data(const Conv2dShape& shape,
                                               const Conv2dBackwardData& args, cudaStream_t stream);
[[nodiscard]] cudaError_t conv2d_backward_weight(const Conv2dShape& shape,
                                                 const Conv2dBackwardWeight& args,
                                                 cudaStream_t stream);
[[nodiscard]] cudaError_t pointwise_forward(const PointwiseShape& shape,
                                            const PointwiseForward& args, cudaStream_t stream);
/// dw, db or both (each where not null).
[[nodiscard]] cudaError_t pointwise_backward_weight(const PointwiseShape& shape,
                                                    const PointwiseBackwardWeight& args,
                                                    cudaStream_t stream);

}  // namespace zerone::kernels::cuda::reference
