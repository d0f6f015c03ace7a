#include <fmt/format.h>

#include <zerone/core/cuda_context.h>
#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/kernels/cuda/elementwise.h>
#include <zerone/kernels/cuda/pointwise.h>
#include <zerone/kernels/cuda/reference.h>
#include <zerone/ops/constant_result.h>
#include <zerone/ops/pointwise.h>
#include <zerone/ops/reduce.h>
#include <zerone/ops/vendor/handles.h>

namespace zerone::pointwise_cuda {
namespace {

using vendor::CublasBuildOptions;
using vendor::CublasLtPointwise;
using vendor::CublasLtPointwiseBackwardWeight;

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

void check_cublas(cublasStatus_t status, const char* op) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw LibraryError(fmt::format("[{}] cuBLAS: {}", op, cublasGetStatusString(status)));
}

CublasBuildOptions build_options(ContextState& state, const Scratch& workspace) {
  return {.workspace_limit = state.options.workspace_limit,
          .tune = state.tuning,
          .workspace = workspace.data()};
}

// --- cuBLASLt -----------------------------------------------------------------------------------

struct ForwardPlan final : Plan {
  std::unique_ptr<CublasLtPointwise> gemm;
  bool separate_epilogue = false;  // bias and activation follow as passes of their own
  std::size_t scratch_bytes() const override { return gemm->workspace_bytes(); }
  std::string detail() const override {
    return gemm->algorithm() + (separate_epilogue ? ", bias and activation apart" : "");
  }
};

std::unique_ptr<Plan> plan_cublas(ContextState& state, const PointwiseDesc& desc,
                                  const PointwiseArgs& args, const std::string&,
                                  std::string& reason) {
  vendor::CublasHandles* handles = vendor::cublas_handles(state, reason);
  if (!handles) return nullptr;
  const Scratch workspace(state, state.tuning ? state.options.workspace_limit : 0);
  const vendor::CublasLtPointwiseBuffers buffers{.x = args.x.data(),
                                                 .w = args.w.data(),
                                                 .bias = args.b.defined() ? args.b.data() : nullptr,
                                                 .y = args.y.mutable_data()};
  vendor::CublasLtPointwiseProblem problem{.shape = desc.shape,
                                           .dtype = desc.dtype,
                                           .math = desc.math,
                                           .bias = desc.bias,
                                           .activation = desc.activation,
                                           .alignment = desc.alignment};
  auto plan = std::make_unique<ForwardPlan>();
  auto built =
      CublasLtPointwise::build(*handles, problem, build_options(state, workspace), buffers);
  if (!built && (desc.bias || desc.activation != Activation::none)) {
    problem.bias = false;
    problem.activation = Activation::none;
    plan->separate_epilogue = true;
    built = CublasLtPointwise::build(*handles, problem, build_options(state, workspace), buffers);
  }
  if (!built) {
    reason = built.reason;
    return nullptr;
  }
  plan->gemm = std::move(built.value);
  return plan;
}

void run_cublas(ContextState& state, const PointwiseDesc& desc, const PointwiseArgs& args,
                Plan* plan) {
  auto& forward = static_cast<ForwardPlan&>(*plan);
  std::string reason;
  const Scratch workspace(state, forward.gemm->workspace_bytes());
  check_cublas(forward.gemm->run(*vendor::cublas_handles(state, reason),
                                 {.x = args.x.data(),
                                  .w = args.w.data(),
                                  .bias = args.b.defined() ? args.b.data() : nullptr,
                                  .y = args.y.mutable_data()},
                                 workspace.data()),
               "pointwise");
  if (!forward.separate_epilogue) return;
  const kernels::View y = mutable_view(args.y);
  const cudaStream_t stream = cuda_stream(state);
  if (desc.bias) {
    const Tensor b = args.b.expand(args.y.shape());
    check_cuda(kernels::cuda::binary(kernels::BinaryOp::add, y, y, view(b), stream), "pointwise");
  }
  if (desc.activation == Activation::relu)
    check_cuda(kernels::cuda::unary(kernels::UnaryOp::relu, y, y, 1, 0, stream), "pointwise");
}

struct WeightPlan final : Plan {
  std::unique_ptr<CublasLtPointwiseBackwardWeight> gemm;
  std::size_t scratch_bytes() const override {
    return gemm->workspace_bytes() + gemm->partial_bytes();
  }
  std::string detail() const override {
    return fmt::format("{}, {} partial sums", gemm->algorithm(), gemm->split_count());
  }
};

std::unique_ptr<Plan> plan_cublas_weight(ContextState& state, const PointwiseDesc& desc,
                                         const PointwiseWeightArgs& args, const std::string&,
                                         std::string& reason) {
  vendor::CublasHandles* handles = vendor::cublas_handles(state, reason);
  if (!handles) return nullptr;
  // cuBLASLt's own bias-gradient epilogue doubles the time of the product; a sum beside it does
  // not.
  const vendor::CublasLtPointwiseBackwardWeightProblem problem{
      .shape = desc.shape, .dtype = desc.dtype, .math = desc.math, .alignment = desc.alignment};
  const std::int64_t splits = CublasLtPointwiseBackwardWeight::split_count(desc.shape);
  const std::size_t partial_bytes =
      splits > 1 ? static_cast<std::size_t>(splits * args.dw.numel()) *
                       size_of(desc.dtype == DType::f64 ? DType::f64 : DType::f32)
                 : 0;
  if (partial_bytes > state.options.workspace_limit) {
    reason = fmt::format("{} B of partial sums; the workspace limit is {} B", partial_bytes,
                         state.options.workspace_limit);
    return nullptr;
  }
  const Scratch workspace(state, state.tuning ? state.options.workspace_limit : 0);
  const Scratch partials(state, state.tuning ? partial_bytes : 0);
  const vendor::CublasLtPointwiseBackwardWeightBuffers buffers{.x = args.x.data(),
                                                               .dy = args.dy.data(),
                                                               .dw = args.dw.mutable_data(),
                                                               .partials = partials.data()};
  auto built = CublasLtPointwiseBackwardWeight::build(*handles, problem,
                                                      build_options(state, workspace), buffers);
  if (!built) {
    reason = built.reason;
    return nullptr;
  }
  auto plan = std::make_unique<WeightPlan>();
  plan->gemm = std::move(built.value);
  return plan;
}

void run_cublas_weight(ContextState& state, const PointwiseDesc& desc,
                       const PointwiseWeightArgs& args, Plan* plan) {
  auto& weight = static_cast<WeightPlan&>(*plan);
  std::string reason;
  const Scratch workspace(state, weight.gemm->workspace_bytes());
  const std::int64_t splits = weight.gemm->split_count();
  Tensor partials;
  if (splits > 1)
    partials = Tensor::empty(args.x.context(), {splits, args.dw.size(0), args.dw.size(1)},
                             weight.gemm->partial_dtype());
  check_cublas(
      weight.gemm->run(*vendor::cublas_handles(state, reason),
                       {.x = args.x.data(),
                        .dy = args.dy.data(),
                        .dw = args.dw.mutable_data(),
                        .partials = partials.defined() ? partials.mutable_data() : nullptr},
                       workspace.data()),
      "pointwise");
  if (splits > 1) {
    const bool same = partials.dtype() == args.dw.dtype();
    Tensor total =
        same ? args.dw : Tensor::empty(args.dw.context(), args.dw.shape(), partials.dtype());
    Tensor kept = total.expand({1, args.dw.size(0), args.dw.size(1)});
    sum_into(kept, partials);
    if (!same) args.dw.copy_(total);
  }
  if (desc.bias) {
    std::array<std::int64_t, max_rank> ones;
    ones.fill(1);
    ones[static_cast<std::size_t>(args.dy.rank() - 1)] = args.db.numel();
    Tensor kept = args.db.expand(Shape(
        std::span<const std::int64_t>(ones.data(), static_cast<std::size_t>(args.dy.rank()))));
    sum_into(kept, args.dy);
  }
}

// --- own kernels --------------------------------------------------------------------------------

bool tensor_cores_allowed(const PointwiseDesc& desc) {
  return desc.dtype == DType::bf16 || desc.dtype == DType::f16 ||
         (desc.dtype == DType::f32 && desc.math != Math::strict && desc.math != Math::fp32);
}

/// Whether the problem is bound by arithmetic rather than by memory on FMA units: there a library
/// product is a little ahead, except where it needs a pass of its own for the bias.
bool arithmetic_bound(const PointwiseDesc& desc) {
  const kernels::PointwiseShape& s = desc.shape;
  return s.c_in >= 64 && s.c_out >= 64 && s.pixel_count() >= 1024;
}

std::string decline_forward(const PointwiseDesc& desc) {
  if (!arithmetic_bound(desc)) return {};
  if (tensor_cores_allowed(desc)) return "FMA units; tensor cores are allowed here";
  const bool pixels_contiguous = desc.shape.y_strides[2] == 1 && desc.shape.y_channel_stride != 1;
  if (pixels_contiguous && (desc.bias || desc.activation != Activation::none)) return {};
  return "no bias pass to save, and cuBLAS's product is 10-20 % faster";
}

std::string decline_weight(const PointwiseDesc& desc) {
  if (!arithmetic_bound(desc)) return {};
  return tensor_cores_allowed(desc) ? "FMA units; tensor cores are allowed here"
                                    : "cuBLAS's product is 10-30 % faster";
}

}  // namespace

std::span<const PointwiseList::Row> rows() {
  static constexpr PointwiseList::Row rows[] = {
      {.name = "cuda.constant",
       .device = DeviceType::cuda,
       .reject = reject_unless_zero<PointwiseDesc>,
       .run = run_constant_pointwise},
      {.name = "cuda.pointwise",
       .device = DeviceType::cuda,
       .reject = accept_all<PointwiseDesc>,
       .decline = decline_forward,
       .run =
           [](ContextState& state, const PointwiseDesc& desc, const PointwiseArgs& args, Plan*) {
             check_cuda(kernels::cuda::pointwise_forward(desc.shape, forward_args(desc, args),
                                                         cuda_stream(state)),
                        "pointwise");
           }},
      {.name = "cuda.cublas",
       .device = DeviceType::cuda,
       .reject = accept_all<PointwiseDesc>,
       .make_plan = plan_cublas,
       .run = run_cublas},
      {.name = "cuda.reference",
       .device = DeviceType::cuda,
       .reject = accept_all<PointwiseDesc>,
       .run = [](ContextState& state, const PointwiseDesc& desc, const PointwiseArgs& args, Plan*) {
         check_cuda(kernels::cuda::reference::pointwise_forward(
                        desc.shape, forward_args(desc, args), cuda_stream(state)),
                    "pointwise");
       }}};
  return rows;
}

std::span<const PointwiseWeightList::Row> weight_rows() {
  static constexpr PointwiseWeightList::Row rows[] = {
      {.name = "cuda.constant",
       .device = DeviceType::cuda,
       .reject = reject_unless_zero<PointwiseDesc>,
       .run = run_constant_pointwise_weight},
      {.name = "cuda.pointwise",
       .device = DeviceType::cuda,
       .reject = accept_all<PointwiseDesc>,
       .decline = decline_weight,
       .run =
           [](ContextState& state, const PointwiseDesc& desc, const PointwiseWeightArgs& args,
              Plan*) {
             const Scratch scratch(state, kernels::cuda::pointwise_backward_weight_workspace_bytes(
                                              desc.shape, desc.dtype));
             check_cuda(
                 kernels::cuda::pointwise_backward_weight(desc.shape, weight_args(desc, args),
                                                          scratch.data(), cuda_stream(state)),
                 "pointwise");
           }},
      {.name = "cuda.cublas",
       .device = DeviceType::cuda,
       .reject = accept_all<PointwiseDesc>,
       .make_plan = plan_cublas_weight,
       .run = run_cublas_weight},
      {.name = "cuda.reference",
       .device = DeviceType::cuda,
       .reject = accept_all<PointwiseDesc>,
       .run = [](ContextState& state, const PointwiseDesc& desc, const PointwiseWeightArgs& args,
                 Plan*) {
         check_cuda(kernels::cuda::reference::pointwise_backward_weight(
                        desc.shape, weight_args(desc, args), cuda_stream(state)),
                    "pointwise");
       }}};
  return rows;
}

}  // namespace zerone::pointwise_cuda
