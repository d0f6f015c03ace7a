// Dropout on the GPU, the same flags as kernels/cpu/dropout.h. See kernels/dropout.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include <zerone/kernels/dropout.h>

namespace zerone::kernels::cuda {

/// Draws, writes the flags unless `flags` (aligned to 2 bytes) is null, and applies them. The draw
/// begins at position + *device_position (0 where that is null); device_position is device memory,
/// read when the kernel runs: a captured graph advances its draws by changing it. Another dtype is
/// cudaErrorInvalidValue.
[[nodiscard]] cudaError_t dropout(const Dropout& args, const DropoutDraw& draw,
                                  const std::uint64_t* device_position, std::uint64_t position,
                                  std::uint8_t* flags, cudaStream_t stream);

/// Applies flags that are there: the gradient.
[[nodiscard]] cudaError_t dropout_backward(const Dropout& args, const std::uint8_t* flags,
                                           cudaStream_t stream);

}  // namespace zerone::kernels::cuda
