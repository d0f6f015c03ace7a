#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/pool.h>
#include <zerone/ops/pool.h>

namespace zerone::pool_cuda {

std::span<const Pool2dForwardList::Row> forward_rows() {
  static constexpr Pool2dForwardList::Row rows[] = {
      {.name = "cuda.pool",
       .device = DeviceType::cuda,
       .reject = accept_all<Pool2dDesc>,
       .run = [](ContextState& state, const Pool2dDesc& desc, const kernels::Pool2dForward& args,
                 Plan*) {
         check_cuda(kernels::cuda::pool2d_forward(desc.op, desc.shape, args, cuda_stream(state)),
                    "pool2d");
       }}};
  return rows;
}

std::span<const Pool2dBackwardList::Row> backward_rows() {
  static constexpr Pool2dBackwardList::Row rows[] = {
      {.name = "cuda.pool",
       .device = DeviceType::cuda,
       .reject = accept_all<Pool2dDesc>,
       .run = [](ContextState& state, const Pool2dDesc& desc, const kernels::Pool2dBackward& args,
                 Plan*) {
         check_cuda(kernels::cuda::pool2d_backward(desc.op, desc.shape, args, cuda_stream(state)),
                    "pool2d");
       }}};
  return rows;
}

}  // namespace zerone::pool_cuda
