#include <fmt/format.h>

#include <zerone/core/error.h>
#include <zerone/kernels/cpu/dense_conv2d.h>
#include <zerone/kernels/cpu/reference.h>
#include <zerone/kernels/cpu/zero_skip.h>
#include <zerone/ops/conv2d.h>
#if ZERONE_ONEDNN
#include <zerone/ops/vendor/onednn_conv2d.h>
#endif

namespace zerone::conv2d_cpu {
namespace {

using kernels::ZeroSkipPass;

const void* data_or_null(const Tensor& x) {
  return x.defined() ? x.data() : nullptr;
}

kernels::Conv2dForward forward_args(const Conv2dDesc& desc, const Conv2dForwardArgs& args) {
  return {.x = args.x.data(),
          .w = args.w.data(),
          .bias = data_or_null(args.b),
          .y = args.y.mutable_data(),
          .activation = desc.activation,
          .dtype = desc.dtype};
}

kernels::Conv2dBackwardData data_args(const Conv2dDesc& desc, const Conv2dDataArgs& args) {
  return {
      .dy = args.dy.data(), .w = args.w.data(), .dx = args.dx.mutable_data(), .dtype = desc.dtype};
}

kernels::Conv2dBackwardWeight weight_args(const Conv2dDesc& desc, const Conv2dWeightArgs& args) {
  return {
      .x = args.x.data(), .dy = args.dy.data(), .dw = args.dw.mutable_data(), .dtype = desc.dtype};
}

std::string reject_narrow(const Conv2dDesc& desc) {
  return desc.dtype == DType::f32 || desc.dtype == DType::f64 ? "" : "takes f32 and f64 only";
}

// --- zero-skip ----------------------------------------------------------------------------------

std::string reject_skip(const Conv2dDesc& desc) {
  if (std::string reason = reject_unless_known_zeros(desc); !reason.empty()) return reason;
  return std::string(kernels::cpu::zero_skip_reject(desc.shape, desc.dtype));
}

/// Per cent of zeros from which skipping is expected to beat the best dense row. From the
/// break-even measurement in docs/experiments.md.
constexpr int crossover_percent = 60;

std::string decline_skip(const Conv2dDesc& desc) {
  if (desc.skip_forced || desc.zero_percent >= crossover_percent) return {};
  return fmt::format("{} % zeros; expected to win from {} %", desc.zero_percent, crossover_percent);
}

void run_skip(ContextState& state, const Conv2dDesc& desc, ZeroSkipPass pass, const Tensor& w,
              const WeightZeros& zeros, kernels::ZeroSkipArgs args) {
  const int threads = state.options.threads;
  const Tensor pack = packed_weight(w, desc.shape, pass, zeros);
  const Scratch scratch(
      state, kernels::cpu::zero_skip_workspace_bytes(desc.shape, pass, desc.dtype, threads));
  args.pack = pack.data();
  args.dtype = desc.dtype;
  kernels::cpu::zero_skip_run(desc.shape, pass, args, scratch.data(), threads);
}

#if ZERONE_ONEDNN
// --- oneDNN -------------------------------------------------------------------------------------

struct OnednnPlan final : Plan {
  explicit OnednnPlan(const vendor::OnednnConv2dOptions& options) : conv(options) {}
  vendor::OnednnConv2d conv;
  std::weak_ptr<Storage> weight;  // the last one; another may lie at its address later
  std::uint64_t weights_seen = 0;
  std::size_t scratch_bytes() const override { return conv.workspace_bytes(); }
  std::string detail() const override { return conv.implementation(); }
};

vendor::OnednnConv2dOptions onednn_options(const Conv2dDesc& desc) {
  const bool exact = desc.math == Math::strict || desc.math == Math::fp32;
  return {
      .shape = desc.shape,
      .pass = static_cast<vendor::Conv2dPass>(desc.pass),
      .bias = desc.bias,
      .activation = desc.activation,
      // Winograd's error is 2-4x that of an FMA loop.
      .algorithm = exact ? vendor::OnednnAlgorithm::direct : vendor::OnednnAlgorithm::automatic};
}

std::string reject_onednn(const Conv2dDesc& desc) {
  if (desc.dtype != DType::f32) return "takes f32 only";
  return vendor::OnednnConv2d::reject(onednn_options(desc));
}

template <class Args>
std::unique_ptr<Plan> plan_onednn(ContextState& state, const Conv2dDesc& desc, const Args&,
                                  const std::string&, std::string& reason) {
  vendor::OnednnConv2dOptions options = onednn_options(desc);
  options.threads = state.options.threads;
  try {
    return std::make_unique<OnednnPlan>(options);
  } catch (const std::runtime_error& error) {
    reason = error.what();
    return nullptr;
  }
}

/// Changes whenever the weight is another one or was written.
std::uint64_t weight_version(OnednnPlan& plan, const Tensor& w) {
  if (w.storage().external()) return vendor::OnednnConv2d::unknown_version;
  if (plan.weight.lock() != w.shared_storage()) {
    plan.weight = w.shared_storage();
    ++plan.weights_seen;
  }
  return plan.weights_seen << 32 ^ w.version();
}
#endif

}  // namespace

std::span<const Conv2dForwardList::Row> forward_rows() {
  static constexpr Conv2dForwardList::Row rows[] =
  { {.name = "cpu.constant",
     .device = DeviceType::cpu,
     .reject = reject_unless_all_zero,
     .run = run_constant_forward},
    {.name = "cpu.zero_skip",
     .device = DeviceType::cpu,
     .reject = reject_skip,
     .decline = decline_skip,
     .run =
         [](ContextState& state, const Conv2dDesc& desc, const Conv2dForwardArgs& args, Plan*) {
           run_skip(state, desc, ZeroSkipPass::forward, args.w, args.zeros,
                    {.in = args.x.data(),
                     .bias = data_or_null(args.b),
                     .out = args.y.mutable_data(),
                     .activation = desc.activation});
         }},
#if ZERONE_ONEDNN
    {.name = "cpu.onednn",
     .device = DeviceType::cpu,
     .reject = reject_onednn,
     .make_plan = plan_onednn<Conv2dForwardArgs>,
     .run =
         [](ContextState&, const Conv2dDesc&, const Conv2dForwardArgs& args, Plan* plan) {
           auto& onednn = static_cast<OnednnPlan&>(*plan);
           onednn.conv.run_forward(args.x.data<float>(), args.w.data<float>(),
                                   args.b.defined() ? args.b.data<float>() : nullptr,
                                   args.y.mutable_data<float>(), weight_version(onednn, args.w));
         }},
#endif
    {.name = "cpu.eigen",
     .device = DeviceType::cpu,
     .reject = reject_narrow,
     .run =
         [](ContextState& state, const Conv2dDesc& desc, const Conv2dForwardArgs& args, Plan*) {
           const int threads = state.options.threads;
           const Scratch scratch(state, kernels::cpu::dense::conv2d_forward_workspace(
                                            desc.shape, desc.dtype, threads));
           kernels::cpu::dense::conv2d_forward(desc.shape, forward_args(desc, args), scratch.data(),
                                               threads);
         }},
    {.name = "cpu.reference",
     .device = DeviceType::cpu,
     .reject = accept_all<Conv2dDesc>,
     .run = [](ContextState& state, const Conv2dDesc& desc, const Conv2dForwardArgs& args, Plan*) {
       kernels::cpu::reference::conv2d_forward(desc.shape, forward_args(desc, args),
                                               state.options.threads);
     }} };
  return rows;
}

std::span<const Conv2dDataList::Row> data_rows() {
  static constexpr Conv2dDataList::Row rows[] =
  { {.name = "cpu.constant",
     .device = DeviceType::cpu,
     .reject = reject_unless_all_zero,
     .run = run_constant_data},
    {.name = "cpu.zero_skip",
     .device = DeviceType::cpu,
     .reject = reject_skip,
     .decline = decline_skip,
     .run =
         [](ContextState& state, const Conv2dDesc& desc, const Conv2dDataArgs& args, Plan*) {
           run_skip(state, desc, ZeroSkipPass::backward_data, args.w, args.zeros,
                    {.in = args.dy.data(), .out = args.dx.mutable_data()});
           gate_gradient(args);
         }},
#if ZERONE_ONEDNN
    {.name = "cpu.onednn",
     .device = DeviceType::cpu,
     .reject = reject_onednn,
     .make_plan = plan_onednn<Conv2dDataArgs>,
     .run =
         [](ContextState&, const Conv2dDesc&, const Conv2dDataArgs& args, Plan* plan) {
           auto& onednn = static_cast<OnednnPlan&>(*plan);
           onednn.conv.run_backward_data(args.dy.data<float>(), args.w.data<float>(),
                                         args.dx.mutable_data<float>(),
                                         weight_version(onednn, args.w));
           gate_gradient(args);
         }},
#endif
    {.name = "cpu.eigen",
     .device = DeviceType::cpu,
     .reject = reject_narrow,
     .run =
         [](ContextState& state, const Conv2dDesc& desc, const Conv2dDataArgs& args, Plan*) {
           const int threads = state.options.threads;
           const Scratch scratch(state, kernels::cpu::dense::conv2d_backward_data_workspace(
                                            desc.shape, desc.dtype, threads));
           kernels::cpu::dense::conv2d_backward_data(desc.shape, data_args(desc, args),
                                                     scratch.data(), threads);
           gate_gradient(args);
         }},
    {.name = "cpu.reference",
     .device = DeviceType::cpu,
     .reject = accept_all<Conv2dDesc>,
     .run = [](ContextState& state, const Conv2dDesc& desc, const Conv2dDataArgs& args, Plan*) {
       kernels::cpu::reference::conv2d_backward_data(desc.shape, data_args(desc, args),
                                                     state.options.threads);
       gate_gradient(args);
     }} };
  return rows;
}

std::span<const Conv2dWeightList::Row> weight_rows() {
  static constexpr Conv2dWeightList::Row rows[] =
  { {.name = "cpu.constant",
     .device = DeviceType::cpu,
     .reject = reject_unless_all_zero,
     .run = run_constant_weight},
#if ZERONE_ONEDNN
    {.name = "cpu.onednn",
     .device = DeviceType::cpu,
     .reject = reject_onednn,
     .make_plan = plan_onednn<Conv2dWeightArgs>,
     .run =
         [](ContextState&, const Conv2dDesc&, const Conv2dWeightArgs& args, Plan* plan) {
           static_cast<OnednnPlan&>(*plan).conv.run_backward_weight(
               args.x.data<float>(), args.dy.data<float>(), args.dw.mutable_data<float>(), nullptr);
         }},
#endif
    {.name = "cpu.eigen",
     .device = DeviceType::cpu,
     .reject = reject_narrow,
     .run =
         [](ContextState& state, const Conv2dDesc& desc, const Conv2dWeightArgs& args, Plan*) {
           const int threads = state.options.threads;
           const Scratch scratch(state, kernels::cpu::dense::conv2d_backward_weight_workspace(
                                            desc.shape, desc.dtype, threads));
           kernels::cpu::dense::conv2d_backward_weight(desc.shape, weight_args(desc, args),
                                                       scratch.data(), threads);
         }},
    {.name = "cpu.reference",
     .device = DeviceType::cpu,
     .reject = accept_all<Conv2dDesc>,
     .run = [](ContextState& state, const Conv2dDesc& desc, const Conv2dWeightArgs& args, Plan*) {
       kernels::cpu::reference::conv2d_backward_weight(desc.shape, weight_args(desc, args),
                                                       state.options.threads);
     }} };
  return rows;
}

}  // namespace zerone::conv2d_cpu
