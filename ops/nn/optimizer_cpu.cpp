#include <zerone/kernels/cpu/optimizer.h>
#include <zerone/ops/nn/optimizer.h>

namespace zerone::optimizer_cpu {

std::span<const OptimizerList::Row> rows() {
  static constexpr OptimizerList::Row rows[] = {
      {.name = "cpu.optimizer",
       .device = DeviceType::cpu,
       .reject = accept_all<OptimizerDesc>,
       .run = [](ContextState& state, const OptimizerDesc&, const OptimizerArgs& args, Plan*) {
         kernels::cpu::optimizer_step(args.step, args.tensors, state.options.threads);
       }}};
  return rows;
}

}  // namespace zerone::optimizer_cpu
