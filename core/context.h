// A Context is one device, one stream and everything that work on it needs: the caching allocator,
// the random generator, library handles, cached plans and the options in force.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <zerone/core/device.h>
#include <zerone/kernels/types.h>
#include <zerone/version.h>

namespace zerone {

class ContextState;

/// Whether operations look for zeros in their weights.
///   off        never
///   automatic  where it is expected to be faster
///   force      wherever a zero-skipping implementation accepts the problem
enum class ZeroSkip : std::uint8_t { off, automatic, force };

/// How 0*NaN and 0*Inf are treated where a zero weight is skipped.
///   fast    skipped: the result is as if the product were 0
///   strict  a problem with a non-finite input takes a dense implementation
enum class ZeroSkipNumerics : std::uint8_t { fast, strict };

/// What a context is made with; Context's set_ functions change modes and limits later.
/// @code
/// const Context two(Device::cpu(), {.threads = 2, .seed = 7});  // on any CPUs
/// const Tensor x = Tensor::normal(two, {64, 64});
/// @endcode
struct ContextOptions {
  Math math = Math::fp32;
  /// Restrict library implementations to those that repeat bit for bit. Own kernels always do.
  bool deterministic = true;
  ZeroSkip zero_skip = ZeroSkip::automatic;
  ZeroSkipNumerics zero_skip_numerics = ZeroSkipNumerics::fast;
  /// CPU threads of this context, the calling one included: at most so many work for it at a time,
  /// those of library implementations too. More than there are CPUs is allowed and seldom useful.
  /// 0: one for each CPU of `affinity` or, without that, what OpenMP would take (OMP_NUM_THREADS),
  /// bounded by the CPUs that the calling thread may run on and its cgroups' CPU quota.
  int threads = 0;
  /// Numbers of the CPUs that the context's threads share while they work in parallel, e.g. those
  /// of one NUMA node; empty leaves them where the calling thread may run. The calling thread has
  /// its own affinity mask back when an operation returns; work too small for two threads runs
  /// where that mask says. Leave OMP_PROC_BIND unset with it. Contexts on a GPU ignore it.
  std::vector<int> affinity = {};
  /// Most scratch memory, in bytes, that one operation may take from a library implementation.
  std::size_t workspace_limit = std::size_t{512} << 20;
  std::uint64_t seed = 0;
  /// A cudaStream_t of the caller's, which must outlive the context; null makes an own stream.
  void* stream = nullptr;
};

/// Allocator counters, in bytes.
struct MemoryStats {
  std::size_t live = 0;           ///< held by tensors and scratch
  std::size_t reserved = 0;       ///< taken from the device, cached blocks included
  std::size_t peak_live = 0;      ///< highest `live` since the last reset_peak_memory()
  std::size_t driver_calls = 0;   ///< allocations and frees that reached the driver, ever
  std::size_t layout_copied = 0;  ///< bytes written by contiguous() and other re-layouts, ever
};

/// A shared handle: copies mean the same context, and a tensor keeps its context's state alive, so
/// tensors may outlive every handle. One context serves one thread at a time; different contexts
/// are independent.
class Context {
 public:
  /// Throws DeviceError if the device or a CPU of the affinity cannot be used, with the cause, and
  /// LibraryError if these headers are not those of the library (version.h).
  explicit Context(Device device = Device::cpu(), const ContextOptions& options = {})
      : Context(device, options, ZERONE_VERSION) {}
  /// The context that a tensor or another handle shares. For operations.
  explicit Context(std::shared_ptr<ContextState> state) : state_(std::move(state)) {}

  Device device() const;                             ///< where it computes
  const ContextOptions& options() const;             ///< the options in force
  Math math() const { return options().math; }       ///< how f32 is multiplied
  int threads() const { return options().threads; }  ///< CPU threads, never 0
  /// "context #3 on cuda:0"
  std::string name() const;
  /// Device model, e.g. the GPU's or the CPU's name.
  std::string device_name() const;

  /// As the members of ContextOptions, from the next operation on.
  /// @{
  void set_math(Math);
  void set_deterministic(bool);
  void set_zero_skip(ZeroSkip);
  void set_zero_skip_numerics(ZeroSkipNumerics);
  void set_workspace_limit(std::size_t bytes);
  /// @}

  /// Makes operation `op` ("conv2d.forward") use implementation `row` ("cuda.cudnn") whatever the
  /// selection says; an empty row lifts it. Checked at use: SelectionError if the row rejects.
  void force(std::string_view op, std::string_view row);

  /// Restarts the random stream, at its beginning or where random_position() was.
  void seed(std::uint64_t seed, std::uint64_t position = 0);
  /// How much of the stream has been drawn: with options().seed all that a continuation needs.
  std::uint64_t random_position() const;

  /// Waits until all work submitted on this context has finished; reports asynchronous errors.
  void synchronize();

  /// The allocator's counters by now.
  MemoryStats memory() const;
  void reset_peak_memory();  ///< starts peak_live from what is live now
  /// Gives cached blocks back to the device.
  void empty_cache();

  /// The library's own side of the handle. @{
  ContextState& state() const { return *state_; }
  const std::shared_ptr<ContextState>& shared_state() const { return state_; }
  /// @}
  bool operator==(const Context& other) const { return state_ == other.state_; }

 private:
  Context(Device device, const ContextOptions& options, int version_of_headers);

  std::shared_ptr<ContextState> state_;
};

/// Sets an option of a context for a scope and restores it afterwards.
class ScopedMath {
 public:
  ScopedMath(Context context, Math math) : context_(std::move(context)), saved_(context_.math()) {
    context_.set_math(math);
  }
  ~ScopedMath() { context_.set_math(saved_); }
  ScopedMath(const ScopedMath&) = delete;
  ScopedMath& operator=(const ScopedMath&) = delete;

 private:
  Context context_;
  Math saved_;
};

/// Forces an implementation for a scope and restores afterwards what was forced before.
class ScopedForce {
 public:
  ScopedForce(Context context, std::string op, std::string_view row);
  ~ScopedForce() { context_.force(op_, saved_); }
  ScopedForce(const ScopedForce&) = delete;
  ScopedForce& operator=(const ScopedForce&) = delete;

 private:
  Context context_;
  std::string op_, saved_;
};

}  // namespace zerone
