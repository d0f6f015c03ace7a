// The one way in which CPU kernels use threads.
#pragma once

#include <omp.h>

#include <cstdint>
#include <type_traits>

#include <zerone/kernels/cpu/threads.h>

namespace zerone::kernels::cpu {

/// Calls f(begin, end) or f(begin, end, worker) on disjoint ranges that cover [0, count): at most
/// `threads` ranges of at least `grain` indices, worker < threads. Runs on the caller's thread
/// when there is work for one range only, and inside another parallel region. How the ranges are
/// cut depends on `threads`, so an index must give the same result in any range. f must not throw.
/// Ranges of a team run on the CPUs that run_teams_on() was given.
template <class F>
void parallel_for(int threads, std::int64_t count, std::int64_t grain, F&& f) {
  const auto call = [&f](std::int64_t begin, std::int64_t end, int worker) {
    if constexpr (std::is_invocable_v<F&, std::int64_t, std::int64_t, int>) {
      f(begin, end, worker);
    } else {
      f(begin, end);
    }
  };
  if (count <= 0) return;
  const std::int64_t most = grain > 1 ? count / grain : count;
  const int ranges = static_cast<int>(most < threads ? most : threads);
  if (ranges <= 1 || omp_in_parallel()) {
    call(0, count, 0);
    return;
  }
  // Always a team of `threads`: libgomp ends threads when a smaller team follows a larger one and
  // starts new ones for the next, which costs more than the work of a small region.
  const TeamCpus cpus;
#pragma omp parallel num_threads(threads)
  {
    cpus.pin();
    // The runtime may grant fewer threads than asked for.
    const std::int64_t team = omp_get_num_threads(), granted = team < ranges ? team : ranges;
    const std::int64_t worker = omp_get_thread_num();
    const std::int64_t share = count / granted, rest = count % granted;
    const std::int64_t begin = worker * share + (worker < rest ? worker : rest);
    const std::int64_t end = begin + share + (worker < rest ? 1 : 0);
    if (worker < granted && begin < end) call(begin, end, static_cast<int>(worker));
  }
}

}  // namespace zerone::kernels::cpu
