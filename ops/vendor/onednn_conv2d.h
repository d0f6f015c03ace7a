// Plans for f32 convolution passes by oneDNN: an optional peer of the project's own CPU kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <zerone/kernels/conv2d.h>

namespace zerone::vendor {

enum class Conv2dPass : std::uint8_t { forward, backward_data, backward_weight };

/// automatic is Winograd where oneDNN has its fast kind for the problem, else direct: a fixed rule,
/// nothing is timed. Winograd's rounding error is larger than that of a plain FMA loop, much larger
/// where magnitudes differ widely within a tile.
enum class OnednnAlgorithm : std::uint8_t { automatic, direct, winograd };

struct OnednnConv2dOptions {
  kernels::Conv2dShape shape;
  Conv2dPass pass = Conv2dPass::forward;
  bool bias = false;  // forward: added; backward weight: db wanted; otherwise ignored
  Activation activation = Activation::none;  // forward only
  OnednnAlgorithm algorithm = OnednnAlgorithm::automatic;
  int threads = 1;  // >= 1, also fixes the plan's choice of kernel
};

/// One pass on dense NCHW or NHWC tensors (x and y each in either) and dense KCRS or KRSC weights.
/// oneDNN computes in the layouts that it prefers; tensors in others are reordered inside run().
/// Two runs of one plan at a time are an error. Results may depend on `threads`.
class OnednnConv2d {
 public:
  /// Why oneDNN cannot take this problem, or empty. Builds nothing.
  static std::string reject(const OnednnConv2dOptions& options);

  /// A plan; throws std::runtime_error where reject() gives a reason or oneDNN finds no kernel.
  explicit OnednnConv2d(const OnednnConv2dOptions& options);
  ~OnednnConv2d();
  OnednnConv2d(OnednnConv2d&&) noexcept;
  OnednnConv2d& operator=(OnednnConv2d&&) noexcept;

  /// Passed as a weight's version, it says that the weight may have changed since the last run.
  static constexpr std::uint64_t unknown_version = ~std::uint64_t{0};

  /// y = activation(conv(x, w) + bias). A reordered copy of w is kept and reused while `w` and
  /// `version` stay the same.
  void run_forward(const float* x, const float* w, const float* bias, float* y,
                   std::uint64_t version = unknown_version);
  /// dx = gradient of x; w as in run_forward().
  void run_backward_data(const float* dy, const float* w, float* dx,
                         std::uint64_t version = unknown_version);
  /// dw = gradient of w, and db = gradient of the bias where the options ask for it.
  void run_backward_weight(const float* x, const float* dy, float* dw, float* db);

  /// oneDNN's name of the kernel, such as "jit:avx512_core".
  const std::string& implementation() const;
  /// Bytes that the plan holds: scratch, reordered tensors and the kept weight.
  std::size_t workspace_bytes() const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

/// "oneDNN 2.6.3"
std::string onednn_version();

}  // namespace zerone::vendor
