#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/optimizer.h>
#include <zerone/ops/nn/gradients.h>

namespace zerone::gradients_cuda {
namespace {

void run(ContextState& state, const GradientDesc& desc, const GradientArgs& args, Plan*) {
  const cudaStream_t stream = cuda_stream(state);
  switch (desc.op) {
    case GradientOp::norm: {
      const Scratch scratch(state, kernels::cuda::gradient_norm_workspace_bytes(args.tensors));
      check_cuda(
          kernels::cuda::gradient_norm(args.tensors, args.limit, args.norm, scratch.data(), stream),
          "grad_norm");
      break;
    }
    case GradientOp::scale:
      check_cuda(kernels::cuda::scale_gradients(args.tensors, args.number, stream), "scale_grad");
      break;
    case GradientOp::clamp:
      check_cuda(kernels::cuda::clamp_gradients(args.tensors, args.limit, stream),
                 "clip_grad_value");
      break;
    case GradientOp::advance_loss_scale:
      check_cuda(kernels::cuda::advance_loss_scale(args.loss_scale, args.loss_scale_rule,
                                                   args.number, stream),
                 "loss_scaler");
      break;
  }
}

}  // namespace

std::span<const GradientList::Row> rows() {
  static constexpr GradientList::Row rows[] = {{.name = "cuda.gradients",
                                                .device = DeviceType::cuda,
                                                .reject = accept_all<GradientDesc>,
                                                .run = run}};
  return rows;
}

}  // namespace zerone::gradients_cuda
