// 2-D convolution (cross-correlation).
#pragma once

#include <array>
#include <optional>

#include <zerone/autograd/tape.h>
#include <zerone/kernels/conv2d.h>
#include <zerone/ops/implementation.h>
#include <zerone/ops/weight_zeros.h>

namespace zerone {

/// A value for height and one for width; one number means both.
struct Pair {
  std::int64_t h = 1, w = 1;
  constexpr Pair(std::int64_t both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor)
  constexpr Pair(std::int64_t height, std::int64_t width) : h(height), w(width) {}
  bool operator==(const Pair&) const = default;
};

/// Rows and columns of zeros around an image: the same on all sides, {vertical, horizontal}, or
/// {top, bottom, left, right}.
struct Padding {
  std::int64_t top = 0, bottom = 0, left = 0, right = 0;
  constexpr Padding(std::int64_t all)  // NOLINT(google-explicit-constructor)
      : top(all), bottom(all), left(all), right(all) {}
  constexpr Padding(std::int64_t vertical, std::int64_t horizontal)
      : top(vertical), bottom(vertical), left(horizontal), right(horizontal) {}
  constexpr Padding(std::int64_t top_, std::int64_t bottom_, std::int64_t left_,
                    std::int64_t right_)
      : top(top_), bottom(bottom_), left(left_), right(right_) {}
  bool operator==(const Padding&) const = default;
};

/// What a convolution does besides multiplying.
struct Conv2dParams {
  Pair stride = 1;
  Padding padding = 0;
  Pair dilation = 1;
  std::int64_t groups = 1;
  Activation activation = Activation::none;
  /// How f32 is multiplied; the context's mode by default.
  std::optional<Math> math = std::nullopt;
};

/// y = act(conv(x, w) + b)
///   x  [n, c_in, h, w]                 any strides; NCHW and NHWC are the fast ones
///   w  [c_out, c_in / groups, kh, kw]  any strides
///   b  [c_out] or undefined
///   y  [n, c_out, h_out, w_out],  h_out = (h + top + bottom - dilation.h * (kh - 1) - 1) /
///      stride.h + 1, in the memory order of x (where that is ambiguous, of w; else NCHW; one
///      channel is NHWC if its stride is 1, as contiguous_nhwc() makes it)
///
/// Floating-point tensors of one type and one context. Zeros in w are skipped where that is
/// expected to be faster (ContextOptions::zero_skip); zero_skip_numerics says what happens to
/// 0 * NaN. A kernel of size 1 with stride 1 and no padding runs as a pointwise contraction (lists
/// "pointwise.*"). In the backward pass a gradient that does not lie like y is first copied into
/// y's layout. Results repeat bit for bit, unless ContextOptions::deterministic is off.
///
/// Errors: ShapeError naming the sizes (padded size and kernel size where the kernel does not fit),
/// DTypeError, DeviceError.
/// @code
/// const Tensor x = Tensor::normal(context, {8, 16, 32, 32});
/// const Tensor w = Tensor::normal(context, {32, 16, 3, 3}), b = Tensor::zeros(context, {32});
/// const Var y = conv2d(x, w, b, {.stride = 2, .padding = 1, .activation = Activation::relu});
/// const Shape shape = y.shape();  // [8, 32, 16, 16]
/// @endcode
Var conv2d(const Var& x, const Var& w, const Var& b = {}, const Conv2dParams& params = {});

// --- implementation lists -----------------------------------------------------------------------

enum class Conv2dPass : std::uint8_t { forward, backward_data, backward_weight };

struct Conv2dDesc {
  kernels::Conv2dShape shape;
  Conv2dPass pass{};
  DType dtype{};
  Math math{};
  Activation activation{};    // forward
  bool bias = false;          // forward
  bool gated = false;         // backward data: see Conv2dDataArgs
  bool operand_zero = false;  // an operand is known to be zero
  bool skip_forced = false;   // ZeroSkip::force
  /// Zeros in the weight in per cent, in steps of 5; 100 only if all; -1 if unknown or not asked.
  int zero_percent = -1;
  int alignment = 16;  // bytes that every operand's address is a multiple of, up to 16
  bool operator==(const Conv2dDesc&) const = default;
  /// The same problem for those who do not know the weight's zeros.
  std::optional<Conv2dDesc> without_hints() const {
    if (zero_percent < 0) return std::nullopt;
    Conv2dDesc desc = *this;
    desc.zero_percent = -1;
    return desc;
  }
  std::size_t hash() const {
    return detail::hash_bytes(shape) + static_cast<std::size_t>(zero_percent * 64) +
           static_cast<std::size_t>(pass) * 16 + static_cast<std::size_t>(dtype);
  }
};
std::string to_string(const Conv2dDesc&);

struct Conv2dForwardArgs {
  const Tensor& x;
  const Tensor& w;
  const Tensor& b;  // or undefined
  Tensor& y;
  const WeightZeros& zeros;
  Tensor& result() const { return y; }
};
struct Conv2dDataArgs {
  const Tensor& dy;
  const Tensor& w;
  Tensor& dx;
  const Tensor& gate;  // or undefined; laid out as dx, which becomes 0 where it is not positive
  const WeightZeros& zeros;
  Tensor& result() const { return dx; }
};
struct Conv2dWeightArgs {
  const Tensor& x;
  const Tensor& dy;
  Tensor& dw;
  Tensor& result() const { return dw; }
};

using Conv2dForwardList = ImplementationList<Conv2dDesc, Conv2dForwardArgs>;
using Conv2dDataList = ImplementationList<Conv2dDesc, Conv2dDataArgs>;
using Conv2dWeightList = ImplementationList<Conv2dDesc, Conv2dWeightArgs>;
const Conv2dForwardList& conv2d_forward_list();
const Conv2dDataList& conv2d_backward_data_list();
const Conv2dWeightList& conv2d_backward_weight_list();

namespace conv2d_cpu {
std::span<const Conv2dForwardList::Row> forward_rows();
std::span<const Conv2dDataList::Row> data_rows();
std::span<const Conv2dWeightList::Row> weight_rows();
}  // namespace conv2d_cpu
namespace conv2d_cuda {
std::span<const Conv2dForwardList::Row> forward_rows();
std::span<const Conv2dDataList::Row> data_rows();
std::span<const Conv2dWeightList::Row> weight_rows();
}  // namespace conv2d_cuda

/// Sizes of the problem, checked; the strides are those of x, w and y where defined.
kernels::Conv2dShape make_conv2d_shape(const Tensor& x, const Tensor& w,
                                       const Conv2dParams& params);
/// An uninitialized y for x and w.
Tensor make_conv2d_result(const Tensor& x, const Tensor& w, const kernels::Conv2dShape& shape);

/// The passes on plain tensors; results are made by the caller. The strides in `shape` are replaced
/// by the operands' own.
void conv2d_forward(kernels::Conv2dShape shape, const Tensor& x, const Tensor& w, const Tensor& b,
                    Tensor& y, Activation, Math);
void conv2d_backward_data(kernels::Conv2dShape shape, const Tensor& dy, const Tensor& w, Tensor& dx,
                          Math, const Tensor& gate = {});
void conv2d_backward_weight(kernels::Conv2dShape shape, const Tensor& x, const Tensor& dy,
                            Tensor& dw, Math);

/// Finds out where a convolution weight is zero, waiting for the device at most once a version, so
/// that the next call can skip them.
void prepare(const Tensor& w, std::int64_t groups = 1);

/// For zero-skipping rows: why the problem is not theirs.
std::string reject_unless_all_zero(const Conv2dDesc&);
std::string reject_unless_known_zeros(const Conv2dDesc&);
void run_constant_forward(ContextState&, const Conv2dDesc&, const Conv2dForwardArgs&, Plan*);
void run_constant_data(ContextState&, const Conv2dDesc&, const Conv2dDataArgs&, Plan*);
/// For rows that do not gate dx themselves.
void gate_gradient(const Conv2dDataArgs&);
void run_constant_weight(ContextState&, const Conv2dDesc&, const Conv2dWeightArgs&, Plan*);

}  // namespace zerone
