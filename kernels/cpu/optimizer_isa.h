// The loops that optimizer_isa.cpp defines once for each instruction set, and their choice; private
// to optimizer.cpp.
#pragma once

#include <zerone/kernels/cpu/isa.h>
#include <zerone/kernels/optimizer.h>

namespace zerone::kernels::cpu {

/// Each works on elements begin to end of one tensor; semantics as the function of optimizer.h.
struct OptimizerLoops {
  void (*step)(const OptimizerStep&, const OptimizerTensor&, std::int64_t begin, std::int64_t end);
  double (*sum_of_squares)(const GradientTensor&, std::int64_t begin, std::int64_t end);
  void (*scale)(const GradientTensor&, std::int64_t begin, std::int64_t end, double factor);
  void (*clamp)(const GradientTensor&, std::int64_t begin, std::int64_t end, double limit);
};

namespace baseline {
extern const OptimizerLoops optimizer_loops;
}
#if defined(ZERONE_CPU_ISA_LEVELS)
namespace x86_64_v3 {
extern const OptimizerLoops optimizer_loops;
}
namespace x86_64_v4 {
extern const OptimizerLoops optimizer_loops;
}
#endif

}  // namespace zerone::kernels::cpu
