// Softmax and cross-entropy on the GPU, float dtypes (else cudaErrorInvalidValue); contracts in
// kernels/softmax.h. f64 computes in double, the rest in float. Sums have an order that sizes,
// strides and the 16-byte alignment of the operands fix, never the device: bitwise repeatable. NaN
// and infinities as on the CPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include <zerone/kernels/softmax.h>

namespace zerone::kernels::cuda {

[[nodiscard]] cudaError_t softmax(const SoftmaxForward& args, cudaStream_t stream);
[[nodiscard]] cudaError_t softmax_backward(const SoftmaxBackward& args, cudaStream_t stream);

/// Bytes of workspace of cross_entropy(): about a value and a byte a sample.
std::size_t cross_entropy_workspace_bytes(const CrossEntropyForward& args);
/// `workspace` is aligned to 16 bytes and overwritten.
[[nodiscard]] cudaError_t cross_entropy(const CrossEntropyForward& args, void* workspace,
                                        cudaStream_t stream);
[[nodiscard]] cudaError_t cross_entropy_backward(const CrossEntropyBackward& args,
                                                 cudaStream_t stream);

}  // namespace zerone::kernels::cuda
