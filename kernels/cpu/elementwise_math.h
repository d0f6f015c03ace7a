// The functions that kernels/elementwise_formulas.h asks for, on the CPU. Those of float have
// neither calls nor branches that compilers keep, so that loops over them vectorize; those of
// double are the standard library's. Part of files compiled once for each instruction set:
// everything has internal linkage.
//
// Polynomials were fitted at Chebyshev nodes to (e^r - 1 - r) / r^2, (log(1 + f) - f + f^2/2) /
// f^3, (tanh(t)/t - 1) / t^2 and (t + 4) Q(t) e^(t^2/2), with Q the upper tail of the standard
// normal: relative errors 1.2e-8, 2e-8, 7e-9 and 3e-8. Errors of the functions, rounding included,
// are given in units of the last place: the largest seen among all kinds of floats, against double.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <zerone/kernels/elementwise_formulas.h>

namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE {
namespace {

/// a * b + c, fused where that is one instruction.
ZERONE_HOST_DEVICE float multiply_add(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// c[0] + c[1] x + c[2] x^2 ...
template <int N>
ZERONE_HOST_DEVICE float polynomial(float x, const float (&c)[N]) {
  float sum = c[N - 1];
#pragma GCC unroll 16
  for (int i = N - 2; i >= 0; --i) sum = multiply_add(sum, x, c[i]);
  return sum;
}

ZERONE_HOST_DEVICE float power_of_two(std::int32_t exponent) {  // of a normal float
  return std::bit_cast<float>((exponent + 127) << 23);
}

struct Functions {
  ZERONE_HOST_DEVICE static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  ZERONE_HOST_DEVICE static double fma(double a, double b, double c) { return std::fma(a, b, c); }
  ZERONE_HOST_DEVICE static float inverse(float x) { return 1 / x; }
  ZERONE_HOST_DEVICE static double inverse(double x) { return 1 / x; }

  /// e^(x + rest) for |rest| < 0.1; 1.1 units.
  ZERONE_HOST_DEVICE static float exp(float x, float rest = 0) {
    // 2^n e^r with |r| <= log(2)/2; beyond these limits the result is infinite or 0.
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.5f ? -104.5f : x;
    constexpr float shift = 0x1.8p23f;  // adding it rounds to an integer, in the low bits
    const float shifted = multiply_add(x + rest, 0x1.715476p+0f, shift);
    const float n = shifted - shift;
    float r = multiply_add(n, -0x1.62ep-1f, x);  // log(2) in two pieces; the first product is exact
    r = multiply_add(n, -0x1.0bfbe8p-15f, r) + rest;
    const float q =
        polynomial(r, {0.5f, 0.166665703f, 0.041666545f, 0.00836438034f, 0.00139276846f});
    const float e = 1 + multiply_add(r * r, q, r);
    // Two factors, as 2^n alone may be no float.
    const std::int32_t exponent =
        std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(shift);
    const std::int32_t half = exponent >> 1;
    return e * power_of_two(half) * power_of_two(exponent - half);
  }
  ZERONE_HOST_DEVICE static double exp(double x) { return std::exp(x); }

  /// 1 unit.
  ZERONE_HOST_DEVICE static float log(float x) {
    // n log(2) + log(1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
    constexpr std::uint32_t root_half = 0x3f3504f3;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const bool denormal = x < std::numeric_limits<float>::min();
    const float scaled = denormal ? x * 0x1p23f : x;
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled) - root_half;
    const std::int32_t exponent = static_cast<std::int32_t>(bits) >> 23;
    const float n = static_cast<float>(exponent - (denormal ? 23 : 0));
    const float f = std::bit_cast<float>((bits & 0x7fffff) + root_half) - 1;
    const float p = polynomial(f, {0.333333313f, -0.25000307f, 0.200010449f, -0.166412815f,
                                   0.142144963f, -0.129981831f, 0.126223192f, -0.0790274367f});
    float small = multiply_add(f * f * f, p, -0.5f * f * f);
    small = multiply_add(n, 0x1.0bfbe8p-15f, small);
    const float result = multiply_add(n, 0x1.62ep-1f, f + small);
    const float of_positive = x < infinity ? result : x;
    return x > 0 ? of_positive : x == 0 ? -infinity : std::numeric_limits<float>::quiet_NaN();
  }
  ZERONE_HOST_DEVICE static double log(double x) { return std::log(x); }

  /// 1.4 units.
  ZERONE_HOST_DEVICE static float tanh(float x) {
    const float t = std::fabs(x), z = t * t;
    const float p = polynomial(z, {-0.333333343f, 0.133332908f, -0.0539563484f, 0.0217461865f,
                                   -0.00827245694f, 0.00221490278f});
    const float small = multiply_add(t * z, p, t);
    const float large = 1 - 2 / (exp(2 * t) + 1);
    return std::copysign(t < 0.625f ? small : large, x);
  }
  ZERONE_HOST_DEVICE static double tanh(double x) { return std::tanh(x); }

  /// 6 units (cdf), 2.1 (density).
  ZERONE_HOST_DEVICE static Normal<float> normal(float x) {
    float t = std::fabs(x);
    t = t > 15.0f ? 15.0f : t;  // from there on both are 0
    // e^(-t^2/2) with t^2 = high^2 + (t + high) low, where high has 12 bits and an exact square.
    const float high = std::bit_cast<float>(std::bit_cast<std::uint32_t>(t) & 0xfffff000u);
    const float e = exp(-0.5f * high * high, -0.5f * (t + high) * (t - high));
    const float scale = 1 / (t + 4);
    const float p =
        polynomial((t - 4) * scale, {0.755285144f, -0.607896626f, 0.387136668f, -0.186523005f,
                                     0.0604064688f, -0.00752721308f, -0.00352357398f, 0.0015693137f,
                                     0.000194801847f, -0.000122983154f});
    const float tail = e * (p * scale);
    return {x < 0 ? tail : 1 - tail, e * 0.398942280f};
  }
  ZERONE_HOST_DEVICE static Normal<double> normal(double x) {
    return {0.5 * std::erfc(-0.70710678118654752440 * x),
            std::exp(-0.5 * x * x) * 0.39894228040143267794};
  }
};

}  // namespace
}  // namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE
