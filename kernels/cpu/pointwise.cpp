// Pointwise contraction: one matrix micro-kernel in three roles.
//
//   c[m][n] (+)= sum over k of a[m][k] * b[k][n]      m < 8 rows, n < 3 vectors, sums in registers
//
//   forward, pixels contiguous    a = w, packed [k][8] once a call   b = panel of x, packed [c][48]
//   forward, channels contiguous  a = rows of x, in place            b = w, packed [c][48] once
//   backward weight               a = rows of dy                     b = panel of x, [pixel][48]
//
// b always comes from a packed panel (rows of 3 vectors, zero-padded), a from one pointer a row and
// a common step. Panels stay in L1 or L2 and cost no DRAM traffic beyond the one read of x: while a
// panel is multiplied, the next one is packed a slice at a time, so that its cache misses hide
// behind arithmetic (few channels: several panels at once instead). The sizes above are those of
// 64-byte vectors; struct Tile lists the others. Floor: the FMA rate for many channels, one read of
// x and one write of y for few.
#include <zerone/kernels/cpu/pointwise.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zerone/kernels/cpu/pointwise.cpp"
#ifndef HWY_DISABLED_TARGETS  // not worth their build time; vectors here have a fixed size
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <zerone/kernels/cpu/parallel.h>

#ifndef ZERONE_KERNELS_CPU_POINTWISE_JOB
#define ZERONE_KERNELS_CPU_POINTWISE_JOB

namespace zerone::kernels::cpu {
namespace {

constexpr int max_rows = 8;                     // a rows of one micro-kernel call, all targets
constexpr int max_panel = 64;                   // columns of a panel, all targets and types
constexpr std::int64_t group_bytes = 48 << 10;  // panels packed at once, pixels contiguous
constexpr std::int64_t most_together = 16;
constexpr std::int64_t group = 64;     // pixels of one item when channels are contiguous
constexpr std::int64_t k_block = 128;  // pixels between two additions to a partial dw

/// A call after argument checks, shared by all workers.
struct PointwiseJob {
  PointwiseShape shape;
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;  // dy (read only) in backward weight
  void* dw = nullptr;
  void* db = nullptr;
  bool relu = false;
  bool channels_inner = false;  // forward: vectors run along output channels
  bool stream = false;          // store around the caches
  std::int64_t chunks = 1;      // backward weight: partial sums over pixels
  std::int64_t splits = 1;      // ways in which output channels are divided among items
  std::int64_t group = 1;       // pixels an item, channels_inner
  std::int64_t items = 0;
  char* packed = nullptr;   // packed w and bias; partial dw
  char* scratch = nullptr;  // per worker
  std::size_t scratch_bytes = 0;
};

/// Panels of x that a worker keeps.
constexpr std::int64_t panels_held(std::int64_t c_in) {
  return c_in <= 512 ? most_together : 2;
}
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) {
  return ceil_div(a, b) * b;
}

}  // namespace
}  // namespace zerone::kernels::cpu

#endif  // ZERONE_KERNELS_CPU_POINTWISE_JOB

HWY_BEFORE_NAMESPACE();
namespace zerone::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
struct Tile {
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  static constexpr int lanes = static_cast<int>(HWY_MAX_BYTES / sizeof(T)) > 0 &&
                                       HWY_TARGET != HWY_SCALAR
                                   ? static_cast<int>(HWY_MAX_BYTES / sizeof(T))
                                   : 1;
#if HWY_TARGET == HWY_SCALAR
  static constexpr int rows = 4, vectors = 2;
#elif HWY_MAX_BYTES == 64
  static constexpr int rows = 8, vectors = 3;  // 24 sums, 3 of b, 1 of a in 32 registers
#elif HWY_MAX_BYTES == 32
  static constexpr int rows = 6, vectors = 2;  // 12 sums, 2 of b, 1 of a in 16 registers
#else
  static constexpr int rows = 6, vectors = 4;  // 24 sums, 4 of b, 1 of a in 32 registers
#endif
  static constexpr int panel = lanes * vectors;
  static_assert(rows <= max_rows && panel <= max_panel);
};

/// What happens to the sums.
enum class Store { plain, stream, add };

template <class T>
struct Multiply {
  const T* a[max_rows];  // row m, element k at a[m][k * a_step]
  std::ptrdiff_t a_step;
  const T* b;  // (k, panel)
  std::int64_t k;
  T* c[max_rows];        // row m of the result
  const T* row_bias;     // one value a row, or null
  const T* column_bias;  // one value a column (whole vectors readable), or null
  int columns;           // results a row; fewer than whole vectors are stored one by one
  bool relu;
  Store store;
};

template <class T, int M, int N>
void multiply(const Multiply<T>& args) {
  using Tile = Tile<T>;
  const typename Tile::D d;
  typename Tile::V sum[M][N];
  for (int m = 0; m < M; ++m) {
    const auto bias = args.row_bias != nullptr ? hn::Set(d, args.row_bias[m]) : hn::Zero(d);
    for (int n = 0; n < N; ++n) sum[m][n] = bias;
  }
  if (args.column_bias != nullptr) {
    for (int n = 0; n < N; ++n) {
      const auto bias = hn::LoadU(d, args.column_bias + n * Tile::lanes);
      for (int m = 0; m < M; ++m) sum[m][n] = bias;
    }
  }
  const T* a[M];
  for (int m = 0; m < M; ++m) a[m] = args.a[m];
  const T* HWY_RESTRICT b = args.b;
  const std::ptrdiff_t step = args.a_step;
  std::ptrdiff_t at = 0;
  for (std::int64_t k = args.k; k > 0; --k) {
    typename Tile::V columns[N];
    for (int n = 0; n < N; ++n) columns[n] = hn::Load(d, b + n * Tile::lanes);
    for (int m = 0; m < M; ++m) {
      const auto row = hn::Set(d, a[m][at]);
      for (int n = 0; n < N; ++n) sum[m][n] = hn::MulAdd(row, columns[n], sum[m][n]);
    }
    b += Tile::panel;
    at += step;
  }

  if (args.relu) {
    const auto zero = hn::Zero(d);
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) {
        sum[m][n] = hn::IfThenZeroElse(hn::Lt(sum[m][n], zero), sum[m][n]);  // NaN stays NaN
      }
    }
  }
  if (args.store == Store::stream) {
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) hn::Stream(sum[m][n], d, args.c[m] + n * Tile::lanes);
    }
  } else if (args.store == Store::add) {
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) {
        T* at_c = args.c[m] + n * Tile::lanes;
        hn::StoreU(hn::Add(hn::LoadU(d, at_c), sum[m][n]), d, at_c);
      }
    }
  } else if (args.columns == N * Tile::lanes) {
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) hn::StoreU(sum[m][n], d, args.c[m] + n * Tile::lanes);
    }
  } else {
    HWY_ALIGN T line[Tile::panel];
    for (int m = 0; m < M; ++m) {
      for (int n = 0; n < N; ++n) hn::Store(sum[m][n], d, line + n * Tile::lanes);
      std::memcpy(args.c[m], line, static_cast<std::size_t>(args.columns) * sizeof(T));
    }
  }
}

template <class T, int M>
void multiply_rows(const Multiply<T>& args) {
  using Tile = Tile<T>;
  const int vectors = (args.columns + Tile::lanes - 1) / Tile::lanes;
  if (vectors == 1) return multiply<T, M, 1>(args);
  if constexpr (Tile::vectors >= 3) {
    if (vectors == 2) return multiply<T, M, 2>(args);
  }
  if constexpr (Tile::vectors >= 4) {
    if (vectors == 3) return multiply<T, M, 3>(args);
  }
  multiply<T, M, Tile::vectors>(args);
}

template <class T>
void multiply_any(const Multiply<T>& args, int rows) {
  constexpr int most = Tile<T>::rows;
  if (rows == most) return multiply_rows<T, most>(args);
  switch (rows) {
    case 1: return multiply_rows<T, 1>(args);
    case 2: return multiply_rows<T, 2>(args);
    case 3: return multiply_rows<T, 3>(args);
    case 4: return multiply_rows<T, 4>(args);
    case 5:
      if constexpr (most > 5) return multiply_rows<T, 5>(args);
      break;
    case 6:
      if constexpr (most > 6) return multiply_rows<T, 6>(args);
      break;
    case 7:
      if constexpr (most > 7) return multiply_rows<T, 7>(args);
      break;
    default: break;
  }
}

/// to[j * to_row + i] = from[i * from_row + j],  i < rows, j < columns.
template <class T>
void transpose(const T* HWY_RESTRICT from, std::int64_t from_row, std::int64_t rows,
               std::int64_t columns, T* HWY_RESTRICT to, std::int64_t to_row) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int block = 16 / sizeof(T);
  const hn::FixedTag<T, block> d;
  for (; i + block <= rows; i += block) {
    const T* source = from + i * from_row;
    T* target = to + i;
    std::int64_t j = 0;
    for (; j + block <= columns; j += block) {
      if constexpr (block == 4) {
        const auto r0 = hn::LoadU(d, source + j), r1 = hn::LoadU(d, source + from_row + j);
        const auto r2 = hn::LoadU(d, source + 2 * from_row + j);
        const auto r3 = hn::LoadU(d, source + 3 * from_row + j);
        const auto lower01 = hn::InterleaveLower(d, r0, r1),
                   upper01 = hn::InterleaveUpper(d, r0, r1);
        const auto lower23 = hn::InterleaveLower(d, r2, r3),
                   upper23 = hn::InterleaveUpper(d, r2, r3);
        hn::StoreU(hn::ConcatLowerLower(d, lower23, lower01), d, target + j * to_row);
        hn::StoreU(hn::ConcatUpperUpper(d, lower23, lower01), d, target + (j + 1) * to_row);
        hn::StoreU(hn::ConcatLowerLower(d, upper23, upper01), d, target + (j + 2) * to_row);
        hn::StoreU(hn::ConcatUpperUpper(d, upper23, upper01), d, target + (j + 3) * to_row);
      } else {
        const auto r0 = hn::LoadU(d, source + j), r1 = hn::LoadU(d, source + from_row + j);
        hn::StoreU(hn::InterleaveLower(d, r0, r1), d, target + j * to_row);
        hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, target + (j + 1) * to_row);
      }
    }
    for (; j < columns; ++j) {
      for (int r = 0; r < block; ++r) target[j * to_row + r] = source[r * from_row + j];
    }
  }
#endif
  for (; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to[j * to_row + i] = from[i * from_row + j];
  }
}

template <class T>
void copy_line(const T* HWY_RESTRICT from, std::int64_t count, T* HWY_RESTRICT to) {
  const typename Tile<T>::D d;
  std::int64_t i = 0;
  for (; i + Tile<T>::lanes <= count; i += Tile<T>::lanes) {
    hn::StoreU(hn::LoadU(d, from + i), d, to + i);
  }
  for (; i < count; ++i) to[i] = from[i];
}

/// Calls f(i, length, x_offset, y_offset) for the runs of pixels [first, first + count) of equal
/// outer indices; i counts from 0.
template <class F>
HWY_INLINE void for_runs(const PointwiseShape& shape, std::int64_t first, std::int64_t count,
                         F&& f) {
  const std::int64_t inner = shape.pixels[2];
  std::int64_t outer = first / inner, i2 = first - outer * inner, i = 0;
  while (i < count) {
    const std::int64_t i0 = outer / shape.pixels[1], i1 = outer - i0 * shape.pixels[1];
    const std::int64_t length = std::min(count - i, inner - i2);
    f(i, length, i0 * shape.x_strides[0] + i1 * shape.x_strides[1] + i2 * shape.x_strides[2],
      i0 * shape.y_strides[0] + i1 * shape.y_strides[1] + i2 * shape.y_strides[2]);
    i += length;
    i2 = 0;
    ++outer;
  }
}

/// to[(c - c0) * row + p] = source(p, c): channels [c0, c1) of `count` pixels, pixels inner.
template <class T>
HWY_INLINE void gather_pixels_inner(const T* source, std::int64_t pixel_stride,
                                    std::int64_t channel_stride, std::int64_t c0, std::int64_t c1,
                                    std::int64_t count, T* to, std::int64_t row) {
  if (pixel_stride == 1) {
    for (std::int64_t c = c0; c < c1; ++c) {
      copy_line(source + c * channel_stride, count, to + (c - c0) * row);
    }
  } else if (channel_stride == 1) {
    transpose(source + c0, pixel_stride, count, c1 - c0, to, row);
  } else {
    for (std::int64_t c = c0; c < c1; ++c) {
      for (std::int64_t p = 0; p < count; ++p) {
        to[(c - c0) * row + p] = source[p * pixel_stride + c * channel_stride];
      }
    }
  }
}

/// to[p * row + c - c0] = source(p, c): the same with channels inner.
template <class T>
HWY_INLINE void gather_channels_inner(const T* source, std::int64_t pixel_stride,
                                      std::int64_t channel_stride, std::int64_t c0, std::int64_t c1,
                                      std::int64_t count, T* to, std::int64_t row) {
  gather_pixels_inner(source + c0 * channel_stride, channel_stride, pixel_stride, 0, count, c1 - c0,
                      to, row);
}

/// Packs w: pixels inner [block of rows][c_in][rows], channels inner [panel][c_in][panel width],
/// then the bias, all zero-padded.
template <class T>
void pack_weights(const PointwiseJob& job) {
  const PointwiseShape& shape = job.shape;
  const T* w = static_cast<const T*>(job.w);
  T* to = reinterpret_cast<T*>(job.packed);
  const std::int64_t width = job.channels_inner ? Tile<T>::panel : Tile<T>::rows;
  for (std::int64_t k0 = 0; k0 < shape.c_out; k0 += width) {
    const std::int64_t filled = std::min(width, shape.c_out - k0);
    T* block = to + k0 * shape.c_in;
    if (filled < width) std::fill_n(block, shape.c_in * width, T{0});
    const T* source = w + k0 * shape.w_stride_out;
    if (shape.w_stride_in == 1) {
      transpose(source, shape.w_stride_out, filled, shape.c_in, block, width);
    } else {
      for (std::int64_t c = 0; c < shape.c_in; ++c) {
        for (std::int64_t k = 0; k < filled; ++k) {
          block[c * width + k] = source[k * shape.w_stride_out + c * shape.w_stride_in];
        }
      }
    }
  }
  const std::int64_t padded = round_up(shape.c_out, width);
  T* bias = to + padded * shape.c_in;
  if (job.bias != nullptr) {
    std::copy_n(static_cast<const T*>(job.bias), shape.c_out, bias);
    std::fill_n(bias + shape.c_out, padded - shape.c_out, T{0});
  }
}

/// Forward, vectors along pixels; item = (panel of pixels, part of the output channels).
template <class T>
void forward_pixels_inner(const PointwiseJob& job, std::int64_t begin, std::int64_t end,
                          int worker) {
  using Tile = Tile<T>;
  constexpr std::int64_t width = Tile::panel;
  const PointwiseShape& shape = job.shape;
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  const std::int64_t pixels = shape.pixel_count(), c_in = shape.c_in;
  const std::int64_t blocks = ceil_div(shape.c_out, Tile::rows);
  const T* weights = reinterpret_cast<const T*>(job.packed);
  const T* bias =
      job.bias != nullptr ? weights + round_up(shape.c_out, Tile::rows) * c_in : nullptr;
  T* panels[2];
  panels[0] =
      reinterpret_cast<T*>(job.scratch + static_cast<std::size_t>(worker) * job.scratch_bytes);
  panels[1] = panels[0] + c_in * width;
  T* tile = panels[0] + panels_held(c_in) * c_in * width;  // (rows, width)

  // Where a panel lies; `single` if in one run of pixels.
  struct Place {
    std::int64_t first = 0, count = 0, x = 0, y = 0;
    bool single = false;
  };
  const auto locate = [&](std::int64_t panel) HWY_ATTR {
    Place place;
    place.first = panel * width;
    place.count = std::min(width, pixels - place.first);
    for_runs(shape, place.first, 1,
             [&](std::int64_t, std::int64_t, std::int64_t x_offset, std::int64_t y_offset)
                 HWY_ATTR {
                   place.x = x_offset;
                   place.y = y_offset;
                 });
    place.single = place.count <= shape.pixels[2] - place.first % shape.pixels[2];
    return place;
  };
  const auto pack = [&](const Place& place, T* to, std::int64_t c0, std::int64_t c1) HWY_ATTR {
    if (place.count < width) std::fill(to + c0 * width, to + c1 * width, T{0});
    if (place.single) {
      gather_pixels_inner(x + place.x, shape.x_strides[2], shape.x_channel_stride, c0, c1,
                          place.count, to + c0 * width, width);
      return;
    }
    for_runs(shape, place.first, place.count,
             [&](std::int64_t i, std::int64_t length, std::int64_t x_offset, std::int64_t)
                 HWY_ATTR {
                   gather_pixels_inner(x + x_offset, shape.x_strides[2], shape.x_channel_stride, c0,
                                       c1, length, to + c0 * width + i, width);
                 });
  };
  const auto prefetch = [&](const Place& place, std::int64_t c0, std::int64_t c1) HWY_ATTR {
    if (shape.x_strides[2] != 1 || !place.single) return;
    constexpr std::int64_t line = 64 / sizeof(T);
    for (std::int64_t c = c0; c < c1; ++c) {
      const T* row = x + place.x + c * shape.x_channel_stride;
      for (std::int64_t p = 0; p < place.count; p += line) hwy::Prefetch(row + p);
    }
  };
  // Few channels: `together` panels are packed at once, so that each channel is read in long pieces
  // that the processor's own prefetcher follows. Many: one ahead, sliced between calls.
  const std::int64_t panel_bytes =
      std::max<std::int64_t>(1, c_in) * width * static_cast<std::int64_t>(sizeof(T));
  const std::int64_t together =
      job.splits == 1 ? std::clamp<std::int64_t>(group_bytes / panel_bytes, 1, most_together) : 1;

  Place place, next, far;
  std::int64_t group_begin = 0, group_end = 0;
  std::int64_t loaded = -1;
  int current = 0;
  for (std::int64_t item = begin; item < end; ++item) {
    const std::int64_t panel = item / job.splits, part = item - panel * job.splits;
    if (together > 1) {
      place = locate(panel);
      if (panel >= group_end) {
        group_begin = panel;
        group_end = std::min(end, panel + together);
        const std::int64_t covered = (group_end - panel) * width;
        if (shape.x_strides[2] == 1 && covered <= shape.pixels[2] - place.first % shape.pixels[2]) {
          for (std::int64_t c = 0; c < c_in; ++c) {
            const T* from = x + place.x + c * shape.x_channel_stride;
            for (std::int64_t g = 0; g < group_end - panel; ++g) {
              copy_line(from + g * width, width, panels[0] + (g * c_in + c) * width);
            }
          }
        } else {
          for (std::int64_t g = panel; g < group_end; ++g) {
            pack(locate(g), panels[0] + (g - panel) * c_in * width, 0, c_in);
          }
        }
      }
    } else if (panel != loaded) {
      place = locate(panel);
      pack(place, panels[current], 0, c_in);
      loaded = panel;
    }
    const bool ahead = together == 1 && job.splits == 1 && item + 1 < end;
    const bool far_ahead = ahead && item + 2 < end;
    if (ahead) next = locate(panel + 1);
    if (far_ahead) far = locate(panel + 2);
    const std::int64_t first_block = blocks * part / job.splits;
    const std::int64_t last_block = blocks * (part + 1) / job.splits;
    const std::int64_t first = place.first, count = place.count, y_at = place.y;
    const bool direct = place.single && (shape.y_strides[2] == 1 || count == 1);
    const bool stream = job.stream && direct && count == width &&
                        (reinterpret_cast<std::uintptr_t>(y + y_at) |
                         static_cast<std::uintptr_t>(shape.y_channel_stride) * sizeof(T)) %
                                64 ==
                            0;

    Multiply<T> args;
    args.a_step = Tile::rows;
    args.b = together > 1 ? panels[0] + (panel - group_begin) * c_in * width : panels[current];
    args.k = c_in;
    args.column_bias = nullptr;
    args.columns = static_cast<int>(count);
    args.relu = job.relu;
    args.store = stream ? Store::stream : Store::plain;
    for (std::int64_t block = first_block; block < last_block; ++block) {
      if (ahead) {
        const std::int64_t of = last_block - first_block, at = block - first_block;
        pack(next, panels[1 - current], c_in * at / of, c_in * (at + 1) / of);
        if (at + 1 < of) {
          prefetch(next, c_in * (at + 1) / of, c_in * (at + 2) / of);
        } else if (far_ahead) {
          prefetch(far, 0, c_in / of);
        }
      }
      const std::int64_t k0 = block * Tile::rows;
      const int rows = static_cast<int>(std::min<std::int64_t>(Tile::rows, shape.c_out - k0));
      for (int m = 0; m < rows; ++m) {
        args.a[m] = weights + k0 * c_in + m;
        args.c[m] = direct ? y + y_at + (k0 + m) * shape.y_channel_stride : tile + m * width;
      }
      args.row_bias = bias != nullptr ? bias + k0 : nullptr;
      multiply_any(args, rows);
      if (!direct) {
        for_runs(shape, first, count,
                 [&](std::int64_t i, std::int64_t length, std::int64_t, std::int64_t y_offset)
                     HWY_ATTR {
                       for (int m = 0; m < rows; ++m) {
                         T* to = y + y_offset + (k0 + m) * shape.y_channel_stride;
                         const T* from = tile + m * width + i;
                         if (shape.y_strides[2] == 1) {
                           copy_line(from, length, to);
                         } else {
                           for (std::int64_t p = 0; p < length; ++p)
                             to[p * shape.y_strides[2]] = from[p];
                         }
                       }
                     });
      }
    }
    if (ahead) {
      current = 1 - current;
      loaded = panel + 1;
      place = next;
    }
  }
  if (job.stream) hwy::FlushStream();
}

/// Forward, vectors along output channels; item = (group of pixels, part of the channel panels).
template <class T>
void forward_channels_inner(const PointwiseJob& job, std::int64_t begin, std::int64_t end,
                            int worker) {
  using Tile = Tile<T>;
  constexpr std::int64_t width = Tile::panel;
  const PointwiseShape& shape = job.shape;
  const T* x = static_cast<const T*>(job.x);
  T* y = static_cast<T*>(job.y);
  const std::int64_t pixels = shape.pixel_count(), c_in = shape.c_in;
  const std::int64_t panels = ceil_div(shape.c_out, width);
  const T* weights = reinterpret_cast<const T*>(job.packed);
  const T* bias = job.bias != nullptr ? weights + panels * width * c_in : nullptr;
  T* packed =
      reinterpret_cast<T*>(job.scratch + static_cast<std::size_t>(worker) * job.scratch_bytes);
  const bool in_place = shape.x_channel_stride == 1 || c_in <= 1;
  const T* rows_x[group];
  T* rows_y[group];

  std::int64_t loaded = -1;
  for (std::int64_t item = begin; item < end; ++item) {
    const std::int64_t g = item / job.splits, part = item - g * job.splits;
    const std::int64_t first = g * job.group, count = std::min(job.group, pixels - first);
    if (g != loaded) {
      for_runs(shape, first, count,
               [&](std::int64_t i, std::int64_t length, std::int64_t x_offset,
                   std::int64_t y_offset) HWY_ATTR {
                 for (std::int64_t p = 0; p < length; ++p) {
                   rows_x[i + p] =
                       in_place ? x + x_offset + p * shape.x_strides[2] : packed + (i + p) * c_in;
                   rows_y[i + p] = y + y_offset + p * shape.y_strides[2];
                 }
                 if (!in_place) {
                   gather_channels_inner(x + x_offset, shape.x_strides[2], shape.x_channel_stride,
                                         0, c_in, length, packed + i * c_in, c_in);
                 }
               });
      loaded = g;
    }
    bool aligned = job.stream;
    for (std::int64_t p = 0; aligned && p < count; ++p) {
      aligned = reinterpret_cast<std::uintptr_t>(rows_y[p]) % 64 == 0;
    }
    Multiply<T> args;
    args.a_step = 1;
    args.k = c_in;
    args.row_bias = nullptr;
    args.relu = job.relu;
    for (std::int64_t n = panels * part / job.splits; n < panels * (part + 1) / job.splits; ++n) {
      const std::int64_t columns = std::min(width, shape.c_out - n * width);
      args.b = weights + n * width * c_in;
      args.column_bias = bias != nullptr ? bias + n * width : nullptr;
      args.columns = static_cast<int>(columns);
      args.store = aligned && columns % Tile::lanes == 0 ? Store::stream : Store::plain;
      for (std::int64_t p = 0; p < count; p += Tile::rows) {
        const int rows = static_cast<int>(std::min<std::int64_t>(Tile::rows, count - p));
        for (int m = 0; m < rows; ++m) {
          args.a[m] = rows_x[p + m];
          args.c[m] = rows_y[p + m] + n * width;
        }
        multiply_any(args, rows);
      }
    }
  }
  if (job.stream) hwy::FlushStream();
}

/// Partial dw (and, in one more column, db) of each chunk of pixels; item = (chunk, part of the
/// output channels). A partial is (c_out, columns padded to panels).
template <class T>
void backward_weight(const PointwiseJob& job, std::int64_t begin, std::int64_t end, int worker) {
  using Tile = Tile<T>;
  constexpr std::int64_t width = Tile::panel;
  const PointwiseShape& shape = job.shape;
  const T* x = static_cast<const T*>(job.x);
  const T* dy = static_cast<const T*>(job.y);
  const std::int64_t pixels = shape.pixel_count(), c_in = shape.c_in;
  const std::int64_t columns = c_in + (job.db != nullptr ? 1 : 0);
  const std::int64_t panels = ceil_div(columns, width), row = panels * width;
  const std::int64_t blocks = ceil_div(shape.c_out, Tile::rows);
  T* panel_x =
      reinterpret_cast<T*>(job.scratch + static_cast<std::size_t>(worker) * job.scratch_bytes);
  T* rows_dy = panel_x + panels * width * k_block;  // (rows, k_block)

  for (std::int64_t item = begin; item < end; ++item) {
    const std::int64_t chunk = item / job.splits, part = item - chunk * job.splits;
    const std::int64_t k_begin = blocks * part / job.splits * Tile::rows;
    const std::int64_t k_end = std::min(shape.c_out, blocks * (part + 1) / job.splits * Tile::rows);
    const std::int64_t p_begin = pixels * chunk / job.chunks;
    const std::int64_t p_end = pixels * (chunk + 1) / job.chunks;
    T* partial = reinterpret_cast<T*>(job.packed) + chunk * shape.c_out * row;
    std::fill(partial + k_begin * row, partial + k_end * row, T{0});
    for (std::int64_t p0 = p_begin; p0 < p_end; p0 += k_block) {
      const std::int64_t count = std::min(k_block, p_end - p0);
      std::int64_t run = 0, dy_at = 0;
      for_runs(shape, p0, count,
               [&](std::int64_t i, std::int64_t length, std::int64_t x_offset,
                   std::int64_t y_offset) HWY_ATTR {
                 if (i == 0) {
                   run = length;
                   dy_at = y_offset;
                 }
                 for (std::int64_t n = 0; n < panels; ++n) {
                   const std::int64_t c0 = n * width, c1 = std::min(c_in, c0 + width);
                   T* to = panel_x + n * width * k_block + i * width;
                   if (c0 < c1) {
                     gather_channels_inner(x + x_offset, shape.x_strides[2], shape.x_channel_stride,
                                           c0, c1, length, to, width);
                   }
                   if (c1 < c0 + width) {
                     const std::int64_t from = std::max<std::int64_t>(0, c1 - c0);
                     for (std::int64_t p = 0; p < length; ++p) {
                       std::fill(to + p * width + from, to + (p + 1) * width, T{0});
                       if (job.db != nullptr && c_in >= c0) to[p * width + c_in - c0] = T{1};
                     }
                   }
                 }
               });
      const bool in_place = run == count && shape.y_channel_stride == 1;
      Multiply<T> args;
      args.a_step = in_place ? shape.y_strides[2] : 1;
      args.k = count;
      args.row_bias = args.column_bias = nullptr;
      args.relu = false;
      args.store = Store::add;
      for (std::int64_t k0 = k_begin; k0 < k_end; k0 += Tile::rows) {
        const int rows = static_cast<int>(std::min<std::int64_t>(Tile::rows, k_end - k0));
        if (!in_place) {
          for_runs(shape, p0, count,
                   [&](std::int64_t i, std::int64_t length, std::int64_t,
                       std::int64_t y_offset) HWY_ATTR {
                     gather_pixels_inner(dy + y_offset, shape.y_strides[2], shape.y_channel_stride,
                                         k0, k0 + rows, length, rows_dy + i, k_block);
                   });
        }
        for (std::int64_t n = 0; n < panels; ++n) {
          for (int m = 0; m < rows; ++m) {
            args.a[m] = in_place ? dy + dy_at + k0 + m : rows_dy + m * k_block;
            args.c[m] = partial + (k0 + m) * row + n * width;
          }
          args.b = panel_x + n * width * k_block;
          args.columns = static_cast<int>(std::min(width, columns - n * width));
          multiply_any(args, rows);
        }
      }
    }
  }
}

/// Adds the partials in order; rows [begin, end) of dw.
template <class T>
void reduce_weight(const PointwiseJob& job, std::int64_t begin, std::int64_t end) {
  const PointwiseShape& shape = job.shape;
  const std::int64_t columns = shape.c_in + (job.db != nullptr ? 1 : 0);
  const std::int64_t row = round_up(columns, Tile<T>::panel), size = shape.c_out * row;
  T* partial = reinterpret_cast<T*>(job.packed);
  const typename Tile<T>::D d;
  for (std::int64_t k = begin; k < end; ++k) {
    T* sums = partial + k * row;
    for (std::int64_t chunk = 1; chunk < job.chunks; ++chunk) {
      const T* more = sums + chunk * size;
      for (std::int64_t c = 0; c < row; c += Tile<T>::lanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, sums + c), hn::LoadU(d, more + c)), d, sums + c);
      }
    }
    T* to = static_cast<T*>(job.dw) + k * shape.w_stride_out;
    for (std::int64_t c = 0; c < shape.c_in; ++c) to[c * shape.w_stride_in] = sums[c];
    if (job.db != nullptr) static_cast<T*>(job.db)[k] = sums[shape.c_in];
  }
}

/// Columns of a panel and rows of a micro-kernel call, which the callers' item counts need.
void tile_f32(int* rows, int* panel) {
  *rows = Tile<float>::rows, *panel = Tile<float>::panel;
}
void tile_f64(int* rows, int* panel) {
  *rows = Tile<double>::rows, *panel = Tile<double>::panel;
}
void pack_f32(const PointwiseJob& job) {
  pack_weights<float>(job);
}
void pack_f64(const PointwiseJob& job) {
  pack_weights<double>(job);
}
void forward_f32(const PointwiseJob& job, std::int64_t begin, std::int64_t end, int worker) {
  job.channels_inner ? forward_channels_inner<float>(job, begin, end, worker)
                     : forward_pixels_inner<float>(job, begin, end, worker);
}
void forward_f64(const PointwiseJob& job, std::int64_t begin, std::int64_t end, int worker) {
  job.channels_inner ? forward_channels_inner<double>(job, begin, end, worker)
                     : forward_pixels_inner<double>(job, begin, end, worker);
}
void weight_f32(const PointwiseJob& job, std::int64_t begin, std::int64_t end, int worker) {
  backward_weight<float>(job, begin, end, worker);
}
void weight_f64(const PointwiseJob& job, std::int64_t begin, std::int64_t end, int worker) {
  backward_weight<double>(job, begin, end, worker);
}
void reduce_f32(const PointwiseJob& job, std::int64_t begin, std::int64_t end) {
  reduce_weight<float>(job, begin, end);
}
void reduce_f64(const PointwiseJob& job, std::int64_t begin, std::int64_t end) {
  reduce_weight<double>(job, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace zerone::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerone::kernels::cpu {
namespace {

HWY_EXPORT(tile_f32);
HWY_EXPORT(tile_f64);
HWY_EXPORT(pack_f32);
HWY_EXPORT(pack_f64);
HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_f64);
HWY_EXPORT(weight_f32);
HWY_EXPORT(weight_f64);
HWY_EXPORT(reduce_f32);
HWY_EXPORT(reduce_f64);

constexpr std::size_t align_bytes(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}
char* align_pointer(void* p) {
  return reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(p) + 63) / 64 * 64);
}

std::int64_t last_level_cache_bytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  static const std::int64_t bytes = [] {
    const std::int64_t found =
        std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
    return found > 0 ? found : std::int64_t{32} << 20;
  }();
  return bytes;
#else
  return std::int64_t{32} << 20;
#endif
}

std::size_t packed_weight_bytes(const PointwiseShape& shape, std::size_t size) {
  return align_bytes(static_cast<std::size_t>((shape.c_out + max_panel) * (shape.c_in + 1)) * size);
}
std::size_t forward_scratch_bytes(const PointwiseShape& shape, std::size_t size) {
  return align_bytes(static_cast<std::size_t>(panels_held(shape.c_in) * max_panel * shape.c_in +
                                              max_rows * max_panel) *
                     size);
}

/// Chunks of at least 1,024 pixels, at most 64, partials within 64 MiB where that allows one.
std::int64_t weight_chunks(const PointwiseShape& shape, std::size_t size) {
  const std::int64_t partial =
      shape.c_out * (shape.c_in + max_panel) * static_cast<std::int64_t>(size);
  const std::int64_t fit = (std::int64_t{64} << 20) / std::max<std::int64_t>(1, partial);
  return std::max<std::int64_t>(1, std::min({shape.pixel_count() / 1024, fit, std::int64_t{64}}));
}
std::size_t partial_bytes(const PointwiseShape& shape, std::size_t size) {
  return align_bytes(static_cast<std::size_t>(weight_chunks(shape, size) * shape.c_out *
                                              (shape.c_in + 1 + max_panel)) *
                     size);
}
std::size_t weight_scratch_bytes(const PointwiseShape& shape, std::size_t size) {
  return align_bytes(
      static_cast<std::size_t>((shape.c_in + 1 + max_panel) * k_block + max_rows * k_block) * size);
}

}  // namespace

std::size_t pointwise_forward_workspace_bytes(const PointwiseShape& shape, DType dtype,
                                              int threads) {
  const std::size_t size = size_of(dtype);
  return 64 + packed_weight_bytes(shape, size) +
         static_cast<std::size_t>(std::max(1, threads)) * forward_scratch_bytes(shape, size);
}

void pointwise_forward(const PointwiseShape& shape, const PointwiseForward& args, void* workspace,
                       int threads) {
  const std::int64_t pixels = shape.pixel_count();
  if (pixels == 0 || shape.c_out == 0) return;
  threads = std::max(1, threads);
  const bool f64 = args.dtype == DType::f64;
  const std::size_t size = size_of(args.dtype);
  PointwiseJob job;
  job.shape = shape;
  job.x = args.x;
  job.w = args.w;
  job.bias = args.bias;
  job.y = args.y;
  job.relu = args.activation == Activation::relu;
  job.channels_inner =
      shape.y_channel_stride == 1 && (shape.y_strides[2] != 1 || shape.pixels[2] < 8);
  job.stream = pixels * shape.c_out * static_cast<std::int64_t>(size) > last_level_cache_bytes();
  job.packed = align_pointer(workspace);
  job.scratch = job.packed + packed_weight_bytes(shape, size);
  job.scratch_bytes = forward_scratch_bytes(shape, size);

  int rows = 0, panel = 0;
  f64 ? HWY_DYNAMIC_DISPATCH(tile_f64)(&rows, &panel)
      : HWY_DYNAMIC_DISPATCH(tile_f32)(&rows, &panel);
  std::int64_t tiles = 0, parts = 0;
  if (job.channels_inner) {
    job.group = std::clamp(round_up(ceil_div(pixels, threads), rows), std::int64_t{rows},
                           group / rows * rows);
    tiles = ceil_div(pixels, job.group);
    parts = ceil_div(shape.c_out, panel);
  } else {
    tiles = ceil_div(pixels, panel);
    parts = ceil_div(shape.c_out, rows);
  }
  job.splits = tiles < threads ? std::min(parts, ceil_div(threads, tiles)) : 1;
  job.items = tiles * job.splits;

  f64 ? HWY_DYNAMIC_DISPATCH(pack_f64)(job) : HWY_DYNAMIC_DISPATCH(pack_f32)(job);
  const auto run = f64 ? &HWY_DYNAMIC_DISPATCH(forward_f64) : &HWY_DYNAMIC_DISPATCH(forward_f32);
  // A few microseconds of arithmetic at least for each further thread.
  const std::int64_t work =
      std::max<std::int64_t>(1, pixels * shape.c_out * (shape.c_in + 8) / job.items);
  parallel_for(
      threads, job.items, 1 + (std::int64_t{1} << 18) / work,
      [&](std::int64_t begin, std::int64_t end, int worker) { run(job, begin, end, worker); });
}

std::size_t pointwise_backward_weight_workspace_bytes(const PointwiseShape& shape, DType dtype,
                                                      int threads) {
  const std::size_t size = size_of(dtype);
  return 64 + partial_bytes(shape, size) +
         static_cast<std::size_t>(std::max(1, threads)) * weight_scratch_bytes(shape, size);
}

void pointwise_backward_weight(const PointwiseShape& shape, const PointwiseBackwardWeight& args,
                               void* workspace, int threads) {
  if (shape.c_out == 0) return;
  threads = std::max(1, threads);
  const bool f64 = args.dtype == DType::f64;
  const std::size_t size = size_of(args.dtype);
  PointwiseJob job;
  job.shape = shape;
  job.x = args.x;
  job.y = const_cast<void*>(args.dy);
  job.dw = args.dw;
  job.db = args.db;
  job.chunks = weight_chunks(shape, size);
  job.packed = align_pointer(workspace);
  job.scratch = job.packed + partial_bytes(shape, size);
  job.scratch_bytes = weight_scratch_bytes(shape, size);
  int rows = 0, panel = 0;
  f64 ? HWY_DYNAMIC_DISPATCH(tile_f64)(&rows, &panel)
      : HWY_DYNAMIC_DISPATCH(tile_f32)(&rows, &panel);
  job.splits = job.chunks < threads
                   ? std::min(ceil_div(shape.c_out, rows), ceil_div(threads, job.chunks))
                   : 1;
  job.items = job.chunks * job.splits;

  const auto run = f64 ? &HWY_DYNAMIC_DISPATCH(weight_f64) : &HWY_DYNAMIC_DISPATCH(weight_f32);
  const auto reduce = f64 ? &HWY_DYNAMIC_DISPATCH(reduce_f64) : &HWY_DYNAMIC_DISPATCH(reduce_f32);
  parallel_for(threads, job.items, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
    run(job, begin, end, worker);
  });
  parallel_for(threads, shape.c_out, 1 + 4096 / (job.chunks * (shape.c_in + 1)),
               [&](std::int64_t begin, std::int64_t end) { reduce(job, begin, end); });
}

}  // namespace zerone::kernels::cpu
#endif  // HWY_ONCE
