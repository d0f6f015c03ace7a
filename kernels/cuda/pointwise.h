// CUDA kernels of the pointwise contraction (1x1 convolution, linear) in plain FMA arithmetic:
// f64 multiplies in f64, every other type in f32 with one rounding at the store.
#pragma once

#include <cuda_runtime_api.h>
#include <zerone/kernels/pointwise.h>
#include <zerone/kernels/types.h>

#include <cstddef>

namespace zerone::kernels::cuda {

/// y = activation(w x + bias), operands read in place in any strides. y is overwritten (=) and may
/// alias no input; its strides must address distinct elements. Bases need only the alignment of
/// their element. Bitwise repeatable on every device: the order of each sum depends on the shape,
/// the strides and the alignment alone. No workspace. Backward-data is this pass on
/// shape.transposed() with x = dy and y = dx.
/// Returns cudaErrorInvalidValue for a type that is not floating or more than 2^31 - 1025
/// channels.
[[nodiscard]] cudaError_t pointwise_forward(const PointwiseShape& shape,
                                            const PointwiseForward& args, cudaStream_t stream);

/// Bytes of scratch that pointwise_backward_weight needs, aligned to 16; a function of the shape
/// and type only.
[[nodiscard]] std::size_t pointwise_backward_weight_workspace_bytes(const PointwiseShape& shape,
                                                                    DType dtype);

/// dw = sum over pixels of dy x^T and db = sum over pixels of dy, both overwritten (=) and both
/// optional (null). dw has w's strides, which must address distinct elements. Zero pixels give
/// zeros. The pixels are cut into a number of ranges fixed by the shape; each is summed in one
/// f32 (f64) chain, and the partial sums are added in a fixed order: bitwise repeatable, and the
/// chains are short where there are many pixels. The outputs may alias no input.
[[nodiscard]] cudaError_t pointwise_backward_weight(const PointwiseShape& shape,
                                                    const PointwiseBackwardWeight& args,
                                                    void* workspace, cudaStream_t stream);

}  // namespace zerone::kernels::cuda
