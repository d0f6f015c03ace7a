// Loops of the optimizer and gradient kernels, compiled once for each instruction set (see isa.h).
// A tensor is walked in blocks: values and gradients are widened to the compute type in a buffer on
// the stack that stays in the L1 cache, so that the arithmetic always vectorizes. State is in the
// compute type already and is updated where it lies. Built without errno from math functions, which
// would keep square roots from vectorizing.
#if !defined(ZERONE_ISA_NAMESPACE)
#define ZERONE_ISA_NAMESPACE baseline
#endif
#define ZERONE_JOIN_(a, b) a##b
#define ZERONE_JOIN(a, b) ZERONE_JOIN_(a, b)
#define Eigen ZERONE_JOIN(zerone_eigen_, ZERONE_ISA_NAMESPACE)
#define EIGEN_MPL2_ONLY
#include <Eigen/Core>

#include <algorithm>
#include <cstring>

#include <zerone/kernels/cpu/number.h>
#include <zerone/kernels/cpu/optimizer_isa.h>
#include <zerone/kernels/optimizer_formulas.h>

namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE {
namespace {

using Index = std::int64_t;

constexpr Index block = 512;  // elements; 4 KB a buffer at most

/// out = x, exact or rounded once.
template <class To, class From>
void convert(Index n, To* out, const From* x) {
  if constexpr (std::is_same_v<To, From>) {
    std::memcpy(out, x, static_cast<std::size_t>(n) * sizeof(To));
  } else {
    Eigen::Map<Eigen::Array<To, -1, 1>>(out, n) =
        Eigen::Map<const Eigen::Array<From, -1, 1>>(x, n).template cast<To>();
  }
}

/// f(first element, count) for each block of [begin, end).
template <class F>
void for_each_block(Index begin, Index end, F&& f) {
  for (Index at = begin; at < end; at += block) f(at, std::min(block, end - at));
}

/// value = master, where that rounds to `value`.
template <class T>
void follow_master(Index n, const float* master, float* value) {
  T rounded[block];
  float widened[block];
  convert(n, rounded, master);
  convert(n, widened, rounded);
  for (Index i = 0; i < n; ++i) value[i] = widened[i] == value[i] ? master[i] : value[i];
}

template <OptimizerRule rule, class C>
void step_block(const OptimizerNumbers<C>& numbers, Index n, C* __restrict value,
                const C* __restrict gradient, C* __restrict first, C* __restrict second) {
  for (Index i = 0; i < n; ++i)
    value[i] = stepped<rule>(numbers, value[i], gradient[i], first[i], second[i]);
}

template <class C>
void clear_masked(Index n, const std::uint8_t* mask, C* values) {
  for (Index i = 0; i < n; ++i) values[i] = mask[i] == 0 ? C(0) : values[i];
}

void step(const OptimizerStep& step, const OptimizerTensor& tensor, Index begin, Index end) {
  with_float_type(step.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const OptimizerNumbers<C> numbers(step, tensor.clock);
    C value[block], gradient[block], no_first[block] = {}, no_second[block] = {};
    for_each_block(begin, end, [&](Index at, Index n) {
      C* first = tensor.first == nullptr ? no_first : static_cast<C*>(tensor.first) + at;
      C* second = tensor.second == nullptr ? no_second : static_cast<C*>(tensor.second) + at;
      convert(n, value, static_cast<const T*>(tensor.value) + at);
      convert(n, gradient, static_cast<const T*>(tensor.gradient) + at);
      if constexpr (sizeof(T) == 2) {
        if (tensor.master != nullptr) follow_master<T>(n, tensor.master + at, value);
      }
      if (step.rule == OptimizerRule::sgd) {
        step_block<OptimizerRule::sgd>(numbers, n, value, gradient, first, second);
      } else {
        step_block<OptimizerRule::adam>(numbers, n, value, gradient, first, second);
      }
      if (tensor.mask != nullptr) {
        for (C* of : {value, first, second}) clear_masked(n, tensor.mask + at, of);
      }
      convert(n, static_cast<T*>(tensor.value) + at, value);
      if constexpr (sizeof(T) == 2) {
        if (tensor.master != nullptr) convert(n, tensor.master + at, value);
      }
    });
  });
}

double sum_of_squares(const GradientTensor& tensor, Index begin, Index end) {
  return with_float_type(tensor.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr Index lanes = 16;
    Compute<T> x[block];
    double sums[lanes] = {};
    for_each_block(begin, end, [&](Index at, Index n) {
      convert(n, x, static_cast<const T*>(tensor.data) + at);
      std::fill(x + n, x + (n + lanes - 1) / lanes * lanes, Compute<T>(0));
      for (Index i = 0; i < n; i += lanes)
        for (Index lane = 0; lane < lanes; ++lane) {
          const double wide = static_cast<double>(x[i + lane]);
          sums[lane] = std::fma(wide, wide, sums[lane]);
        }
    });
    for (Index width = lanes / 2; width > 0; width /= 2)
      for (Index lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
    return sums[0];
  });
}

/// data = f(data) in the compute type.
template <class F>
void update(const GradientTensor& tensor, Index begin, Index end, F&& f) {
  with_float_type(tensor.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    C x[block];
    for_each_block(begin, end, [&](Index at, Index n) {
      T* data = static_cast<T*>(tensor.data) + at;
      convert(n, x, data);
      for (Index i = 0; i < n; ++i) x[i] = f(x[i]);
      convert(n, data, x);
    });
  });
}

void scale(const GradientTensor& tensor, Index begin, Index end, double factor) {
  update(tensor, begin, end, [factor](auto x) { return x * static_cast<decltype(x)>(factor); });
}

void clamp(const GradientTensor& tensor, Index begin, Index end, double limit) {
  update(tensor, begin, end, [limit](auto x) {
    const auto most = static_cast<decltype(x)>(limit);
    const auto raised = x < -most ? -most : x;
    return raised > most ? most : raised;
  });
}

}  // namespace

extern const OptimizerLoops optimizer_loops;
const OptimizerLoops optimizer_loops = {step, sum_of_squares, scale, clamp};

}  // namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE
