#include <zerone/kernels/cpu/softmax.h>

#include <fmt/format.h>

#include <zerone/core/error.h>
#include <zerone/core/shape.h>
#include <zerone/ops/softmax.h>

namespace zerone::softmax_cpu {

std::span<const SoftmaxForwardList::Row> forward_rows() {
  static constexpr SoftmaxForwardList::Row rows[] = {
      {.name = "cpu.softmax",
       .device = DeviceType::cpu,
       .reject = accept_all<SoftmaxDesc>,
       .run = [](ContextState& state, const SoftmaxDesc&, const kernels::SoftmaxForward& args,
                 Plan*) { kernels::cpu::softmax(args, state.options.threads); }}};
  return rows;
}

std::span<const SoftmaxBackwardList::Row> backward_rows() {
  static constexpr SoftmaxBackwardList::Row rows[] = {
      {.name = "cpu.softmax",
       .device = DeviceType::cpu,
       .reject = accept_all<SoftmaxDesc>,
       .run = [](ContextState& state, const SoftmaxDesc&, const kernels::SoftmaxBackward& args,
                 Plan*) { kernels::cpu::softmax_backward(args, state.options.threads); }}};
  return rows;
}

std::span<const CrossEntropyForwardList::Row> cross_entropy_forward_rows() {
  static constexpr CrossEntropyForwardList::Row rows[] = {
      {.name = "cpu.cross_entropy",
       .device = DeviceType::cpu,
       .reject = accept_all<CrossEntropyDesc>,
       .run = [](ContextState& state, const CrossEntropyDesc& desc,
                 const kernels::CrossEntropyForward& args, Plan*) {
         if (const std::int64_t* bad =
                 kernels::cpu::find_bad_label(args.labels, desc.classes, args.ignored))
           throw ShapeError(fmt::format(
               "[cross_entropy] label {} is not one of {} classes (ignore_index {}): {}", *bad,
               desc.classes, args.ignored, to_string(desc)));
         kernels::cpu::cross_entropy(args, state.options.threads);
       }}};
  return rows;
}

std::span<const CrossEntropyBackwardList::Row> cross_entropy_backward_rows() {
  static constexpr CrossEntropyBackwardList::Row rows[] = {
      {.name = "cpu.cross_entropy",
       .device = DeviceType::cpu,
       .reject = accept_all<CrossEntropyDesc>,
       .run = [](ContextState& state, const CrossEntropyDesc&,
                 const kernels::CrossEntropyBackward& args,
                 Plan*) { kernels::cpu::cross_entropy_backward(args, state.options.threads); }}};
  return rows;
}

}  // namespace zerone::softmax_cpu
