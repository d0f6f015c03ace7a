// cuDNN as a peer of the own kernels: the library is found at run time, and a convolution (with
// bias and ReLU where cuDNN has an engine for the fused graph) becomes a plan that is built once
// and then run at little more than the cost of the cuDNN call.
//
// Nothing here needs cuDNN to link or to start. The library is `libcudnn.so.9`, looked for where
// the system's loader looks: a copy that the process has loaded already, LD_LIBRARY_PATH, the
// RUNPATH of the calling binary, the ld.so cache. Its sublibraries are then found by cuDNN itself.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/types.h>
#include <zerone/ops/vendor/built.h>

namespace zerone::vendor {

inline constexpr int cudnn_major = 9;           // must be equal
inline constexpr int cudnn_minimum_minor = 10;  // at least

/// Opens the library at the first call and checks its version. Returns an empty text once it is
/// usable, else why it is not: always the same answer within a process. Thread-safe.
const std::string& load_cudnn();

/// "9.14.0" of the library that was loaded, or "not loaded".
std::string cudnn_version_text();

/// A cudnnStatus_t without its header. 0 is success. Negative codes are this row's own.
struct [[nodiscard]] CudnnStatus {
  static constexpr int misaligned = -1;    // a pointer is less aligned than the plan was built for
  static constexpr int no_workspace = -2;  // the plan needs a workspace and got a null pointer

  int code = 0;

  bool ok() const { return code == 0; }
  std::string text() const;  // the code's name and cuDNN's last message on this thread
};

/// Owns a cudnnHandle_t. One handle serves one thread at a time.
class CudnnHandle {
 public:
  /// Loads the library if need be. The handle belongs to the device that is current now.
  static Built<CudnnHandle> create(cudaStream_t stream);
  ~CudnnHandle();
  CudnnHandle(const CudnnHandle&) = delete;
  CudnnHandle& operator=(const CudnnHandle&) = delete;

  CudnnStatus set_stream(cudaStream_t stream);
  cudaStream_t stream() const { return stream_; }
  void* get() const { return handle_; }  // cudnnHandle_t

 private:
  CudnnHandle(void* handle, cudaStream_t stream) : handle_(handle), stream_(stream) {}

  void* handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

enum class ConvPass : std::uint8_t { forward, backward_data, backward_weight };

/// Layouts: x, w and y all dense NCHW, or all dense NHWC (axes of size 1 fit any stride).
/// Arithmetic:
///   f32/strict     FMA: no tensor core, TF32, FFT, reduced-precision reduction or Winograd engine
///   f32/fp32       as strict, but Winograd engines stay allowed unless `allow_winograd` is off
///   f32/tf32       tensor cores with TF32 inputs allowed; no FFT or reduced-precision reduction
///   f32/bf16,fp16  not offered
///   bf16, f16      tensor cores, f32 accumulation; no FFT, Winograd, reduced-precision reduction
///   f64            f64 throughout; no FFT or Winograd
/// cuDNN describes its engines by numerical notes, and the filters go by those.
struct CudnnConv2dProblem {
  kernels::Conv2dShape shape;
  ConvPass pass = ConvPass::forward;
  DType dtype = DType::f32;  // of every tensor, bias included
  Math math = Math::fp32;
  bool bias = false;                         // forward only: bias (c_out)
  Activation activation = Activation::none;  // forward only
  bool deterministic = true;                 // leaves out engines noted as nondeterministic
  bool allow_winograd = true;                // f32/fp32 and f32/tf32 only, see above
  int alignment = 16;                        // bytes that every pointer is a multiple of
};

/// Device pointers of one call. A pass reads two of x, w, y (y standing for dy in a backward) and
/// the bias if the problem has one; it overwrites `result`, which is y, dx or dw.
struct CudnnConv2dPointers {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* y = nullptr;
  const void* bias = nullptr;
  void* result = nullptr;
};

struct CudnnBuildOptions {
  std::size_t workspace_limit = std::size_t{256} << 20;  // bytes
  /// Times the candidates on `pointers` and `workspace` (workspace_limit bytes), which it
  /// overwrites, and keeps the fastest. Waits for the stream; not under capture. Off: the first
  /// candidate of heuristics mode A that builds and fits, else the first fallback.
  bool tune = false;
  int tune_candidates = 12;  // builds and times at most this many
  CudnnConv2dPointers pointers;
  void* workspace = nullptr;
};

/// A convolution bound to one engine. A plan serves one thread at a time, and has to outlive every
/// CUDA graph that captured it (an engine compiled at run time owns the kernels' code).
class CudnnConv2d {
 public:
  static Built<CudnnConv2d> build(const CudnnHandle& handle, const CudnnConv2dProblem& problem,
                                  const CudnnBuildOptions& options);
  /// The plan that to_json() described, for the same problem; a reason if this cuDNN is another
  /// version or no longer offers that engine. `tune` is not looked at.
  static Built<CudnnConv2d> from_json(const CudnnHandle& handle, const CudnnConv2dProblem& problem,
                                      const std::string& json, const CudnnBuildOptions& options);
  ~CudnnConv2d();
  CudnnConv2d(const CudnnConv2d&) = delete;
  CudnnConv2d& operator=(const CudnnConv2d&) = delete;

  /// Enqueues on the handle's stream. Capturable; allocates no device memory and never waits.
  CudnnStatus run(const CudnnHandle& handle, const CudnnConv2dPointers& pointers, void* workspace);

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  const std::string& engine() const { return engine_; }  // "eng29_k2=3_k13=0": index and knobs
  const std::string& numerical_notes() const { return numerical_notes_; }  // "TENSOR_CORE, ..."
  const std::string& behavior_notes() const { return behavior_notes_; }
  const std::string& choice() const { return choice_; }  // how it was chosen, with times if tuned
  std::string to_json() const;

 private:
  struct Plan;
  CudnnConv2d();
  static Built<CudnnConv2d> select(const CudnnHandle& handle, const CudnnConv2dProblem& problem,
                                   const CudnnBuildOptions& options, const std::string& engine);

  std::unique_ptr<Plan> plan_;
  void* descriptor_ = nullptr;    // the plan's backend descriptor
  void* variant_pack_ = nullptr;  // finalized for pack_pointers_ and pack_workspace_
  int operands_ = 0;
  std::array<std::int64_t, 4> uids_{};
  std::array<void*, 4> pack_pointers_{};
  void* pack_workspace_ = nullptr;
  ConvPass pass_ = ConvPass::forward;
  bool bias_ = false;
  std::uintptr_t alignment_mask_ = 0;
  std::size_t workspace_bytes_ = 0;
  std::string engine_, numerical_notes_, behavior_notes_, choice_;
};

}  // namespace zerone::vendor
