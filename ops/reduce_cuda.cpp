#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/elementwise.h>
#include <zerone/kernels/cuda/reduce.h>
#include <zerone/ops/reduce.h>

namespace zerone::reduce_cuda {
namespace {

void run(ContextState& state, const ReduceDesc& desc, const ReduceArgs& args, Plan*) {
  const cudaStream_t stream = cuda_stream(state);
  switch (desc.op) {
    case ReduceOp::sum: {
      const Scratch scratch(
          state, kernels::cuda::sum_workspace_bytes(args.out.layout, args.x.layout, desc.dtype));
      check_cuda(kernels::cuda::sum(args.out, args.x, args.scale, scratch.data(), stream), "sum");
      break;
    }
    case ReduceOp::squared_error_sum: {
      const Scratch scratch(
          state, kernels::cuda::squared_error_sum_workspace_bytes(args.x.layout, desc.dtype));
      check_cuda(kernels::cuda::squared_error_sum(args.out.data, args.x, args.other, args.scale,
                                                  scratch.data(), stream),
                 "mean_square_error");
      break;
    }
    case ReduceOp::squared_error_backward:
      check_cuda(kernels::cuda::scaled_difference(args.out, args.x, args.other, args.upstream,
                                                  args.scale, stream),
                 "mean_square_error");
      break;
  }
}

}  // namespace

std::span<const ReduceList::Row> rows() {
  static constexpr ReduceList::Row rows[] = {{.name = "cuda.reduce",
                                              .device = DeviceType::cuda,
                                              .reject = accept_all<ReduceDesc>,
                                              .run = run}};
  return rows;
}

}  // namespace zerone::reduce_cuda
