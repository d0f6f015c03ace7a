#include <zerone/ops/pointwise.h>

#include <fmt/format.h>
#include <algorithm>
#include <bit>

#include <zerone/core/error.h>
#include <zerone/ops/elementwise.h>
#include <zerone/ops/reduce.h>

namespace zerone {

// --- descriptors and lists ----------------------------------------------------------------------

std::string to_string(const PointwiseDesc& desc) {
  const kernels::PointwiseShape& s = desc.shape;
  return fmt::format(
      "{}->{} pixels {}x{}x{} x({},{},{};{}) y({},{},{};{}) w({},{}) {}/{}{}{}{} align {}", s.c_in,
      s.c_out, s.pixels[0], s.pixels[1], s.pixels[2], s.x_strides[0], s.x_strides[1],
      s.x_strides[2], s.x_channel_stride, s.y_strides[0], s.y_strides[1], s.y_strides[2],
      s.y_channel_stride, s.w_stride_out, s.w_stride_in, to_string(desc.dtype),
      to_string(desc.math), desc.bias ? " bias" : "",
      desc.activation == Activation::relu ? " relu" : "", desc.operand_zero ? " zero" : "",
      desc.alignment);
}

const PointwiseList& pointwise_forward_list() {
  static const PointwiseList list("pointwise.forward", {
    pointwise_cpu::rows(),
#if ZERONE_CUDA
        pointwise_cuda::rows(),
#endif
  });
  return list;
}

const PointwiseList& pointwise_backward_data_list() {
  static const PointwiseList list("pointwise.backward_data", {
    pointwise_cpu::rows(),
#if ZERONE_CUDA
        pointwise_cuda::rows(),
#endif
  });
  return list;
}

const PointwiseWeightList& pointwise_backward_weight_list() {
  static const PointwiseWeightList list("pointwise.backward_weight", {
    pointwise_cpu::weight_rows(),
#if ZERONE_CUDA
        pointwise_cuda::weight_rows(),
#endif
  });
  return list;
}

// --- lowering -----------------------------------------------------------------------------------

bool make_pointwise_shape(const Layout& x, const Layout& y, const Layout& w,
                          kernels::PointwiseShape& shape) {
  struct Axis {
    std::int64_t size, x_stride, y_stride;
  };
  std::array<Axis, max_rank> axes;
  int count = 0;
  for (int i = 0; i + 1 < x.rank; ++i)
    if (x.sizes[i] != 1) axes[count++] = {x.sizes[i], x.strides[i], y.strides[i]};
  for (int i = 0; i < count; ++i)  // no pixels: one empty axis says it all
    if (axes[i].size == 0) axes[0] = {0, 0, 0}, count = 1;
  std::stable_sort(axes.begin(), axes.begin() + count, [](const Axis& a, const Axis& b) {
    return a.y_stride != b.y_stride ? a.y_stride > b.y_stride : a.x_stride > b.x_stride;
  });
  int merged = 0;
  for (int i = 0; i < count; ++i) {
    const Axis& axis = axes[i];
    if (merged > 0 && axes[merged - 1].x_stride == axis.x_stride * axis.size &&
        axes[merged - 1].y_stride == axis.y_stride * axis.size)
      axes[merged - 1] = {axes[merged - 1].size * axis.size, axis.x_stride, axis.y_stride};
    else
      axes[merged++] = axis;
  }
  if (merged > 3) return false;
  shape = {};
  for (int i = 0; i < merged; ++i) {
    const int at = 3 - merged + i;
    shape.pixels[at] = axes[i].size;
    shape.x_strides[at] = axes[i].x_stride;
    shape.y_strides[at] = axes[i].y_stride;
  }
  shape.c_in = x.sizes[x.rank - 1];
  shape.x_channel_stride = x.strides[x.rank - 1];
  shape.c_out = y.sizes[y.rank - 1];
  shape.y_channel_stride = y.strides[y.rank - 1];
  shape.w_stride_out = w.strides[0];
  shape.w_stride_in = w.strides[1];
  return true;
}

int alignment_of(const Tensor& x) {
  std::uint64_t address = static_cast<std::uint64_t>(x.offset()) * size_of(x.dtype());
  if (x.storage().external()) address = std::bit_cast<std::uint64_t>(x.data());
  return address == 0 ? 16 : std::min(16, 1 << std::countr_zero(address));
}

Tensor laid_out_like(const Tensor& x, const Tensor& like) {
  bool same = true;
  for (int i = 0; i < x.rank(); ++i)
    same = same && (x.layout().sizes[i] == 1 || x.layout().strides[i] == like.layout().strides[i]);
  if (same || x.numel() == 0) return x;
  Tensor copy = Tensor::empty_like(like);
  copy.copy_(x);
  x.context().state().stats->layout_copied += copy.bytes();
  return copy;
}

namespace {

/// The widest pixel axis is cut into single slices: for views that three axes cannot describe.
template <class Run>
void for_each_slice(const Tensor& a, const Tensor& b, Run&& run) {
  int axis = 0;
  for (int i = 1; i + 1 < a.rank(); ++i)
    if (a.size(i) != 1 && (a.size(axis) == 1 || a.size(i) < a.size(axis))) axis = i;
  for (std::int64_t i = 0; i < a.size(axis); ++i) {
    Tensor part_a = a.slice(axis, i, i + 1), part_b = b.slice(axis, i, i + 1);
    run(part_a, part_b);
  }
}

/// Whether 0 * NaN may count as 0.
bool may_skip(const ContextOptions& options) {
  return options.zero_skip_numerics == ZeroSkipNumerics::fast;
}

PointwiseDesc describe_pass(PointwisePass pass, const kernels::PointwiseShape& shape,
                            const Tensor& x, Math math) {
  PointwiseDesc desc;
  desc.shape = shape;
  desc.pass = pass;
  desc.dtype = x.dtype();
  desc.math = x.dtype() == DType::f32 ? math : Math::fp32;
  return desc;
}

void contract(const PointwiseList& list, PointwisePass pass, const Tensor& x, const Tensor& w,
              const Tensor& b, Tensor& y, Activation activation, Math math) {
  if (y.numel() == 0) return;
  kernels::PointwiseShape shape;
  if (!make_pointwise_shape(x.layout(), y.layout(), w.layout(), shape)) {
    for_each_slice(x, y, [&](Tensor& part_x, Tensor& part_y) {
      contract(list, pass, part_x, w, b, part_y, activation, math);
    });
    return;
  }
  PointwiseDesc desc = describe_pass(pass, shape, x, math);
  desc.activation = activation;
  desc.bias = b.defined();
  const ContextOptions options = x.context().options();
  desc.operand_zero = x.numel() == 0 || (may_skip(options) && x.known_zero()) ||
                      (may_skip(options) && options.zero_skip != ZeroSkip::off && w.known_zero());
  desc.alignment = std::min(
      {alignment_of(x), alignment_of(w), alignment_of(y), b.defined() ? alignment_of(b) : 16});
  list.run(x.context().state(), desc, {x, w, b, y});
}

}  // namespace

void pointwise_forward(const Tensor& x, const Tensor& w, const Tensor& b, Tensor& y,
                       Activation activation, Math math) {
  const Tensor bias = b.defined() ? b.contiguous() : b;  // kernels take dense values
  contract(pointwise_forward_list(), PointwisePass::forward, x, w, bias, y, activation, math);
}

void pointwise_backward_data(const Tensor& dy, const Tensor& w, Tensor& dx, Math math) {
  contract(pointwise_backward_data_list(), PointwisePass::backward_data, dy, w.transpose(0, 1), {},
           dx, Activation::none, math);
}

void pointwise_backward_weight(const Tensor& x, const Tensor& dy, Tensor& dw, Tensor& db,
                               Math math) {
  if (dw.numel() == 0 && !db.defined()) return;
  kernels::PointwiseShape shape;
  if (!make_pointwise_shape(x.layout(), dy.layout(), dw.layout(), shape)) {
    bool first = true;
    for_each_slice(x, dy, [&](Tensor& part_x, Tensor& part_dy) {
      Tensor part_dw = first ? dw : Tensor::empty_like(dw);
      Tensor part_db = first || !db.defined() ? db : Tensor::empty_like(db);
      pointwise_backward_weight(part_x, part_dy, part_dw, part_db, math);
      if (!first) dw.add_(part_dw);
      if (!first && db.defined()) db.add_(part_db);
      first = false;
    });
    return;
  }
  PointwiseDesc desc = describe_pass(PointwisePass::backward_weight, shape, x, math);
  desc.bias = db.defined();
  desc.operand_zero = dy.numel() == 0 || (may_skip(x.context().options()) &&
                                          (dy.known_zero() || (x.known_zero() && !db.defined())));
  desc.alignment = std::min({alignment_of(x), alignment_of(dy), alignment_of(dw)});
  pointwise_backward_weight_list().run(x.context().state(), desc, {x, dy, dw, db});
}

// --- tape ---------------------------------------------------------------------------------------

namespace {

/// A tensor [..., c] in the memory order of x [..., any], where x is as wide as it may be.
Tensor empty_in_order_of(const Tensor& x, std::int64_t channels) {
  std::array<int, max_rank> axes{};
  for (int i = 0; i < x.rank(); ++i) axes[static_cast<std::size_t>(i)] = i;
  std::stable_sort(axes.begin(), axes.begin() + x.rank(),
                   [&](int a, int b) { return x.layout().strides[a] > x.layout().strides[b]; });
  Layout layout = x.layout();
  layout.sizes[x.rank() - 1] = channels;
  std::int64_t stride = 1;
  for (int i = x.rank() - 1; i >= 0; --i) {
    layout.strides[axes[static_cast<std::size_t>(i)]] = stride;
    stride *= std::max<std::int64_t>(layout.sizes[axes[static_cast<std::size_t>(i)]], 1);
  }
  const auto bytes = static_cast<std::size_t>(layout.numel()) * size_of(x.dtype());
  return Tensor::view_of(std::make_shared<Storage>(x.context(), bytes), 0, layout, x.dtype());
}

Tensor channels_last(const Tensor& x, int axis) {
  std::array<int, max_rank> axes{};
  int count = 0;
  for (int i = 0; i < x.rank(); ++i)
    if (i != axis) axes[static_cast<std::size_t>(count++)] = i;
  axes[static_cast<std::size_t>(count++)] = axis;
  return x.permute(std::span<const int>(axes.data(), static_cast<std::size_t>(count)));
}

Tensor channels_back(const Tensor& x, int axis) {
  std::array<int, max_rank> axes{};
  for (int i = 0, from = 0; i < x.rank(); ++i)
    axes[static_cast<std::size_t>(i)] = i == axis ? x.rank() - 1 : from++;
  return x.permute(std::span<const int>(axes.data(), static_cast<std::size_t>(x.rank())));
}

Tensor as_matrix(const Tensor& w) {
  if (w.rank() == 2) return w;
  Layout layout = w.layout();
  layout.rank = 2;
  return Tensor::view_of(w.shared_storage(), w.offset(), layout, w.dtype());
}

class PointwiseNode final : public Node {
 public:
  PointwiseNode(const char* name, const Tensor& x, const Tensor& w, const Tensor& y, bool bias,
                int axis, Activation activation, Math math)
      : name_(name),
        x_(x),
        w_(w),
        y_(activation == Activation::relu ? y : Tensor()),
        y_layout_(y.layout()),
        relu_(activation == Activation::relu),
        bias_(bias),
        axis_(axis),
        math_(math) {}
  const char* name() const override { return name_; }
  bool ends_in_relu() const override { return relu_; }

  void backward(Gradients& gradients) override {
    Tensor dy = gradients.output();
    if (const Tensor& y = y_.get(name_, "its output"); y.defined() && !gradients.output_gated())
      dy = apply_binary(kernels::BinaryOp::relu_backward, dy, y);
    const Tensor& x = x_.get(name_, "its input");
    const Tensor& w = w_.get(name_, "its weight");
    if (!dy.known_zero() && !dy.is_dense())
      dy = laid_out_like(dy, Tensor::view_of(dy.shared_storage(), 0, y_layout_, dy.dtype()));
    const Tensor dy_last = channels_last(dy, axis_);
    const Tensor w_matrix = as_matrix(w);
    if (gradients.needs(0)) {
      Tensor dx = Tensor::empty_like(x), dx_last = channels_last(dx, axis_);
      pointwise_backward_data(dy_last, w_matrix, dx_last, math_);
      gradients.give(0, dx);
    }
    const bool needs_db = bias_ && gradients.needs(2);
    if (!gradients.needs(1) && !needs_db) return;
    Tensor db;
    if (needs_db) db = Tensor::empty(dy.context(), {dy_last.size(-1)}, dy.dtype());
    if (!gradients.needs(1)) {
      gradients.give(2, sum_to(dy_last, {dy_last.size(-1)}));
      return;
    }
    Tensor dw = Tensor::empty_like(w), dw_matrix = as_matrix(dw);
    const Tensor x_last = channels_last(x, axis_);
    pointwise_backward_weight(x_last, dy_last, dw_matrix, db, math_);
    gradients.give(1, dw);
    if (needs_db) gradients.give(2, db);
  }

 private:
  const char* name_;
  Saved x_, w_, y_;
  Layout y_layout_;
  bool relu_, bias_;
  int axis_;
  Math math_;
};

}  // namespace

Var pointwise(const char* name, const Var& x, const Var& w, const Var& b, int channel_axis,
              Activation activation, Math math) {
  const Tensor x_last = channels_last(x.value(), channel_axis);
  Tensor y_last = empty_in_order_of(x_last, w.value().size(0));
  pointwise_forward(x_last, as_matrix(w.value()), b.value(), y_last, activation, math);
  Tensor y = channels_back(y_last, channel_axis);
  std::unique_ptr<Node> node;
  if (Tape::wants_grad({&x, &w, &b}))
    node = std::make_unique<PointwiseNode>(name, x.value(), w.value(), y, b.defined(), channel_axis,
                                           activation, math);
  return Tape::record(std::move(y), {&x, &w, &b}, std::move(node));
}

Var linear(const Var& x, const Var& w, const Var& b, const LinearParams& params) {
  require_compatible("linear", x, w);
  if (b.defined()) require_compatible("linear", x, b);
  const bool fits = x.value().rank() >= 1 && w.value().rank() == 2 &&
                    x.value().size(-1) == w.value().size(1) &&
                    (!b.defined() || b.shape() == Shape{w.value().size(0)});
  if (!fits)
    throw ShapeError(
        fmt::format("[linear] x {}, w {}, b {}: x must be [..., c_in], w [c_out, c_in], b [c_out]",
                    describe(x), describe(w), describe(b)));
  return pointwise("linear", x, w, b, x.value().rank() - 1, params.activation,
                   params.math.value_or(x.value().context().math()));
}

}  // namespace zerone
