// The pointwise contraction (1x1 convolution, linear on any view) as kernels see it.
#pragma once

#include <array>
#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels {

/// y[p, k] = act(sum over c of w[k, c] * x[p, c] + b[k]),  p a pixel, c < c_in, k < c_out.
/// Pixels are a grid of `pixels[0] x pixels[1] x pixels[2]` (outermost first; unused axes are 1,
/// kept at the front), after merging every pair of axes that x and y both allow to merge.
/// Strides count elements and are never negative; x strides may be 0 (broadcast). NCHW is
/// x_strides {0, c*hw, 1}, x_channel_stride hw; NHWC is {0, 0, c}, channel stride 1.
struct PointwiseShape {
  std::array<std::int64_t, 3> pixels{1, 1, 1};
  std::int64_t c_in = 0, c_out = 0;
  std::array<std::int64_t, 3> x_strides{}, y_strides{};
  std::int64_t x_channel_stride = 1, y_channel_stride = 1;
  std::int64_t w_stride_out = 0, w_stride_in = 1;  // w(k, c) at k*w_stride_out + c*w_stride_in

  constexpr std::int64_t pixel_count() const { return pixels[0] * pixels[1] * pixels[2]; }
  /// The problem whose forward is this one's backward-data: dx[p,c] = sum over k of w[k,c]*dy[p,k].
  constexpr PointwiseShape transposed() const {
    return {pixels,           c_out,       c_in,        y_strides, x_strides, y_channel_stride,
            x_channel_stride, w_stride_in, w_stride_out};
  }
  bool operator==(const PointwiseShape&) const = default;
};

/// Operands of y = activation(w x + bias). Every operand has element type `dtype`; `bias` holds
/// c_out dense values or is null. Backward-data is this pass on transposed().
struct PointwiseForward {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  Activation activation = Activation::none;
  DType dtype = DType::f32;
};

/// Operands of dw[k,c] = sum over p of dy[p,k] * x[p,c], which has w's strides, and of
/// db[k] = sum over p of dy[p,k], c_out dense values, or null where it is not wanted.
struct PointwiseBackwardWeight {
  const void* x = nullptr;
  const void* dy = nullptr;
  void* dw = nullptr;
  void* db = nullptr;
  DType dtype = DType::f32;
};

}  // namespace zerone::kernels
