#include <zerone/kernels/cpu/batch_norm.h>
#include <zerone/ops/batch_norm.h>

namespace zerone::batch_norm_cpu {

std::span<const BatchNormForwardList::Row> forward_rows() {
  static constexpr BatchNormForwardList::Row rows[] = {
      {.name = "cpu.batch_norm",
       .device = DeviceType::cpu,
       .reject = accept_all<BatchNormDesc>,
       .run = [](ContextState& state, const BatchNormDesc&, const kernels::BatchNormForward& args,
                 Plan*) { kernels::cpu::batch_norm(args, state.options.threads); }}};
  return rows;
}

std::span<const BatchNormBackwardList::Row> backward_rows() {
  static constexpr BatchNormBackwardList::Row rows[] = {
      {.name = "cpu.batch_norm",
       .device = DeviceType::cpu,
       .reject = accept_all<BatchNormDesc>,
       .run = [](ContextState& state, const BatchNormDesc&, const kernels::BatchNormBackward& args,
                 Plan*) { kernels::cpu::batch_norm_backward(args, state.options.threads); }}};
  return rows;
}

}  // namespace zerone::batch_norm_cpu
