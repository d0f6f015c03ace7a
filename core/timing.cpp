#include <zerone/core/timing.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include <zerone/core/context_state.h>

namespace zerone {
namespace {

template <class Once>
Timing sample(const TimingOptions& options, const std::function<void()>& work, Once&& once) {
  for (int i = 0; i < options.warmup; ++i) once(work);
  int repeats = 1;
  if (options.sample_ms > 0)
    repeats = std::clamp(
        static_cast<int>(std::lround(options.sample_ms / std::max(once(work), 1e-4))), 1, 10000);
  const std::function<void()> repeated = [&] {
    for (int i = 0; i < repeats; ++i) work();
  };
  Timing timing;
  for (int i = 0; i < std::max(options.samples, 1); ++i)
    timing.samples_ms.push_back(once(repeats == 1 ? work : repeated) / repeats);
  std::vector<double> sorted = timing.samples_ms;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  timing.min_ms = sorted.front();
  timing.median_ms =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  timing.mean_ms =
      std::accumulate(sorted.begin(), sorted.end(), 0.0) / static_cast<double>(sorted.size());
  return timing;
}

}  // namespace

Timing time_work(const Context& context, const std::function<void()>& work,
                 const TimingOptions& options) {
  Backend& backend = *context.state().backend;
  return sample(options, work,
                [&](const std::function<void()>& once) { return backend.elapsed_ms(once); });
}

Timing time_wall(const Context& context, const std::function<void()>& work,
                 const TimingOptions& options) {
  Backend& backend = *context.state().backend;
  return sample(options, work, [&](const std::function<void()>& once) {
    backend.synchronize();
    const auto start = std::chrono::steady_clock::now();
    once();
    backend.synchronize();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  });
}

}  // namespace zerone
