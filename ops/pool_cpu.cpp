#include <zerone/kernels/cpu/pool.h>
#include <zerone/ops/pool.h>

namespace zerone::pool_cpu {

std::span<const Pool2dForwardList::Row> forward_rows() {
  static constexpr Pool2dForwardList::Row rows[] = {
      {.name = "cpu.pool",
       .device = DeviceType::cpu,
       .reject = accept_all<Pool2dDesc>,
       .run = [](ContextState& state, const Pool2dDesc& desc, const kernels::Pool2dForward& args,
                 Plan*) {
         kernels::cpu::pool2d_forward(desc.op, desc.shape, args, state.options.threads);
       }}};
  return rows;
}

std::span<const Pool2dBackwardList::Row> backward_rows() {
  static constexpr Pool2dBackwardList::Row rows[] = {
      {.name = "cpu.pool",
       .device = DeviceType::cpu,
       .reject = accept_all<Pool2dDesc>,
       .run = [](ContextState& state, const Pool2dDesc& desc, const kernels::Pool2dBackward& args,
                 Plan*) {
         kernels::cpu::pool2d_backward(desc.op, desc.shape, args, state.options.threads);
       }}};
  return rows;
}

}  // namespace zerone::pool_cpu
