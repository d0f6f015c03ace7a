#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/optimizer.h>
#include <zerone/ops/nn/optimizer.h>

namespace zerone::optimizer_cuda {

std::span<const OptimizerList::Row> rows() {
  static constexpr OptimizerList::Row rows[] = {
      {.name = "cuda.optimizer",
       .device = DeviceType::cuda,
       .reject = accept_all<OptimizerDesc>,
       .run = [](ContextState& state, const OptimizerDesc&, const OptimizerArgs& args, Plan*) {
         check_cuda(kernels::cuda::optimizer_step(args.step, args.tensors, cuda_stream(state)),
                    "optimizer");
       }}};
  return rows;
}

}  // namespace zerone::optimizer_cuda
