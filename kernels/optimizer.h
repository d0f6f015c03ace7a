// What the CPU and CUDA kernels of optimizers and gradients share: their operands and the numbers
// that live on the device, so that a captured step finds today's values at each replay. Host code
// only; no device API.
#pragma once

#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels {

enum class OptimizerRule : std::uint8_t { sgd, adam };

/// One step of an optimizer, the same for all its tensors; optimizer_formulas.h has the arithmetic.
/// Every pointer is to a number on the kernel's device.
struct OptimizerStep {
  OptimizerRule rule = OptimizerRule::sgd;
  DType dtype = DType::f32;  // of values and gradients
  bool nesterov = false;
  bool decoupled_decay = false;  // AdamW: shrinks the value; else decay joins the gradient
  double momentum = 0;
  double beta1 = 0, beta2 = 0, epsilon = 0;
  double weight_decay = 0;
  const double* learning_rate = nullptr;
  const double* gradient_scale = nullptr;  // gradients are multiplied by it; null: by 1
  const double* skip = nullptr;            // nothing happens where it is not 0; null: never
};

/// What moves with Adam's step, in device memory: the steps taken and the bias corrections
/// 1 / (1 - beta1^steps) and 1 / sqrt(1 - beta2^steps) that follow from them.
struct OptimizerClock {
  double steps, mean_correction, root_correction;
};

/// One parameter: `count` elements without gaps, all in the same order. State and master are in the
/// compute type: double for f64, else float.
struct OptimizerTensor {
  void* value = nullptr;
  const void* gradient = nullptr;
  void* first = nullptr;   // Sgd: momentum, or null; Adam: running mean of the gradient
  void* second = nullptr;  // Adam: running mean of its square
  /// The value before rounding to 16 bits, or null. Where it does not round to the value, somebody
  /// else wrote that: then it starts again from the value.
  float* master = nullptr;
  const std::uint8_t* mask = nullptr;  // where it is 0, value, state and master become +0
  OptimizerClock* clock = nullptr;     // Adam; stands still where there are no elements
  std::int64_t count = 0;
};

/// One gradient, of any float dtype: `count` elements without gaps.
struct GradientTensor {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::f32;
};

/// What is known about gradients as a whole, in device memory.
struct GradientNorm {
  double norm;      // sqrt of the sum of all squares
  double factor;    // min(1, max_norm / (norm + 1e-6)); NaN if the norm is
  double overflow;  // 1 if the norm is infinite or NaN, else 0
};

/// Dynamic loss scaling, in device memory: the scale, 1 / scale, and the steps since it changed.
struct LossScale {
  double scale, inverse, steps;
};

/// At an overflow scale *= backoff; after `interval` steps without one, scale *= growth unless that
/// is beyond float.
struct LossScaleRule {
  double growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;
};

}  // namespace zerone::kernels
