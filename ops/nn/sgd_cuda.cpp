#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/elementwise.h>
#include <zerone/ops/nn/sgd.h>

namespace zerone::sgd_cuda {

std::span<const SgdList::Row> rows() {
  static constexpr SgdList::Row rows[] = {
      {.name = "cuda.sgd",
       .device = DeviceType::cuda,
       .reject = accept_all<SgdDesc>,
       .run = [](ContextState& state, const SgdDesc&, const kernels::SgdStep& step, Plan*) {
         check_cuda(kernels::cuda::sgd_step(step, cuda_stream(state)), "sgd");
       }}};
  return rows;
}

}  // namespace zerone::sgd_cuda
