#include <zerone/core/views.h>
#include <zerone/kernels/cpu/dense_conv2d.h>
#include <zerone/kernels/cpu/pointwise.h>
#include <zerone/kernels/cpu/reference.h>
#include <zerone/ops/constant_result.h>
#include <zerone/ops/pointwise.h>

namespace zerone::pointwise_cpu {
namespace {

kernels::PointwiseForward forward_args(const PointwiseDesc& desc, const PointwiseArgs& args) {
  return {.x = args.x.data(),
          .w = args.w.data(),
          .bias = args.b.defined() ? args.b.data() : nullptr,
          .y = args.y.mutable_data(),
          .activation = desc.activation,
          .dtype = desc.dtype};
}

kernels::PointwiseBackwardWeight weight_args(const PointwiseDesc& desc,
                                             const PointwiseWeightArgs& args) {
  return {.x = args.x.data(),
          .dy = args.dy.data(),
          .dw = args.dw.mutable_data(),
          .db = args.db.defined() ? args.db.mutable_data() : nullptr,
          .dtype = desc.dtype};
}

std::string reject_narrow(const PointwiseDesc& desc) {
  return desc.dtype == DType::f32 || desc.dtype == DType::f64 ? "" : "takes f32 and f64 only";
}

}  // namespace

std::span<const PointwiseList::Row> rows() {
  static constexpr PointwiseList::Row rows[] = {
      {.name = "cpu.constant",
       .device = DeviceType::cpu,
       .reject = reject_unless_zero<PointwiseDesc>,
       .run = run_constant_pointwise},
      {.name = "cpu.pointwise",
       .device = DeviceType::cpu,
       .reject = reject_narrow,
       .run =
           [](ContextState& state, const PointwiseDesc& desc, const PointwiseArgs& args, Plan*) {
             const int threads = state.options.threads;
             const Scratch scratch(state, kernels::cpu::pointwise_forward_workspace_bytes(
                                              desc.shape, desc.dtype, threads));
             kernels::cpu::pointwise_forward(desc.shape, forward_args(desc, args), scratch.data(),
                                             threads);
           }},
      {.name = "cpu.eigen",
       .device = DeviceType::cpu,
       .reject = reject_narrow,
       .run =
           [](ContextState& state, const PointwiseDesc& desc, const PointwiseArgs& args, Plan*) {
             const int threads = state.options.threads;
             const Scratch scratch(state, kernels::cpu::dense::pointwise_forward_workspace(
                                              desc.shape, desc.dtype, threads));
             kernels::cpu::dense::pointwise_forward(desc.shape, forward_args(desc, args),
                                                    scratch.data(), threads);
           }},
      {.name = "cpu.reference",
       .device = DeviceType::cpu,
       .reject = accept_all<PointwiseDesc>,
       .run = [](ContextState& state, const PointwiseDesc& desc, const PointwiseArgs& args, Plan*) {
         kernels::cpu::reference::pointwise_forward(desc.shape, forward_args(desc, args),
                                                    state.options.threads);
       }}};
  return rows;
}

std::span<const PointwiseWeightList::Row> weight_rows() {
  static constexpr PointwiseWeightList::Row rows[] = {
      {.name = "cpu.constant",
       .device = DeviceType::cpu,
       .reject = reject_unless_zero<PointwiseDesc>,
       .run = run_constant_pointwise_weight},
      {.name = "cpu.pointwise",
       .device = DeviceType::cpu,
       .reject = reject_narrow,
       .run =
           [](ContextState& state, const PointwiseDesc& desc, const PointwiseWeightArgs& args,
              Plan*) {
             const int threads = state.options.threads;
             const Scratch scratch(state, kernels::cpu::pointwise_backward_weight_workspace_bytes(
                                              desc.shape, desc.dtype, threads));
             kernels::cpu::pointwise_backward_weight(desc.shape, weight_args(desc, args),
                                                     scratch.data(), threads);
           }},
      {.name = "cpu.eigen",
       .device = DeviceType::cpu,
       .reject = reject_narrow,
       .run =
           [](ContextState& state, const PointwiseDesc& desc, const PointwiseWeightArgs& args,
              Plan*) {
             const int threads = state.options.threads;
             const Scratch scratch(state, kernels::cpu::dense::pointwise_backward_weight_workspace(
                                              desc.shape, desc.dtype, threads));
             kernels::cpu::dense::pointwise_backward_weight(desc.shape, weight_args(desc, args),
                                                            scratch.data(), threads);
           }},
      {.name = "cpu.reference",
       .device = DeviceType::cpu,
       .reject = accept_all<PointwiseDesc>,
       .run = [](ContextState& state, const PointwiseDesc& desc, const PointwiseWeightArgs& args,
                 Plan*) {
         kernels::cpu::reference::pointwise_backward_weight(desc.shape, weight_args(desc, args),
                                                            state.options.threads);
       }}};
  return rows;
}

}  // namespace zerone::pointwise_cpu
