// Honest timing: warm-up first, events (GPU) or a monotonic clock (CPU) around the work, a wait
// before any number is read.
#pragma once

#include <functional>
#include <vector>

#include <zerone/core/context.h>

namespace zerone {

/// How often to run what is timed.
struct TimingOptions {
  int warmup = 3;
  int samples = 20;
  /// Each sample repeats the work until it takes about this long, and divides; 0 runs it once.
  double sample_ms = 0;
};

/// What was measured, in milliseconds a run.
struct Timing {
  double median_ms = 0, min_ms = 0, mean_ms = 0;
  std::vector<double> samples_ms;
};

/// Time of `work` on the context's device.
/// @code
/// const Tensor x = Tensor::normal(context, {256, 256});
/// const Timing t = time_work(context, [&] { mul(x, x); }, {.warmup = 1, .samples = 5});
/// const bool sane = t.min_ms <= t.median_ms;
/// @endcode
Timing time_work(const Context&, const std::function<void()>& work, const TimingOptions& = {});

/// Wall-clock time of `work` followed by a wait for the device: what a caller experiences.
Timing time_wall(const Context&, const std::function<void()>& work, const TimingOptions& = {});

}  // namespace zerone
