// The arithmetic of optimizers, one formula for CPU and CUDA kernels. A sum of a product is always
// fma(), roots and quotients are correctly rounded, and a choice is one between values, never
// between computations, so that compilers vectorize it.
//
//   g = gradient_scale * gradient, and + weight_decay * value unless the decay is decoupled
//   Sgd    m = momentum * m + g                 value -= rate * (nesterov ? momentum * m + g : m)
//   Adam   m += (1 - beta1) * (g - m)           v = beta2 * v + (1 - beta2) * g^2
//          value -= rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//   AdamW  Adam, after value *= 1 - rate * weight_decay
//
// Sources: Sutskever et al., "On the importance of initialization and momentum in deep learning",
// ICML 2013, with the rate outside the buffer; Kingma and Ba, "Adam", ICLR 2015; Loshchilov and
// Hutter, "Decoupled weight decay regularization", ICLR 2019.
#pragma once

#include <cmath>

#include <zerone/kernels/optimizer.h>

#if defined(ZERONE_HOST_DEVICE)  // as in philox.h
#elif defined(__CUDACC__)
#define ZERONE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ZERONE_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace zerone::kernels {

/// The numbers of a step on one tensor, read from the device and rounded once to the compute type.
template <class C>
struct OptimizerNumbers {
  C scale, decay, keep, rate;  // decay joins the gradient; keep multiplies the value
  C momentum;
  C mean_weight, square_weight, beta2, root_correction, epsilon;
  bool nesterov;

  ZERONE_HOST_DEVICE OptimizerNumbers(const OptimizerStep& step, const OptimizerClock* clock) {
    const double learning_rate = *step.learning_rate;
    scale = step.gradient_scale == nullptr ? C(1) : static_cast<C>(*step.gradient_scale);
    decay = step.decoupled_decay ? C(0) : static_cast<C>(step.weight_decay);
    keep = step.decoupled_decay ? static_cast<C>(1 - learning_rate * step.weight_decay) : C(1);
    rate =
        static_cast<C>(clock == nullptr ? learning_rate : learning_rate * clock->mean_correction);
    momentum = static_cast<C>(step.momentum);
    mean_weight = static_cast<C>(1 - step.beta1);
    square_weight = static_cast<C>(1 - step.beta2);
    beta2 = static_cast<C>(step.beta2);
    root_correction = clock == nullptr ? C(0) : static_cast<C>(clock->root_correction);
    epsilon = static_cast<C>(step.epsilon);
    nesterov = step.nesterov;
  }
};

/// The new value of one element; `first` and `second` are updated in place.
template <OptimizerRule rule, class C>
ZERONE_HOST_DEVICE C stepped(const OptimizerNumbers<C>& n, C value, C gradient, C& first,
                             [[maybe_unused]] C& second) {
  C g = n.scale * gradient;
  const C decayed = std::fma(n.decay, value, g);
  g = n.decay == C(0) ? g : decayed;  // 0 * Inf adds nothing
  value *= n.keep;
  if constexpr (rule == OptimizerRule::sgd) {
    const C kept = std::fma(n.momentum, first, g);
    first = n.momentum == C(0) ? g : kept;
    const C ahead = std::fma(n.momentum, first, g);
    return std::fma(-n.rate, n.nesterov ? ahead : first, value);
  } else {
    first = std::fma(n.mean_weight, g - first, first);
    second = std::fma(n.beta2, second, n.square_weight * g * g);
    const C divisor = std::fma(std::sqrt(second), n.root_correction, n.epsilon);
    return std::fma(-n.rate, first / divisor, value);
  }
}

ZERONE_HOST_DEVICE void advance(OptimizerClock& clock, double beta1, double beta2) {
  clock.steps += 1;
  clock.mean_correction = 1 / (1 - std::pow(beta1, clock.steps));
  clock.root_correction = 1 / std::sqrt(1 - std::pow(beta2, clock.steps));
}

ZERONE_HOST_DEVICE GradientNorm gradient_norm_of(double sum_of_squares, double max_norm) {
  const double norm = std::sqrt(sum_of_squares);
  const double factor = max_norm / (norm + 1e-6);
  return {norm, factor > 1 ? 1 : factor, norm - norm == 0 ? 0.0 : 1.0};
}

ZERONE_HOST_DEVICE void advance(LossScale& state, const LossScaleRule& rule, bool overflow) {
  state.steps = overflow ? 0 : state.steps + 1;
  const bool grows = state.steps == static_cast<double>(rule.interval);
  const double scale = state.scale * (overflow ? rule.backoff : grows ? rule.growth : 1.0);
  constexpr double largest_float = 0x1.fffffep127;
  if (scale <= largest_float) state.scale = scale;
  if (grows) state.steps = 0;
  state.inverse = 1 / state.scale;
}

}  // namespace zerone::kernels
