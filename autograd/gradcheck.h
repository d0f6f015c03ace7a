// Checks gradients against central differences.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <zerone/autograd/tape.h>

namespace zerone {

/// How closely gradients have to agree.
struct GradcheckOptions {
  /// Step of the central difference. With small-integer data and a function that is at most
  /// quadratic in each element, a step of 1 makes the difference exact.
  double step = 1e-4;
  /// |analytic - numeric| <= absolute + relative * |numeric|
  double relative = 1e-6, absolute = 1e-6;
  std::uint64_t seed = 1;
};

/// Whether they do.
struct GradcheckResult {
  bool passed = false;
  double max_error = 0;  ///< largest |analytic - numeric| over all inputs
  std::string message;   ///< where the first failure is: input, element, both values
};

/// Compares the gradients that `function` records with central differences of a random projection
/// of its result, element by element. `inputs` are f64 tensors of one context, on any device; they
/// are not changed.
/// @code
/// const Tensor x = Tensor::uniform(context, {3, 4}, -1, 1, DType::f64);
/// const auto square = [](std::span<const Var> v) { return mul(v[0], v[0]); };
/// const bool right = gradcheck(square, {x}).passed;
/// @endcode
GradcheckResult gradcheck(const std::function<Var(std::span<const Var>)>& function,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace zerone
