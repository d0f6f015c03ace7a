#include <zerone/kernels/cpu/dropout.h>
#include <zerone/ops/dropout.h>

namespace zerone::dropout_cpu {

std::span<const DropoutList::Row> rows() {
  static constexpr DropoutList::Row rows[] = {
      {.name = "cpu.dropout",
       .device = DeviceType::cpu,
       .reject = accept_all<DropoutDesc>,
       .run = [](ContextState& state, const DropoutDesc& desc, const DropoutArgs& args, Plan*) {
         const kernels::Dropout pass{args.out, args.x, desc.numel, desc.dtype, args.scale};
         if (desc.backward)
           kernels::cpu::dropout_backward(pass, args.kept, state.options.threads);
         else
           kernels::cpu::dropout(pass, {state.options.seed, args.highest_kept}, state.random_offset,
                                 args.flags, state.options.threads);
       }}};
  return rows;
}

}  // namespace zerone::dropout_cpu
