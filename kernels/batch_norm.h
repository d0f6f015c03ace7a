// What the CPU and CUDA batch normalizations share. Host code only; no device API.
#pragma once

#include <zerone/kernels/types.h>

namespace zerone::kernels {

// Channels C lie on axis 1 of x (N, C, ...), whose rank is 2 to max_rank; n is the number of values
// of a channel. Views of one call have equal sizes, float dtypes and any strides. Per-channel views
// are (C): x's dtype or its compute type (double for f64, else float), the same for all of a call;
// `mean` and `inv_std` are dense arrays of C values of the compute type.

/// Of each channel, with mean and var (biased) those of x if `training`, else the given ones:
///   inv_std = 1 / sqrt(var + eps)
///   y = (x - mean) * (inv_std * weight) + bias
///   training: running_mean += momentum * (mean - running_mean)
///             running_var  += momentum * (var * n / (n - 1) - running_var)
/// = semantics for y, mean and inv_std. Nothing is written if C or n is 0. y must not overlap x.
///
/// Statistics are joined in double from runs of values, each measured from a value of its own
/// magnitude, in an order that depends on sizes and strides only. With u the roundoff of the
/// compute type and S the standard deviation, whatever |mean| / S is,
///   |error of var| <= 4500 u var            |error of mean| <= 600 u S + u |mean|
/// where the first value of every run is an outlier; otherwise a few u in place of these multiples.
/// In f64 each join rounds, too.
struct BatchNormForward {
  View y{};
  ConstView x{};
  ConstView weight{}, bias{};           // null data: 1 and 0
  ConstView given_mean{}, given_var{};  // read unless training
  View running_mean{}, running_var{};   // updated in training; null data: not kept
  void* mean = nullptr;
  void* inv_std = nullptr;
  double momentum = 0, eps = 0;
  bool training = false;
};

/// With xhat = (x - mean) * inv_std and sums over a channel:
///   dweight = sum dy * xhat        dbias = sum dy
///   dx = weight * inv_std * (training ? dy - dbias / n - xhat * dweight / n : dy)
/// = semantics; a result with null data is not wanted. dx must not overlap an operand. The sums are
/// accumulated as the statistics of the forward pass are.
struct BatchNormBackward {
  View dx{}, dweight{}, dbias{};
  ConstView dy{}, x{};
  ConstView weight{};  // null data: 1
  const void* mean = nullptr;
  const void* inv_std = nullptr;
  bool training = false;
};

}  // namespace zerone::kernels
