#include <zerone/kernels/cpu/elementwise.h>
#include <zerone/ops/elementwise.h>

namespace zerone::elementwise_cpu {

std::span<const UnaryList::Row> unary_rows() {
  static constexpr UnaryList::Row rows[] = {
      {.name = "cpu.elementwise",
       .device = DeviceType::cpu,
       .reject = accept_all<UnaryDesc>,
       .run = [](ContextState& state, const UnaryDesc& desc, const UnaryArgs& args, Plan*) {
         kernels::cpu::unary(desc.op, args.out, args.x, args.alpha, args.beta,
                             state.options.threads);
       }}};
  return rows;
}

std::span<const BinaryList::Row> binary_rows() {
  static constexpr BinaryList::Row rows[] = {
      {.name = "cpu.elementwise",
       .device = DeviceType::cpu,
       .reject = accept_all<BinaryDesc>,
       .run = [](ContextState& state, const BinaryDesc& desc, const BinaryArgs& args, Plan*) {
         kernels::cpu::binary(desc.op, args.out, args.a, args.b, args.alpha, args.beta,
                              state.options.threads);
       }}};
  return rows;
}

}  // namespace zerone::elementwise_cpu
