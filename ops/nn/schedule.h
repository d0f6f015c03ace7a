// Learning rates that change with the step or the epoch: functions of its number, without state.
//
//   const nn::CosineSchedule schedule{.learning_rate = 0.1, .steps = 90, .warm_up = 5};
//   for (int epoch = 0; epoch < 95; ++epoch) {
//     optimizer.set_learning_rate(schedule(epoch));
//     ...
#pragma once

#include <cstdint>

namespace zerone::nn {

/// learning_rate * factor^floor(step / period), as PyTorch's StepLR. Throws ShapeError for a
/// negative step or a period below 1.
struct StepSchedule {
  double learning_rate = 0.1;
  std::int64_t period = 1;
  double factor = 0.1;
  double operator()(std::int64_t step) const;  ///< the rate of a step, from 0
};

/// Half a cosine from learning_rate down to `minimum`, as PyTorch's CosineAnnealingLR with
/// T_max = steps; beyond its end the cosine goes on, and up again. Before it, where warm_up is not
/// 0, as many steps from warm_up_factor * learning_rate up in a straight line, as PyTorch's
/// LinearLR before a SequentialLR's milestone. Throws ShapeError for a negative step, steps below 1
/// or a negative warm_up.
/// @code
/// const nn::CosineSchedule schedule{.learning_rate = 0.1, .steps = 90, .warm_up = 5};
/// for (int epoch = 0; epoch < 95; ++epoch) {
///   const double rate = schedule(epoch);  // for Optimizer::set_learning_rate
/// }
/// @endcode
struct CosineSchedule {
  double learning_rate = 0.1;
  std::int64_t steps = 1;  ///< of the cosine: the warm-up comes on top
  double minimum = 0;
  std::int64_t warm_up = 0;
  double warm_up_factor = 1.0 / 3;
  double operator()(std::int64_t step) const;  ///< the rate of a step, from 0
};

}  // namespace zerone::nn
