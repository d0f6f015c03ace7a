// Zero-skip convolution as kernels see it, CPU and CUDA: a census of the weight's zeros, a packed
// list of its nonzeros, and a convolution that walks only that list. The problem is a Conv2dShape.
#pragma once

#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/types.h>

#include <cstdint>

namespace zerone::kernels {

/// Which convolution the packed weight serves. forward: y = act(conv(x, w) + bias).
/// backward_data: dx, the gradient of the sum of y * dy by x.
enum class ZeroSkipPass : std::uint8_t { forward, backward_data };

/// What is zero in a weight (K,C,R,S). -0.0 is zero; NaN, infinities and denormals are not.
/// A dead filter is an output channel whose every weight is zero; a dead channel is an input
/// channel whose every weight, over the filters of its group, is zero.
struct ZeroCensus {
  std::int64_t elements = 0;
  std::int64_t zeros = 0;
  std::int64_t dead_filters = 0;
  std::int64_t dead_channels = 0;
};

/// The operands of one run, with the strides of the Conv2dShape: in has x_strides and out y_strides
/// in the forward pass, in (dy) has y_strides and out (dx) x_strides in backward_data, which takes
/// no bias and no activation. `bias` (c_out, contiguous) has `dtype` too, and may be null.
/// `pack` is what the same side's zero_skip_pack made for the same shape, pass and dtype.
struct ZeroSkipArgs {
  const void* in = nullptr;
  const void* pack = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  Activation activation = Activation::none;
  DType dtype = DType::f32;
};

}  // namespace zerone::kernels
