#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include <zerone/core/cuda_context.h>
#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/kernels/cuda/direct_conv2d.h>
#include <zerone/kernels/cuda/direct_conv2d_weight.h>
#include <zerone/kernels/cuda/elementwise.h>
#include <zerone/kernels/cuda/flip_weight.h>
#include <zerone/kernels/cuda/reference.h>
#include <zerone/kernels/cuda/zero_skip.h>
#include <zerone/ops/conv2d.h>
#include <zerone/ops/vendor/handles.h>

namespace zerone::conv2d_cuda {
namespace {

using kernels::ZeroSkipPass;
using vendor::CudnnConv2d;

/// Pixels below which fixed costs of about 20 us decide.
constexpr std::int64_t small_problem_pixels = 16384;

bool tensor_cores_allowed(const Conv2dDesc& desc) {
  return desc.dtype == DType::bf16 || desc.dtype == DType::f16 ||
         (desc.dtype == DType::f32 && desc.math != Math::fp32 && desc.math != Math::strict);
}

// --- cuDNN --------------------------------------------------------------------------------------

/// A bias of zeros that belongs to a plan. (Not a tensor: tensors keep the context alive that keeps
/// the plan alive.)
class ZeroBias {
 public:
  ZeroBias(ContextState& state, std::int64_t channels, DType dtype) : backend_(state.backend) {
    data_ = backend_->allocate(static_cast<std::size_t>(channels) * size_of(dtype));
    if (!data_) throw OutOfMemoryError("[conv2d] no memory for a bias", 0);
    backend_->fill({data_, {1, {channels}, {1}}, dtype}, 0);
  }
  ~ZeroBias() { backend_->deallocate(data_); }
  ZeroBias(const ZeroBias&) = delete;
  ZeroBias& operator=(const ZeroBias&) = delete;
  const void* data() const { return data_; }

 private:
  std::shared_ptr<Backend> backend_;
  void* data_ = nullptr;
};

/// A pass on cuDNN. cuDNN wants every operand in one memory order; a weight that lies in the other
/// one is re-laid at each call (`relaid_weight`; for dw, after the call).
struct CudnnPlan final : Plan {
  std::unique_ptr<CudnnConv2d> conv;
  std::optional<ZeroBias> zero_bias;  // cuDNN fuses an activation only behind a bias
  bool separate_epilogue = false;     // bias and activation follow as passes of their own
  std::optional<Layout> relaid_weight;
  std::size_t scratch_bytes() const override {
    return conv->workspace_bytes() +
           (relaid_weight ? static_cast<std::size_t>(relaid_weight->numel()) * 8 : 0);
  }
  std::string detail() const override {
    return fmt::format("{}{}{}", conv->engine(),
                       separate_epilogue ? ", bias and activation apart" : "",
                       relaid_weight ? ", weight re-laid" : "");
  }
  std::string token() const override {
    return (separate_epilogue ? apart_token : "") + conv->to_json();
  }
  static constexpr const char* apart_token = "apart ";
};

bool lies_as(const std::array<std::int64_t, 4>& sizes, const std::array<std::int64_t, 4>& strides,
             const std::array<std::int64_t, 4>& wanted) {
  for (std::size_t i = 0; i < 4; ++i)
    if (sizes[i] != 1 && strides[i] != wanted[i]) return false;
  return true;
}

/// The weight's layout in the images' memory order, if it lies otherwise.
std::optional<Layout> relaid_weight(const kernels::Conv2dShape& s, bool backward_data) {
  const std::array<std::int64_t, 4> w{s.c_out, s.c_in / s.groups, s.kh, s.kw};
  const std::array<std::int64_t, 4> kcrs{w[1] * w[2] * w[3], w[2] * w[3], w[3], 1};
  const std::array<std::int64_t, 4> krsc{w[1] * w[2] * w[3], 1, w[3] * w[1], w[1]};
  const std::array<std::int64_t, 4> image = backward_data
                                                ? std::array{s.n, s.c_out, s.h_out, s.w_out}
                                                : std::array{s.n, s.c_in, s.h, s.w};
  const auto& strides = backward_data ? s.y_strides : s.x_strides;
  const bool nchw =
      lies_as(image, strides, {image[1] * image[2] * image[3], image[2] * image[3], image[3], 1});
  const auto& wanted = nchw ? kcrs : krsc;
  if (lies_as(w, s.w_strides, wanted)) return std::nullopt;
  Layout layout;
  layout.rank = 4;
  for (std::size_t i = 0; i < 4; ++i) {
    layout.sizes[i] = w[i];
    layout.strides[i] = wanted[i];
  }
  return layout;
}

/// A tensor of the context's allocator in a given layout.
Tensor make_tensor(const Tensor& like, const Layout& layout) {
  const auto bytes = static_cast<std::size_t>(layout.numel()) * size_of(like.dtype());
  return Tensor::view_of(std::make_shared<Storage>(like.context(), bytes), 0, layout, like.dtype());
}

Tensor relaid(const Tensor& w, const std::optional<Layout>& layout) {
  if (!layout) return w;
  Tensor copy = make_tensor(w, *layout);
  copy.copy_(w);
  return copy;
}

/// `fused`: bias and activation in one engine with the product, if cuDNN has one for that.
std::unique_ptr<CudnnPlan> plan_cudnn(ContextState& state, const Conv2dDesc& desc,
                                      vendor::ConvPass pass, vendor::CudnnConv2dPointers pointers,
                                      std::optional<Layout> weight_layout, const std::string& token,
                                      std::string& reason, bool fused = true) {
  const vendor::CudnnHandle* handle = vendor::cudnn_handle(state, reason);
  if (!handle) return nullptr;
  // Among the f32 engines that cuDNN lists for a weight gradient is one that is wrong and carries
  // no note (see reject_untrusted_weight), so that none is tried for speed alone.
  const bool exact_weight_gradient = pass == vendor::ConvPass::backward_weight &&
                                     desc.dtype == DType::f32 && !tensor_cores_allowed(desc);
  const bool tune = state.tuning && !exact_weight_gradient;
  const Scratch workspace(state, tune ? state.options.workspace_limit : 0);
  vendor::CudnnBuildOptions options{.workspace_limit = state.options.workspace_limit,
                                    .tune = tune,
                                    .pointers = pointers,
                                    .workspace = workspace.data()};
  vendor::CudnnConv2dProblem problem{.shape = desc.shape,
                                     .pass = pass,
                                     .dtype = desc.dtype,
                                     .math = desc.math,
                                     .bias = desc.bias,
                                     .activation = desc.activation,
                                     .deterministic = state.options.deterministic,
                                     .allow_winograd = false,  // 2-4x the error of an FMA loop
                                     .alignment = desc.alignment};
  if (weight_layout)
    for (std::size_t i = 0; i < 4; ++i) problem.shape.w_strides[i] = weight_layout->strides[i];
  const auto build = [&] {
    return token.empty() ? CudnnConv2d::build(*handle, problem, options)
                         : CudnnConv2d::from_json(*handle, problem, token, options);
  };
  auto plan = std::make_unique<CudnnPlan>();
  plan->relaid_weight = weight_layout;
  const bool epilogue = desc.bias || desc.activation != Activation::none;
  if (fused && epilogue && !desc.bias) {
    plan->zero_bias.emplace(state, desc.shape.c_out, desc.dtype);
    problem.bias = true;
    options.pointers.bias = plan->zero_bias->data();
  }
  const auto take_apart = [&] {
    problem.bias = false;
    problem.activation = Activation::none;
    plan->separate_epilogue = true;
    plan->zero_bias.reset();
  };
  if (!fused && epilogue) take_apart();
  auto built = build();
  if (!built && fused && epilogue) {
    take_apart();
    built = build();
  }
  if (!built) {
    reason = built.reason;
    return nullptr;
  }
  plan->conv = std::move(built.value);
  return plan;
}

void run_cudnn(ContextState& state, CudnnPlan& plan, const vendor::CudnnConv2dPointers& pointers) {
  std::string reason;
  const Scratch workspace(state, plan.conv->workspace_bytes());
  const vendor::CudnnStatus status =
      plan.conv->run(*vendor::cudnn_handle(state, reason), pointers, workspace.data());
  if (!status.ok()) throw LibraryError("[conv2d] cuDNN: " + status.text());
}

const void* data_or_null(const Tensor& x) {
  return x.defined() ? x.data() : nullptr;
}

void run_forward(ContextState& state, const Conv2dDesc& desc, const Conv2dForwardArgs& args,
                 Plan* plan) {
  auto& cudnn = static_cast<CudnnPlan&>(*plan);
  const Tensor w = relaid(args.w, cudnn.relaid_weight);
  run_cudnn(state, cudnn,
            {.x = args.x.data(),
             .w = w.data(),
             .bias = cudnn.separate_epilogue ? nullptr
                     : cudnn.zero_bias       ? cudnn.zero_bias->data()
                                             : data_or_null(args.b),
             .result = args.y.mutable_data()});
  if (!cudnn.separate_epilogue) return;
  const kernels::View y = mutable_view(args.y);
  const cudaStream_t stream = cuda_stream(state);
  if (desc.bias) {
    const Tensor b = args.b.reshape({1, args.b.numel(), 1, 1}).expand(args.y.shape());
    check_cuda(kernels::cuda::binary(kernels::BinaryOp::add, y, y, view(b), stream), "conv2d");
  }
  if (desc.activation == Activation::relu)
    check_cuda(kernels::cuda::unary(kernels::UnaryOp::relu, y, y, 1, 0, stream), "conv2d");
}

std::unique_ptr<Plan> plan_forward(ContextState& state, const Conv2dDesc& desc,
                                   const Conv2dForwardArgs& args, const std::string& token,
                                   std::string& reason) {
  const auto layout = relaid_weight(desc.shape, false);
  const Tensor w = state.tuning ? relaid(args.w, layout) : args.w;
  const vendor::CudnnConv2dPointers pointers{.x = args.x.data(),
                                             .w = w.data(),
                                             .bias = data_or_null(args.b),
                                             .result = args.y.mutable_data()};
  const bool known_apart = token.starts_with(CudnnPlan::apart_token);
  const std::string engine =
      known_apart ? token.substr(std::strlen(CudnnPlan::apart_token)) : token;
  auto plan = plan_cudnn(state, desc, vendor::ConvPass::forward, pointers, layout, engine, reason,
                         !known_apart);
  const bool fused =
      plan && !plan->separate_epilogue && (desc.bias || desc.activation != Activation::none);
  if (!state.tuning || !fused) return plan;
  // A fused engine may be slower than a plain one and a pass behind it.
  auto apart =
      plan_cudnn(state, desc, vendor::ConvPass::forward, pointers, layout, engine, reason, false);
  reason.clear();
  if (!apart) return plan;
  const auto time_of = [&](CudnnPlan* candidate) {
    return state.backend->device_us([&] { run_forward(state, desc, args, candidate); });
  };
  if (time_of(apart.get()) < time_of(plan.get())) return apart;
  return plan;
}

std::unique_ptr<Plan> plan_data(ContextState& state, const Conv2dDesc& desc,
                                const Conv2dDataArgs& args, const std::string& token,
                                std::string& reason) {
  const auto layout = relaid_weight(desc.shape, true);
  const Tensor w = state.tuning ? relaid(args.w, layout) : args.w;
  return plan_cudnn(state, desc, vendor::ConvPass::backward_data,
                    {.w = w.data(), .y = args.dy.data(), .result = args.dx.mutable_data()}, layout,
                    token, reason);
}

void run_data(ContextState& state, const Conv2dDesc&, const Conv2dDataArgs& args, Plan* plan) {
  auto& cudnn = static_cast<CudnnPlan&>(*plan);
  const Tensor w = relaid(args.w, cudnn.relaid_weight);
  run_cudnn(state, cudnn, {.w = w.data(), .y = args.dy.data(), .result = args.dx.mutable_data()});
  gate_gradient(args);
}

// With stride 1, dx is the forward convolution of dy with the flipped weight; in f32 without tensor
// cores cuDNN's forward engines are 1.7 times as fast as its backward-data engines.

/// The forward problem that computes dx: channels swapped, padding seen from the other side. The
/// weight lies densely in the memory order of dy.
Conv2dDesc as_forward(const Conv2dDesc& desc) {
  const kernels::Conv2dShape& s = desc.shape;
  Conv2dDesc forward = desc;
  kernels::Conv2dShape& f = forward.shape;
  f.c_in = s.c_out, f.h = s.h_out, f.w = s.w_out;
  f.c_out = s.c_in, f.h_out = s.h, f.w_out = s.w;
  f.pad_top = s.dilation_h * (s.kh - 1) - s.pad_top;
  f.pad_left = s.dilation_w * (s.kw - 1) - s.pad_left;
  f.x_strides = s.y_strides, f.y_strides = s.x_strides;
  f.w_strides = {};  // in neither order, so that relaid_weight gives the wanted one
  const std::optional<Layout> layout = relaid_weight(f, false);
  if (layout)
    for (std::size_t i = 0; i < 4; ++i) f.w_strides[i] = layout->strides[i];
  return forward;
}

std::string reject_flipped(const Conv2dDesc& desc) {
  const kernels::Conv2dShape& s = desc.shape;
  if (s.stride_h != 1 || s.stride_w != 1) return "takes stride 1 only";
  if (s.groups != 1) return "takes no groups";
  const Conv2dDesc forward = as_forward(desc);
  if (forward.shape.pad_top < 0 || forward.shape.pad_left < 0)
    return "the padding is larger than the kernel reaches";
  return {};
}

std::string decline_flipped(const Conv2dDesc& desc) {
  if (desc.dtype != DType::f32 || tensor_cores_allowed(desc))
    return "on tensor cores both directions are equally fast";
  const std::int64_t pixels = desc.shape.n * desc.shape.h * desc.shape.w;
  if (pixels < small_problem_pixels) return "turning the weight costs more than it saves";
  return {};
}

Tensor flipped_weight(ContextState& state, const Conv2dDesc& desc, const Conv2dDesc& forward,
                      const Tensor& w) {
  const kernels::Conv2dShape& f = forward.shape;
  Tensor flipped = Tensor::empty(w.context(), {f.c_out, f.c_in, f.kh, f.kw}, w.dtype());
  check_cuda(kernels::cuda::flip_weight(desc.shape, w.data(), flipped.mutable_data(), f.w_strides,
                                        w.dtype(), cuda_stream(state)),
             "conv2d");
  return flipped;
}

std::unique_ptr<Plan> plan_flipped(ContextState& state, const Conv2dDesc& desc,
                                   const Conv2dDataArgs& args, const std::string& token,
                                   std::string& reason) {
  const Conv2dDesc forward = as_forward(desc);
  const Tensor w = flipped_weight(state, desc, forward, args.w);
  return plan_cudnn(state, forward, vendor::ConvPass::forward,
                    {.x = args.dy.data(), .w = w.data(), .result = args.dx.mutable_data()},
                    std::nullopt, token, reason);
}

void run_flipped(ContextState& state, const Conv2dDesc& desc, const Conv2dDataArgs& args,
                 Plan* plan) {
  const Tensor w = flipped_weight(state, desc, as_forward(desc), args.w);
  run_cudnn(state, static_cast<CudnnPlan&>(*plan),
            {.x = args.dy.data(), .w = w.data(), .result = args.dx.mutable_data()});
  gate_gradient(args);
}

/// Weight gradients that cuDNN was seen to get wrong.
std::string reject_untrusted_weight(const Conv2dDesc& desc) {
  const kernels::Conv2dShape& s = desc.shape;
  if (s.kh == 5 && s.kw == 5 && desc.dtype == DType::f32 && !tensor_cores_allowed(desc))
    return "cuDNN 9.19's engine for 5x5 is off by 2e-3 of the largest value, and says nothing of "
           "it";
  // cuDNN 9.14 gave wrong weight gradients for some problems with unequal padding.
  const std::int64_t bottom =
      (s.h_out - 1) * s.stride_h + (s.kh - 1) * s.dilation_h + 1 - s.h - s.pad_top;
  const std::int64_t right =
      (s.w_out - 1) * s.stride_w + (s.kw - 1) * s.dilation_w + 1 - s.w - s.pad_left;
  const auto unequal = [](std::int64_t front, std::int64_t back, std::int64_t stride) {
    return back > front || back <= front - stride;
  };
  return unequal(s.pad_top, bottom, s.stride_h) || unequal(s.pad_left, right, s.stride_w)
             ? "padding differs between the sides; cuDNN's weight gradient is not trusted there"
             : "";
}

std::unique_ptr<Plan> plan_weight(ContextState& state, const Conv2dDesc& desc,
                                  const Conv2dWeightArgs& args, const std::string& token,
                                  std::string& reason) {
  const auto layout = relaid_weight(desc.shape, false);
  Tensor dw = layout && state.tuning ? make_tensor(args.dw, *layout) : args.dw;
  return plan_cudnn(state, desc, vendor::ConvPass::backward_weight,
                    {.x = args.x.data(), .y = args.dy.data(), .result = dw.mutable_data()}, layout,
                    token, reason);
}

void run_weight(ContextState& state, const Conv2dDesc&, const Conv2dWeightArgs& args, Plan* plan) {
  auto& cudnn = static_cast<CudnnPlan&>(*plan);
  Tensor dw = cudnn.relaid_weight ? make_tensor(args.dw, *cudnn.relaid_weight) : args.dw;
  run_cudnn(state, cudnn, {.x = args.x.data(), .y = args.dy.data(), .result = dw.mutable_data()});
  if (cudnn.relaid_weight) args.dw.copy_(dw);
}

// --- direct, dense, for small problems ----------------------------------------------------------

kernels::cuda::DirectPass direct_pass(const Conv2dDesc& desc) {
  return desc.pass == Conv2dPass::forward ? kernels::cuda::DirectPass::forward
                                          : kernels::cuda::DirectPass::backward_data;
}

std::string reject_direct(const Conv2dDesc& desc) {
  return std::string(
      kernels::cuda::direct_conv2d_reject(desc.shape, direct_pass(desc), desc.dtype));
}

struct DirectPlan final : Plan {
  std::shared_ptr<const kernels::cuda::DirectConv2d> cut;
};

template <class Args>
std::unique_ptr<Plan> plan_direct(ContextState&, const Conv2dDesc& desc, const Args&,
                                  const std::string&, std::string&) {
  auto plan = std::make_unique<DirectPlan>();
  check_cuda(kernels::cuda::direct_conv2d_plan(desc.shape, direct_pass(desc), plan->cut), "conv2d");
  return plan;
}

/// Twice as fast as cuDNN on one 64->64 3x3 32x32 image; behind it from about 16 images on, and
/// behind its tensor-core engines where those need no change of layout.
std::string decline_direct(const Conv2dDesc& desc) {
  constexpr std::int64_t most_pixels = 4096;
  const std::int64_t pixels = desc.shape.n * desc.shape.h_out * desc.shape.w_out;
  if (pixels > most_pixels)
    return fmt::format("{} output pixels; expected to win up to {}", pixels, most_pixels);
  const bool channels_contiguous = desc.shape.x_strides[1] == 1 && desc.shape.c_in > 1;
  if (tensor_cores_allowed(desc) && channels_contiguous)
    return "FMA units; tensor cores are allowed and take NHWC as it is";
  return {};
}

std::string reject_direct_weight(const Conv2dDesc& desc) {
  return std::string(kernels::cuda::direct_conv2d_weight_reject(desc.shape, desc.dtype));
}

std::string decline_direct_weight(const Conv2dDesc& desc) {
  return reject_untrusted_weight(desc).empty() ? decline_direct(desc) : "";
}

struct DirectWeightPlan final : Plan {
  std::shared_ptr<const kernels::cuda::DirectConv2dWeight> cut;
};

std::unique_ptr<Plan> plan_direct_weight(ContextState&, const Conv2dDesc& desc,
                                         const Conv2dWeightArgs&, const std::string&,
                                         std::string&) {
  auto plan = std::make_unique<DirectWeightPlan>();
  check_cuda(kernels::cuda::direct_conv2d_weight_plan(desc.shape, plan->cut), "conv2d");
  return plan;
}

void run_direct_weight(ContextState& state, const Conv2dDesc& desc, const Conv2dWeightArgs& args,
                       Plan* plan) {
  check_cuda(
      kernels::cuda::direct_conv2d_backward_weight(*static_cast<DirectWeightPlan*>(plan)->cut,
                                                   {.x = args.x.data(),
                                                    .dy = args.dy.data(),
                                                    .dw = args.dw.mutable_data(),
                                                    .dtype = desc.dtype},
                                                   cuda_stream(state)),
      "conv2d");
}

// --- zero-skip ----------------------------------------------------------------------------------

ZeroSkipPass skip_pass(const Conv2dDesc& desc) {
  return desc.pass == Conv2dPass::forward ? ZeroSkipPass::forward : ZeroSkipPass::backward_data;
}

std::string reject_skip(const Conv2dDesc& desc) {
  if (std::string reason = reject_unless_known_zeros(desc); !reason.empty()) return reason;
  return std::string(kernels::cuda::zero_skip_reject(desc.shape, skip_pass(desc), desc.dtype));
}

/// Why skipping is not expected to win. The crossovers are those measured against cuDNN on 64->64
/// 3x3 layers (docs/experiments.md): FMA units against FMA units; tensor cores are out of reach.
std::string decline_skip(const Conv2dDesc& desc) {
  if (desc.skip_forced) return {};
  if (tensor_cores_allowed(desc)) return "FMA units; a dense product on tensor cores is faster";
  const std::int64_t pixels = desc.shape.n * desc.shape.h_out * desc.shape.w_out;
  if (pixels < small_problem_pixels)
    return fmt::format("{} output pixels; expected to win from {}", pixels, small_problem_pixels);
  const int crossover = desc.pass == Conv2dPass::forward ? 80 : 60;
  if (desc.zero_percent >= crossover) return {};
  return fmt::format("{} % zeros; expected to win from {} %", desc.zero_percent, crossover);
}

void run_skip_forward(ContextState& state, const Conv2dDesc& desc, const Conv2dForwardArgs& args,
                      Plan*) {
  const Tensor pack = packed_weight(args.w, desc.shape, ZeroSkipPass::forward, args.zeros);
  note_frozen(args.w, args.zeros);
  check_cuda(kernels::cuda::zero_skip_run(desc.shape, ZeroSkipPass::forward,
                                          {.in = args.x.data(),
                                           .pack = pack.data(),
                                           .bias = data_or_null(args.b),
                                           .out = args.y.mutable_data(),
                                           .activation = desc.activation,
                                           .dtype = desc.dtype},
                                          cuda_stream(state)),
             "conv2d");
}

void run_skip_data(ContextState& state, const Conv2dDesc& desc, const Conv2dDataArgs& args, Plan*) {
  const Tensor pack = packed_weight(args.w, desc.shape, ZeroSkipPass::backward_data, args.zeros);
  note_frozen(args.w, args.zeros);
  check_cuda(kernels::cuda::zero_skip_run(desc.shape, ZeroSkipPass::backward_data,
                                          {.in = args.dy.data(),
                                           .pack = pack.data(),
                                           .out = args.dx.mutable_data(),
                                           .dtype = desc.dtype},
                                          cuda_stream(state)),
             "conv2d");
  gate_gradient(args);
}

}  // namespace

std::span<const Conv2dForwardList::Row> forward_rows() {
  static constexpr Conv2dForwardList::Row rows[] = {
      {.name = "cuda.constant",
       .device = DeviceType::cuda,
       .reject = reject_unless_all_zero,
       .run = run_constant_forward},
      {.name = "cuda.zero_skip",
       .device = DeviceType::cuda,
       .reject = reject_skip,
       .decline = decline_skip,
       .run = run_skip_forward},
      {.name = "cuda.direct",
       .device = DeviceType::cuda,
       .reject = reject_direct,
       .decline = decline_direct,
       .make_plan = plan_direct<Conv2dForwardArgs>,
       .run =
           [](ContextState& state, const Conv2dDesc& desc, const Conv2dForwardArgs& args,
              Plan* plan) {
             check_cuda(kernels::cuda::direct_conv2d_forward(*static_cast<DirectPlan*>(plan)->cut,
                                                             {.x = args.x.data(),
                                                              .w = args.w.data(),
                                                              .bias = data_or_null(args.b),
                                                              .y = args.y.mutable_data(),
                                                              .activation = desc.activation,
                                                              .dtype = desc.dtype},
                                                             cuda_stream(state)),
                        "conv2d");
           }},
      {.name = "cuda.cudnn",
       .device = DeviceType::cuda,
       .reject = accept_all<Conv2dDesc>,
       .make_plan = plan_forward,
       .run = run_forward},
      {.name = "cuda.reference",
       .device = DeviceType::cuda,
       .reject = accept_all<Conv2dDesc>,
       .run = [](ContextState& state, const Conv2dDesc& desc, const Conv2dForwardArgs& args,
                 Plan*) {
         check_cuda(kernels::cuda::reference::conv2d_forward(desc.shape,
                                                             {.x = args.x.data(),
                                                              .w = args.w.data(),
                                                              .bias = data_or_null(args.b),
                                                              .y = args.y.mutable_data(),
                                                              .activation = desc.activation,
                                                              .dtype = desc.dtype},
                                                             cuda_stream(state)),
                    "conv2d");
       }}};
  return rows;
}

std::span<const Conv2dDataList::Row> data_rows() {
  static constexpr Conv2dDataList::Row rows[] = {
      {.name = "cuda.constant",
       .device = DeviceType::cuda,
       .reject = reject_unless_all_zero,
       .run = run_constant_data},
      {.name = "cuda.zero_skip",
       .device = DeviceType::cuda,
       .reject = reject_skip,
       .decline = decline_skip,
       .run = run_skip_data},
      {.name = "cuda.direct",
       .device = DeviceType::cuda,
       .reject = reject_direct,
       .decline = decline_direct,
       .make_plan = plan_direct<Conv2dDataArgs>,
       .run =
           [](ContextState& state, const Conv2dDesc& desc, const Conv2dDataArgs& args, Plan* plan) {
             check_cuda(
                 kernels::cuda::direct_conv2d_backward_data(*static_cast<DirectPlan*>(plan)->cut,
                                                            {.dy = args.dy.data(),
                                                             .w = args.w.data(),
                                                             .gate = data_or_null(args.gate),
                                                             .dx = args.dx.mutable_data(),
                                                             .dtype = desc.dtype},
                                                            cuda_stream(state)),
                 "conv2d");
           }},
      {.name = "cuda.cudnn_flipped",
       .device = DeviceType::cuda,
       .reject = reject_flipped,
       .decline = decline_flipped,
       .make_plan = plan_flipped,
       .run = run_flipped},
      {.name = "cuda.cudnn",
       .device = DeviceType::cuda,
       .reject = accept_all<Conv2dDesc>,
       .make_plan = plan_data,
       .run = run_data},
      {.name = "cuda.reference",
       .device = DeviceType::cuda,
       .reject = accept_all<Conv2dDesc>,
       .run = [](ContextState& state, const Conv2dDesc& desc, const Conv2dDataArgs& args, Plan*) {
         check_cuda(kernels::cuda::reference::conv2d_backward_data(desc.shape,
                                                                   {.dy = args.dy.data(),
                                                                    .w = args.w.data(),
                                                                    .dx = args.dx.mutable_data(),
                                                                    .dtype = desc.dtype},
                                                                   cuda_stream(state)),
                    "conv2d");
         gate_gradient(args);
       }}};
  return rows;
}

std::span<const Conv2dWeightList::Row> weight_rows() {
  static constexpr Conv2dWeightList::Row rows[] = {
      {.name = "cuda.constant",
       .device = DeviceType::cuda,
       .reject = reject_unless_all_zero,
       .run = run_constant_weight},
      {.name = "cuda.direct",
       .device = DeviceType::cuda,
       .reject = reject_direct_weight,
       .decline = decline_direct_weight,
       .make_plan = plan_direct_weight,
       .run = run_direct_weight},
      {.name = "cuda.cudnn",
       .device = DeviceType::cuda,
       .reject = reject_untrusted_weight,
       .make_plan = plan_weight,
       .run = run_weight},
      {.name = "cuda.reference",
       .device = DeviceType::cuda,
       .reject = accept_all<Conv2dDesc>,
       .run = [](ContextState& state, const Conv2dDesc& desc, const Conv2dWeightArgs& args, Plan*) {
         check_cuda(kernels::cuda::reference::conv2d_backward_weight(desc.shape,
                                                                     {.x = args.x.data(),
                                                                      .dy = args.dy.data(),
                                                                      .dw = args.dw.mutable_data(),
                                                                      .dtype = desc.dtype},
                                                                     cuda_stream(state)),
                    "conv2d");
       }}};
  return rows;
}

}  // namespace zerone::conv2d_cuda
