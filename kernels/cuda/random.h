// Random fills on the GPU, the same bits as kernels/cpu/random.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels::cuda {

/// out[i] = low + u * (high - low) for i < n, dense, = semantics; u in [0, 1) depends only on
/// (seed, position + i) with position = offset + *device_offset (0 where that is null) and has 24
/// bits (53 for f64). The result is rounded, so `high` itself may appear. Float dtypes only; 16-bit
/// values are rounded from f32. `device_offset` is device memory, read when the kernel runs: a
/// captured graph advances its draws by changing it.
[[nodiscard]] cudaError_t uniform(void* out, std::int64_t n, DType dtype, double low, double high,
                                  std::uint64_t seed, const std::uint64_t* device_offset,
                                  std::uint64_t offset, cudaStream_t stream);

/// out[i] = mean + z * stddev, z standard normal; otherwise as uniform().
[[nodiscard]] cudaError_t normal(void* out, std::int64_t n, DType dtype, double mean, double stddev,
                                 std::uint64_t seed, const std::uint64_t* device_offset,
                                 std::uint64_t offset, cudaStream_t stream);

/// *device_ptr = value, in stream order.
[[nodiscard]] cudaError_t set_u64(std::uint64_t* device_ptr, std::uint64_t value,
                                  cudaStream_t stream);

}  // namespace zerone::kernels::cuda
