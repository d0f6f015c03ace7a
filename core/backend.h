// What the core needs from a device: memory, transfers, events, capture and a few kernels. One
// implementation a device type (backend_cpu.cpp, backend_cuda.cpp). Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <zerone/core/context.h>

namespace zerone {

class ContextState;

/// A point in a stream's work. Empty on the CPU, where work is finished when it returns.
using Event = std::shared_ptr<void>;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string device_name() const = 0;
  /// Makes this device the calling thread's current one.
  virtual void activate() {}

  /// Device memory aligned to at least 256 bytes; nullptr if the device has none left.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* data) noexcept = 0;
  virtual std::size_t free_memory() const = 0;

  virtual void synchronize() = 0;
  /// Milliseconds that `work` takes on this device: between two events around what it enqueues, or
  /// by the host's clock on the CPU. Waits for the device.
  virtual double elapsed_ms(const std::function<void()>& work) = 0;
  /// Microseconds that one call of `work` takes this device when it need not wait for the host:
  /// the least of several measurements, after one call to warm up.
  virtual double device_us(const std::function<void()>& work) = 0;
  /// Reports an error of a kernel launched earlier as CudaError naming `where`.
  virtual void check(const char* where) = 0;

  /// Host to device: `source` may be reused when this returns; the copy is stream-ordered.
  virtual void upload(void* target, const void* source, std::size_t bytes) = 0;
  /// Device to host: finished when this returns.
  virtual void download(void* target, const void* source, std::size_t bytes) = 0;
  /// Within the device, stream-ordered.
  virtual void copy_bytes(void* target, const void* source, std::size_t bytes) = 0;

  virtual Event record_event() = 0;
  virtual void wait_event(const Event&) = 0;
  virtual bool finished(const Event&) = 0;

  virtual void fill(const kernels::View& out, double value) = 0;
  virtual void copy(const kernels::View& out, const kernels::ConstView& x) = 0;
  /// out += x
  virtual void accumulate(const kernels::View& out, const kernels::ConstView& x) = 0;
  virtual void uniform(const kernels::View& out, double low, double high) = 0;
  virtual void normal(const kernels::View& out, double mean, double stddev) = 0;

  // Capture. Backends without graphs throw GraphError from begin_capture.
  virtual void begin_capture() = 0;
  /// Ends the capture; an executable graph, or nullptr when `keep` is false.
  virtual std::shared_ptr<void> end_capture(bool keep) = 0;
  /// `random_offset` is stored where captured random kernels read it, if `uses_random`.
  virtual void replay(void* graph, bool uses_random, std::uint64_t random_offset) = 0;
};

std::unique_ptr<Backend> make_cpu_backend(ContextState&);
#if ZERONE_CUDA
/// Throws DeviceError if the device cannot be used.
std::unique_ptr<Backend> make_cuda_backend(ContextState&, int index, void* stream);
#endif

}  // namespace zerone
