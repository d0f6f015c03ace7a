#include <zerone/ops/nn/schedule.h>

#include <fmt/format.h>
#include <cmath>
#include <numbers>

#include <zerone/core/error.h>

namespace zerone::nn {

double StepSchedule::operator()(std::int64_t step) const {
  if (step < 0 || period < 1)
    throw ShapeError(fmt::format("[step_schedule] step {}, period {}", step, period));
  return learning_rate * std::pow(factor, static_cast<double>(step / period));
}

double CosineSchedule::operator()(std::int64_t step) const {
  if (step < 0 || steps < 1 || warm_up < 0)
    throw ShapeError(
        fmt::format("[cosine_schedule] step {} of {} after {} to warm up", step, steps, warm_up));
  if (step < warm_up) {
    const double done = static_cast<double>(step) / static_cast<double>(warm_up);
    return learning_rate * (warm_up_factor + (1 - warm_up_factor) * done);
  }
  const double done = static_cast<double>(step - warm_up) / static_cast<double>(steps);
  return minimum + (learning_rate - minimum) * (1 + std::cos(std::numbers::pi * done)) / 2;
}

}  // namespace zerone::nn
