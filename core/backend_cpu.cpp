// The host as a device: memory, and the core's few kernels.
#include <unistd.h>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <zerone/core/backend.h>
#include <zerone/core/context_state.h>
#include <zerone/core/error.h>
#include <zerone/kernels/cpu/elementwise.h>
#include <zerone/kernels/cpu/random.h>
#include <zerone/kernels/cpu/threads.h>

namespace zerone {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(ContextState& state) : state_(state) {
    CPU_ZERO(&cpus_);
    for (const int cpu : state.options.affinity) CPU_SET(cpu, &cpus_);
  }

  std::string device_name() const override {
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);)
      if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "CPU";
  }
  void activate() override {
    kernels::cpu::run_teams_on(state_.options.affinity.empty() ? nullptr : &cpus_);
  }

  void* allocate(std::size_t bytes) override {
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);  // the size must be a multiple
  }
  void deallocate(void* data) noexcept override { std::free(data); }
  std::size_t free_memory() const override {
    return static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  }

  void synchronize() override {}
  double elapsed_ms(const std::function<void()>& work) override {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }
  double device_us(const std::function<void()>& work) override {
    double least = 1e3 * elapsed_ms(work);
    for (int i = 0; i < 5; ++i) {
      const int calls = least < 200 ? 10 : 1;
      least = std::min(least, 1e3 / calls * elapsed_ms([&] {
                                for (int k = 0; k < calls; ++k) work();
                              }));
    }
    return least;
  }
  void check(const char*) override {}

  void upload(void* target, const void* source, std::size_t bytes) override {
    copy_bytes(target, source, bytes);
  }
  void download(void* target, const void* source, std::size_t bytes) override {
    copy_bytes(target, source, bytes);
  }
  void copy_bytes(void* target, const void* source, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);
  }

  Event record_event() override { return nullptr; }
  void wait_event(const Event&) override {}
  bool finished(const Event&) override { return true; }

  void fill(const kernels::View& out, double value) override {
    activate();
    kernels::cpu::fill(out, value, threads());
  }
  void copy(const kernels::View& out, const kernels::ConstView& x) override {
    activate();
    kernels::cpu::copy(out, x, threads());
  }
  void accumulate(const kernels::View& out, const kernels::ConstView& x) override {
    activate();
    kernels::cpu::binary(kernels::BinaryOp::add, out, out, x, threads());
  }
  void uniform(const kernels::View& out, double low, double high) override {
    activate();
    kernels::cpu::uniform(out.data, out.layout.numel(), out.dtype, low, high, state_.options.seed,
                          state_.random_offset, threads());
  }
  void normal(const kernels::View& out, double mean, double stddev) override {
    activate();
    kernels::cpu::normal(out.data, out.layout.numel(), out.dtype, mean, stddev, state_.options.seed,
                         state_.random_offset, threads());
  }

  void begin_capture() override {
    throw GraphError("[graph] capture needs a CUDA context; this is " + state_.name());
  }
  std::shared_ptr<void> end_capture(bool) override { return nullptr; }
  void replay(void*, bool, std::uint64_t) override {}

 private:
  int threads() const { return state_.options.threads; }
  ContextState& state_;
  cpu_set_t cpus_;  // of the context's affinity
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(ContextState& state) {
  return std::make_unique<CpuBackend>(state);
}

}  // namespace zerone
