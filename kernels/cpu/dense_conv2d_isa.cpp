// Dense convolution as tiles of a matrix product, f32 and f64.
//
//   dest[k, t] = sum over source channel c and tap (r, s) of weight[k, (c,r,s)] * column[(c,r,s),
//   t] column[(c,r,s), t] = source[c, i*step_h + offset_r, j*step_w + offset_s],  t = (image, i, j)
//
// Forward: source x, dest y. Backward data: source dy, dest one residue class of dx modulo the
// stride, for which the taps that reach it and their offsets are again arithmetic sequences; so
// every element of dx is written once and nothing is scattered. Backward weight: the product of a
// dy tile with the transposed column tile. The pointwise contraction is the case of one tap.
//
// A column tile is tile_pixels x at most tile_rows values, gathered into the thread's scratch
// (about one L2 cache); where there is one tap and the source is dense it is read in place.
// Columns are channel-major (c,r,s) where pixels are contiguous in the source, tap-major (r,s,c)
// where channels are; the weight is repacked to match unless it already does.
//
// This file is compiled several times with different instruction sets, each with its own
// ZERONE_ISA_NAMESPACE. Inline functions of one copy must not be merged with another's by the
// linker: everything here has internal linkage or lies in that namespace, and Eigen gets one, too.
#if !defined(ZERONE_ISA_NAMESPACE)
#define ZERONE_ISA_NAMESPACE baseline
#endif
#define ZERONE_JOIN_(a, b) a##b
#define ZERONE_JOIN(a, b) ZERONE_JOIN_(a, b)
#define Eigen ZERONE_JOIN(zerone_eigen_, ZERONE_ISA_NAMESPACE)
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_MPL2_ONLY
// Small products, too, go through the packed kernels: the coefficient-wise path orders its sums by
// the alignment of the result.
#define EIGEN_GEMM_TO_COEFFBASED_THRESHOLD 1
#include <Eigen/Core>

#include <cstring>

#include <zerone/kernels/cpu/dense_conv2d_isa.h>
#include <zerone/kernels/cpu/parallel.h>

ZERONE_DECLARE_DENSE_CONV2D(ZERONE_ISA_NAMESPACE)

namespace zerone::kernels::cpu::dense::ZERONE_ISA_NAMESPACE {
namespace {

using Index = std::int64_t;

struct Config {
  static constexpr Index tile_pixels = 256;
  static constexpr Index tile_rows = 1152;          // column rows of one tile: whole channels
  static constexpr Index work_items = 16;           // aimed at where one image is small
  static constexpr Index min_dest_block = 64;       // dest channels of one item
  static constexpr Index max_chunks = 16;           // of the pixels, backward weight
  static constexpr Index partial_bytes = 64 << 20;  // of all partial weight gradients
  static constexpr Index line = 64;                 // bytes; scratch arrays start on one
};

constexpr Index smaller(Index a, Index b) {
  return a < b ? a : b;
}
constexpr Index larger(Index a, Index b) {
  return a > b ? a : b;
}
constexpr Index ceil_div(Index a, Index b) {
  return (a + b - 1) / b;
}
constexpr Index round_up(Index a, Index b) {
  return ceil_div(a, b) * b;
}
constexpr Index floor_div(Index a, Index b) {
  return a >= 0 ? a / b : -ceil_div(-a, b);
}

/// The taps along one axis and where they read: position i of dest, tap t -> source position
/// i*step + offset + t*offset_step, which is 0 outside [0, source).
struct Axis {
  Index dest = 1, source = 1;
  Index taps = 1;
  Index step = 1, offset = 0, offset_step = 0;
};

struct PixelStrides {
  Index n = 0, c = 0, h = 0, w = 0;
};

/// The problem of the header comment.
struct Contraction {
  Index images = 1, groups = 1;
  Index source_channels = 0, dest_channels = 0;  // of one group
  Axis rows, cols;
  PixelStrides source, dest;
  Index w_group = 0, w_dest = 0, w_source = 0, w_row = 0, w_col = 0;  // weight strides
  Index w_first = 0;                                                  // offset of the first tap

  Index taps() const { return rows.taps * cols.taps; }
  Index pixels() const { return images * rows.dest * cols.dest; }
};

Contraction forward_contraction(const Conv2dShape& s) {
  Contraction p;
  p.images = s.n;
  p.groups = s.groups;
  p.source_channels = s.c_in / s.groups;
  p.dest_channels = s.c_out / s.groups;
  p.rows = {s.h_out, s.h, s.kh, s.stride_h, -s.pad_top, s.dilation_h};
  p.cols = {s.w_out, s.w, s.kw, s.stride_w, -s.pad_left, s.dilation_w};
  p.source = {s.x_strides[0], s.x_strides[1], s.x_strides[2], s.x_strides[3]};
  p.dest = {s.y_strides[0], s.y_strides[1], s.y_strides[2], s.y_strides[3]};
  p.w_group = p.dest_channels * s.w_strides[0];
  p.w_dest = s.w_strides[0];
  p.w_source = s.w_strides[1];
  p.w_row = s.w_strides[2];
  p.w_col = s.w_strides[3];
  return p;
}

/// Input positions h = residue + stride*i of one axis: tap r reaches h from output
/// (h + pad - r*dilation) / stride where that divides. `first`, `every`: these taps.
Axis residue_axis(Index residue, Index in, Index out, Index kernel, Index stride, Index pad,
                  Index dilation, Index* first, Index* every) {
  Axis axis;
  axis.dest = residue < in ? ceil_div(in - residue, stride) : 0;
  axis.source = out;
  axis.taps = 0;
  *first = 0;
  *every = 1;
  for (Index r = 0; r < kernel; ++r) {
    if ((residue + pad - r * dilation) % stride != 0) continue;
    if (axis.taps == 0) *first = r;
    if (axis.taps == 1) *every = r - *first;
    ++axis.taps;
  }
  axis.offset = (residue + pad - *first * dilation) / stride;
  axis.offset_step = -(*every * dilation) / stride;
  return axis;
}

Contraction backward_data_contraction(const Conv2dShape& s, Index residue_h, Index residue_w) {
  Contraction p;
  Index first_r, every_r, first_s, every_s;
  p.images = s.n;
  p.groups = s.groups;
  p.source_channels = s.c_out / s.groups;
  p.dest_channels = s.c_in / s.groups;
  p.rows = residue_axis(residue_h, s.h, s.h_out, s.kh, s.stride_h, s.pad_top, s.dilation_h,
                        &first_r, &every_r);
  p.cols = residue_axis(residue_w, s.w, s.w_out, s.kw, s.stride_w, s.pad_left, s.dilation_w,
                        &first_s, &every_s);
  p.source = {s.y_strides[0], s.y_strides[1], s.y_strides[2], s.y_strides[3]};
  p.dest = {s.x_strides[0], s.x_strides[1], s.x_strides[2] * s.stride_h,
            s.x_strides[3] * s.stride_w};
  p.w_group = p.source_channels * s.w_strides[0];
  p.w_dest = s.w_strides[1];
  p.w_source = s.w_strides[0];
  p.w_row = s.w_strides[2] * every_r;
  p.w_col = s.w_strides[3] * every_s;
  p.w_first = s.w_strides[2] * first_r + s.w_strides[3] * first_s;
  return p;
}

Contraction pointwise_contraction(const PointwiseShape& s) {
  Contraction p;
  p.images = s.pixels[0];
  p.source_channels = s.c_in;
  p.dest_channels = s.c_out;
  p.rows.dest = p.rows.source = s.pixels[1];
  p.cols.dest = p.cols.source = s.pixels[2];
  p.source = {s.x_strides[0], s.x_channel_stride, s.x_strides[1], s.x_strides[2]};
  p.dest = {s.y_strides[0], s.y_channel_stride, s.y_strides[1], s.y_strides[2]};
  p.w_dest = s.w_stride_out;
  p.w_source = s.w_stride_in;
  return p;
}

/// Pixels (in dest order) that lie at one constant stride, and that stride.
struct Run {
  Index pixels = 1, stride = 1;
};

Run longest_run(Index n, Index h, Index w, const PixelStrides& strides) {
  Run run;
  const Index sizes[3] = {w, h, n}, steps[3] = {strides.w, strides.h, strides.n};
  for (int axis = 0; axis < 3; ++axis) {
    if (sizes[axis] == 1) continue;
    if (run.pixels == 1) {
      run = {sizes[axis], steps[axis]};
    } else if (steps[axis] == run.pixels * run.stride) {
      run.pixels *= sizes[axis];
    } else {
      break;
    }
  }
  return run;
}

/// How a matrix (channels, pixels) lies in memory.
enum class Order { by_channel, by_pixel, strided };  // contiguous pixels / channels / neither

Order order_of(Index channel_stride, Index channels, const Run& run) {
  if (run.stride == 1 || run.pixels == 1) return Order::by_channel;
  if (channel_stride == 1 || channels == 1) return Order::by_pixel;
  return Order::strided;
}

/// The tiles of the pixel axis: each run of `run` pixels is cut into `per_run` tiles.
struct Tiling {
  Index total = 0, run = 1, per_run = 1, tile = 1, count = 0;

  void range(Index t, Index* begin, Index* end) const {
    const Index start = t / per_run * run, first = t % per_run * tile;
    *begin = start + first;
    *end = smaller(start + smaller(first + tile, run), total);
  }
};

/// Everything that follows from the problem and the element size alone.
struct Plan {
  Contraction problem;
  Tiling tiles;
  bool source_in_place = false, dest_in_place = false;
  bool tap_major = false;
  Order source_order = Order::strided, dest_order = Order::strided;
  Run source_run, dest_run;
  Index block = 0, blocks = 1;            // source channels of one column tile
  Index dest_block = 0, dest_blocks = 1;  // dest channels of one work item (not backward weight)
  Index column_ld = 0, column_size = 0, dest_size = 0;  // elements
  // Weight: read in place, or repacked to (group, block, k, row).
  bool weight_in_place = false, weight_transposed = false;
  Index packed_size = 0;
  // Backward weight.
  Index chunks = 1;

  Index rows(Index b) const {
    return smaller(block, problem.source_channels - b * block) * problem.taps();
  }
};

Plan make_plan(const Contraction& p, Index element) {
  Plan plan;
  plan.problem = p;
  const Index pixels = p.pixels(), taps = p.taps();
  plan.dest_run = longest_run(p.images, p.rows.dest, p.cols.dest, p.dest);
  plan.dest_order = order_of(p.dest.c, p.dest_channels, plan.dest_run);
  plan.source_run = longest_run(p.images, p.rows.dest, p.cols.dest, p.source);
  plan.source_order = order_of(p.source.c, p.source_channels, plan.source_run);
  const auto same = [](const Axis& a) {
    return a.taps == 1 && a.step == 1 && a.offset == 0 && a.dest == a.source;
  };
  plan.source_in_place = same(p.rows) && same(p.cols) && plan.source_order != Order::strided;
  plan.dest_in_place = plan.dest_order != Order::strided;

  // Tiles stay within the runs of the operands that are used in place, unless the runs are short.
  const Index target = Config::tile_pixels;
  Index run = pixels;
  if (plan.dest_in_place) run = smaller(run, plan.dest_run.pixels);
  if (plan.source_in_place) run = smaller(run, plan.source_run.pixels);
  run = larger(run, 1);
  const bool short_run = run < (plan.source_in_place ? target / 8 : target / 2);
  if (short_run && run < pixels) {
    if (plan.dest_run.pixels < pixels) plan.dest_in_place = false;
    if (plan.source_run.pixels < pixels) plan.source_in_place = false;
    run = larger(target / run, 1) * run;
  }
  plan.tiles.total = pixels;
  plan.tiles.run = run;
  plan.tiles.per_run = ceil_div(run, target);
  plan.tiles.tile = round_up(ceil_div(run, plan.tiles.per_run), 16);
  plan.tiles.per_run = ceil_div(run, plan.tiles.tile);
  plan.tiles.count = pixels > 0 ? ceil_div(pixels, run) * plan.tiles.per_run : 0;

  plan.tap_major = !plan.source_in_place && p.source.c == 1 && p.source_channels > 1;
  plan.blocks = larger(ceil_div(p.source_channels * taps, Config::tile_rows), 1);
  plan.block = larger(ceil_div(p.source_channels, plan.blocks), 1);
  plan.blocks = larger(ceil_div(p.source_channels, plan.block), 1);

  plan.dest_block = p.dest_channels;
  const Index items = larger(plan.tiles.count * p.groups, 1);
  if (items < Config::work_items) {
    const Index parts = ceil_div(Config::work_items, items);
    plan.dest_block =
        larger(round_up(ceil_div(p.dest_channels, parts), 16), Config::min_dest_block);
  }
  plan.dest_block = larger(smaller(plan.dest_block, p.dest_channels), 1);
  plan.dest_blocks = ceil_div(p.dest_channels, plan.dest_block);

  const Index line = Config::line / element;  // elements
  const Index most_rows = plan.rows(0);
  if (!plan.source_in_place) {
    // One more cache line than the data: rows a power of two apart would share cache sets.
    plan.column_ld = round_up(plan.tap_major ? most_rows : plan.tiles.tile, line) + line;
    plan.column_size = plan.column_ld * (plan.tap_major ? plan.tiles.tile : most_rows);
  }
  if (!plan.dest_in_place) {
    plan.dest_size = round_up(p.dest_channels * plan.tiles.tile, line);
  }

  const Index channels = p.source_channels;
  const auto dense = [](Index size, Index stride, Index wanted) {
    return size == 1 || stride == wanted;
  };
  if (plan.tap_major && taps > 1) {
    plan.weight_in_place = plan.blocks == 1 && dense(channels, p.w_source, 1) &&
                           dense(p.cols.taps, p.w_col, channels) &&
                           dense(p.rows.taps, p.w_row, channels * p.cols.taps);
  } else {
    plan.weight_in_place = dense(p.cols.taps, p.w_col, 1) &&
                           dense(p.rows.taps, p.w_row, p.cols.taps) &&
                           dense(channels, p.w_source, taps);
  }
  if (!plan.weight_in_place && taps == 1 && p.w_dest == 1) {
    plan.weight_in_place = plan.weight_transposed = true;
  }
  plan.packed_size = round_up(p.groups * p.dest_channels * channels * taps, line);

  const Index partial = larger(plan.packed_size * element, 1);
  plan.chunks = smaller(Config::max_chunks, larger(4, Config::partial_bytes / partial));
  plan.chunks = smaller(plan.chunks, plan.tiles.count);
  return plan;
}

/// A dense matrix: (row, col) at row*ld + col or, transposed, at col*ld + row.
template <class T>
struct Matrix {
  T* data = nullptr;
  Index rows = 0, cols = 0, ld = 0;
  bool by_column = false;
};

template <class T, int order>
using EigenMap =
    Eigen::Map<std::conditional_t<std::is_const_v<T>,
                                  const Eigen::Matrix<std::remove_const_t<T>, -1, -1, order>,
                                  Eigen::Matrix<T, -1, -1, order>>,
               Eigen::Unaligned, Eigen::OuterStride<>>;

/// f(map), with the storage order known to the compiler.
template <class T, class F>
void with_map(const Matrix<T>& m, F&& f) {
  if (m.by_column) {
    f(EigenMap<T, Eigen::ColMajor>(m.data, m.rows, m.cols, Eigen::OuterStride<>(m.ld)));
  } else {
    f(EigenMap<T, Eigen::RowMajor>(m.data, m.rows, m.cols, Eigen::OuterStride<>(m.ld)));
  }
}

template <class T>
Matrix<T> transposed(const Matrix<T>& m) {
  return {m.data, m.cols, m.rows, m.ld, !m.by_column};
}

/// c += a b
template <class T>
void multiply_add(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& c) {
  if (c.rows == 0 || c.cols == 0 || a.cols == 0) return;
  with_map(a, [&](auto left) {
    with_map(b, [&](auto right) {
      with_map(c, [&](auto result) { result.noalias() += left * right; });
    });
  });
}

/// Walks pixels [begin, end) as pieces of image rows: f(image, i, j, length, position).
template <class F>
void for_each_piece(const Contraction& p, Index begin, Index end, F&& f) {
  const Index w = p.cols.dest, h = p.rows.dest;
  Index image = begin / (h * w), i = begin / w % h, j = begin % w;
  for (Index t = begin; t < end;) {
    const Index length = smaller(w - j, end - t);
    f(image, i, j, length, t - begin);
    t += length;
    j = 0;
    if (++i == h) {
      i = 0;
      ++image;
    }
  }
}

/// Channels [c0, c0 + channels) of the column tile, channel-major: row (c,r,s), column t.
template <class T>
void gather_by_channel(const Contraction& p, const T* source, Index c0, Index channels, Index begin,
                       Index end, T* column, Index ld) {
  for (Index r = 0; r < p.rows.taps; ++r) {
    for (Index s = 0; s < p.cols.taps; ++s) {
      const Index row_offset = p.rows.offset + r * p.rows.offset_step;
      const Index col_offset = p.cols.offset + s * p.cols.offset_step;
      const Index step = p.cols.step, stride = p.source.w * step;
      // Dest columns whose read falls inside the source.
      const Index inside_begin = larger(ceil_div(larger(-col_offset, 0), step), 0);
      const Index inside_end =
          larger(floor_div(p.cols.source - 1 - col_offset, step) + 1, inside_begin);
      const auto piece = [&](Index image, Index i, Index j, Index length, Index position) {
        const Index row = i * p.rows.step + row_offset;
        T* out = column + (r * p.cols.taps + s) * ld + position;
        Index low = smaller(larger(inside_begin - j, 0), length);
        Index high = larger(smaller(inside_end - j, length), low);
        if (row < 0 || row >= p.rows.source) low = high = length;
        const T* in = source + image * p.source.n + c0 * p.source.c + row * p.source.h +
                      (j * step + col_offset) * p.source.w;
        const Index out_channel = p.taps() * ld;
        for (Index c = 0; c < channels; ++c, out += out_channel, in += p.source.c) {
          for (Index q = 0; q < low; ++q) out[q] = T(0);
          if (stride == 1) {
            std::memcpy(out + low, in + low, static_cast<std::size_t>(high - low) * sizeof(T));
          } else {
            for (Index q = low; q < high; ++q) out[q] = in[q * stride];
          }
          for (Index q = high; q < length; ++q) out[q] = T(0);
        }
      };
      for_each_piece(p, begin, end, piece);
    }
  }
}

/// The same tile, tap-major, for contiguous channels: column t holds (r,s,c).
template <class T>
void gather_by_tap(const Contraction& p, const T* source, Index c0, Index channels, Index begin,
                   Index end, T* column, Index ld) {
  const std::size_t bytes = static_cast<std::size_t>(channels) * sizeof(T);
  for_each_piece(p, begin, end, [&](Index image, Index i, Index j, Index length, Index position) {
    for (Index q = 0; q < length; ++q) {
      T* out = column + (position + q) * ld;
      for (Index r = 0; r < p.rows.taps; ++r) {
        const Index row = i * p.rows.step + p.rows.offset + r * p.rows.offset_step;
        const bool row_inside = row >= 0 && row < p.rows.source;
        for (Index s = 0; s < p.cols.taps; ++s, out += channels) {
          const Index col = (j + q) * p.cols.step + p.cols.offset + s * p.cols.offset_step;
          if (row_inside && col >= 0 && col < p.cols.source) {
            std::memcpy(out, source + image * p.source.n + row * p.source.h + col * p.source.w + c0,
                        bytes);
          } else {
            std::memset(out, 0, bytes);
          }
        }
      }
    }
  });
}

/// The column tile of source channels [c0, c0 + channels): (rows, pixels), in place or gathered
/// into `scratch`. `source` is the group's.
template <class T>
Matrix<const T> column_tile(const Plan& plan, const T* source, Index c0, Index channels,
                            Index begin, Index end, T* scratch) {
  const Contraction& p = plan.problem;
  const Index rows = channels * p.taps();
  if (plan.source_in_place) {
    const Index run = plan.source_run.pixels;
    const Index first = begin / run * run;  // of the run that holds the tile
    const Index w = p.cols.dest, h = p.rows.dest;
    const T* data = source + first / (h * w) * p.source.n + first / w % h * p.source.h +
                    first % w * p.source.w + (begin - first) * plan.source_run.stride +
                    c0 * p.source.c;
    const bool by_pixel = plan.source_order == Order::by_pixel;
    return {data, rows, end - begin, by_pixel ? plan.source_run.stride : p.source.c, by_pixel};
  }
  if (plan.tap_major) {
    gather_by_tap(p, source, c0, channels, begin, end, scratch, plan.column_ld);
  } else {
    gather_by_channel(p, source, c0, channels, begin, end, scratch, plan.column_ld);
  }
  return {scratch, rows, end - begin, plan.column_ld, plan.tap_major};
}

/// The dest tile of channels [k0, k0 + channels) where it can be used in place, else a matrix in
/// `scratch`. `dest` is the group's.
template <class T>
Matrix<T> dest_tile(const Plan& plan, T* dest, Index k0, Index channels, Index begin, Index end,
                    std::remove_const_t<T>* scratch) {
  const Contraction& p = plan.problem;
  if (!plan.dest_in_place) {
    const bool by_column = p.dest.c == 1;
    return {scratch, channels, end - begin, by_column ? channels : end - begin, by_column};
  }
  const Index run = plan.dest_run.pixels;
  const Index first = begin / run * run;
  const Index w = p.cols.dest, h = p.rows.dest;
  T* data = dest + first / (h * w) * p.dest.n + first / w % h * p.dest.h + first % w * p.dest.w +
            (begin - first) * plan.dest_run.stride + k0 * p.dest.c;
  const bool by_pixel = plan.dest_order == Order::by_pixel;
  return {data, channels, end - begin, by_pixel ? plan.dest_run.stride : p.dest.c, by_pixel};
}

/// Calls f(tile element, dest element) for every element of a tile held in scratch.
template <class T, class D, class F>
void for_each_dest(const Plan& plan, D* dest, Index k0, Index begin, Index end,
                   const Matrix<T>& tile, F&& f) {
  const Contraction& p = plan.problem;
  const Index tile_k = tile.by_column ? 1 : tile.ld, tile_t = tile.by_column ? tile.ld : 1;
  for_each_piece(p, begin, end, [&](Index image, Index i, Index j, Index length, Index position) {
    D* out = dest + image * p.dest.n + i * p.dest.h + j * p.dest.w + k0 * p.dest.c;
    T* in = tile.data + position * tile_t;
    if (tile.by_column) {
      for (Index q = 0; q < length; ++q) {
        for (Index k = 0; k < tile.rows; ++k) {
          f(in[q * tile_t + k], out[q * p.dest.w + k * p.dest.c]);
        }
      }
    } else {
      for (Index k = 0; k < tile.rows; ++k) {
        for (Index q = 0; q < length; ++q) {
          f(in[k * tile_k + q], out[q * p.dest.w + k * p.dest.c]);
        }
      }
    }
  });
}

/// Calls f(channel index, value) on every element, contiguous axis innermost.
template <class T, class F>
void for_each_element(const Matrix<T>& m, F&& f) {
  if (m.by_column) {
    for (Index t = 0; t < m.cols; ++t) {
      T* values = m.data + t * m.ld;
      for (Index k = 0; k < m.rows; ++k) f(k, values[k]);
    }
  } else {
    for (Index k = 0; k < m.rows; ++k) {
      T* values = m.data + k * m.ld;
      for (Index t = 0; t < m.cols; ++t) f(k, values[t]);
    }
  }
}

/// Offset in the weight's own storage of the element in row `row` of block b, dest channel k.
Index weight_offset(const Plan& plan, Index group, Index b, Index k, Index row) {
  const Contraction& p = plan.problem;
  const Index taps = p.taps(), channels = smaller(plan.block, p.source_channels - b * plan.block);
  const Index c = b * plan.block + (plan.tap_major ? row % channels : row / taps);
  const Index tap = plan.tap_major ? row / channels : row % taps;
  return p.w_first + group * p.w_group + k * p.w_dest + c * p.w_source +
         tap / p.cols.taps * p.w_row + tap % p.cols.taps * p.w_col;
}

/// Offset of (group, block, k = 0, row = 0) in the packed weight.
Index packed_offset(const Plan& plan, Index group, Index b) {
  const Contraction& p = plan.problem;
  return p.dest_channels * p.taps() * (group * p.source_channels + b * plan.block);
}

/// Calls f(packed offset, storage offset) for every weight of dest channels [begin, end) counted
/// over all groups.
template <class F>
void for_each_weight(const Plan& plan, Index begin, Index end, F&& f) {
  const Contraction& p = plan.problem;
  for (Index all = begin; all < end; ++all) {
    const Index group = all / p.dest_channels, k = all % p.dest_channels;
    for (Index b = 0; b < plan.blocks; ++b) {
      const Index rows = plan.rows(b);
      const Index packed = packed_offset(plan, group, b) + k * rows;
      for (Index row = 0; row < rows; ++row) {
        f(packed + row, weight_offset(plan, group, b, k, row));
      }
    }
  }
}

/// Weight rows [k0, k0 + channels) of block b: (channels, rows).
template <class T>
Matrix<const T> weight_tile(const Plan& plan, const T* weight, const T* packed, Index group,
                            Index b, Index k0, Index channels) {
  const Contraction& p = plan.problem;
  const Index rows = plan.rows(b);
  if (!plan.weight_in_place) {
    return {packed + packed_offset(plan, group, b) + k0 * rows, channels, rows, rows, false};
  }
  const T* data = weight + p.w_first + group * p.w_group + k0 * p.w_dest;
  if (plan.weight_transposed) {
    return {data + b * plan.block * p.w_source, channels, rows, p.w_source, true};
  }
  return {data + b * plan.block * p.taps(), channels, rows, p.w_dest, false};
}

template <class T>
std::size_t contract_workspace(const Contraction& problem, int threads) {
  const Plan plan = make_plan(problem, sizeof(T));
  Index elements = threads * (plan.column_size + plan.dest_size);
  if (!plan.weight_in_place) elements += plan.packed_size;
  return static_cast<std::size_t>(elements) * sizeof(T);
}

/// dest = activation(weight * column + bias)
template <class T>
void contract(const Contraction& problem, const T* source, const T* weight, const T* bias,
              Activation activation, T* dest, void* workspace, int threads) {
  const Plan plan = make_plan(problem, sizeof(T));
  const Contraction& p = plan.problem;
  T* scratch = static_cast<T*>(workspace);
  const T* packed = nullptr;
  if (!plan.weight_in_place) {
    T* to = scratch;
    const Index per_channel = larger(p.source_channels * p.taps(), 1);
    parallel_for(threads, p.groups * p.dest_channels, ceil_div(1 << 16, per_channel),
                 [&](Index begin, Index end) {
                   for_each_weight(plan, begin, end,
                                   [&](Index at, Index from) { to[at] = weight[from]; });
                 });
    packed = to;
    scratch += plan.packed_size;
  }
  const Index items = plan.tiles.count * p.groups * plan.dest_blocks;
  const Index flops_per_item =
      larger(plan.tiles.tile * plan.dest_block * larger(p.source_channels * p.taps(), 1), 1);
  const Index grain = ceil_div(1 << 15, flops_per_item);
  parallel_for(threads, items, grain, [&](Index first, Index last, int worker) {
    T* column_scratch = scratch + worker * (plan.column_size + plan.dest_size);
    T* dest_scratch = column_scratch + plan.column_size;
    for (Index item = first; item < last; ++item) {
      const Index k0 = item % plan.dest_blocks * plan.dest_block;
      const Index tile = item / plan.dest_blocks % plan.tiles.count;
      const Index group = item / plan.dest_blocks / plan.tiles.count;
      const Index channels = smaller(plan.dest_block, p.dest_channels - k0);
      Index begin, end;
      plan.tiles.range(tile, &begin, &end);
      const T* group_source = source + group * p.source_channels * p.source.c;
      T* group_dest = dest + group * p.dest_channels * p.dest.c;
      const T* group_bias = bias ? bias + group * p.dest_channels + k0 : nullptr;
      const Matrix<T> result = dest_tile(plan, group_dest, k0, channels, begin, end, dest_scratch);
      for_each_element(result,
                       [&](Index k, T& value) { value = group_bias ? group_bias[k] : T(0); });
      for (Index b = 0; b < plan.blocks; ++b) {
        const Index c0 = b * plan.block;
        const Index block = smaller(plan.block, p.source_channels - c0);
        if (block * p.taps() == 0) continue;
        const Matrix<const T> column =
            column_tile(plan, group_source, c0, block, begin, end, column_scratch);
        multiply_add(weight_tile(plan, weight, packed, group, b, k0, channels), column, result);
      }
      if (activation == Activation::relu) {
        for_each_element(result, [](Index, T& value) { value = value <= T(0) ? T(0) : value; });
      }
      if (!plan.dest_in_place) {
        for_each_dest(plan, group_dest, k0, begin, end, result, [](T& from, T& to) { to = from; });
      }
    }
  });
}

/// sums[k] += the sum of row k.
template <class T>
void add_pixel_sums(const Matrix<const T>& m, double* sums) {
  if (m.by_column) {
    for_each_element(m, [&](Index k, T value) { sums[k] += static_cast<double>(value); });
    return;
  }
  constexpr Index lanes = 16;
  for (Index k = 0; k < m.rows; ++k) {
    const T* values = m.data + k * m.ld;
    double lane_sums[lanes] = {};
    Index t = 0;
    for (; t + lanes <= m.cols; t += lanes) {
      for (Index lane = 0; lane < lanes; ++lane) {
        lane_sums[lane] += static_cast<double>(values[t + lane]);
      }
    }
    for (; t < m.cols; ++t) lane_sums[0] += static_cast<double>(values[t]);
    for (Index lane = 0; lane < lanes; ++lane) sums[k] += lane_sums[lane];
  }
}

template <class T>
std::size_t backward_weight_workspace(const Contraction& problem, bool with_bias, int threads) {
  const Plan plan = make_plan(problem, sizeof(T));
  const Index elements =
      threads * (plan.column_size + plan.dest_size) + plan.chunks * plan.packed_size;
  const Index sums = with_bias ? plan.chunks * problem.groups * problem.dest_channels : 0;
  return static_cast<std::size_t>(elements) * sizeof(T) +
         static_cast<std::size_t>(sums) * sizeof(double);
}

/// dw = dy * transposed column, and db = the sums of dy (where db is wanted; one group).
template <class T>
void backward_weight(const Contraction& problem, const T* source, const T* dy, T* dw, T* db,
                     void* workspace, int threads) {
  const Plan plan = make_plan(problem, sizeof(T));
  const Contraction& p = plan.problem;
  const Index dest_channels = p.groups * p.dest_channels;
  double* bias_sums = static_cast<double*>(workspace);  // (chunks, dest_channels)
  T* partials = reinterpret_cast<T*>(bias_sums + (db ? plan.chunks * dest_channels : 0));
  T* scratch = partials + plan.chunks * plan.packed_size;  // (chunks, packed_size)

  const Index items = plan.chunks * p.groups * plan.blocks;
  parallel_for(threads, items, 1, [&](Index first, Index last, int worker) {
    T* column_scratch = scratch + worker * (plan.column_size + plan.dest_size);
    T* dest_scratch = column_scratch + plan.column_size;
    for (Index item = first; item < last; ++item) {
      const Index b = item % plan.blocks;
      const Index group = item / plan.blocks % p.groups;
      const Index chunk = item / plan.blocks / p.groups;
      const Index c0 = b * plan.block;
      const Index block = smaller(plan.block, p.source_channels - c0);
      const Index rows = plan.rows(b);
      const T* group_source = source + group * p.source_channels * p.source.c;
      const T* group_dy = dy + group * p.dest_channels * p.dest.c;
      T* partial = partials + chunk * plan.packed_size + packed_offset(plan, group, b);
      const Matrix<T> result{partial, p.dest_channels, rows, rows, false};
      for_each_element(result, [](Index, T& value) { value = T(0); });
      double* sums =
          db && b == 0 ? bias_sums + (chunk * p.groups + group) * p.dest_channels : nullptr;
      for (Index k = 0; sums && k < p.dest_channels; ++k) sums[k] = 0;
      const Index tile_end = (chunk + 1) * plan.tiles.count / plan.chunks;
      for (Index tile = chunk * plan.tiles.count / plan.chunks; tile < tile_end; ++tile) {
        Index begin, end;
        plan.tiles.range(tile, &begin, &end);
        Matrix<const T> gradient =
            dest_tile(plan, group_dy, 0, p.dest_channels, begin, end, dest_scratch);
        if (!plan.dest_in_place) {
          const Matrix<T> held{dest_scratch, gradient.rows, gradient.cols, gradient.ld,
                               gradient.by_column};
          for_each_dest(plan, group_dy, 0, begin, end, held,
                        [](T& to, const T& from) { to = from; });
        }
        if (rows > 0) {
          const Matrix<const T> column =
              column_tile(plan, group_source, c0, block, begin, end, column_scratch);
          multiply_add(gradient, transposed(column), result);
        }
        if (sums) {
          add_pixel_sums(gradient, sums);
        }
      }
    }
  });

  const Index per_channel = larger(p.source_channels * p.taps() * plan.chunks, 1);
  parallel_for(threads, dest_channels, ceil_div(1 << 15, per_channel),
               [&](Index first, Index last) {
                 for_each_weight(plan, first, last, [&](Index at, Index to) {
                   T sum = T(0);
                   for (Index chunk = 0; chunk < plan.chunks; ++chunk) {
                     sum += partials[chunk * plan.packed_size + at];
                   }
                   dw[to] = sum;
                 });
                 for (Index k = first; db && k < last; ++k) {
                   double sum = 0;
                   for (Index chunk = 0; chunk < plan.chunks; ++chunk) {
                     sum += bias_sums[chunk * dest_channels + k];
                   }
                   db[k] = static_cast<T>(sum);
                 }
               });
}

/// f(T()) for the element type `dtype`, f32 or f64.
template <class F>
auto with_type(DType dtype, F&& f) {
  return dtype == DType::f64 ? f(double()) : f(float());
}

}  // namespace

std::size_t conv2d_forward_workspace(const Conv2dShape& shape, DType dtype, int threads) {
  return with_type(dtype, [&](auto zero) {
    return contract_workspace<decltype(zero)>(forward_contraction(shape), threads);
  });
}

std::size_t conv2d_backward_data_workspace(const Conv2dShape& shape, DType dtype, int threads) {
  return with_type(dtype, [&](auto zero) {
    std::size_t most = 0;
    for (Index a = 0; a < shape.stride_h; ++a) {
      for (Index b = 0; b < shape.stride_w; ++b) {
        const std::size_t bytes =
            contract_workspace<decltype(zero)>(backward_data_contraction(shape, a, b), threads);
        if (bytes > most) most = bytes;
      }
    }
    return most;
  });
}

std::size_t conv2d_backward_weight_workspace(const Conv2dShape& shape, DType dtype, int threads) {
  return with_type(dtype, [&](auto zero) {
    return backward_weight_workspace<decltype(zero)>(forward_contraction(shape), false, threads);
  });
}

std::size_t pointwise_forward_workspace(const PointwiseShape& shape, DType dtype, int threads) {
  return with_type(dtype, [&](auto zero) {
    return contract_workspace<decltype(zero)>(pointwise_contraction(shape), threads);
  });
}

std::size_t pointwise_backward_weight_workspace(const PointwiseShape& shape, DType dtype,
                                                int threads) {
  return with_type(dtype, [&](auto zero) {
    return backward_weight_workspace<decltype(zero)>(pointwise_contraction(shape), true, threads);
  });
}

void conv2d_forward(const Conv2dShape& shape, const Conv2dForward& args, void* workspace,
                    int threads) {
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    contract(forward_contraction(shape), static_cast<const T*>(args.x),
             static_cast<const T*>(args.w), static_cast<const T*>(args.bias), args.activation,
             static_cast<T*>(args.y), workspace, threads);
  });
}

void conv2d_backward_data(const Conv2dShape& shape, const Conv2dBackwardData& args, void* workspace,
                          int threads) {
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (Index a = 0; a < shape.stride_h; ++a) {
      for (Index b = 0; b < shape.stride_w; ++b) {
        T* dx = static_cast<T*>(args.dx) + a * shape.x_strides[2] + b * shape.x_strides[3];
        contract(backward_data_contraction(shape, a, b), static_cast<const T*>(args.dy),
                 static_cast<const T*>(args.w), static_cast<const T*>(nullptr), Activation::none,
                 dx, workspace, threads);
      }
    }
  });
}

void conv2d_backward_weight(const Conv2dShape& shape, const Conv2dBackwardWeight& args,
                            void* workspace, int threads) {
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    backward_weight(forward_contraction(shape), static_cast<const T*>(args.x),
                    static_cast<const T*>(args.dy), static_cast<T*>(args.dw),
                    static_cast<T*>(nullptr), workspace, threads);
  });
}

void pointwise_forward(const PointwiseShape& shape, const PointwiseForward& args, void* workspace,
                       int threads) {
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    contract(pointwise_contraction(shape), static_cast<const T*>(args.x),
             static_cast<const T*>(args.w), static_cast<const T*>(args.bias), args.activation,
             static_cast<T*>(args.y), workspace, threads);
  });
}

void pointwise_backward_weight(const PointwiseShape& shape, const PointwiseBackwardWeight& args,
                               void* workspace, int threads) {
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    backward_weight(pointwise_contraction(shape), static_cast<const T*>(args.x),
                    static_cast<const T*>(args.dy), static_cast<T*>(args.dw),
                    static_cast<T*>(args.db), workspace, threads);
  });
}

}  // namespace zerone::kernels::cpu::dense::ZERONE_ISA_NAMESPACE
