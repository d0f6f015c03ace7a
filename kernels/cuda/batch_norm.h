// Batch normalization on the GPU, float dtypes (else cudaErrorInvalidValue); contracts in
// kernels/batch_norm.h. Sums have an order that sizes, strides and the 16-byte alignment of the
// operands fix, never the device: bitwise repeatable. `workspace` is aligned to 16 bytes and
// overwritten.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include <zerone/kernels/batch_norm.h>

namespace zerone::kernels::cuda {

/// Bytes of workspace of batch_norm(); a few % of x's.
std::size_t batch_norm_workspace_bytes(const BatchNormForward& args);
[[nodiscard]] cudaError_t batch_norm(const BatchNormForward& args, void* workspace,
                                     cudaStream_t stream);

std::size_t batch_norm_backward_workspace_bytes(const BatchNormBackward& args);
[[nodiscard]] cudaError_t batch_norm_backward(const BatchNormBackward& args, void* workspace,
                                              cudaStream_t stream);

}  // namespace zerone::kernels::cuda
