// The row loops that elementwise_isa.cpp defines once for each instruction set, and their choice;
// private to elementwise.cpp and reduce.cpp.
#pragma once

#include <array>
#include <cstdint>

#include <zerone/kernels/cpu/isa.h>
#include <zerone/kernels/elementwise.h>

namespace zerone::kernels::cpu {

/// Rows of elements, walked in step: element (i, j) of operand k at i*outer[k] + j*inner[k].
template <int Operands>
struct Rows {
  std::int64_t rows = 0, columns = 0;
  std::array<std::int64_t, Operands> outer{}, inner{};
};

/// Every function walks all rows; semantics as the function of elementwise.h or reduce.h.
struct RowLoops {
  void (*fill)(const Rows<1>&, DType, void* out, double value);
  void (*copy)(const Rows<2>&, DType to, DType from, void* out, const void* x);
  void (*unary)(const Rows<2>&, DType, UnaryOp, void* out, const void* x, double alpha,
                double beta);
  void (*binary)(const Rows<3>&, DType, BinaryOp, void* out, const void* a, const void* b,
                 double alpha, double beta);
  void (*scaled_difference)(const Rows<3>&, DType, void* out, const void* a, const void* b,
                            const void* scalar, double scale);
  /// Sum of all elements.
  double (*sum)(const Rows<1>&, DType, const void* x);
  /// sums[j] += the sum of column j.
  void (*add_columns)(const Rows<1>&, DType, const void* x, double* sums);
  /// Sum of (a - b)^2.
  double (*squared_error)(const Rows<2>&, DType, const void* a, const void* b);
};

namespace baseline {
extern const RowLoops row_loops;
}
#if defined(ZERONE_CPU_ISA_LEVELS)
namespace x86_64_v3 {
extern const RowLoops row_loops;
}
namespace x86_64_v4 {
extern const RowLoops row_loops;
}
#endif

/// Those for this processor.
const RowLoops& row_loops();

}  // namespace zerone::kernels::cpu
