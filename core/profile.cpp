#include <zerone/core/profile.h>

#include <atomic>
#include <cstdlib>
#include <string_view>

#if ZERONE_CUDA
#include <cuda_profiler_api.h>
#include <nvtx3/nvToolsExt.h>
#endif

namespace zerone {
namespace {

std::atomic<bool>& flag() {
  static std::atomic<bool> on = [] {
    const char* value = std::getenv("ZERONE_NVTX");
    return value && std::string_view(value) == "1";
  }();
  return on;
}

}  // namespace

void set_profiling(bool on) {
  flag() = on;
}
bool profiling() {
  return flag().load(std::memory_order_relaxed);
}

ProfileRange::ProfileRange(const char* name) : active_(profiling()) {
#if ZERONE_CUDA
  if (active_) nvtxRangePushA(name);
#else
  (void)name;
#endif
}

ProfileRange::~ProfileRange() {
#if ZERONE_CUDA
  if (active_) nvtxRangePop();
#endif
}

ProfileWindow::ProfileWindow() : saved_(profiling()) {
  set_profiling(true);
#if ZERONE_CUDA
  (void)cudaProfilerStart();
#endif
}

ProfileWindow::~ProfileWindow() {
#if ZERONE_CUDA
  (void)cudaProfilerStop();
#endif
  set_profiling(saved_);
}

}  // namespace zerone
