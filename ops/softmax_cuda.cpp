#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/softmax.h>
#include <zerone/ops/softmax.h>

namespace zerone::softmax_cuda {

std::span<const SoftmaxForwardList::Row> forward_rows() {
  static constexpr SoftmaxForwardList::Row rows[] = {
      {.name = "cuda.softmax",
       .device = DeviceType::cuda,
       .reject = accept_all<SoftmaxDesc>,
       .run = [](ContextState& state, const SoftmaxDesc&, const kernels::SoftmaxForward& args,
                 Plan*) {
         check_cuda(kernels::cuda::softmax(args, cuda_stream(state)), "softmax");
       }}};
  return rows;
}

std::span<const SoftmaxBackwardList::Row> backward_rows() {
  static constexpr SoftmaxBackwardList::Row rows[] = {
      {.name = "cuda.softmax",
       .device = DeviceType::cuda,
       .reject = accept_all<SoftmaxDesc>,
       .run = [](ContextState& state, const SoftmaxDesc&, const kernels::SoftmaxBackward& args,
                 Plan*) {
         check_cuda(kernels::cuda::softmax_backward(args, cuda_stream(state)), "softmax");
       }}};
  return rows;
}

std::span<const CrossEntropyForwardList::Row> cross_entropy_forward_rows() {
  static constexpr CrossEntropyForwardList::Row rows[] = {
      {.name = "cuda.cross_entropy",
       .device = DeviceType::cuda,
       .reject = accept_all<CrossEntropyDesc>,
       .run = [](ContextState& state, const CrossEntropyDesc&,
                 const kernels::CrossEntropyForward& args, Plan*) {
         const Scratch scratch(state, kernels::cuda::cross_entropy_workspace_bytes(args));
         check_cuda(kernels::cuda::cross_entropy(args, scratch.data(), cuda_stream(state)),
                    "cross_entropy");
       }}};
  return rows;
}

std::span<const CrossEntropyBackwardList::Row> cross_entropy_backward_rows() {
  static constexpr CrossEntropyBackwardList::Row rows[] = {
      {.name = "cuda.cross_entropy",
       .device = DeviceType::cuda,
       .reject = accept_all<CrossEntropyDesc>,
       .run = [](ContextState& state, const CrossEntropyDesc&,
                 const kernels::CrossEntropyBackward& args, Plan*) {
         check_cuda(kernels::cuda::cross_entropy_backward(args, cuda_stream(state)),
                    "cross_entropy");
       }}};
  return rows;
}

}  // namespace zerone::softmax_cuda
