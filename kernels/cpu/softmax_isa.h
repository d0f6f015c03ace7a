// The loops that softmax_isa.cpp defines once for each instruction set, and their choice; private
// to softmax.cpp.
#pragma once

#include <array>
#include <cstdint>

#include <zerone/kernels/cpu/isa.h>
#include <zerone/kernels/types.h>

namespace zerone::kernels::cpu {

constexpr int line_block = 256;  // lines of one call, at most

/// Up to line_block lines; element i of line j of operand k at i * along[k] + j * between[k]. Loops
/// run along a line or, `across`, over lines.
template <int Operands>
struct Lines {
  std::int64_t length = 0, lines = 0;
  std::array<std::int64_t, Operands> along{}, between{};
  bool across = false;
};

template <class T>
using OfLines = std::array<T, line_block>;

struct LineScan {
  OfLines<double> largest, sum;  // m, and sum of exp(x - m)
  OfLines<double> distance;      // sum of x - m
};

enum class MapOp : std::uint8_t {
  exp,    // y = scale exp(x - shift) + offset
  shift,  // y = (x - shift) + offset
  scale,  // y = scale x
};
struct LineMap {
  OfLines<double> scale, shift, offset;  // those that the operation takes are set
};

struct SoftmaxLoops {
  /// Finds `largest`, and `sum` and `distance` if they are wanted.
  void (*scan)(const Lines<1>&, DType, const void* x, bool sum, bool distance, LineScan&);
  /// y may be exactly x.
  void (*map)(const Lines<2>&, DType, MapOp, void* y, const void* x, const LineMap&);
  /// Sum of y dy or, `log`, of dy; operands y and dy.
  void (*dot)(const Lines<2>&, DType, bool log, const void* y, const void* dy, OfLines<double>&);
  /// dx = y (dy - sum) or, `log`, dy - exp(y) sum
  void (*gradient)(const Lines<3>&, DType, bool log, void* dx, const void* dy, const void* y,
                   const OfLines<double>& sum);
};

namespace baseline {
extern const SoftmaxLoops softmax_loops;
}
#if defined(ZERONE_CPU_ISA_LEVELS)
namespace x86_64_v3 {
extern const SoftmaxLoops softmax_loops;
}
namespace x86_64_v4 {
extern const SoftmaxLoops softmax_loops;
}
#endif

}  // namespace zerone::kernels::cpu
