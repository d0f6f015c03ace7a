// A CUDA device: streams, memory, transfers, capture and the core's few kernels.
#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <mutex>

#include <zerone/core/cuda_context.h>
#include <zerone/core/error.h>
#include <zerone/core/storage.h>
#include <zerone/kernels/cuda/elementwise.h>
#include <zerone/kernels/cuda/random.h>

namespace zerone {

void check_cuda(cudaError_t status, const char* where) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clear a launch error, so that the next call is judged by itself
  const std::string text =
      fmt::format("[{}] {}: {}", where, cudaGetErrorName(status), cudaGetErrorString(status));
  if (status == cudaErrorMemoryAllocation) throw OutOfMemoryError(text, 0);
  if (status == cudaErrorNoKernelImageForDevice)
    throw CudaError(text + "; this build was compiled for " ZERONE_CUDA_ARCHITECTURES
                           ", set CMAKE_CUDA_ARCHITECTURES to your GPU's");
  throw CudaError(text);
}

namespace {

struct Devices {
  int count = 0;
  std::string why_none;
};

const Devices& devices() {
  static const Devices found = [] {
    Devices result;
    const cudaError_t status = cudaGetDeviceCount(&result.count);
    if (status != cudaSuccess) {
      (void)cudaGetLastError();
      result.count = 0;
      result.why_none = fmt::format("{}: {}", cudaGetErrorName(status), cudaGetErrorString(status));
    } else if (result.count == 0) {
      result.why_none = "no CUDA device is visible";
    }
    return result;
  }();
  return found;
}

constexpr std::size_t staging_bytes = std::size_t{8} << 20;

class CudaBackend final : public Backend {
 public:
  CudaBackend(ContextState& state, int index, void* stream) : state_(state), index_(index) {
    activate();
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "context");
    info_.name = properties.name;
    info_.compute_capability = properties.major * 10 + properties.minor;
    info_.multiprocessors = properties.multiProcessorCount;
    info_.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
    if (stream) {
      stream_ = static_cast<cudaStream_t>(stream);
    } else {
      check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "context");
      owns_stream_ = true;
    }
    void* counter = nullptr;
    check_cuda(cudaMalloc(&counter, sizeof(*random_counter_)), "context");
    random_counter_ = static_cast<std::uint64_t*>(counter);
  }

  ~CudaBackend() override {
    (void)cudaSetDevice(index_);
    if (owns_stream_) {
      (void)cudaStreamSynchronize(stream_);
      (void)cudaStreamDestroy(stream_);
    }
    (void)cudaFree(random_counter_);
    for (cudaEvent_t event : timers_)
      if (event) (void)cudaEventDestroy(event);
    for (Staging& staging : staging_) {
      if (staging.data) (void)cudaFreeHost(staging.data);
      if (staging.event) (void)cudaEventDestroy(staging.event);
    }
  }

  cudaStream_t stream() const { return stream_; }
  const CudaDeviceInfo& info() const { return info_; }
  RandomPosition random_position() const {
    if (!state_.capture) return {nullptr, state_.random_offset};
    return {random_counter_, state_.random_offset - state_.capture->random_start};
  }

  std::string device_name() const override { return info_.name; }
  void activate() override { check_cuda(cudaSetDevice(index_), "context"); }

  void* allocate(std::size_t bytes) override {
    activate();
    void* data = nullptr;
    // A thread that captures may still allocate: the block comes from outside the graph.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "allocate");
    const cudaError_t status = cudaMalloc(&data, bytes);
    check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "allocate");
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check_cuda(status, "allocate");
    return data;
  }

  void deallocate(void* data) noexcept override {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaSetDevice(index_);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    (void)cudaFree(data);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
  }

  std::size_t free_memory() const override {
    std::size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }

  void synchronize() override {
    not_while_capturing("synchronize");
    activate();
    check_cuda(cudaStreamSynchronize(stream_), "synchronize");
  }
  double elapsed_ms(const std::function<void()>& work) override {
    not_while_capturing("timing");
    activate();
    for (cudaEvent_t& event : timers_)
      if (!event) check_cuda(cudaEventCreate(&event), "timing");
    check_cuda(cudaEventRecord(timers_[0], stream_), "timing");
    work();
    check_cuda(cudaEventRecord(timers_[1], stream_), "timing");
    check_cuda(cudaEventSynchronize(timers_[1]), "timing");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, timers_[0], timers_[1]), "timing");
    return milliseconds;
  }
  double device_us(const std::function<void()>& work) override {
    not_while_capturing("timing");
    activate();
    const double us = zerone::device_us(stream_, [&] {
      work();
      return true;
    });
    if (us < 0) check_cuda(cudaGetLastError(), "timing");
    return us;
  }
  void check(const char* where) override { check_cuda(cudaGetLastError(), where); }

  void upload(void* target, const void* source, std::size_t bytes) override {
    not_while_capturing("copy from the host");
    activate();
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t part = std::min(staging_bytes, bytes - done);
      Staging& staging = next_staging();
      std::memcpy(staging.data, static_cast<const std::byte*>(source) + done, part);
      check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(target) + done, staging.data, part,
                                 cudaMemcpyHostToDevice, stream_),
                 "copy from the host");
      check_cuda(cudaEventRecord(staging.event, stream_), "copy from the host");
      done += part;
    }
  }

  void download(void* target, const void* source, std::size_t bytes) override {
    not_while_capturing("copy to the host");
    activate();
    // The device fills one staging buffer while the host empties the other.
    struct Part {
      Staging* staging = nullptr;
      std::size_t begin = 0, bytes = 0;
    } previous;
    const auto land = [&](const Part& part) {
      if (!part.staging) return;
      check_cuda(cudaEventSynchronize(part.staging->event), "copy to the host");
      std::memcpy(static_cast<std::byte*>(target) + part.begin, part.staging->data, part.bytes);
    };
    for (std::size_t done = 0; done < bytes;) {
      const Part part{&next_staging(), done, std::min(staging_bytes, bytes - done)};
      check_cuda(cudaMemcpyAsync(part.staging->data, static_cast<const std::byte*>(source) + done,
                                 part.bytes, cudaMemcpyDeviceToHost, stream_),
                 "copy to the host");
      check_cuda(cudaEventRecord(part.staging->event, stream_), "copy to the host");
      land(previous);
      previous = part;
      done += part.bytes;
    }
    land(previous);
  }

  void copy_bytes(void* target, const void* source, std::size_t bytes) override {
    activate();
    check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream_), "copy");
  }

  Event record_event() override {
    not_while_capturing("use of a tensor by another context");
    activate();
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    Event handle(event, [](void* e) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(e)); });
    check_cuda(cudaEventRecord(event, stream_), "event");
    return handle;
  }
  void wait_event(const Event& event) override {
    activate();
    check_cuda(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event.get()), 0), "event");
  }
  bool finished(const Event& event) override {
    if (state_.capture) return false;  // asking could invalidate the capture
    const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event.get()));
    if (status != cudaSuccess) (void)cudaGetLastError();
    return status == cudaSuccess;
  }

  void fill(const kernels::View& out, double value) override {
    activate();
    check_cuda(kernels::cuda::fill(out, value, stream_), "fill");
  }
  void copy(const kernels::View& out, const kernels::ConstView& x) override {
    activate();
    check_cuda(kernels::cuda::copy(out, x, stream_), "copy");
  }
  void accumulate(const kernels::View& out, const kernels::ConstView& x) override {
    activate();
    check_cuda(kernels::cuda::binary(kernels::BinaryOp::add, out, out, x, stream_), "add_");
  }
  void uniform(const kernels::View& out, double low, double high) override {
    activate();
    const RandomPosition at = random_position();
    check_cuda(kernels::cuda::uniform(out.data, out.layout.numel(), out.dtype, low, high,
                                      state_.options.seed, at.counter, at.offset, stream_),
               "uniform");
  }
  void normal(const kernels::View& out, double mean, double stddev) override {
    activate();
    const RandomPosition at = random_position();
    check_cuda(kernels::cuda::normal(out.data, out.layout.numel(), out.dtype, mean, stddev,
                                     state_.options.seed, at.counter, at.offset, stream_),
               "normal");
  }

  void begin_capture() override {
    activate();
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "graph");
  }

  std::shared_ptr<void> end_capture(bool keep) override {
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_, &graph);
    const std::shared_ptr<CUgraph_st> owner(graph, [](cudaGraph_t g) {
      if (g) (void)cudaGraphDestroy(g);
    });
    check_cuda(status, "graph");
    if (!keep) return nullptr;
    cudaGraphExec_t executable = nullptr;
    check_cuda(cudaGraphInstantiate(&executable, graph, 0), "graph");
    return std::shared_ptr<void>(
        executable, [](void* e) { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(e)); });
  }

  void replay(void* graph, bool uses_random, std::uint64_t random_offset) override {
    activate();
    if (uses_random)
      check_cuda(kernels::cuda::set_u64(random_counter_, random_offset, stream_), "graph");
    check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_), "graph");
  }

 private:
  struct Staging {
    void* data = nullptr;
    cudaEvent_t event = nullptr;
  };

  void not_while_capturing(const char* what) const {
    if (state_.capture) throw GraphError(fmt::format("[graph] {} inside a capture", what));
  }

  Staging& next_staging() {
    Staging& staging = staging_[next_staging_++ % 2];
    if (!staging.data) {
      check_cuda(cudaMallocHost(&staging.data, staging_bytes), "staging buffer");
      check_cuda(cudaEventCreateWithFlags(&staging.event, cudaEventDisableTiming),
                 "staging buffer");
    }
    check_cuda(cudaEventSynchronize(staging.event), "staging buffer");
    return staging;
  }

  ContextState& state_;
  int index_;
  cudaStream_t stream_ = nullptr;
  bool owns_stream_ = false;
  CudaDeviceInfo info_;
  std::uint64_t* random_counter_ = nullptr;
  cudaEvent_t timers_[2] = {};
  Staging staging_[2];
  unsigned next_staging_ = 0;
};

const CudaBackend& cuda_backend(const ContextState& state) {
  return static_cast<const CudaBackend&>(*state.backend);
}

}  // namespace

int cuda_device_count() {
  return devices().count;
}
std::string why_no_cuda() {
  return devices().why_none;
}

double device_us(cudaStream_t stream, const std::function<bool()>& work, double hopeless_us) {
  struct Events {
    cudaEvent_t begin = nullptr, end = nullptr;
    ~Events() {
      if (begin) (void)cudaEventDestroy(begin);
      if (end) (void)cudaEventDestroy(end);
    }
  } events;
  if (cudaEventCreate(&events.begin) != cudaSuccess || cudaEventCreate(&events.end) != cudaSuccess)
    return -1;
  // `enqueue` between two events.
  const auto elapsed_us = [&](const auto& enqueue) -> double {
    float milliseconds = 0;
    const bool good = cudaEventRecord(events.begin, stream) == cudaSuccess && enqueue() &&
                      cudaEventRecord(events.end, stream) == cudaSuccess &&
                      cudaEventSynchronize(events.end) == cudaSuccess &&
                      cudaEventElapsedTime(&milliseconds, events.begin, events.end) == cudaSuccess;
    return good ? 1e3 * milliseconds : -1;
  };
  if (!work()) return -1;
  const double first = elapsed_us(work);
  if (first < 0 || first > hopeless_us) return first;

  constexpr double long_enough_us = 500;  // beside which a launch costs nothing
  const int calls = first > long_enough_us ? 1 : 16;
  std::shared_ptr<CUgraphExec_st> executable;
  if (calls > 1) {
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return -1;
    bool good = true;
    cudaGraph_t graph = nullptr;
    try {
      for (int i = 0; i < calls && good; ++i) good = work();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph);
      if (graph) (void)cudaGraphDestroy(graph);
      throw;
    }
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    cudaGraphExec_t instance = nullptr;
    good = good && ended == cudaSuccess && cudaGraphInstantiate(&instance, graph, 0) == cudaSuccess;
    if (graph) (void)cudaGraphDestroy(graph);
    if (good)
      executable = {instance, [](cudaGraphExec_t e) { (void)cudaGraphExecDestroy(e); }};
    else
      (void)cudaGetLastError();  // it cannot be captured: eager calls are timed instead
  }
  const auto enqueue = [&] {
    if (executable) return cudaGraphLaunch(executable.get(), stream) == cudaSuccess;
    for (int i = 0; i < calls; ++i)
      if (!work()) return false;
    return true;
  };
  double least = first * calls;
  for (int i = 0; i < 5; ++i) {
    const double us = elapsed_us(enqueue);
    if (us < 0) return us;
    least = std::min(least, us);
  }
  return least / calls;
}

cudaStream_t cuda_stream(const ContextState& state) {
  return cuda_backend(state).stream();
}
const CudaDeviceInfo& cuda_device_info(const ContextState& state) {
  return cuda_backend(state).info();
}
RandomPosition random_position(const ContextState& state) {
  return cuda_backend(state).random_position();
}

std::unique_ptr<Backend> make_cuda_backend(ContextState& state, int index, void* stream) {
  if (index < 0 || index >= devices().count)
    throw DeviceError(fmt::format(
        "[context] cuda:{} cannot be used: {}", index,
        devices().count == 0 ? devices().why_none
                             : fmt::format("{} CUDA devices are visible", devices().count)));
  return std::make_unique<CudaBackend>(state, index, stream);
}

}  // namespace zerone
