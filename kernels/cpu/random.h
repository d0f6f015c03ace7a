// Random fills on the CPU, the same bits as kernels/cuda/random.h.
#pragma once

#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels::cpu {

/// out[i] = low + u * (high - low) for i < n, dense, = semantics; u in [0, 1) depends only on
/// (seed, offset + i) and has 24 bits (53 for f64). The result is rounded, so `high` itself may
/// appear. Float dtypes only; 16-bit values are rounded from f32. Independent of `threads`.
void uniform(void* out, std::int64_t n, DType dtype, double low, double high, std::uint64_t seed,
             std::uint64_t offset, int threads);

/// out[i] = mean + z * stddev, z standard normal; otherwise as uniform().
void normal(void* out, std::int64_t n, DType dtype, double mean, double stddev, std::uint64_t seed,
            std::uint64_t offset, int threads);

}  // namespace zerone::kernels::cpu
