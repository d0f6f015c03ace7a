// Instruction sets of one processor family, for kernels whose file is compiled once for each.
// Such a file, x_isa.cpp, sees ZERONE_ISA_NAMESPACE (baseline, x86_64_v3 or x86_64_v4) and puts
// everything in that namespace or gives it internal linkage, Eigen included: the linker must not
// merge an inline function of one copy with another's.
#pragma once

namespace zerone::kernels::cpu {

enum class Isa { baseline, x86_64_v3, x86_64_v4 };

/// The best one that this processor runs and the build includes.
Isa isa();
/// "baseline", "x86-64-v3" or "x86-64-v4".
const char* name_of(Isa isa);

}  // namespace zerone::kernels::cpu

/// `return <isa>::call;` for the processor's instruction set.
#if defined(ZERONE_CPU_ISA_LEVELS)
#define ZERONE_CPU_DISPATCH(call)                                        \
  switch (::zerone::kernels::cpu::isa()) {                               \
    case ::zerone::kernels::cpu::Isa::x86_64_v4: return x86_64_v4::call; \
    case ::zerone::kernels::cpu::Isa::x86_64_v3: return x86_64_v3::call; \
    case ::zerone::kernels::cpu::Isa::baseline: break;                   \
  }                                                                      \
  return baseline::call
#else
#define ZERONE_CPU_DISPATCH(call) return baseline::call
#endif
