// Device-side pieces of kernels that walk strided operands: vectors, conversions through the
// compute type, and index decoding by multiplication instead of division.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include <zerone/kernels/types.h>

namespace zerone::kernels::cuda {

/// N consecutive elements, loaded and stored by accesses of up to 16 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T values[N];
};

/// The type in which elements of T are computed.
template <class T>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <>
struct ComputeOf<std::int64_t> {
  using type = std::int64_t;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

/// An element in its compute type; exact.
template <class T>
__device__ __forceinline__ Compute<T> widen(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat162float(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else {
    return static_cast<Compute<T>>(value);
  }
}

/// A float, double or int64 rounded once to the element type (i64 beyond 2^53 passes through f64 on
/// its way to 16 bits). To an integer: toward zero, saturating, NaN to 0.
template <class T, class C>
__device__ __forceinline__ T narrow(C value) {
  if constexpr (std::is_same_v<T, C>) {
    return value;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (std::is_same_v<C, float>) return __float2bfloat16_rn(value);
    return __double2bfloat16(static_cast<double>(value));
  } else if constexpr (std::is_same_v<T, __half>) {
    if constexpr (std::is_same_v<C, float>) return __float2half_rn(value);
    return __double2half(static_cast<double>(value));
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    if constexpr (std::is_same_v<C, std::int64_t>) {
      return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
    } else {
      const C limited = value > C{0} ? (value < C{255} ? value : C{255}) : C{0};  // NaN gives 0
      return static_cast<std::uint8_t>(static_cast<unsigned>(limited));
    }
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    if (value != value) return 0;
    if constexpr (std::is_same_v<C, float>) return __float2ll_rz(value);  // saturates
    return __double2ll_rz(static_cast<double>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// n / divisor for n < 2^31, by a multiplication: with s = ceil(log2 d), the multiplier is
/// floor(2^32 (2^s - d) / d) + 1 and the quotient (mulhi(n, multiplier) + n) >> s.
struct FastDivisor {
  std::uint32_t divisor = 1, multiplier = 1, shift = 0;

  FastDivisor() = default;
  explicit FastDivisor(std::uint32_t d) : divisor(d) {
    while (shift < 31 && (std::uint32_t{1} << shift) < d) ++shift;
    const std::uint64_t power = std::uint64_t{1} << shift;
    multiplier = static_cast<std::uint32_t>(((power - d) << 32) / d + 1);
  }

  __device__ __forceinline__ std::uint32_t quotient(std::uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
};

inline bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

inline const void* advance(const void* pointer, std::int64_t elements, std::size_t element_bytes) {
  return static_cast<const char*>(pointer) + elements * static_cast<std::int64_t>(element_bytes);
}

inline void* advance(void* pointer, std::int64_t elements, std::size_t element_bytes) {
  return static_cast<char*>(pointer) + elements * static_cast<std::int64_t>(element_bytes);
}

}  // namespace zerone::kernels::cuda
