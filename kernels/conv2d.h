// The 2-D convolution problem as kernels see it: a shape of sizes and strides, and per pass the
// operands that go with it.
#pragma once

#include <array>
#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels {

/// y[n,k,p,q] = sum over c,r,s of w[k,c,r,s] * x[n, g(k)*c_in/groups + c, p*stride_h - pad_top +
/// r*dilation_h, q*stride_w - pad_left + s*dilation_w]   (cross-correlation, zero padding; out of
/// range reads are 0).
///   x (n, c_in, h, w)   w (c_out, c_in/groups, kh, kw)   y (n, c_out, h_out, w_out)
/// Index order is always N,C,H,W / K,C,R,S; the strides (in elements) say how it lies in memory,
/// so NCHW, NHWC, slices and permuted views are the same problem. Bottom and right padding are
/// implied by h_out and w_out. A pass reads the strides of the gradient where it takes a gradient
/// (dx has x_strides, dw has w_strides, dy has y_strides).
struct Conv2dShape {
  std::int64_t n = 0, c_in = 0, h = 0, w = 0;
  std::int64_t c_out = 0, kh = 1, kw = 1;
  std::int64_t h_out = 0, w_out = 0;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_top = 0, pad_left = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;
  std::array<std::int64_t, 4> x_strides{}, w_strides{}, y_strides{};

  bool operator==(const Conv2dShape&) const = default;
};

/// Operands of y = activation(conv(x, w) + bias). Every operand has element type `dtype`; `bias`
/// holds c_out dense values or is null.
struct Conv2dForward {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  Activation activation = Activation::none;
  DType dtype = DType::f32;
};

/// Operands of the gradient with respect to x; dx has x_strides. `gate` is null or has x_strides
/// too: dx becomes 0 where it is not positive (NaN lets dx pass), the gradient of a ReLU that made
/// x. Kernels that do not take one say so.
struct Conv2dBackwardData {
  const void* dy = nullptr;
  const void* w = nullptr;
  const void* gate = nullptr;
  void* dx = nullptr;
  DType dtype = DType::f32;
};

/// Operands of the gradient with respect to w; dw has w_strides.
struct Conv2dBackwardWeight {
  const void* x = nullptr;
  const void* dy = nullptr;
  void* dw = nullptr;
  DType dtype = DType::f32;
};

}  // namespace zerone::kernels
