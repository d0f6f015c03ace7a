#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/dropout.h>
#include <zerone/ops/dropout.h>

namespace zerone::dropout_cuda {

std::span<const DropoutList::Row> rows() {
  static constexpr DropoutList::Row rows[] = {
      {.name = "cuda.dropout",
       .device = DeviceType::cuda,
       .reject = accept_all<DropoutDesc>,
       .run = [](ContextState& state, const DropoutDesc& desc, const DropoutArgs& args, Plan*) {
         const kernels::Dropout pass{args.out, args.x, desc.numel, desc.dtype, args.scale};
         const RandomPosition at = random_position(state);
         check_cuda(
             desc.backward
                 ? kernels::cuda::dropout_backward(pass, args.kept, cuda_stream(state))
                 : kernels::cuda::dropout(pass, {state.options.seed, args.highest_kept}, at.counter,
                                          at.offset, args.flags, cuda_stream(state)),
             "dropout");
       }}};
  return rows;
}

}  // namespace zerone::dropout_cuda
