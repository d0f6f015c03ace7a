#include <zerone/kernels/cpu/elementwise.h>
#include <zerone/kernels/cpu/reduce.h>
#include <zerone/ops/reduce.h>

namespace zerone::reduce_cpu {

std::span<const ReduceList::Row> rows() {
  static constexpr ReduceList::Row rows[] = {
      {.name = "cpu.reduce",
       .device = DeviceType::cpu,
       .reject = accept_all<ReduceDesc>,
       .run = [](ContextState& state, const ReduceDesc& desc, const ReduceArgs& args, Plan*) {
         const int threads = state.options.threads;
         switch (desc.op) {
           case ReduceOp::sum: kernels::cpu::sum(args.out, args.x, args.scale, threads); break;
           case ReduceOp::squared_error_sum:
             kernels::cpu::squared_error_sum(args.out.data, args.x, args.other, args.scale,
                                             threads);
             break;
           case ReduceOp::squared_error_backward:
             kernels::cpu::scaled_difference(args.out, args.x, args.other, args.upstream,
                                             args.scale, threads);
             break;
         }
       }}};
  return rows;
}

}  // namespace zerone::reduce_cpu
