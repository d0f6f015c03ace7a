// What the CPU and CUDA dropout kernels share. Host code only; no device API.
#pragma once

#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels {

/// out[i] = x[i] * (element i is kept ? scale : 0) for i < n: float dtypes, dense, = semantics, any
/// alignment of out and x; out may be exactly x. One multiplication in the compute type (double for
/// f64, else float), rounded once, so a dropped NaN or infinity is NaN and a dropped -1 is -0.
struct Dropout {
  void* out = nullptr;
  const void* x = nullptr;
  std::int64_t n = 0;
  DType dtype = DType::f32;
  double scale = 1;
};

/// Bytes of the flags of n elements, four a byte: bit i % 4 of byte i / 4 is set where element i is
/// kept. Flags past n mean nothing.
constexpr std::int64_t dropout_flag_bytes(std::int64_t n) {
  return (n + 7) / 8 * 2;
}

/// Element i is kept where word i % 4 of the Philox block (seed, position + i / 4, tag_dropout) is
/// at most highest_kept: with probability (highest_kept + 1) / 2^32, the same for every dtype.
struct DropoutDraw {
  std::uint64_t seed = 0;
  std::uint32_t highest_kept = 0;
};

}  // namespace zerone::kernels
