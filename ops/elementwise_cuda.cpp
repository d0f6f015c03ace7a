#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/elementwise.h>
#include <zerone/ops/elementwise.h>

namespace zerone::elementwise_cuda {

std::span<const UnaryList::Row> unary_rows() {
  static constexpr UnaryList::Row rows[] = {
      {.name = "cuda.elementwise",
       .device = DeviceType::cuda,
       .reject = accept_all<UnaryDesc>,
       .run = [](ContextState& state, const UnaryDesc& desc, const UnaryArgs& args, Plan*) {
         check_cuda(kernels::cuda::unary(desc.op, args.out, args.x, args.alpha, args.beta,
                                         cuda_stream(state)),
                    "elementwise");
       }}};
  return rows;
}

std::span<const BinaryList::Row> binary_rows() {
  static constexpr BinaryList::Row rows[] = {
      {.name = "cuda.elementwise",
       .device = DeviceType::cuda,
       .reject = accept_all<BinaryDesc>,
       .run = [](ContextState& state, const BinaryDesc& desc, const BinaryArgs& args, Plan*) {
         check_cuda(kernels::cuda::binary(desc.op, args.out, args.a, args.b, args.alpha, args.beta,
                                          cuda_stream(state)),
                    "elementwise");
       }}};
  return rows;
}

}  // namespace zerone::elementwise_cuda
