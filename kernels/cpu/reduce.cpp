// A reduction is a list of parts (parts.h), cut into at most `max_chunks` chunks of whole parts.
// Chunks are summed in parallel, each in order, and their totals in order. Two shapes of inner
// loop: along the reduced axis for one result at a time, and, where a kept axis is the contiguous
// one, down the columns of up to `column_block` results at once.
#include <zerone/kernels/cpu/reduce.h>

#include <zerone/kernels/cpu/elementwise.h>
#include <zerone/kernels/cpu/parallel.h>
#include <zerone/kernels/cpu/parts.h>

namespace zerone::kernels::cpu {
namespace {

using Index = std::int64_t;

constexpr Index part_elements = 1 << 14;
constexpr Index max_chunks = 64;
constexpr Index column_block = 64;       // results of one item
constexpr Index max_partials = 1 << 13;  // doubles on the stack

const void* advance(const void* data, Index elements, DType dtype) {
  return static_cast<const char*>(data) + elements * static_cast<Index>(size_of(dtype));
}

void store(void* out, Index at, DType dtype, double value) {
  const Rows<1> one{1, 1, {0}, {1}};
  row_loops().fill(one, dtype, static_cast<char*>(out) + at * static_cast<Index>(size_of(dtype)),
                   value);
}

/// Chunks for each of `items` independent sums of `parts` parts.
Index chunk_count(Index items, Index parts, Index doubles_per_chunk) {
  const Index wanted = std::min({parts, max_chunks, max_partials / doubles_per_chunk});
  return items >= max_chunks ? 1 : std::max<Index>(wanted, 1);
}

/// Calls f(item, chunk, first part, last part) for all items and chunks, in parallel.
template <class F>
void for_each_chunk(Index items, Index chunks, Index parts, Index elements, int threads, F&& f) {
  const Index per_call = std::max<Index>(elements / (items * chunks), 1);
  parallel_for(threads, items * chunks, (1 << 15) / per_call, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      const Index item = i / chunks, chunk = i % chunks;
      f(item, chunk, chunk * parts / chunks, (chunk + 1) * parts / chunks);
    }
  });
}

/// The kept axes of out and x, and the reduced axes of x.
struct Reduction {
  CollapsedAxes<2> kept;
  CollapsedAxes<1> reduced;
};

Reduction make_reduction(const Layout& out, const Layout& x) {
  Layout kept_out, kept_x, reduced;
  for (int axis = 0; axis < x.rank; ++axis) {
    const bool is_reduced = out.sizes[axis] == 1 && x.sizes[axis] != 1;
    Layout& to = is_reduced ? reduced : kept_x;
    to.sizes[to.rank] = x.sizes[axis];
    to.strides[to.rank++] = x.strides[axis];
    if (!is_reduced) {
      kept_out.sizes[kept_out.rank] = out.sizes[axis];
      kept_out.strides[kept_out.rank++] = out.strides[axis];
    }
  }
  // Ordered by x, which is the larger operand.
  CollapsedAxes<2> kept = collapse_axes<2>({&kept_x, &kept_out});
  std::swap(kept.strides[0], kept.strides[1]);
  return {kept, collapse_axes<1>({&reduced})};
}

/// One result at a time.
void sum_along(const Reduction& r, View out, ConstView x, double scale, int threads) {
  const Parts<2> results(r.kept, 1);
  const Parts<1> parts(r.reduced, part_elements);
  const Index chunks = chunk_count(results.count, parts.count, results.count);
  double partials[max_partials];  // (results, chunks), where there are several chunks
  const auto total = [&](Index result, Index first, Index last) {
    const Index at = results.part(result).offsets[1];
    double sum = 0;
    for (Index i = first; i < last; ++i) {
      const auto part = parts.part(i);
      sum += row_loops().sum(part.rows, x.dtype, advance(x.data, at + part.offsets[0], x.dtype));
    }
    return sum;
  };
  const auto finish = [&](Index result, double sum) {
    store(out.data, results.part(result).offsets[0], out.dtype, scale * sum);
  };
  for_each_chunk(results.count, chunks, parts.count, x.layout.numel(), threads,
                 [&](Index result, Index chunk, Index first, Index last) {
                   const double sum = total(result, first, last);
                   if (chunks == 1) return finish(result, sum);
                   partials[result * chunks + chunk] = sum;
                 });
  for (Index result = 0; chunks > 1 && result < results.count; ++result) {
    double sum = 0;
    for (Index chunk = 0; chunk < chunks; ++chunk) sum += partials[result * chunks + chunk];
    finish(result, sum);
  }
}

/// A block of neighboring results at a time.
void sum_down(const Reduction& r, View out, ConstView x, double scale, int threads) {
  const Parts<2> results(r.kept, 1, column_block);
  const Parts<1> parts(r.reduced, part_elements / column_block);
  const Index chunks = chunk_count(results.count, parts.count, results.count * column_block);
  double partials[max_partials];  // (results, chunks, column_block), if there are several chunks
  const auto finish = [&](Index result, const double* sums) {
    const auto block = results.part(result);
    for (Index j = 0; j < block.rows.columns; ++j) {
      store(out.data, block.offsets[0] + j * block.rows.inner[0], out.dtype, scale * sums[j]);
    }
  };
  for_each_chunk(
      results.count, chunks, parts.count, x.layout.numel(), threads,
      [&](Index result, Index chunk, Index first, Index last) {
        const auto block = results.part(result);
        double sums[column_block] = {};
        for (Index i = first; i < last; ++i) {
          const auto part = parts.part(i);
          for (Index row = 0; row < part.rows.rows; ++row) {
            const Rows<1> rows{
                part.rows.columns, block.rows.columns, part.rows.inner, {block.rows.inner[1]}};
            const Index at = block.offsets[1] + part.offsets[0] + row * part.rows.outer[0];
            row_loops().add_columns(rows, x.dtype, advance(x.data, at, x.dtype), sums);
          }
        }
        if (chunks == 1) return finish(result, sums);
        std::copy_n(sums, column_block, partials + (result * chunks + chunk) * column_block);
      });
  for (Index result = 0; chunks > 1 && result < results.count; ++result) {
    double sums[column_block] = {};
    for (Index chunk = 0; chunk < chunks; ++chunk) {
      const double* partial = partials + (result * chunks + chunk) * column_block;
      for (Index j = 0; j < column_block; ++j) sums[j] += partial[j];
    }
    finish(result, sums);
  }
}

}  // namespace

void sum(View out, ConstView x, double scale, int threads) {
  if (out.layout.numel() == 0) return;
  if (x.layout.numel() == 0) return fill(out, 0.0, threads);
  const Reduction r = make_reduction(out.layout, x.layout);
  const int kept_last = r.kept.rank - 1, reduced_last = r.reduced.rank - 1;
  const bool down = r.kept.rank > 0 && r.reduced.rank > 0 && r.kept.sizes[kept_last] >= 4 &&
                    r.kept.strides[1][kept_last] < r.reduced.strides[0][reduced_last];
  if (down) {
    sum_down(r, out, x, scale, threads);
  } else {
    sum_along(r, out, x, scale, threads);
  }
}

void squared_error_sum(void* out_scalar, ConstView a, ConstView b, double scale, int threads) {
  const Parts<2> parts(collapse_axes<2>({&a.layout, &b.layout}), part_elements);
  if (parts.count == 0) return store(out_scalar, 0, a.dtype, 0.0);
  const Index chunks = chunk_count(1, parts.count, 1);
  double partials[max_chunks];
  for_each_chunk(1, chunks, parts.count, a.layout.numel(), threads,
                 [&](Index, Index chunk, Index first, Index last) {
                   double sum = 0;
                   for (Index i = first; i < last; ++i) {
                     const auto part = parts.part(i);
                     sum += row_loops().squared_error(part.rows, a.dtype,
                                                      advance(a.data, part.offsets[0], a.dtype),
                                                      advance(b.data, part.offsets[1], b.dtype));
                   }
                   partials[chunk] = sum;
                 });
  double total = 0;
  for (Index chunk = 0; chunk < chunks; ++chunk) total += partials[chunk];
  store(out_scalar, 0, a.dtype, scale * total);
}

}  // namespace zerone::kernels::cpu
