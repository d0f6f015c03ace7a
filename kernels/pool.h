// The 2-D pooling problem as kernels see it: sizes and strides, the windows of one axis, and the
// operands of each pass.
//
// What the gradient of a maximum keeps is the place of the maximum in its window, kh * kw taps in
// row-major order: u8 where the window has at most 256 taps, else i64. Per output of a 2x2 window
// on f32 the backward pass then moves 4 (dy) + 1 (argmax) + 16 (dx) = 21 bytes; finding the maximum
// again would move 40 (x, y, dy, dx) and keep x and y alive. Wider places only come with windows so
// large that their bytes do not count.
#pragma once

#include <array>
#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels {

enum class PoolOp : std::uint8_t { max, average };

/// One axis of the windows. Window o begins at position o * stride - pad and has `kernel` taps,
/// `dilation` apart; taps outside [0, in) are left out. kernel == 0 makes windows adaptive instead:
/// window o covers [floor(o * in / out), ceil((o + 1) * in / out)).
template <class Index = std::int64_t>
struct PoolAxis {
  Index in = 0, out = 0;
  Index kernel = 1, stride = 1, dilation = 1;
  Index pad = 0;  // in front; behind the image `out` decides
  /// The positions of a window that the divisor of an average counts, [count_begin, count_end): the
  /// image with or without its padding. Averages have no dilation.
  Index count_begin = 0, count_end = 0;

  bool operator==(const PoolAxis&) const = default;
};

template <class Index>
struct PoolRange {
  Index begin = 0, end = 0;
};

namespace detail {
template <class Index>
constexpr Index larger(Index a, Index b) {
  return a > b ? a : b;
}
template <class Index>
constexpr Index smaller(Index a, Index b) {
  return a < b ? a : b;
}
}  // namespace detail

/// The taps of window o that lie in the image.
template <class Index>
constexpr PoolRange<Index> pool_taps(const PoolAxis<Index>& axis, Index o) {
  const Index first = o * axis.stride - axis.pad, d = axis.dilation;
  const Index begin = first >= 0 ? 0 : d == 1 ? -first : (d - 1 - first) / d;
  const Index rest = axis.in - first;  // positions from the first tap to the end of the image
  const Index end = rest <= 0 ? 0 : d == 1 ? rest : (rest + d - 1) / d;
  return {begin, detail::smaller(end, axis.kernel)};
}

/// The positions of the image that window o averages.
template <class Index>
constexpr PoolRange<Index> pool_window(const PoolAxis<Index>& axis, Index o) {
  if (axis.kernel == 0)
    return {o * axis.in / axis.out, ((o + 1) * axis.in + axis.out - 1) / axis.out};
  const Index first = o * axis.stride - axis.pad;
  return {detail::larger<Index>(first, 0), detail::smaller(first + axis.kernel, axis.in)};
}

/// This axis' factor of the divisor of window o.
template <class Index>
constexpr Index pool_divisor(const PoolAxis<Index>& axis, Index o) {
  if (axis.kernel == 0) {
    const PoolRange<Index> window = pool_window(axis, o);
    return window.end - window.begin;
  }
  const Index first = o * axis.stride - axis.pad;
  return detail::smaller(first + axis.kernel, axis.count_end) -
         detail::larger(first, axis.count_begin);
}

/// The windows from the first to the last that reach over position i; with dilation some of them
/// may skip it. by_stride(n) is n / stride for n >= 0.
template <class Index, class Quotient>
constexpr PoolRange<Index> pool_windows_over(const PoolAxis<Index>& axis, Index i,
                                             const Quotient& by_stride) {
  if (axis.kernel == 0)
    return {i * axis.out / axis.in, ((i + 1) * axis.out + axis.in - 1) / axis.in};
  const Index reach = (axis.kernel - 1) * axis.dilation, from = i + axis.pad;
  return {from <= reach ? 0 : by_stride(from - reach - 1) + 1,
          detail::smaller(by_stride(from) + 1, axis.out)};
}

/// x (n, c, h.in, w.in)   y (n, c, h.out, w.out)   argmax as y. Index order is always N,C,H,W; the
/// strides (in elements) say how it lies in memory. A gradient is read and written with the strides
/// of what it is the gradient of.
struct Pool2dShape {
  std::int64_t n = 0, c = 0;
  PoolAxis<> h, w;
  std::array<std::int64_t, 4> x_strides{}, y_strides{}, argmax_strides{};

  constexpr DType argmax_dtype() const {
    return h.kernel <= 256 && w.kernel <= 256 && h.kernel * w.kernel <= 256 ? DType::u8
                                                                            : DType::i64;
  }
  bool operator==(const Pool2dShape&) const = default;
};

/// y = the largest value, or the mean, of each window; x and y have type `dtype`. `argmax` (of
/// argmax_dtype()) is written where it is not null; for averages it is null.
struct Pool2dForward {
  const void* x = nullptr;
  void* y = nullptr;
  void* argmax = nullptr;
  DType dtype = DType::f32;
};

/// dx, = semantics. `argmax` is the forward pass's, null for averages.
struct Pool2dBackward {
  const void* dy = nullptr;
  const void* argmax = nullptr;
  void* dx = nullptr;
  DType dtype = DType::f32;
};

}  // namespace zerone::kernels
