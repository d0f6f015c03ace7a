#include <zerone/kernels/cpu/optimizer.h>
#include <zerone/ops/nn/gradients.h>

namespace zerone::gradients_cpu {
namespace {

void run(ContextState& state, const GradientDesc& desc, const GradientArgs& args, Plan*) {
  const int threads = state.options.threads;
  switch (desc.op) {
    case GradientOp::norm:
      return kernels::cpu::gradient_norm(args.tensors, args.limit, args.norm, threads);
    case GradientOp::scale:
      return kernels::cpu::scale_gradients(args.tensors, args.number, threads);
    case GradientOp::clamp: return kernels::cpu::clamp_gradients(args.tensors, args.limit, threads);
    case GradientOp::advance_loss_scale:
      return kernels::cpu::advance_loss_scale(args.loss_scale, args.loss_scale_rule, args.number);
  }
}

}  // namespace

std::span<const GradientList::Row> rows() {
  static constexpr GradientList::Row rows[] = {{.name = "cpu.gradients",
                                                .device = DeviceType::cpu,
                                                .reject = accept_all<GradientDesc>,
                                                .run = run}};
  return rows;
}

}  // namespace zerone::gradients_cpu
