// What the CPU and CUDA softmax and cross-entropy kernels share. Host code only; no device API.
#pragma once

#include <cstddef>
#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone {

/// What becomes of the losses of the samples.
enum class Reduction : std::uint8_t {
  mean,  ///< their sum over the number of samples that are not ignored
  sum,
  none,
};

namespace kernels {

// Views of one call have one float dtype, equal sizes (unless stated) and any strides; results must
// not overlap operands. A line is what remains of x when every index but that of `axis` is fixed.

/// Of each line, with m its largest element and s = sum of exp(x - m):
///   y = exp(x - m) / s, or, `log`, (x - m) - log(s)
struct SoftmaxForward {
  View y{};
  ConstView x{};
  int axis = 0;
  bool log = false;
};

/// dx = y (dy - sum of y dy) or, `log`, dy - exp(y) * sum of dy
struct SoftmaxBackward {
  View dx{};
  ConstView dy{}, y{};
  int axis = 0;
  bool log = false;
};

/// x is (N, C, ...), labels i64 (N, ...). A sample with label t, m and s as above, e = smoothing:
///   loss = log(s) + (1 - e) (m - x_t) + e / C * sum of (m - x)
/// and 0 where t is `ignored`. A label outside of [0, C) makes its loss NaN.
struct CrossEntropyForward {
  ConstView x{}, labels{};
  View loss{};  // (N, ...) or, reduced, a scalar; dtype of x
  /// cross_entropy_saved() values of the compute type (double for f64, else float): m and s of each
  /// sample, in the order of x's memory, then, for a reduced loss, what that multiplies gradients
  /// with.
  void* saved = nullptr;
  Reduction reduction = Reduction::mean;
  double smoothing = 0;
  std::int64_t ignored = -100;
};

constexpr std::int64_t cross_entropy_saved(std::int64_t samples) {
  return 2 * samples + 1;
}

/// With g the gradient of a sample's loss (0 where ignored, NaN where its label is outside of
/// [0, C)):
///   dx = g (exp(x - m) / s - e / C - (1 - e where the class is t))
struct CrossEntropyBackward {
  View dx{};
  ConstView x{}, labels{}, dloss{};  // dloss as `loss`
  const void* saved = nullptr;
  Reduction reduction = Reduction::mean;
  double smoothing = 0;
  std::int64_t ignored = -100;
};

}  // namespace kernels
}  // namespace zerone
