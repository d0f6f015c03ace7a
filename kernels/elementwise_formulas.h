// What each elementwise operation computes, one formula for CPU and CUDA kernels. `M` provides the
// device's functions of one number, for float and double:
//   fma(a, b, c)   one rounding
//   exp, log, tanh
//   inverse(x)     1 / x for x in [1, 2]
//   normal(x)      distribution function and density of the standard normal, as a Normal
// Overflow is kept out of the way: a finite argument never gives NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include <zerone/kernels/elementwise.h>

#if defined(ZERONE_HOST_DEVICE)  // as in philox.h
#elif defined(__CUDACC__)
#define ZERONE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ZERONE_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace zerone::kernels {

template <class C>
struct Normal {
  C cdf, density;
};

/// 1 / (1 + e^-x) and 1 / (1 + e^x), each to full relative accuracy.
template <class C>
struct Logistic {
  C value, complement;
};

template <class M, class C>
ZERONE_HOST_DEVICE Logistic<C> logistic(C x) {
  const C e = M::exp(-std::fabs(x));
  const C scale = M::inverse(C(1) + e);
  return {(x < C(0) ? e : C(1)) * scale, (x < C(0) ? C(1) : e) * scale};
}

/// GELU's tanh form is x * logistic(x * (linear + cubic * x^2)), since 1 + tanh(u) is twice the
/// logistic function of 2u.
template <class C>
struct GeluTanh {
  static constexpr C linear = C(1.5957691216057307117597842397375);  // 2 sqrt(2 / pi)
  static constexpr C cubic = C(0.044715 * 1.5957691216057307117597842397375);
};

template <class M, UnaryOp op, class C>
ZERONE_HOST_DEVICE C apply(C x, [[maybe_unused]] C alpha, [[maybe_unused]] C beta) {
  if constexpr (op == UnaryOp::relu) {
    return x <= C(0) ? C(0) : x;
  } else if constexpr (op == UnaryOp::affine) {
    return M::fma(alpha, x, beta);
  } else if constexpr (op == UnaryOp::leaky_relu) {
    return x > C(0) ? x : alpha * x;
  } else if constexpr (op == UnaryOp::clamp) {
    const C raised = x < alpha ? alpha : x;
    return raised > beta ? beta : raised;
  } else if constexpr (op == UnaryOp::exp) {
    return M::exp(x);
  } else if constexpr (op == UnaryOp::log) {
    return M::log(x);
  } else if constexpr (op == UnaryOp::sigmoid) {
    return logistic<M>(x).value;
  } else if constexpr (op == UnaryOp::tanh) {
    return M::tanh(x);
  } else if constexpr (op == UnaryOp::silu) {
    return x * logistic<M>(x).value;
  } else if constexpr (op == UnaryOp::gelu_erf) {
    return x * M::normal(x).cdf;
  } else {
    static_assert(op == UnaryOp::gelu_tanh);
    using Gelu = GeluTanh<C>;
    return x * logistic<M>(x * (Gelu::linear + Gelu::cubic * (x * x))).value;
  }
}

template <class M, BinaryOp op, class C>
ZERONE_HOST_DEVICE C apply(C a, C b, [[maybe_unused]] C alpha, [[maybe_unused]] C beta) {
  // Integers wrap around.
  using W = std::conditional_t<std::is_same_v<C, std::int64_t>, std::uint64_t, C>;
  if constexpr (op == BinaryOp::add) {
    return C(W(a) + W(b));
  } else if constexpr (op == BinaryOp::sub) {
    return C(W(a) - W(b));
  } else if constexpr (op == BinaryOp::mul) {
    return C(W(a) * W(b));
  } else if constexpr (op == BinaryOp::div) {
    return a / b;
  } else if constexpr (op == BinaryOp::relu_backward) {
    return b <= C(0) ? C(0) : a;
  } else if constexpr (op == BinaryOp::leaky_relu_backward) {
    return b > C(0) ? a : alpha * a;
  } else if constexpr (op == BinaryOp::clamp_backward) {
    return (b >= alpha) & (b <= beta) ? a : C(0);
  } else if constexpr (op == BinaryOp::sigmoid_backward) {
    return a * (b * (C(1) - b));
  } else if constexpr (op == BinaryOp::tanh_backward) {
    return a * ((C(1) - b) * (C(1) + b));
  } else if constexpr (op == BinaryOp::silu_backward) {
    const Logistic<C> s = logistic<M>(b);
    return a * (s.value * (C(1) + b * s.complement));
  } else if constexpr (op == BinaryOp::gelu_erf_backward) {
    const Normal<C> n = M::normal(b);
    return a * (n.cdf + b * n.density);
  } else {
    static_assert(op == BinaryOp::gelu_tanh_backward);
    using Gelu = GeluTanh<C>;
    const Logistic<C> s = logistic<M>(b * (Gelu::linear + Gelu::cubic * (b * b)));
    // Where the slope would overflow, value * complement has long been 0.
    const C bounded = std::fabs(b) > C(64) ? C(64) : b;
    const C slope = Gelu::linear + C(3) * Gelu::cubic * (bounded * bounded);
    return a * (s.value + b * (s.value * s.complement * slope));
  }
}

/// An operation as a type, so that each runs in a loop or kernel of its own.
template <auto op>
using Constant = std::integral_constant<decltype(op), op>;

/// Whether elements of type T have the operation: all floats do, i64 has sums and products.
template <class T>
constexpr bool takes(BinaryOp op) {
  return !std::is_integral_v<T> || (sizeof(T) == 8 && op <= BinaryOp::mul);
}

/// f(Constant<op>{})
template <class F>
decltype(auto) with_op(UnaryOp op, F&& f) {
  switch (op) {
    case UnaryOp::relu: break;
    case UnaryOp::affine: return f(Constant<UnaryOp::affine>{});
    case UnaryOp::leaky_relu: return f(Constant<UnaryOp::leaky_relu>{});
    case UnaryOp::clamp: return f(Constant<UnaryOp::clamp>{});
    case UnaryOp::exp: return f(Constant<UnaryOp::exp>{});
    case UnaryOp::log: return f(Constant<UnaryOp::log>{});
    case UnaryOp::sigmoid: return f(Constant<UnaryOp::sigmoid>{});
    case UnaryOp::tanh: return f(Constant<UnaryOp::tanh>{});
    case UnaryOp::silu: return f(Constant<UnaryOp::silu>{});
    case UnaryOp::gelu_erf: return f(Constant<UnaryOp::gelu_erf>{});
    case UnaryOp::gelu_tanh: return f(Constant<UnaryOp::gelu_tanh>{});
  }
  return f(Constant<UnaryOp::relu>{});
}

template <class F>
decltype(auto) with_op(BinaryOp op, F&& f) {
  switch (op) {
    case BinaryOp::add: break;
    case BinaryOp::sub: return f(Constant<BinaryOp::sub>{});
    case BinaryOp::mul: return f(Constant<BinaryOp::mul>{});
    case BinaryOp::div: return f(Constant<BinaryOp::div>{});
    case BinaryOp::relu_backward: return f(Constant<BinaryOp::relu_backward>{});
    case BinaryOp::leaky_relu_backward: return f(Constant<BinaryOp::leaky_relu_backward>{});
    case BinaryOp::clamp_backward: return f(Constant<BinaryOp::clamp_backward>{});
    case BinaryOp::sigmoid_backward: return f(Constant<BinaryOp::sigmoid_backward>{});
    case BinaryOp::tanh_backward: return f(Constant<BinaryOp::tanh_backward>{});
    case BinaryOp::silu_backward: return f(Constant<BinaryOp::silu_backward>{});
    case BinaryOp::gelu_erf_backward: return f(Constant<BinaryOp::gelu_erf_backward>{});
    case BinaryOp::gelu_tanh_backward: return f(Constant<BinaryOp::gelu_tanh_backward>{});
  }
  return f(Constant<BinaryOp::add>{});
}

}  // namespace zerone::kernels
