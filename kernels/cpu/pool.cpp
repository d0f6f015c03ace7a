// Pooling works on lanes: neighbors along the axis that lies densest in memory, columns (NCHW) or
// channels (NHWC), a block of them at a time, in the compute type on the stack.
//   forward   Channels, and columns whose windows have all their columns inside the image, fold in
//             one tap after the other: a loop over x[lane * step] without a branch. 2x2 and 3x3
//             windows of columns, which lie too short for that, and windows on an edge or adaptive
//             ones, whose taps do not line up, are done one at a time in registers.
//   backward  Channels of a pixel of dx gather from the windows over it: each lane compares its
//             argmax with the tap that the pixel is to the window. Where columns are innermost, a
//             tile of dx that stays in L1 takes what the windows over it chose in it.
// Floor: the bytes of x and y; of dy, argmax and dx.
#include <zerone/kernels/cpu/pool.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zerone/kernels/cpu/pool.cpp"
#ifndef HWY_DISABLED_TARGETS  // not worth their build time
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <limits>

#include <zerone/kernels/cpu/number.h>
#include <zerone/kernels/cpu/parallel.h>

#ifndef ZERONE_KERNELS_CPU_POOL_SHARED
#define ZERONE_KERNELS_CPU_POOL_SHARED

namespace zerone::kernels::cpu {
namespace {

using Index = std::int64_t;
using Range = PoolRange<Index>;
using Axis = PoolAxis<>;

constexpr Index block = 256;      // lanes at a time
constexpr Index grain = 1 << 14;  // elements that are worth a thread

/// Of element `at` (N,C,H,W).
Index offset(const std::array<Index, 4>& strides, const std::array<Index, 4>& at) {
  return at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2] + at[3] * strides[3];
}

/// Whether channels are the lanes of a tensor with these strides.
bool channels_inside(const std::array<Index, 4>& strides, Index c) {
  return c > 1 && strides[1] < strides[3];
}

/// Indices (outer, middle, inner), walked in order from the one with number `at`.
struct Odometer {
  Index middle_size, inner_size, outer, middle, inner;

  Odometer(Index at, Index middles, Index inners)
      : middle_size(middles),
        inner_size(inners),
        outer(at / inners / middles),
        middle(at / inners % middles),
        inner(at % inners) {}
  void next() {
    if (++inner < inner_size) return;
    inner = 0;
    if (++middle < middle_size) return;
    middle = 0;
    ++outer;
  }
};

/// The ranges f(0), f(1), ... f(count - 1); the first ones are looked up, because they cost
/// divisions.
template <class F>
class Lookup {
 public:
  Lookup(Index count, F f) : f_(f) {
    for (Index i = 0; i < std::min(count, most); ++i) ranges_[static_cast<std::size_t>(i)] = f(i);
  }
  Range operator[](Index i) const {
    return i < most ? ranges_[static_cast<std::size_t>(i)] : f_(i);
  }

 private:
  static constexpr Index most = 256;
  F f_;
  std::array<Range, most> ranges_;
};

/// The taps of each window, or the positions of an adaptive one, numbered from first_position() on.
auto taps_of(const Axis& axis) {
  return Lookup(axis.out, [axis](Index o) {
    return axis.kernel == 0 ? pool_window(axis, o) : pool_taps(axis, o);
  });
}
Index first_position(const Axis& axis, Index o) {
  return axis.kernel == 0 ? 0 : o * axis.stride - axis.pad;
}

Range windows_over(const Axis& axis, Index i) {
  return pool_windows_over(axis, i, [&](Index n) { return n / axis.stride; });
}

/// This axis' factor of the divisor of window o, which has these taps.
Index divisor_of(const Axis& axis, Index o, Range taps) {
  return axis.kernel == 0 ? taps.end - taps.begin : pool_divisor(axis, o);
}

/// How far from the first tap of a window its others lie, in rows of so many elements; the first
/// ones are looked up.
class TapOffsets {
 public:
  explicit TapOffsets(const Pool2dShape& s) : s_(s) {}
  void set_row(Index elements) {
    if (row_ == elements) return;
    row_ = elements;
    for (Index tap = 0; tap < std::min(most, s_.h.kernel * s_.w.kernel); ++tap)
      offsets_[static_cast<std::size_t>(tap)] = of(tap);
  }
  Index operator[](Index tap) const {
    return tap < most ? offsets_[static_cast<std::size_t>(tap)] : of(tap);
  }

 private:
  static constexpr Index most = 256;
  Index of(Index tap) const {
    return tap / s_.w.kernel * s_.h.dilation * row_ + tap % s_.w.kernel * s_.w.dilation;
  }
  const Pool2dShape& s_;
  Index row_ = -1;
  std::array<Index, most> offsets_;
};

/// The windows that have all their taps in the image; none if they are adaptive.
Range windows_inside(const Axis& axis) {
  if (axis.kernel == 0) return {0, 0};
  const Index room = axis.in + axis.pad - (axis.kernel - 1) * axis.dilation - 1;
  const Index begin = (axis.pad + axis.stride - 1) / axis.stride;
  const Index end = room < 0 ? 0 : std::min(axis.out, room / axis.stride + 1);
  return {begin, std::max(begin, end)};
}

/// The tap of window o that position i is; -1 if it is none.
Index tap_at(const Axis& axis, Index o, Index i) {
  const Index distance = i + axis.pad - o * axis.stride;
  if (axis.dilation == 1) return distance;
  return distance % axis.dilation == 0 ? distance / axis.dilation : -1;
}

}  // namespace
}  // namespace zerone::kernels::cpu

#endif  // ZERONE_KERNELS_CPU_POOL_SHARED

HWY_BEFORE_NAMESPACE();
namespace zerone::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {

/// The taps of one window: tap (r, t) lies at x[r * down + t * right] and is number r * width + t.
template <class T>
struct Window {
  const T* x;
  Range rows, columns;
  Index down, right, width;
};

/// What the lanes of a maximum hold. fold() takes tap `tap` of n lanes from x[lane * step] into
/// lanes that clear() made; whole() makes one lane of a window, of K x K taps in the image if K >
/// 0.
template <class T, bool Keep>
struct Largest {
  using C = Compute<T>;
  // As wide as C, so that both go through the same number of vector lanes.
  using Place = std::conditional_t<sizeof(C) == 8, std::int64_t, std::int32_t>;
  static constexpr bool keeps_places = Keep, averages = false;
  C values[block];
  Place places[Keep ? block : 1];

  void clear(Index lane, Index n, Index first_tap) {
    std::fill_n(values + lane, n, -std::numeric_limits<C>::infinity());
    if constexpr (Keep) std::fill_n(places + lane, n, static_cast<Place>(first_tap));
  }
  template <int Step>
  void fold(Index lane, Index n, const T* HWY_RESTRICT x, Index step, Index tap) {
    C* HWY_RESTRICT best = values + lane;
    Place* HWY_RESTRICT place = Keep ? places + lane : places;
    const auto here = static_cast<Place>(tap);
    for (Index i = 0; i < n; ++i) {
      const C value = static_cast<C>(x[i * (Step > 0 ? Step : step)]);
      const bool better = (value > best[i]) | (value != value);
      best[i] = better ? value : best[i];
      if constexpr (Keep) place[i] = better ? here : place[i];
    }
  }
  template <int K>
  HWY_INLINE void whole(Index lane, Window<T> w) {
    if constexpr (K > 0) w.rows = w.columns = {0, K}, w.width = K;
    C best = -std::numeric_limits<C>::infinity();
    Index at = w.rows.begin * w.width + w.columns.begin;
    for (Index r = w.rows.begin; r < w.rows.end; ++r)
      for (Index t = w.columns.begin; t < w.columns.end; ++t) {
        const C value = static_cast<C>(w.x[r * w.down + t * w.right]);
        const bool better = (value > best) | (value != value);
        best = better ? value : best;
        at = better ? r * w.width + t : at;
      }
    values[lane] = best;
    if constexpr (Keep) places[lane] = static_cast<Place>(at);
  }
};

/// What the lanes of an average hold.
template <class T>
struct Total {
  using C = Compute<T>;
  static constexpr bool keeps_places = false, averages = true;
  C values[block];

  void clear(Index lane, Index n, Index) { std::fill_n(values + lane, n, C(0)); }
  template <int Step>
  void fold(Index lane, Index n, const T* HWY_RESTRICT x, Index step, Index) {
    C* HWY_RESTRICT sum = values + lane;
    for (Index i = 0; i < n; ++i) sum[i] += static_cast<C>(x[i * (Step > 0 ? Step : step)]);
  }
  template <int K>
  HWY_INLINE void whole(Index lane, Window<T> w) {
    if constexpr (K > 0) w.rows = w.columns = {0, K};
    C sum = 0;
    for (Index r = w.rows.begin; r < w.rows.end; ++r) {
      C row = 0;  // rows do not wait for each other
      for (Index t = w.columns.begin; t < w.columns.end; ++t)
        row += static_cast<C>(w.x[r * w.down + t * w.right]);
      sum += row;
    }
    values[lane] = sum;
  }
};

template <class Lanes, class T>
void fold(Lanes& lanes, Index lane, Index n, const T* x, Index step, Index tap) {
  switch (step) {
    case 1: return lanes.template fold<1>(lane, n, x, step, tap);
    case 2: return lanes.template fold<2>(lane, n, x, step, tap);
    default: return lanes.template fold<0>(lane, n, x, step, tap);
  }
}

template <class From, class To>
void store(Index n, const From* HWY_RESTRICT from, To* HWY_RESTRICT to, Index stride) {
  if (stride == 1) {
    for (Index i = 0; i < n; ++i) to[i] = static_cast<To>(from[i]);
  } else {
    for (Index i = 0; i < n; ++i) to[i * stride] = static_cast<To>(from[i]);
  }
}

/// n lanes to y and argmax, along `axis` of the strides, from the elements (n, c, p, q) on.
template <class T, class Lanes>
void finish(const Lanes& lanes, const Pool2dShape& s, const Pool2dForward& args,
            const std::array<Index, 4>& at, Index n, std::size_t axis) {
  store(n, lanes.values, static_cast<T*>(args.y) + offset(s.y_strides, at), s.y_strides[axis]);
  if constexpr (Lanes::keeps_places) {
    const Index to = offset(s.argmax_strides, at), step = s.argmax_strides[axis];
    if (s.argmax_dtype() == DType::u8) {
      store(n, lanes.places, static_cast<std::uint8_t*>(args.argmax) + to, step);
    } else {
      store(n, lanes.places, static_cast<Index*>(args.argmax) + to, step);
    }
  }
}

/// Lanes [0, count) of windows that lie `step` elements apart.
template <int K, class T, class Lanes>
void whole_windows(Lanes& lanes, Index lane, Index count, Window<T> window, Index step) {
  for (const Index end = lane + count; lane < end; ++lane, window.x += step)
    lanes.template whole<K>(lane, window);
}

/// Rows [begin, end) of y, numbered (n, c, p); lanes are columns.
template <class T, class Lanes>
void forward_columns(const Pool2dShape& s, const Pool2dForward& args, Index begin, Index end) {
  using C = Compute<T>;
  Lanes lanes;
  C divisors[block];  // of the columns' windows from divisors_from on
  Index divisors_from = -1;
  const auto taps_h = taps_of(s.h), taps_w = taps_of(s.w);
  const Range all_inside = windows_inside(s.w);
  const Index step = s.w.stride * s.x_strides[3];
  Odometer at(begin, s.c, s.h.out);
  for (Index row = begin; row < end; ++row, at.next()) {
    const Index p = at.inner;
    const Range rows = taps_h[p];
    const T* const x = static_cast<const T*>(args.x) +
                       offset(s.x_strides, {at.outer, at.middle, first_position(s.h, p)});
    const Index down = s.h.dilation * s.x_strides[2], right = s.w.dilation * s.x_strides[3];
    const bool square = s.h.kernel == s.w.kernel && rows.end - rows.begin == s.h.kernel;
    for (Index first = 0; first < s.w.out; first += block) {
      const Index last = std::min(first + block, s.w.out);
      const Range inside{std::clamp(all_inside.begin, first, last),
                         std::clamp(all_inside.end, first, last)};
      const auto one_by_one = [&](Index q0, Index q1) HWY_ATTR {
        for (Index q = q0; q < q1; ++q)
          lanes.template whole<0>(q - first, {x + first_position(s.w, q) * s.x_strides[3], rows,
                                              taps_w[q], down, right, s.w.kernel});
      };
      one_by_one(first, inside.begin);
      const Index lane = inside.begin - first, count = inside.end - inside.begin;
      const T* const from = x + first_position(s.w, inside.begin) * s.x_strides[3];
      const Window<T> window{from, rows, {0, s.w.kernel}, down, right, s.w.kernel};
      if (square && s.w.kernel == 2) {
        whole_windows<2>(lanes, lane, count, window, step);
      } else if (square && s.w.kernel == 3) {
        whole_windows<3>(lanes, lane, count, window, step);
      } else if (count > 0) {
        lanes.clear(lane, count, rows.begin * s.w.kernel);
        for (Index r = rows.begin; r < rows.end; ++r)
          for (Index t = 0; t < s.w.kernel; ++t)
            fold(lanes, lane, count, from + r * down + t * right, step, r * s.w.kernel + t);
      }
      one_by_one(inside.end, last);
      if constexpr (Lanes::averages) {
        if (divisors_from != first) {
          divisors_from = first;
          for (Index q = first; q < last; ++q)
            divisors[q - first] = static_cast<C>(divisor_of(s.w, q, taps_w[q]));
        }
        const auto divisor = static_cast<C>(divisor_of(s.h, p, rows));
        for (Index k = 0; k < last - first; ++k) lanes.values[k] /= divisor * divisors[k];
      }
      finish<T>(lanes, s, args, {at.outer, at.middle, p, first}, last - first, 3);
    }
  }
}

/// Pixels [begin, end) of y, numbered (n, p, q); lanes are channels.
template <class T, class Lanes>
void forward_channels(const Pool2dShape& s, const Pool2dForward& args, Index begin, Index end) {
  using C = Compute<T>;
  Lanes lanes;
  const auto taps_h = taps_of(s.h), taps_w = taps_of(s.w);
  Odometer at(begin, s.h.out, s.w.out);
  for (Index pixel = begin; pixel < end; ++pixel, at.next()) {
    const Index p = at.middle, q = at.inner;
    const Range rows = taps_h[p], columns = taps_w[q];
    const Index i0 = first_position(s.h, p), j0 = first_position(s.w, q);
    const auto divisor = static_cast<C>(divisor_of(s.h, p, rows) * divisor_of(s.w, q, columns));
    for (Index first = 0; first < s.c; first += block) {
      const Index count = std::min(block, s.c - first);
      const T* const x = static_cast<const T*>(args.x) + offset(s.x_strides, {at.outer, first});
      lanes.clear(0, count, rows.begin * s.w.kernel + columns.begin);
      for (Index r = rows.begin; r < rows.end; ++r)
        for (Index t = columns.begin; t < columns.end; ++t)
          fold(lanes, 0, count,
               x + (i0 + r * s.h.dilation) * s.x_strides[2] +
                   (j0 + t * s.w.dilation) * s.x_strides[3],
               s.x_strides[1], r * s.w.kernel + t);
      if constexpr (Lanes::averages) {
        for (Index k = 0; k < count; ++k) lanes.values[k] /= divisor;
      }
      finish<T>(lanes, s, args, {at.outer, first, p, q}, count, 1);
    }
  }
}

template <class C>
void add(Index n, const C* HWY_RESTRICT from, C* HWY_RESTRICT to) {
  for (Index i = 0; i < n; ++i) to[i] += from[i];
}

/// Rows [begin, end) of dx, numbered (n, c, i), in tiles of rows of one image and channel. P is the
/// type of argmax, void for averages.
template <class T, class P>
void backward_columns(const Pool2dShape& s, const Pool2dBackward& args, Index begin, Index end) {
  using C = Compute<T>;
  constexpr Index tile = 4096;  // elements
  C sums[tile];
  C line[std::is_void_v<P> ? tile : 1];  // what a row of averages gives to each row under it
  const auto taps_h = taps_of(s.h), taps_w = taps_of(s.w);
  const Index reach_h = (s.h.kernel - 1) * s.h.dilation, reach_w = (s.w.kernel - 1) * s.w.dilation;
  const Index most_rows = std::max<Index>(1, tile / s.w.in);
  TapOffsets offsets(s);
  Index rows = 0;
  for (Index row = begin; row < end; row += rows) {
    const Index n = row / s.h.in / s.c, c = row / s.h.in % s.c, i0 = row % s.h.in;
    rows = std::min({most_rows, end - row, s.h.in - i0});
    for (Index j0 = 0; j0 < s.w.in; j0 += tile) {
      const Index columns = std::min(tile, s.w.in - j0);
      const Range over_h{windows_over(s.h, i0).begin, windows_over(s.h, i0 + rows - 1).end};
      const Range over_w{windows_over(s.w, j0).begin, windows_over(s.w, j0 + columns - 1).end};
      std::fill_n(sums, rows * columns, C(0));
      offsets.set_row(columns);
      for (Index p = over_h.begin; p < over_h.end; ++p) {
        const T* const dy = static_cast<const T*>(args.dy) + offset(s.y_strides, {n, c, p});
        const Index i = first_position(s.h, p) - i0;  // of the window's first tap in the tile
        if constexpr (std::is_void_v<P>) {
          const Range taps = taps_h[p];
          const Index top = std::max<Index>(i + taps.begin, 0),
                      bottom = std::min(i + taps.end, rows);
          const Index divisor = divisor_of(s.h, p, taps);
          std::fill_n(line, columns, C(0));
          for (Index q = over_w.begin; q < over_w.end; ++q) {
            const Range across = taps_w[q];
            const Index j = first_position(s.w, q) - j0;
            const Index left = std::max<Index>(j + across.begin, 0);
            const Index right = std::min(j + across.end, columns);
            const C share = static_cast<C>(dy[q * s.y_strides[3]]) /
                            static_cast<C>(divisor * divisor_of(s.w, q, across));
            for (Index l = left; l < right; ++l) line[l] += share;
          }
          for (Index k = top; k < bottom; ++k) add(columns, line, sums + k * columns);
        } else {
          const P* const argmax =
              static_cast<const P*>(args.argmax) + offset(s.argmax_strides, {n, c, p});
          const bool rows_inside = i >= 0 && i + reach_h < rows;
          for (Index q = over_w.begin; q < over_w.end; ++q) {
            const Index j = first_position(s.w, q) - j0;
            const Index tap = static_cast<Index>(argmax[q * s.argmax_strides[3]]);
            const C whole = static_cast<C>(dy[q * s.y_strides[3]]);
            if (rows_inside && j >= 0 && j + reach_w < columns) {
              sums[i * columns + j + offsets[tap]] += whole;
            } else {
              const Index k = i + tap / s.w.kernel * s.h.dilation;
              const Index l = j + tap % s.w.kernel * s.w.dilation;
              if (k >= 0 && k < rows && l >= 0 && l < columns) sums[k * columns + l] += whole;
            }
          }
        }
      }
      for (Index k = 0; k < rows; ++k)
        store(columns, sums + k * columns,
              static_cast<T*>(args.dx) + offset(s.x_strides, {n, c, i0 + k, j0}), s.x_strides[3]);
    }
  }
}

/// sums[i] += dy[i * dy_step] / divisor for n lanes.
template <class T, class C>
void add_shares(Index n, const T* HWY_RESTRICT dy, Index dy_step, C divisor, C* HWY_RESTRICT sums) {
  if (dy_step == 1) {
    for (Index i = 0; i < n; ++i) sums[i] += static_cast<C>(dy[i]) / divisor;
  } else {
    for (Index i = 0; i < n; ++i) sums[i] += static_cast<C>(dy[i * dy_step]) / divisor;
  }
}

/// sums[i] += dy[i * dy_step] for those of n lanes where argmax[i * argmax_step] is the tap.
template <class T, class P, class C>
void add_chosen(Index n, const T* HWY_RESTRICT dy, Index dy_step, const P* HWY_RESTRICT argmax,
                Index argmax_step, P tap, C* HWY_RESTRICT sums) {
  Index i = 0;
  if constexpr (std::is_same_v<T, float> && sizeof(P) == 1) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::ScalableTag<float> floats;
    const hn::RebindToSigned<decltype(floats)> integers;
    const hn::Rebind<P, decltype(floats)> bytes;
    const auto lanes = static_cast<Index>(hn::Lanes(floats));
    const auto wanted = hn::Set(integers, tap);
    for (; dy_step == 1 && argmax_step == 1 && i + lanes <= n; i += lanes) {
      const auto place = hn::PromoteTo(integers, hn::LoadU(bytes, argmax + i));
      const auto mine = hn::RebindMask(floats, hn::Eq(place, wanted));
      const auto chosen = hn::IfThenElseZero(mine, hn::LoadU(floats, dy + i));
      hn::StoreU(hn::Add(hn::LoadU(floats, sums + i), chosen), floats, sums + i);
    }
  }
  for (; i < n; ++i)
    sums[i] += argmax[i * argmax_step] == tap ? static_cast<C>(dy[i * dy_step]) : C(0);
}

/// Pixels [begin, end) of dx, numbered (n, i, j); lanes are channels.
template <class T, class P>
void backward_channels(const Pool2dShape& s, const Pool2dBackward& args, Index begin, Index end) {
  using C = Compute<T>;
  C sums[block];
  const auto taps_h = taps_of(s.h), taps_w = taps_of(s.w);
  const Lookup over_h(s.h.in, [&](Index i) { return windows_over(s.h, i); });
  const Lookup over_w(s.w.in, [&](Index j) { return windows_over(s.w, j); });
  Odometer at(begin, s.h.in, s.w.in);
  for (Index pixel = begin; pixel < end; ++pixel, at.next()) {
    const Index n = at.outer, i = at.middle, j = at.inner;
    const Range rows = over_h[i], columns = over_w[j];
    for (Index first = 0; first < s.c; first += block) {
      const Index count = std::min(block, s.c - first), step = s.y_strides[1];
      std::fill_n(sums, count, C(0));
      for (Index p = rows.begin; p < rows.end; ++p)
        for (Index q = columns.begin; q < columns.end; ++q) {
          const T* const dy =
              static_cast<const T*>(args.dy) + offset(s.y_strides, {n, first, p, q});
          if constexpr (std::is_void_v<P>) {
            const auto divisor =
                static_cast<C>(divisor_of(s.h, p, taps_h[p]) * divisor_of(s.w, q, taps_w[q]));
            add_shares(count, dy, step, divisor, sums);
          } else {
            const Index r = tap_at(s.h, p, i), t = tap_at(s.w, q, j);
            if (r < 0 || t < 0) continue;
            const P tap = static_cast<P>(r * s.w.kernel + t);
            const P* const argmax =
                static_cast<const P*>(args.argmax) + offset(s.argmax_strides, {n, first, p, q});
            add_chosen(count, dy, step, argmax, s.argmax_strides[1], tap, sums);
          }
        }
      store(count, sums, static_cast<T*>(args.dx) + offset(s.x_strides, {n, first, i, j}),
            s.x_strides[1]);
    }
  }
}

template <class T, class Lanes>
void forward_part(const Pool2dShape& s, const Pool2dForward& args, Index begin, Index end) {
  channels_inside(s.x_strides, s.c) ? forward_channels<T, Lanes>(s, args, begin, end)
                                    : forward_columns<T, Lanes>(s, args, begin, end);
}

template <class T, class P>
void backward_part(const Pool2dShape& s, const Pool2dBackward& args, Index begin, Index end) {
  channels_inside(s.x_strides, s.c) ? backward_channels<T, P>(s, args, begin, end)
                                    : backward_columns<T, P>(s, args, begin, end);
}

void forward(PoolOp op, const Pool2dShape& s, const Pool2dForward& args, Index begin, Index end) {
  with_float_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (op == PoolOp::average) return forward_part<T, Total<T>>(s, args, begin, end);
    args.argmax != nullptr ? forward_part<T, Largest<T, true>>(s, args, begin, end)
                           : forward_part<T, Largest<T, false>>(s, args, begin, end);
  });
}

void backward(PoolOp op, const Pool2dShape& s, const Pool2dBackward& args, Index begin, Index end) {
  with_float_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (op == PoolOp::average) return backward_part<T, void>(s, args, begin, end);
    s.argmax_dtype() == DType::u8 ? backward_part<T, std::uint8_t>(s, args, begin, end)
                                  : backward_part<T, Index>(s, args, begin, end);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace zerone::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerone::kernels::cpu {
namespace {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

/// Rows of lanes in an image batch of this height and width, and how many of them are worth a
/// thread when `elements` are touched in all.
struct Work {
  Index rows, least;

  Work(const Pool2dShape& s, Index height, Index width, Index elements)
      : rows(channels_inside(s.x_strides, s.c) ? s.n * height * width : s.n * s.c * height),
        least(std::max<Index>(1, grain / std::max<Index>(1, elements / std::max<Index>(1, rows)))) {
  }
};

}  // namespace

void pool2d_forward(PoolOp op, const Pool2dShape& s, const Pool2dForward& args, int threads) {
  if (s.n * s.c * s.h.out * s.w.out == 0) return;
  const Index taps =
      s.w.kernel == 0 ? (s.h.in / s.h.out + 1) * (s.w.in / s.w.out + 1) : s.h.kernel * s.w.kernel;
  const Work work(s, s.h.out, s.w.out, s.n * s.c * s.h.out * s.w.out * taps);
  parallel_for(threads, work.rows, work.least, [&](Index begin, Index end) {
    HWY_DYNAMIC_DISPATCH(forward)(op, s, args, begin, end);
  });
}

void pool2d_backward(PoolOp op, const Pool2dShape& s, const Pool2dBackward& args, int threads) {
  if (s.n * s.c * s.h.in * s.w.in == 0) return;
  const Work work(s, s.h.in, s.w.in, s.n * s.c * s.h.in * s.w.in);
  parallel_for(threads, work.rows, work.least, [&](Index begin, Index end) {
    HWY_DYNAMIC_DISPATCH(backward)(op, s, args, begin, end);
  });
}

}  // namespace zerone::kernels::cpu
#endif  // HWY_ONCE
