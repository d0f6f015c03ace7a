#include <zerone/ops/conv2d.h>

#include <fmt/format.h>
#include <algorithm>
#include <limits>

#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/ops/constant_result.h>
#include <zerone/ops/elementwise.h>
#include <zerone/ops/pointwise.h>
#include <zerone/ops/reduce.h>

namespace zerone {

// --- descriptors and lists ----------------------------------------------------------------------

std::string to_string(const Conv2dDesc& desc) {
  const kernels::Conv2dShape& s = desc.shape;
  const auto strides = [](const std::array<std::int64_t, 4>& v) {
    return fmt::format("({})", fmt::join(v, ","));
  };
  return fmt::format(
      "n{} c{} h{} w{} k{} r{} s{} -> {}x{} stride {},{} pad {},{} dilation {},{} groups {} x{} "
      "w{} "
      "y{} {}/{}{}{}{}{}{} zeros {} align {}",
      s.n, s.c_in, s.h, s.w, s.c_out, s.kh, s.kw, s.h_out, s.w_out, s.stride_h, s.stride_w,
      s.pad_top, s.pad_left, s.dilation_h, s.dilation_w, s.groups, strides(s.x_strides),
      strides(s.w_strides), strides(s.y_strides), to_string(desc.dtype), to_string(desc.math),
      desc.bias ? " bias" : "", desc.activation == Activation::relu ? " relu" : "",
      desc.gated ? " gated" : "", desc.operand_zero ? " zero" : "",
      desc.skip_forced ? " forced" : "",
      desc.zero_percent < 0 ? "?" : fmt::format("{}%", desc.zero_percent), desc.alignment);
}

const Conv2dForwardList& conv2d_forward_list() {
  static const Conv2dForwardList list("conv2d.forward", {
    conv2d_cpu::forward_rows(),
#if ZERONE_CUDA
        conv2d_cuda::forward_rows(),
#endif
  });
  return list;
}

const Conv2dDataList& conv2d_backward_data_list() {
  static const Conv2dDataList list("conv2d.backward_data", {
    conv2d_cpu::data_rows(),
#if ZERONE_CUDA
        conv2d_cuda::data_rows(),
#endif
  });
  return list;
}

const Conv2dWeightList& conv2d_backward_weight_list() {
  static const Conv2dWeightList list("conv2d.backward_weight", {
    conv2d_cpu::weight_rows(),
#if ZERONE_CUDA
        conv2d_cuda::weight_rows(),
#endif
  });
  return list;
}

// --- checks and sizes ---------------------------------------------------------------------------

namespace {

std::string describe(const Tensor& x, const Tensor& w, const Conv2dParams& p) {
  return fmt::format(
      "x {}, w {}, stride ({}, {}), padding ({}, {}, {}, {}), dilation ({}, {}), groups {}",
      describe(x), describe(w), p.stride.h, p.stride.w, p.padding.top, p.padding.bottom,
      p.padding.left, p.padding.right, p.dilation.h, p.dilation.w, p.groups);
}

std::array<std::int64_t, 4> strides_of(const Tensor& x) {
  const auto& strides = x.layout().strides;
  return {strides[0], strides[1], strides[2], strides[3]};
}

/// True for NHWC memory order, false for NCHW, nothing where both readings fit. For one channel
/// they always do; the strides of contiguous_nhwc() say that NHWC is meant.
std::optional<bool> is_nhwc(const Tensor& x) {
  const auto& layout = x.layout();
  if (layout.sizes[2] * layout.sizes[3] <= 1) return std::nullopt;
  if (layout.sizes[1] <= 1) return layout.strides[1] == 1 ? std::optional(true) : std::nullopt;
  return layout.strides[1] < std::max(layout.sizes[2] > 1 ? layout.strides[2] : 0,
                                      layout.sizes[3] > 1 ? layout.strides[3] : 0);
}

bool runs_as_pointwise(const kernels::Conv2dShape& s, const Padding& padding) {
  return s.kh == 1 && s.kw == 1 && s.stride_h == 1 && s.stride_w == 1 && s.groups == 1 &&
         padding == Padding(0);
}

Conv2dDesc describe_pass(const ContextState& state, Conv2dPass pass,
                         const kernels::Conv2dShape& shape, DType dtype, Math math) {
  Conv2dDesc desc;
  desc.shape = shape;
  desc.pass = pass;
  desc.dtype = dtype;
  desc.math = dtype == DType::f32 ? math : Math::fp32;
  desc.skip_forced = state.options.zero_skip == ZeroSkip::force;
  return desc;
}

/// Whether x is known to be zero and 0 * NaN may count as 0.
bool skippable(const ContextState& state, const Tensor& x) {
  return state.options.zero_skip_numerics == ZeroSkipNumerics::fast && x.known_zero();
}

/// What the pass may know of w's zeros under the context's options.
WeightZeros look_for_zeros(const ContextState& state, const char* op, const Tensor& w,
                           const kernels::Conv2dShape& shape) {
  const auto forced = state.forced.find(std::string_view(op));
  const bool row_forced = forced != state.forced.end() && (forced->second.ends_with(".zero_skip") ||
                                                           forced->second.ends_with(".constant"));
  if (w.numel() == 0) return {};
  if (row_forced) return weight_zeros(w, shape, true);
  if (state.options.zero_skip == ZeroSkip::off ||
      state.options.zero_skip_numerics == ZeroSkipNumerics::strict)
    return {};
  return weight_zeros(w, shape, state.options.zero_skip == ZeroSkip::force);
}

}  // namespace

kernels::Conv2dShape make_conv2d_shape(const Tensor& x, const Tensor& w, const Conv2dParams& p) {
  const auto require = [&](bool condition, const char* what) {
    if (!condition) throw ShapeError(fmt::format("[conv2d] {}: {}", what, describe(x, w, p)));
  };
  require(x.rank() == 4 && w.rank() == 4, "x must be [n, c, h, w] and w [k, c / groups, r, s]");
  require(p.stride.h >= 1 && p.stride.w >= 1 && p.dilation.h >= 1 && p.dilation.w >= 1,
          "stride and dilation must be at least 1");
  require(
      p.padding.top >= 0 && p.padding.bottom >= 0 && p.padding.left >= 0 && p.padding.right >= 0,
      "padding must not be negative");
  constexpr std::int64_t half = std::numeric_limits<std::int64_t>::max() / 2;
  require(std::max({p.padding.top, p.padding.bottom, p.padding.left, p.padding.right}) <= half,
          "padding is too large");
  require(p.groups >= 1 && x.size(1) % p.groups == 0 && w.size(0) % p.groups == 0,
          "channels in and out must be multiples of groups");
  require(w.size(1) == x.size(1) / p.groups, "w's channels must be x's divided by groups");
  require(w.size(2) >= 1 && w.size(3) >= 1, "the kernel is empty");

  kernels::Conv2dShape s;
  s.n = x.size(0), s.c_in = x.size(1), s.h = x.size(2), s.w = x.size(3);
  s.c_out = w.size(0), s.kh = w.size(2), s.kw = w.size(3);
  s.stride_h = p.stride.h, s.stride_w = p.stride.w;
  s.pad_top = p.padding.top, s.pad_left = p.padding.left;
  s.dilation_h = p.dilation.h, s.dilation_w = p.dilation.w;
  s.groups = p.groups;
  const auto out_size = [&](const char* axis, std::int64_t size, std::int64_t padding,
                            std::int64_t kernel, std::int64_t dilation, std::int64_t stride) {
    std::int64_t padded = 0, extent = 0;
    if (__builtin_add_overflow(size, padding, &padded) ||
        __builtin_mul_overflow(dilation, kernel - 1, &extent) ||
        __builtin_add_overflow(extent, 1, &extent))
      throw ShapeError(
          fmt::format("[conv2d] the {} does not fit in 63 bits: {}", axis, describe(x, w, p)));
    if (extent > padded)
      throw ShapeError(fmt::format(
          "[conv2d] the kernel does not fit: padded input {} is {}, kernel extent is {}: {}", axis,
          padded, extent, describe(x, w, p)));
    return (padded - extent) / stride + 1;
  };
  s.h_out =
      out_size("height", s.h, p.padding.top + p.padding.bottom, s.kh, s.dilation_h, s.stride_h);
  s.w_out =
      out_size("width", s.w, p.padding.left + p.padding.right, s.kw, s.dilation_w, s.stride_w);
  s.x_strides = strides_of(x);
  s.w_strides = strides_of(w);
  return s;
}

Tensor make_conv2d_result(const Tensor& x, const Tensor& w, const kernels::Conv2dShape& s) {
  std::optional<bool> nhwc = is_nhwc(x);
  if (!nhwc) nhwc = is_nhwc(w);
  const Shape shape{s.n, s.c_out, s.h_out, s.w_out};
  return nhwc.value_or(false) ? Tensor::empty_nhwc(x.context(), shape, x.dtype())
                              : Tensor::empty(x.context(), shape, x.dtype());
}

// --- passes -------------------------------------------------------------------------------------

void conv2d_forward(kernels::Conv2dShape shape, const Tensor& x, const Tensor& w, const Tensor& b,
                    Tensor& y, Activation activation, Math math) {
  if (y.numel() == 0) return;
  ContextState& state = x.context().state();
  shape.x_strides = strides_of(x), shape.w_strides = strides_of(w), shape.y_strides = strides_of(y);
  Conv2dDesc desc = describe_pass(state, Conv2dPass::forward, shape, x.dtype(), math);
  const WeightZeros zeros = look_for_zeros(state, "conv2d.forward", w, shape);
  desc.zero_percent = zeros.percent();
  desc.activation = activation;
  desc.bias = b.defined();
  desc.operand_zero = x.numel() == 0 || w.numel() == 0 || skippable(state, x);
  const Tensor bias = b.defined() ? b.contiguous() : b;  // kernels take dense values
  desc.alignment = std::min({alignment_of(x), alignment_of(w), alignment_of(y),
                             bias.defined() ? alignment_of(bias) : 16});
  conv2d_forward_list().run(state, desc, {x, w, bias, y, zeros});
}

void conv2d_backward_data(kernels::Conv2dShape shape, const Tensor& dy, const Tensor& w, Tensor& dx,
                          Math math, const Tensor& gate) {
  if (dx.numel() == 0) return;
  ContextState& state = dy.context().state();
  shape.x_strides = strides_of(dx), shape.w_strides = strides_of(w);
  shape.y_strides = strides_of(dy);
  Conv2dDesc desc = describe_pass(state, Conv2dPass::backward_data, shape, dy.dtype(), math);
  const WeightZeros zeros = look_for_zeros(state, "conv2d.backward_data", w, shape);
  desc.zero_percent = zeros.percent();
  desc.operand_zero = dy.numel() == 0 || w.numel() == 0 || skippable(state, dy) ||
                      (gate.defined() && gate.known_zero());
  desc.gated = gate.defined();
  desc.alignment = std::min({alignment_of(dy), alignment_of(w), alignment_of(dx)});
  conv2d_backward_data_list().run(state, desc, {dy, w, dx, gate, zeros});
}

void conv2d_backward_weight(kernels::Conv2dShape shape, const Tensor& x, const Tensor& dy,
                            Tensor& dw, Math math) {
  if (dw.numel() == 0) return;
  ContextState& state = x.context().state();
  shape.x_strides = strides_of(x), shape.w_strides = strides_of(dw);
  shape.y_strides = strides_of(dy);
  Conv2dDesc desc = describe_pass(state, Conv2dPass::backward_weight, shape, x.dtype(), math);
  desc.operand_zero =
      dy.numel() == 0 || x.numel() == 0 || skippable(state, dy) || skippable(state, x);
  desc.alignment = std::min({alignment_of(x), alignment_of(dy), alignment_of(dw)});
  conv2d_backward_weight_list().run(state, desc, {x, dy, dw});
}

void prepare(const Tensor& w, std::int64_t groups) {
  kernels::Conv2dShape shape;
  if (w.rank() != 4 || w.numel() == 0) return;
  if (groups < 1 || w.size(0) % groups != 0)
    throw ShapeError(
        fmt::format("[prepare] {} groups for the weight {}", groups, zerone::describe(w)));
  shape.c_out = w.size(0), shape.c_in = w.size(1) * groups;
  shape.kh = w.size(2), shape.kw = w.size(3);
  shape.groups = groups;
  shape.w_strides = strides_of(w);
  (void)weight_zeros(w, shape, true);
}

// --- rows that multiply nothing -----------------------------------------------------------------

std::string reject_unless_all_zero(const Conv2dDesc& desc) {
  return desc.operand_zero || desc.zero_percent == 100 ? "" : "no operand is known to be all zero";
}

std::string reject_unless_known_zeros(const Conv2dDesc& desc) {
  return desc.zero_percent >= 0 ? "" : "the weight's zeros are not known, or not looked for";
}

void run_constant_forward(ContextState&, const Conv2dDesc& desc, const Conv2dForwardArgs& args,
                          Plan*) {
  if (!desc.operand_zero) note_frozen(args.w, args.zeros);
  Tensor channels_last = args.y.permute({0, 2, 3, 1});
  constant_result(args.b, desc.activation, channels_last);
}

void run_constant_data(ContextState&, const Conv2dDesc& desc, const Conv2dDataArgs& args, Plan*) {
  if (!desc.operand_zero) note_frozen(args.w, args.zeros);
  constant_result({}, Activation::none, args.dx);
}

void gate_gradient(const Conv2dDataArgs& args) {
  if (!args.gate.defined()) return;
  const kernels::View dx = mutable_view(args.dx);
  binary_list().run(args.dx.context().state(),
                    {kernels::BinaryOp::relu_backward, args.dx.dtype(), args.dx.numel()},
                    {dx, dx, view(args.gate)});
}

void run_constant_weight(ContextState&, const Conv2dDesc&, const Conv2dWeightArgs& args, Plan*) {
  constant_result({}, Activation::none, args.dw);
}

// --- tape ---------------------------------------------------------------------------------------

namespace {

class Conv2dNode final : public Node {
 public:
  Conv2dNode(const kernels::Conv2dShape& shape, const Tensor& x, const Tensor& w, const Tensor& y,
             bool bias, Activation activation, Math math)
      : shape_(shape),
        x_(x),
        w_(w),
        y_(activation == Activation::relu ? y : Tensor()),
        y_layout_(y.layout()),
        relu_(activation == Activation::relu),
        bias_(bias),
        math_(math) {}
  const char* name() const override { return "conv2d"; }
  bool ends_in_relu() const override { return relu_; }

  void backward(Gradients& gradients) override {
    Tensor dy = gradients.output();
    if (const Tensor& y = y_.get("conv2d", "its output"); y.defined() && !gradients.output_gated())
      dy = apply_binary(kernels::BinaryOp::relu_backward, dy, y);
    if (!dy.known_zero())
      dy = laid_out_like(dy, Tensor::view_of(dy.shared_storage(), 0, y_layout_, dy.dtype()));
    const Tensor& x = x_.get("conv2d", "its input");
    const Tensor& w = w_.get("conv2d", "its weight");
    if (gradients.needs(0)) {
      Tensor dx = Tensor::empty_like(x);
      const bool gated = gradients.wants_gated(0) && strides_of(dx) == strides_of(x);
      conv2d_backward_data(shape_, dy, w, dx, math_, gated ? x : Tensor());
      gradients.give(0, dx, gated);
    }
    if (gradients.needs(1)) {
      Tensor dw = Tensor::empty_like(w);
      conv2d_backward_weight(shape_, x, dy, dw, math_);
      gradients.give(1, dw);
    }
    if (bias_ && gradients.needs(2))
      gradients.give(2, sum_to(dy, {dy.size(1), 1, 1}).reshape(Shape{dy.size(1)}));
  }

 private:
  kernels::Conv2dShape shape_;
  Saved x_, w_, y_;
  Layout y_layout_;
  bool relu_, bias_;
  Math math_;
};

}  // namespace

Var conv2d(const Var& x, const Var& w, const Var& b, const Conv2dParams& params) {
  require_compatible("conv2d", x, w);
  kernels::Conv2dShape shape = make_conv2d_shape(x, w, params);
  if (b.defined()) {
    require_compatible("conv2d", x, b);
    if (b.shape() != Shape{shape.c_out})
      throw ShapeError(fmt::format("[conv2d] b is {}, not [{}]: {}", zerone::describe(b),
                                   shape.c_out, describe(x, w, params)));
  }
  const Math math = params.math.value_or(x.value().context().math());
  if (runs_as_pointwise(shape, params.padding))
    return pointwise("conv2d", x, w, b, 1, params.activation, math);

  Tensor y = make_conv2d_result(x, w, shape);
  conv2d_forward(shape, x, w, b, y, params.activation, math);
  std::unique_ptr<Node> node;
  if (Tape::wants_grad({&x, &w, &b}))
    node = std::make_unique<Conv2dNode>(shape, x.value(), w.value(), y, b.defined(),
                                        params.activation, math);
  return Tape::record(std::move(y), {&x, &w, &b}, std::move(node));
}

}  // namespace zerone
