// Blocks of lines in parallel, each block in passes over lines that stay in the caches: largest
// element, sum, map. Where lines lie side by side in memory (classes of an NCHW image) or are
// short, loops run across them, on a packed copy if it fits the L1 cache (rows a power of two apart
// would evict each other); else along each. Floor: one read of x and one write of y.
#include <zerone/kernels/cpu/softmax.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <tuple>

#include <zerone/kernels/cpu/number.h>
#include <zerone/kernels/cpu/parallel.h>
#include <zerone/kernels/cpu/parts.h>
#include <zerone/kernels/cpu/softmax_isa.h>

namespace zerone::kernels::cpu {
namespace {

using Index = std::int64_t;

constexpr Index max_chunks = 64;  // of the samples whose losses are added
constexpr Index short_line = 32;  // elements; loops along it would be mostly overhead
constexpr Index part_elements = 6 << 10;
constexpr Index tile_bytes = 24 << 10;

const SoftmaxLoops& loops() {
#if defined(ZERONE_CPU_ISA_LEVELS)
  switch (isa()) {
    case Isa::x86_64_v4: return x86_64_v4::softmax_loops;
    case Isa::x86_64_v3: return x86_64_v3::softmax_loops;
    case Isa::baseline: break;
  }
#endif
  return baseline::softmax_loops;
}

template <class Void>
Void* advance(Void* data, Index elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  return static_cast<Byte*>(data) + elements * static_cast<Index>(size_of(dtype));
}

double load(const void* data, DType dtype, Index at) {
  return with_float_type(dtype, [&](auto zero) {
    return static_cast<double>(static_cast<const decltype(zero)*>(data)[at]);
  });
}

void store(void* data, DType dtype, Index at, double value) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    static_cast<T*>(data)[at] = static_cast<T>(static_cast<Compute<T>>(value));
  });
}

/// Lines of one operand.
template <class Void>
struct Operand {
  Void* data;
  Lines<1> lines;
};

/// The lines along one axis of the first operands, cut into blocks; the order of lines is that of
/// the first operand's memory. Further operands have one element a line.
template <int Operands>
struct LineSpace {
  Index length;
  std::array<Index, Operands> along;
  bool across;
  Parts<Operands> parts;  // one row of at most line_block lines

  LineSpace(int axis, const std::array<const Layout*, Operands>& layouts)
      : LineSpace(axis, layouts, without(axis, layouts)) {}

  Index lines() const { return parts.axes.numel(); }
  /// The first line of a part.
  Index first_line(Index part) const {
    return part / parts.column_pieces * parts.columns() +
           part % parts.column_pieces * parts.piece_columns;
  }

  /// The lines of a part in operand `k`, whose first element is at `data`.
  template <class Void>
  Operand<Void> operand(const typename Parts<Operands>::Part& part, int k, Void* data,
                        DType dtype) const {
    return {advance(data, part.offsets[k], dtype),
            {length, part.rows.columns, {along[k]}, {part.rows.inner[k]}, across}};
  }

  /// f(part index) for every part, in parallel.
  template <class F>
  void for_each(int threads, F&& f) const {
    const Index grain = (1 << 14) / std::max<Index>(length * parts.piece_columns, 1);
    parallel_for(threads, parts.count, grain, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) f(i);
    });
  }

 private:
  LineSpace(int axis, const std::array<const Layout*, Operands>& layouts,
            const CollapsedAxes<Operands>& rest)
      : length(layouts[0]->sizes[axis]),
        across(lie_across(rest, *layouts[0], axis)),
        parts(
            rest, 1,
            std::clamp<Index>(part_elements / length, across ? 64 : 1, across ? line_block : 64)) {
    for (int k = 0; k < Operands; ++k) along[k] = layouts[k]->strides[axis];
  }

  static bool lie_across(const CollapsedAxes<Operands>& rest, const Layout& first, int axis) {
    const int last = rest.rank - 1;
    return last >= 0 && rest.sizes[last] >= 4 &&
           (first.sizes[axis] < short_line || rest.strides[0][last] < first.strides[axis]);
  }

  static CollapsedAxes<Operands> without(int axis,
                                         const std::array<const Layout*, Operands>& layouts) {
    std::array<Layout, Operands> rest;
    std::array<const Layout*, Operands> pointers;
    for (int k = 0; k < Operands; ++k) {
      rest[k] = *layouts[k];
      rest[k].sizes[axis] = 1;
      pointers[k] = &rest[k];
    }
    return collapse_axes<Operands>(pointers);
  }
};

/// What one loop over the same lines of several operands takes.
template <class... O>
Lines<sizeof...(O)> joined(const O&... of) {
  const Lines<1>& first = std::get<0>(std::tie(of...)).lines;
  return {
      first.length, first.lines, {of.lines.along[0]...}, {of.lines.between[0]...}, first.across};
}

/// Holds lines side by side, packed, where loops run across lines and they fit.
struct alignas(64) Tile {
  std::byte bytes[tile_bytes];

  Operand<const void> pack(const Operand<const void>& x, DType dtype) {
    const Lines<1>& lines = x.lines;
    const Index size = static_cast<Index>(size_of(dtype));
    if (!lines.across || size < 4 || lines.length * lines.lines * size > tile_bytes) return x;
    const Operand<void> packed{bytes, {lines.length, lines.lines, {lines.lines}, {1}, true}};
    copy(packed, x, dtype);
    return {packed.data, packed.lines};
  }
  /// Where results of lines that pack() gave go before unpack(): y, unless its lines are better
  /// written from the tile.
  Operand<void> result(const Operand<void>& y, const Operand<const void>& packed) {
    const bool here = packed.data == bytes && y.lines.between[0] != 1;
    return here ? Operand<void>{bytes, packed.lines} : y;
  }
  void unpack(const Operand<void>& y, const Operand<void>& result, DType dtype) const {
    if (result.data == bytes) copy(y, {result.data, result.lines}, dtype);
  }

 private:
  static void copy(const Operand<void>& to, const Operand<const void>& from, DType dtype) {
    const Lines<1>&a = to.lines, &b = from.lines;
    row_loops().copy({b.length, b.lines, {a.along[0], b.along[0]}, {a.between[0], b.between[0]}},
                     dtype, dtype, to.data, from.data);
  }
};

/// (N, ...) as (N, 1, ...), or a scalar as one of such a shape.
Layout with_class_axis(const Layout& layout, int rank) {
  Layout result;
  result.rank = rank;
  for (int i = 0, from = 0; i < rank; ++i) {
    const bool kept = i != 1 && layout.rank > 0;
    result.sizes[i] = kept ? layout.sizes[from] : 1;
    result.strides[i] = kept ? layout.strides[from++] : 0;
  }
  return result;
}

}  // namespace

void softmax(const SoftmaxForward& args, int threads) {
  if (args.x.layout.numel() == 0) return;
  const DType dtype = args.x.dtype;
  const LineSpace<2> space(args.axis, {&args.x.layout, &args.y.layout});
  space.for_each(threads, [&](Index index) {
    const auto part = space.parts.part(index);
    Tile tile;
    const auto x = tile.pack(space.operand(part, 0, args.x.data, dtype), dtype);
    const auto y = space.operand(part, 1, args.y.data, dtype), result = tile.result(y, x);
    const bool keep_exps = !args.log && size_of(dtype) >= 4;  // 16 bits would round them
    LineScan scan;
    loops().scan(x.lines, dtype, x.data, !keep_exps, false, scan);
    LineMap map;
    map.shift = scan.largest;
    if (keep_exps) {
      map.scale.fill(1);
      map.offset.fill(0);
      loops().map(joined(result, x), dtype, MapOp::exp, result.data, x.data, map);
      loops().dot(joined(result, result), dtype, true, result.data, result.data, scan.sum);
    }
    for (Index j = 0; j < part.rows.columns; ++j) {
      map.scale[j] = 1 / scan.sum[j];
      map.offset[j] = args.log ? -std::log(scan.sum[j]) : 0;
    }
    const auto from = keep_exps ? Operand<const void>{result.data, result.lines} : x;
    const MapOp op = keep_exps ? MapOp::scale : args.log ? MapOp::shift : MapOp::exp;
    loops().map(joined(result, from), dtype, op, result.data, from.data, map);
    tile.unpack(y, result, dtype);
  });
}

void softmax_backward(const SoftmaxBackward& args, int threads) {
  if (args.y.layout.numel() == 0) return;
  const DType dtype = args.y.dtype;
  const LineSpace<3> space(args.axis, {&args.y.layout, &args.dy.layout, &args.dx.layout});
  space.for_each(threads, [&](Index index) {
    const auto part = space.parts.part(index);
    Tile y_tile, dy_tile;
    const auto y = y_tile.pack(space.operand(part, 0, args.y.data, dtype), dtype);
    const auto dy = dy_tile.pack(space.operand(part, 1, args.dy.data, dtype), dtype);
    const auto dx = space.operand(part, 2, args.dx.data, dtype), result = y_tile.result(dx, y);
    OfLines<double> sum;
    loops().dot(joined(y, dy), dtype, args.log, y.data, dy.data, sum);
    loops().gradient(joined(result, dy, y), dtype, args.log, result.data, dy.data, y.data, sum);
    y_tile.unpack(dx, result, dtype);
  });
}

const std::int64_t* find_bad_label(ConstView labels, std::int64_t classes, std::int64_t ignored) {
  const auto* data = static_cast<const std::int64_t*>(labels.data);
  std::array<Index, max_rank> index{};
  for (Index count = labels.layout.numel(); count > 0; --count) {
    Index at = 0;
    for (int i = 0; i < labels.layout.rank; ++i) at += index[i] * labels.layout.strides[i];
    if (data[at] != ignored && (data[at] < 0 || data[at] >= classes)) return data + at;
    for (int i = labels.layout.rank; i-- > 0;) {
      if (++index[i] < labels.layout.sizes[i]) break;
      index[i] = 0;
    }
  }
  return nullptr;
}

void cross_entropy(const CrossEntropyForward& args, int threads) {
  const DType dtype = args.x.dtype, compute = dtype == DType::f64 ? DType::f64 : DType::f32;
  const int rank = args.x.layout.rank;
  const Layout labels = with_class_axis(args.labels.layout, rank);
  const Layout losses = with_class_axis(args.loss.layout, rank);
  const LineSpace<3> space(1, {&args.x.layout, &labels, &losses});
  const auto* label_data = static_cast<const std::int64_t*>(args.labels.data);
  const double share = args.smoothing / static_cast<double>(space.length);
  const bool reduced = args.reduction != Reduction::none;

  struct Sum {
    double loss = 0;
    Index samples = 0;  // that are not ignored
  };
  /// The losses of one part, added to `sum`.
  const auto take = [&](Index index, Sum& sum) {
    const auto part = space.parts.part(index);
    const auto x = space.operand(part, 0, args.x.data, dtype);
    Tile tile;
    const auto packed = tile.pack(x, dtype);
    LineScan scan;
    loops().scan(packed.lines, dtype, packed.data, true, share != 0, scan);
    for (Index j = 0; j < part.rows.columns; ++j) {
      const Index label = label_data[part.offsets[1] + j * part.rows.inner[1]];
      const double largest = scan.largest[j];
      double loss = 0;
      if (label != args.ignored) {
        if (label < 0 || label >= space.length) {
          loss = std::numeric_limits<double>::quiet_NaN();
        } else {
          const double target =
              load(x.data, dtype, j * x.lines.between[0] + label * x.lines.along[0]);
          loss = std::log(scan.sum[j]) + (1 - args.smoothing) * (largest - target);
          if (share != 0) loss -= share * scan.distance[j];
        }
        ++sum.samples;
      }
      sum.loss += loss;
      const Index line = space.first_line(index) + j;
      store(args.saved, compute, 2 * line, largest);
      store(args.saved, compute, 2 * line + 1, scan.sum[j]);
      if (!reduced) store(args.loss.data, dtype, part.offsets[2] + j * part.rows.inner[2], loss);
    }
  };

  const Index parts = space.parts.count, chunks = std::min(parts, max_chunks);
  Sum sums[max_chunks];
  const Index grain =
      (1 << 14) / std::max<Index>(args.x.layout.numel() / std::max<Index>(chunks, 1), 1);
  parallel_for(threads, chunks, grain, [&](Index begin, Index end) {
    for (Index chunk = begin; chunk < end; ++chunk) {
      Sum sum;
      const Index last = (chunk + 1) * parts / chunks;
      for (Index part = chunk * parts / chunks; part < last; ++part) take(part, sum);
      sums[chunk] = sum;
    }
  });
  Sum total;
  for (Index chunk = 0; chunk < chunks; ++chunk) {
    total.loss += sums[chunk].loss;
    total.samples += sums[chunk].samples;
  }
  const double factor =
      args.reduction == Reduction::mean ? 1 / static_cast<double>(total.samples) : 1;
  store(args.saved, compute, 2 * space.lines(), factor);
  if (reduced) store(args.loss.data, dtype, 0, factor * total.loss);
}

void cross_entropy_backward(const CrossEntropyBackward& args, int threads) {
  if (args.x.layout.numel() == 0) return;
  const DType dtype = args.x.dtype, compute = dtype == DType::f64 ? DType::f64 : DType::f32;
  const int rank = args.x.layout.rank;
  const Layout labels = with_class_axis(args.labels.layout, rank);
  const Layout dlosses = with_class_axis(args.dloss.layout, rank);
  const LineSpace<4> space(1, {&args.x.layout, &args.dx.layout, &labels, &dlosses});
  const auto* label_data = static_cast<const std::int64_t*>(args.labels.data);
  const double factor = load(args.saved, compute, 2 * space.lines());
  const double share = args.smoothing / static_cast<double>(space.length);
  space.for_each(threads, [&](Index index) {
    const auto part = space.parts.part(index);
    Tile tile;
    const auto x = space.operand(part, 0, args.x.data, dtype), packed = tile.pack(x, dtype);
    const auto dx = space.operand(part, 1, args.dx.data, dtype), result = tile.result(dx, packed);
    LineMap map;
    OfLines<double> upstream;
    OfLines<Index> label;
    for (Index j = 0; j < part.rows.columns; ++j) {
      const Index line = space.first_line(index) + j;
      label[j] = label_data[part.offsets[2] + j * part.rows.inner[2]];
      double g = factor * load(args.dloss.data, dtype, part.offsets[3] + j * part.rows.inner[3]);
      if (label[j] == args.ignored) {
        g = 0;
        label[j] = -1;
      } else if (label[j] < 0 || label[j] >= space.length) {
        g = std::numeric_limits<double>::quiet_NaN();
        label[j] = -1;
      }
      upstream[j] = g;
      map.scale[j] = g / load(args.saved, compute, 2 * line + 1);
      map.shift[j] = load(args.saved, compute, 2 * line);
      map.offset[j] = -g * share;
    }
    loops().map(joined(result, packed), dtype, MapOp::exp, result.data, packed.data, map);
    tile.unpack(dx, result, dtype);
    for (Index j = 0; j < part.rows.columns; ++j) {
      if (label[j] < 0) continue;
      LineMap target;  // one element of one line
      target.scale[0] = map.scale[j];
      target.shift[0] = map.shift[j];
      target.offset[0] = map.offset[j] - upstream[j] * (1 - args.smoothing);
      const auto place = [&](const Lines<1>& lines) {
        return j * lines.between[0] + label[j] * lines.along[0];
      };
      loops().map({1, 1, {1, 1}, {1, 1}, false}, dtype, MapOp::exp,
                  advance(dx.data, place(dx.lines), dtype), advance(x.data, place(x.lines), dtype),
                  target);
    }
  });
}

}  // namespace zerone::kernels::cpu
