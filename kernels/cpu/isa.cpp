#include <zerone/kernels/cpu/isa.h>

namespace zerone::kernels::cpu {
namespace {

Isa detect() {
#if defined(ZERONE_CPU_ISA_LEVELS)
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? Isa::x86_64_v4 : v3 ? Isa::x86_64_v3 : Isa::baseline;
#else
  return Isa::baseline;
#endif
}

}  // namespace

Isa isa() {
  static const Isa detected = detect();
  return detected;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::x86_64_v4: return "x86-64-v4";
    case Isa::x86_64_v3: return "x86-64-v3";
    case Isa::baseline: break;
  }
  return "baseline";
}

}  // namespace zerone::kernels::cpu
