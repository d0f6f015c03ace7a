#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/batch_norm.h>
#include <zerone/ops/batch_norm.h>

namespace zerone::batch_norm_cuda {

std::span<const BatchNormForwardList::Row> forward_rows() {
  static constexpr BatchNormForwardList::Row rows[] = {
      {.name = "cuda.batch_norm",
       .device = DeviceType::cuda,
       .reject = accept_all<BatchNormDesc>,
       .run = [](ContextState& state, const BatchNormDesc&, const kernels::BatchNormForward& args,
                 Plan*) {
         const Scratch scratch(state, kernels::cuda::batch_norm_workspace_bytes(args));
         check_cuda(kernels::cuda::batch_norm(args, scratch.data(), cuda_stream(state)),
                    "batch_norm");
       }}};
  return rows;
}

std::span<const BatchNormBackwardList::Row> backward_rows() {
  static constexpr BatchNormBackwardList::Row rows[] = {
      {.name = "cuda.batch_norm",
       .device = DeviceType::cuda,
       .reject = accept_all<BatchNormDesc>,
       .run = [](ContextState& state, const BatchNormDesc&, const kernels::BatchNormBackward& args,
                 Plan*) {
         const Scratch scratch(state, kernels::cuda::batch_norm_backward_workspace_bytes(args));
         check_cuda(kernels::cuda::batch_norm_backward(args, scratch.data(), cuda_stream(state)),
                    "batch_norm");
       }}};
  return rows;
}

}  // namespace zerone::batch_norm_cuda
