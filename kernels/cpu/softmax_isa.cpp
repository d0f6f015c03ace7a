// Loops of softmax and cross-entropy, compiled once for each instruction set (see isa.h). Sums over
// at most wide_block elements run in interleaved parts of the compute type, longer ones join in
// double.
#if !defined(ZERONE_ISA_NAMESPACE)
#define ZERONE_ISA_NAMESPACE baseline
#endif
#define ZERONE_JOIN_(a, b) a##b
#define ZERONE_JOIN(a, b) ZERONE_JOIN_(a, b)
#define Eigen ZERONE_JOIN(zerone_eigen_, ZERONE_ISA_NAMESPACE)
#define EIGEN_MPL2_ONLY
#include <Eigen/Core>

#include <limits>

#include <zerone/kernels/cpu/elementwise_math.h>
#include <zerone/kernels/cpu/softmax_isa.h>
#include <zerone/kernels/cpu/wide_rows.h>

namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE {
namespace {

using Index = std::int64_t;

constexpr Index run = 64;  // elements of a line between two additions in double, across lines

/// The lines as rows that loops run over: each line by itself, or one element of every line.
template <int Operands>
Rows<Operands> rows_of(const Lines<Operands>& lines) {
  if (lines.across) return {lines.length, lines.lines, lines.along, lines.between};
  return {lines.lines, lines.length, lines.between, lines.along};
}

template <class C>
OfLines<C> converted(const OfLines<double>& values, Index lines) {
  OfLines<C> result;
  for (Index j = 0; j < lines; ++j) result[j] = static_cast<C>(values[j]);
  return result;
}

/// f(row, first column, count, line) for each block, with line(column) the number of the line.
template <int Operands, class F>
void for_each_piece(const Lines<Operands>& lines, F&& f) {
  const Rows<Operands> rows = rows_of(lines);
  if (lines.across) {
    for_each_block(rows, [&](Index row, Index at, Index n) {
      f(rows, row, at, n, [](Index j) { return j; });
    });
  } else {
    for_each_block(rows, [&](Index row, Index at, Index n) {
      f(rows, row, at, n, [row](Index) { return row; });
    });
  }
}

/// Adds sum of value(line, wide elements of the operands...) of each line to `sums`.
template <class T, int Operands, class F>
void add_up(const Lines<Operands>& lines, const std::array<const T*, Operands>& data,
            OfLines<double>& sums, F&& value) {
  using C = Compute<T>;
  const Rows<Operands> rows = rows_of(lines);
  C buffers[Operands][wide_block];
  const auto load = [&](int k, Index row, Index at, Index n) {
    return widened(n, data[k] + offset(rows, k, row, at), rows.inner[k], buffers[k]);
  };
  if (!lines.across) {
    for_each_block(rows, [&](Index line, Index at, Index n) {
      const C* a = load(0, line, at, n);
      const C* b = load(Operands - 1, line, at, n);
      sums[line] += static_cast<double>(
          sum_of<C>(n, [&value, a, b, line](Index i) { return value(line, a[i], b[i]); }));
    });
    return;
  }
  for (Index first = 0; first < lines.length; first += run) {
    const Index last = lines.length - first < run ? lines.length : first + run;
    OfLines<C> part{};
    for (Index i = first; i < last; ++i) {
      const C* a = load(0, i, 0, lines.lines);
      const C* b = load(Operands - 1, i, 0, lines.lines);
#pragma GCC ivdep
      for (Index j = 0; j < lines.lines; ++j) part[j] += value(j, a[j], b[j]);
    }
    for (Index j = 0; j < lines.lines; ++j) sums[j] += static_cast<double>(part[j]);
  }
}

template <class T>
OfLines<Compute<T>> largest_of(const Lines<1>& lines, const T* x) {
  using C = Compute<T>;
  constexpr int lanes = 128 / sizeof(C);
  const Rows<1> rows = rows_of(lines);
  C buffer[wide_block];
  OfLines<C> largest;
  largest.fill(-std::numeric_limits<C>::infinity());
  for_each_block(rows, [&](Index row, Index at, Index n) {
    const C* in = widened(n, x + offset(rows, 0, row, at), rows.inner[0], buffer);
    if (lines.across) {
      for (Index j = 0; j < n; ++j) largest[j] = in[j] > largest[j] ? in[j] : largest[j];
      return;
    }
    C best[lanes];
    for (C& value : best) value = largest[row];
    Index i = 0;
    for (; i + lanes <= n; i += lanes) {
      for (int lane = 0; lane < lanes; ++lane) {
        best[lane] = in[i + lane] > best[lane] ? in[i + lane] : best[lane];
      }
    }
    for (; i < n; ++i) best[0] = in[i] > best[0] ? in[i] : best[0];
    for (const C value : best) largest[row] = value > largest[row] ? value : largest[row];
  });
  return largest;
}

void scan(const Lines<1>& lines, DType dtype, const void* x, bool sum, bool distance,
          LineScan& result) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* in = static_cast<const T*>(x);
    const OfLines<C> largest = largest_of(lines, in);
    if (sum) {
      result.sum.fill(0);
      add_up<T, 1>(lines, {in}, result.sum,
                   [&](Index line, C v, C) { return Functions::exp(v - largest[line]); });
    }
    if (distance) {
      result.distance.fill(0);
      add_up<T, 1>(lines, {in}, result.distance,
                   [&](Index line, C v, C) { return v - largest[line]; });
    }
    for (Index j = 0; j < lines.lines; ++j) result.largest[j] = static_cast<double>(largest[j]);
  });
}

void dot(const Lines<2>& lines, DType dtype, bool log, const void* y, const void* dy,
         OfLines<double>& sums) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* out = static_cast<const T*>(y);
    const T* up = static_cast<const T*>(dy);
    sums.fill(0);
    if (log) {
      const Lines<1> one{
          lines.length, lines.lines, {lines.along[1]}, {lines.between[1]}, lines.across};
      add_up<T, 1>(one, {up}, sums, [](Index, C v, C) { return v; });
    } else {
      add_up<T, 2>(lines, {out, up}, sums, [](Index, C a, C b) { return a * b; });
    }
  });
}

void map(const Lines<2>& lines, DType dtype, MapOp op, void* y, const void* x,
         const LineMap& values) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const auto taken = [&](bool by_op) { return by_op ? lines.lines : 0; };
    const OfLines<C> scale = converted<C>(values.scale, taken(op != MapOp::shift));
    const OfLines<C> shift = converted<C>(values.shift, taken(op != MapOp::scale));
    const OfLines<C> add = converted<C>(values.offset, taken(op != MapOp::scale));
    C x_buffer[wide_block], y_buffer[wide_block];
    for_each_piece(lines, [&](const Rows<2>& rows, Index row, Index at, Index n, auto line) {
      T* out = static_cast<T*>(y) + offset(rows, 0, row, at);
      const C* in =
          widened(n, static_cast<const T*>(x) + offset(rows, 1, row, at), rows.inner[1], x_buffer);
      C* result = result_at(out, rows.inner[0], y_buffer);
      switch (op) {
        case MapOp::exp:
#pragma GCC ivdep
          for (Index j = 0; j < n; ++j) {
            result[j] = scale[line(j)] * Functions::exp(in[j] - shift[line(j)]) + add[line(j)];
          }
          break;
        case MapOp::shift:
#pragma GCC ivdep
          for (Index j = 0; j < n; ++j) result[j] = (in[j] - shift[line(j)]) + add[line(j)];
          break;
        case MapOp::scale:
#pragma GCC ivdep
          for (Index j = 0; j < n; ++j) result[j] = scale[line(j)] * in[j];
          break;
      }
      narrow(n, out, rows.inner[0], result);
    });
  });
}

void gradient(const Lines<3>& lines, DType dtype, bool log, void* dx, const void* dy, const void* y,
              const OfLines<double>& sums) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const OfLines<C> sum = converted<C>(sums, lines.lines);
    C dy_buffer[wide_block], y_buffer[wide_block], dx_buffer[wide_block];
    for_each_piece(lines, [&](const Rows<3>& rows, Index row, Index at, Index n, auto line) {
      T* to = static_cast<T*>(dx) + offset(rows, 0, row, at);
      const C* up = widened(n, static_cast<const T*>(dy) + offset(rows, 1, row, at), rows.inner[1],
                            dy_buffer);
      const C* out =
          widened(n, static_cast<const T*>(y) + offset(rows, 2, row, at), rows.inner[2], y_buffer);
      C* result = result_at(to, rows.inner[0], dx_buffer);
      if (log) {
#pragma GCC ivdep
        for (Index j = 0; j < n; ++j) {
          result[j] = up[j] - Functions::exp(out[j]) * sum[line(j)];
        }
      } else {
#pragma GCC ivdep
        for (Index j = 0; j < n; ++j) result[j] = out[j] * (up[j] - sum[line(j)]);
      }
      narrow(n, to, rows.inner[0], result);
    });
  });
}

}  // namespace

extern const SoftmaxLoops softmax_loops;
const SoftmaxLoops softmax_loops = {scan, map, dot, gradient};

}  // namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE
