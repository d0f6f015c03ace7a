// Random numbers that are the same bits on CPU and GPU: the counter-based generator Philox4x32-10
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and the maps from its
// words to uniform and normal values. Every rounding is spelled out: a sum of a product is always
// fma(), no product feeds a plain addition, and square roots and quotients are correctly rounded,
// so no compiler setting short of unsafe math changes a bit.
//
// Position j of a stream (seed) is an element index. f32 and 16-bit values take four positions
// from a Philox block, f64 values two, under different counter tags.
//
// Normals are Box-Muller pairs (positions 2i and 2i + 1): radius sqrt(-2 ln u), angle a full turn.
// The radius word has 32 bits (64 for f64), so |z| reaches 6.7 (9.4). The polynomials were fitted
// at Chebyshev nodes: relative errors 5e-8 (log), 5e-12 (sin), 7e-11 (cos) for float; below 4e-18
// for double, each before rounding.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define ZERONE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ZERONE_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace zerone::kernels::philox {

struct Block {
  std::uint32_t words[4];
};

/// Counter tags: the third counter word, which keeps f64 draws, narrower ones and dropout apart.
inline constexpr std::uint32_t tag_narrow = 0, tag_f64 = 1, tag_dropout = 2;

ZERONE_HOST_DEVICE Block block(std::uint64_t seed, std::uint64_t counter, std::uint32_t tag) {
  std::uint32_t a = static_cast<std::uint32_t>(counter);
  std::uint32_t b = static_cast<std::uint32_t>(counter >> 32);
  std::uint32_t c = tag, d = 0;
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#if defined(__CUDA_ARCH__)
#pragma unroll
#elif !defined(__CUDACC__)
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p = std::uint64_t{0xD2511F53u} * a;
    const std::uint64_t q = std::uint64_t{0xCD9E8D57u} * c;
    a = static_cast<std::uint32_t>(q >> 32) ^ b ^ k0;
    c = static_cast<std::uint32_t>(p >> 32) ^ d ^ k1;
    b = static_cast<std::uint32_t>(q);
    d = static_cast<std::uint32_t>(p);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

/// Which of four elements dropout keeps: bit k is set where word k is at most `highest_kept`.
ZERONE_HOST_DEVICE std::uint8_t kept_of_four(std::uint64_t seed, std::uint64_t counter,
                                             std::uint32_t highest_kept) {
  const Block w = block(seed, counter, tag_dropout);
  std::uint32_t kept = 0;
  for (int k = 0; k < 4; ++k) kept |= static_cast<std::uint32_t>(w.words[k] <= highest_kept) << k;
  return static_cast<std::uint8_t>(kept);
}

// Single operations with one rounding each.

ZERONE_HOST_DEVICE float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

ZERONE_HOST_DEVICE double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

ZERONE_HOST_DEVICE float mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

ZERONE_HOST_DEVICE double mul(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

ZERONE_HOST_DEVICE float square_root(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

ZERONE_HOST_DEVICE double square_root(double a) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(a);
#else
  return __builtin_sqrt(a);
#endif
}

ZERONE_HOST_DEVICE double quotient(double a, double b) {
#if defined(__CUDA_ARCH__)
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}

/// c[0] + c[1] t + ... + c[N - 1] t^(N - 1), by Horner's rule.
template <class T, int N>
ZERONE_HOST_DEVICE T polynomial(T t, const T (&c)[N]) {
  T sum = c[N - 1];
#if defined(__CUDA_ARCH__)
#pragma unroll
#elif !defined(__CUDACC__)
#pragma GCC unroll 16
#endif
  for (int i = N - 2; i >= 0; --i) sum = fma(sum, t, c[i]);
  return sum;
}

/// -2 ln u for u in (0, 1]: u = 2^e m with m in [sqrt(1/2), sqrt(2)).
ZERONE_HOST_DEVICE float minus_two_log(float u) {
  constexpr std::uint32_t root_half = 0x3F3504F3u;
  constexpr float c[] = {-4.999999765e-1f, 3.333333003e-1f,  -2.500078124e-1f,
                         2.000123446e-1f,  -1.662664563e-1f, 1.420485595e-1f,
                         -1.312755565e-1f, 1.272267279e-1f,  -7.673641502e-2f};
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(u) - root_half;
  const float e = static_cast<float>(static_cast<std::int32_t>(bits) >> 23);
  const float f = std::bit_cast<float>((bits & 0x007FFFFFu) + root_half) - 1.0f;  // exact
  const float log_m = fma(mul(f, f), polynomial(f, c), f);
  return fma(e, -1.386294361f, mul(-2.0f, log_m));
}

ZERONE_HOST_DEVICE double minus_two_log(double u) {
  constexpr std::uint64_t root_half = 0x3FE6A09E667F3BCDull;
  constexpr double c[] = {6.666666666666666646e-1, 4.000000000000087698e-1, 2.857142857080361181e-1,
                          2.222222239171391744e-1, 1.818179564013290628e-1, 1.538623970281465819e-1,
                          1.326877313865688518e-1, 1.308662614784010214e-1};
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(u) - root_half;
  const double e = static_cast<double>(static_cast<std::int32_t>(bits >> 32) >> 20);
  const double f = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFull) + root_half) - 1.0;
  const double s = quotient(f, 2.0 + f);  // m = (1 + s) / (1 - s), ln m = 2 s + s^3 Q(s^2)
  const double t = mul(s, s);
  const double log_m = fma(mul(s, t), polynomial(t, c), mul(2.0, s));
  return fma(e, -1.386294361119890619, mul(-2.0, log_m));
}

template <class T>
struct NormalPair {
  T first, second;
};

/// The angle is quadrant * pi/2 + x * pi/4, x in (-1, 1); s = sin(x pi/4), c = cos(x pi/4).
ZERONE_HOST_DEVICE NormalPair<float> on_circle(float r, std::uint32_t quadrant, float s, float c) {
  const bool swap = (quadrant & 1u) != 0;
  const std::uint32_t flip_first = ((quadrant + 1u) & 2u) << 30, flip_second = (quadrant & 2u)
                                                                               << 30;
  const float first = std::bit_cast<float>(std::bit_cast<std::uint32_t>(swap ? s : c) ^ flip_first);
  const float second =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(swap ? c : s) ^ flip_second);
  return {mul(r, first), mul(r, second)};
}

ZERONE_HOST_DEVICE NormalPair<double> on_circle(double r, std::uint64_t quadrant, double s,
                                                double c) {
  const bool swap = (quadrant & 1u) != 0;
  const std::uint64_t flip_first = ((quadrant + 1u) & 2u) << 62, flip_second = (quadrant & 2u)
                                                                               << 62;
  const double first =
      std::bit_cast<double>(std::bit_cast<std::uint64_t>(swap ? s : c) ^ flip_first);
  const double second =
      std::bit_cast<double>(std::bit_cast<std::uint64_t>(swap ? c : s) ^ flip_second);
  return {mul(r, first), mul(r, second)};
}

/// Two independent standard normals from two words.
ZERONE_HOST_DEVICE NormalPair<float> normal_pair(std::uint32_t radius, std::uint32_t angle) {
  constexpr float sine[] = {7.853981634e-1f, -8.074551202e-2f, 2.49039321e-3f, -3.657239263e-5f,
                            3.089966866e-7f};
  constexpr float cosine[] = {1.0f, -3.084251352e-1f, 1.585432523e-2f, -3.259385859e-4f,
                              3.529797134e-6f};
  const float u = fma(static_cast<float>(radius), 0x1p-32f, 0x1p-33f);
  const std::uint32_t turned = angle + 0x20000000u;
  const std::int32_t odd = static_cast<std::int32_t>(((turned & 0x3FFFFFFFu) << 1) - 0x3FFFFFFFu);
  const float x = mul(static_cast<float>(odd), 0x1p-30f);
  const float t = mul(x, x);
  return on_circle(square_root(minus_two_log(u)), turned >> 30, mul(x, polynomial(t, sine)),
                   polynomial(t, cosine));
}

ZERONE_HOST_DEVICE NormalPair<double> normal_pair(std::uint64_t radius, std::uint64_t angle) {
  constexpr double sine[] = {7.853981633974483096e-1, -8.074551218828078153e-2,
                             2.49039457019271639e-3,  -3.657620418214708649e-5,
                             3.133616889192818361e-7, -1.757247420480887598e-9,
                             6.94815411436722829e-12, -2.022590618589011341e-14};
  constexpr double cosine[] = {1.0,
                               -3.084251375340424568e-1,
                               1.585434424381550079e-2,
                               -3.259918869273893351e-4,
                               3.59086044858801989e-6,
                               -2.461136949485674295e-8,
                               1.150115741586044596e-10,
                               -3.897903725211399065e-13,
                               9.928366448096768085e-16};
  const double u = fma(static_cast<double>(radius), 0x1p-64, 0x1p-65);
  const std::uint64_t turned = angle + (std::uint64_t{1} << 61);
  constexpr std::uint64_t low = (std::uint64_t{1} << 62) - 1;
  const std::int64_t odd = static_cast<std::int64_t>(((turned & low) << 1) - low);
  const double x = mul(static_cast<double>(odd), 0x1p-62);
  const double t = mul(x, x);
  return on_circle(square_root(minus_two_log(u)), turned >> 62, mul(x, polynomial(t, sine)),
                   polynomial(t, cosine));
}

/// [0, 1) with 24 bits.
ZERONE_HOST_DEVICE float unit(std::uint32_t word) {
  return mul(static_cast<float>(static_cast<std::int32_t>(word >> 8)), 0x1p-24f);
}

/// [0, 1) with 53 bits.
ZERONE_HOST_DEVICE double unit(std::uint64_t word) {
  return mul(static_cast<double>(static_cast<std::int64_t>(word >> 11)), 0x1p-53);
}

ZERONE_HOST_DEVICE std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

// A draw maps each position to fma(value, b, a). Uniform: value u, a = low, b = high - low. Normal:
// value z, a = mean, b = stddev.

/// Positions 4 * counter + {0, 1, 2, 3}.
template <bool Normal>
ZERONE_HOST_DEVICE void values(std::uint64_t seed, std::uint64_t counter, float a, float b,
                               float (&out)[4]) {
  const Block w = block(seed, counter, tag_narrow);
  if constexpr (Normal) {
    const NormalPair<float> p = normal_pair(w.words[0], w.words[1]);
    const NormalPair<float> q = normal_pair(w.words[2], w.words[3]);
    out[0] = fma(p.first, b, a);
    out[1] = fma(p.second, b, a);
    out[2] = fma(q.first, b, a);
    out[3] = fma(q.second, b, a);
  } else {
    for (int i = 0; i < 4; ++i) out[i] = fma(unit(w.words[i]), b, a);
  }
}

/// Positions 2 * counter + {0, 1}.
template <bool Normal>
ZERONE_HOST_DEVICE void values(std::uint64_t seed, std::uint64_t counter, double a, double b,
                               double (&out)[2]) {
  const Block w = block(seed, counter, tag_f64);
  const std::uint64_t low = join(w.words[0], w.words[1]), high = join(w.words[2], w.words[3]);
  if constexpr (Normal) {
    const NormalPair<double> p = normal_pair(low, high);
    out[0] = fma(p.first, b, a);
    out[1] = fma(p.second, b, a);
  } else {
    out[0] = fma(unit(low), b, a);
    out[1] = fma(unit(high), b, a);
  }
}

}  // namespace zerone::kernels::philox
