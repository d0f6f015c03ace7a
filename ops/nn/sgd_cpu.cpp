#include <zerone/kernels/cpu/elementwise.h>
#include <zerone/ops/nn/sgd.h>

namespace zerone::sgd_cpu {

std::span<const SgdList::Row> rows() {
  static constexpr SgdList::Row rows[] = {
      {.name = "cpu.sgd",
       .device = DeviceType::cpu,
       .reject = accept_all<SgdDesc>,
       .run = [](ContextState& state, const SgdDesc&, const kernels::SgdStep& step, Plan*) {
         kernels::cpu::sgd_step(step, state.options.threads);
       }}};
  return rows;
}

}  // namespace zerone::sgd_cpu
