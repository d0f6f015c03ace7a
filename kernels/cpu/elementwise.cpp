#include <zerone/kernels/cpu/elementwise.h>

#include <zerone/kernels/cpu/parallel.h>
#include <zerone/kernels/cpu/parts.h>

namespace zerone::kernels::cpu {
namespace {

constexpr std::int64_t part_elements = 1 << 14;
constexpr std::int64_t grain = 2;  // parts per thread, at least

template <class Void>
Void* advance(Void* data, std::int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
  if (data == nullptr) return nullptr;
  return static_cast<Byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

/// f(part) for every part, in parallel.
template <int Operands, class F>
void for_each_part(const Parts<Operands>& parts, int threads, F&& f) {
  parallel_for(threads, parts.count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(parts.part(i));
  });
}

/// Where out and x are contiguous along different axes: those two become the innermost, x's last.
bool make_transpose(CollapsedAxes<2>& axes) {
  const int last = axes.rank - 1;
  if (axes.rank < 2 || axes.strides[0][last] != 1 || axes.strides[1][last] == 1) return false;
  int along_x = last - 1;
  while (along_x >= 0 && axes.strides[1][along_x] != 1) --along_x;
  if (along_x < 0) return false;
  const auto move_to_end = [&](auto& values) {
    std::rotate(values.begin() + along_x, values.begin() + along_x + 1, values.begin() + axes.rank);
  };
  move_to_end(axes.sizes);
  for (auto& strides : axes.strides) move_to_end(strides);
  return true;
}

}  // namespace

const RowLoops& row_loops() {
#if defined(ZERONE_CPU_ISA_LEVELS)
  switch (isa()) {
    case Isa::x86_64_v4: return x86_64_v4::row_loops;
    case Isa::x86_64_v3: return x86_64_v3::row_loops;
    case Isa::baseline: break;
  }
#endif
  return baseline::row_loops;
}

void fill(View out, double value, int threads) {
  const Parts<1> parts(collapse_axes<1>({&out.layout}), part_elements);
  for_each_part(parts, threads, [&](const auto& part) {
    row_loops().fill(part.rows, out.dtype, advance(out.data, part.offsets[0], out.dtype), value);
  });
}

void copy(View out, ConstView x, int threads) {
  CollapsedAxes<2> axes = collapse_axes<2>({&out.layout, &x.layout});
  const Parts<2> parts =
      make_transpose(axes) ? Parts<2>(axes, 64, 256) : Parts<2>(axes, part_elements);
  for_each_part(parts, threads, [&](const auto& part) {
    row_loops().copy(part.rows, out.dtype, x.dtype, advance(out.data, part.offsets[0], out.dtype),
                     advance(x.data, part.offsets[1], x.dtype));
  });
}

void unary(UnaryOp op, View out, ConstView x, double alpha, double beta, int threads) {
  const Parts<2> parts(collapse_axes<2>({&out.layout, &x.layout}), part_elements);
  for_each_part(parts, threads, [&](const auto& part) {
    row_loops().unary(part.rows, out.dtype, op, advance(out.data, part.offsets[0], out.dtype),
                      advance(x.data, part.offsets[1], x.dtype), alpha, beta);
  });
}

void binary(BinaryOp op, View out, ConstView a, ConstView b, double alpha, double beta,
            int threads) {
  const Parts<3> parts(collapse_axes<3>({&out.layout, &a.layout, &b.layout}), part_elements);
  for_each_part(parts, threads, [&](const auto& part) {
    row_loops().binary(part.rows, out.dtype, op, advance(out.data, part.offsets[0], out.dtype),
                       advance(a.data, part.offsets[1], a.dtype),
                       advance(b.data, part.offsets[2], b.dtype), alpha, beta);
  });
}

void scaled_difference(View out, ConstView a, ConstView b, const void* scalar, double scale,
                       int threads) {
  const Parts<3> parts(collapse_axes<3>({&out.layout, &a.layout, &b.layout}), part_elements);
  for_each_part(parts, threads, [&](const auto& part) {
    row_loops().scaled_difference(part.rows, out.dtype,
                                  advance(out.data, part.offsets[0], out.dtype),
                                  advance(a.data, part.offsets[1], a.dtype),
                                  advance(b.data, part.offsets[2], b.dtype), scalar, scale);
  });
}

}  // namespace zerone::kernels::cpu
