#include <zerone/ops/pool.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>

#include <zerone/core/error.h>
#include <zerone/ops/elementwise.h>
#include <zerone/ops/reduce.h>

namespace zerone {

using kernels::Pool2dShape;
using kernels::PoolAxis;
using kernels::PoolOp;

// --- descriptors and lists ----------------------------------------------------------------------

std::string to_string(const Pool2dDesc& desc) {
  const Pool2dShape& s = desc.shape;
  const auto axis = [](const PoolAxis<>& a) {
    return fmt::format("{}->{} k{} s{} d{} p{} count {}:{}", a.in, a.out, a.kernel, a.stride,
                       a.dilation, a.pad, a.count_begin, a.count_end);
  };
  return fmt::format("{}{} {} n{} c{} h {} w {} x({}) y({}) argmax({})",
                     desc.op == PoolOp::max ? "max" : "average", desc.argmax ? " argmax" : "",
                     to_string(desc.dtype), s.n, s.c, axis(s.h), axis(s.w),
                     fmt::join(s.x_strides, ","), fmt::join(s.y_strides, ","),
                     fmt::join(s.argmax_strides, ","));
}

const Pool2dForwardList& pool2d_forward_list() {
  static const Pool2dForwardList list("pool2d.forward", {
    pool_cpu::forward_rows(),
#if ZERONE_CUDA
        pool_cuda::forward_rows(),
#endif
  });
  return list;
}

const Pool2dBackwardList& pool2d_backward_list() {
  static const Pool2dBackwardList list("pool2d.backward", {
    pool_cpu::backward_rows(),
#if ZERONE_CUDA
        pool_cuda::backward_rows(),
#endif
  });
  return list;
}

// --- checks and sizes ---------------------------------------------------------------------------

namespace {

/// Sizes of x, of rank 4 and not empty but for the batch.
Pool2dShape sizes_of(const char* name, const Tensor& x) {
  require_floating(name, x);
  if (x.rank() != 4 || x.size(1) == 0 || x.size(2) == 0 || x.size(3) == 0)
    throw ShapeError(fmt::format("[{}] x must be [n, c, h, w] with c, h and w of at least 1: {}",
                                 name, describe(x)));
  Pool2dShape s;
  s.n = x.size(0), s.c = x.size(1);
  s.h.in = x.size(2), s.w.in = x.size(3);
  return s;
}

}  // namespace

Pool2dShape make_pool2d_shape(const char* name, PoolOp op, const Tensor& x, const Pool2dParams& p) {
  Pool2dShape s = sizes_of(name, x);
  const Pair stride = p.stride.value_or(p.kernel);
  const auto require = [&](bool condition, const std::string& what) {
    if (condition) return;
    throw ShapeError(fmt::format(
        "[{}] {}: x {}, kernel ({}, {}), stride ({}, {}), padding ({}, {}, {}, {}), dilation "
        "({}, {}), ceil_mode {}",
        name, what, describe(x), p.kernel.h, p.kernel.w, stride.h, stride.w, p.padding.top,
        p.padding.bottom, p.padding.left, p.padding.right, p.dilation.h, p.dilation.w,
        p.ceil_mode));
  };
  require(op == PoolOp::max || p.dilation == Pair(1), "an average has no dilation");
  const auto set = [&](const char* what, PoolAxis<>& axis, std::int64_t kernel, std::int64_t step,
                       std::int64_t dilation, std::int64_t before, std::int64_t after) {
    constexpr std::int64_t most = std::int64_t{1} << 31;
    require(std::min({kernel, step, dilation}) >= 1,
            "kernel, stride and dilation must be at least 1");
    require(std::min(before, after) >= 0, "padding must not be negative");
    require(std::max({kernel, step, dilation, before, after}) <= most,
            "kernel, stride, dilation and padding must be at most 2^31");
    const std::int64_t extent = (kernel - 1) * dilation + 1;
    require(std::max(before, after) <= kernel / 2,
            fmt::format("padding of the {} may be at most half of the kernel", what));
    const std::int64_t room = axis.in + before + after - extent;
    // Windows whose first tap lies at 0, step, ... up to `room`, in the padded image.
    axis.out = room >= 0 ? room / step + 1 : 0;
    if (p.ceil_mode && room % step != 0 && room > -step) {
      const bool begins_inside = axis.out * step < axis.in + before;
      if (begins_inside) ++axis.out;
    }
    require(axis.out >= 1, fmt::format("no window fits the {}: {} with padding, kernel extent {}",
                                       what, axis.in + before + after, extent));
    axis.kernel = kernel, axis.stride = step, axis.dilation = dilation, axis.pad = before;
    axis.count_begin = p.count_padding ? -before : 0;
    axis.count_end = axis.in + (p.count_padding ? after : 0);
  };
  set("height", s.h, p.kernel.h, stride.h, p.dilation.h, p.padding.top, p.padding.bottom);
  set("width", s.w, p.kernel.w, stride.w, p.dilation.w, p.padding.left, p.padding.right);
  return s;
}

Pool2dShape make_adaptive_pool2d_shape(const Tensor& x, Pair out) {
  Pool2dShape s = sizes_of("adaptive_avg_pool2d", x);
  for (const auto& [axis, size] : {std::pair{&s.h, out.h}, std::pair{&s.w, out.w}}) {
    std::int64_t product = 0;
    if (size < 0 || __builtin_mul_overflow(axis->in + 1, size + 1, &product))
      throw ShapeError(
          fmt::format("[adaptive_avg_pool2d] out ({}, {}) is negative or too large: x {}", out.h,
                      out.w, describe(x)));
    axis->out = size;
    axis->kernel = 0;
  }
  return s;
}

// --- passes -------------------------------------------------------------------------------------

namespace {

std::array<std::int64_t, 4> strides_of(const Tensor& x) {
  if (!x.defined()) return {};
  const auto& strides = x.layout().strides;
  return {strides[0], strides[1], strides[2], strides[3]};
}

bool is_nhwc(const Layout& layout) {
  return layout.sizes[1] > 1 && layout.strides[1] < layout.strides[3];
}

Tensor empty_image(const Context& context, const Shape& shape, DType dtype, bool nhwc) {
  return nhwc ? Tensor::empty_nhwc(context, shape, dtype) : Tensor::empty(context, shape, dtype);
}

}  // namespace

void pool2d_forward(PoolOp op, Pool2dShape shape, const Tensor& x, Tensor& y, Tensor& argmax) {
  if (y.numel() == 0) return;
  shape.x_strides = strides_of(x), shape.y_strides = strides_of(y);
  shape.argmax_strides = strides_of(argmax);
  pool2d_forward_list().run(x.context().state(), {shape, op, x.dtype(), argmax.defined()},
                            {.x = x.data(),
                             .y = y.mutable_data(),
                             .argmax = argmax.defined() ? argmax.mutable_data() : nullptr,
                             .dtype = x.dtype()});
}

void pool2d_backward(PoolOp op, Pool2dShape shape, const Tensor& dy, const Tensor& argmax,
                     Tensor& dx) {
  if (dx.numel() == 0) return;
  shape.x_strides = strides_of(dx), shape.y_strides = strides_of(dy);
  shape.argmax_strides = strides_of(argmax);
  pool2d_backward_list().run(dy.context().state(), {shape, op, dy.dtype(), argmax.defined()},
                             {.dy = dy.data(),
                              .argmax = argmax.defined() ? argmax.data() : nullptr,
                              .dx = dx.mutable_data(),
                              .dtype = dy.dtype()});
}

// --- tape ---------------------------------------------------------------------------------------

namespace {

class Pool2dNode final : public Node {
 public:
  Pool2dNode(const char* name, PoolOp op, const Pool2dShape& shape, bool nhwc, const Tensor& argmax)
      : name_(name), op_(op), shape_(shape), nhwc_(nhwc), argmax_(argmax) {}
  const char* name() const override { return name_; }
  void backward(Gradients& gradients) override {
    const Tensor& dy = gradients.output();
    Tensor dx = empty_image(dy.context(), {shape_.n, shape_.c, shape_.h.in, shape_.w.in},
                            dy.dtype(), nhwc_);
    // What lies otherwise than y is read with large strides: slower than a copy of it.
    if (dy.numel() == 0 || dy.known_zero())
      dx.storage().set_known_zero();
    else
      pool2d_backward(op_, shape_, nhwc_ ? dy.contiguous_nhwc() : dy.contiguous(),
                      argmax_.get(name_, "the places of its maxima"), dx);
    gradients.give(0, dx);
  }

 private:
  const char* name_;
  PoolOp op_;
  Pool2dShape shape_;
  bool nhwc_;
  Saved argmax_;
};

Var pool2d(const char* name, PoolOp op, const Var& x, const Pool2dShape& shape) {
  const Tensor& input = x.value();
  const bool nhwc = is_nhwc(input.layout()), wants_grad = Tape::wants_grad({&x});
  const Shape result{shape.n, shape.c, shape.h.out, shape.w.out};
  Tensor y = empty_image(input.context(), result, input.dtype(), nhwc), argmax;
  if (op == PoolOp::max && wants_grad)
    argmax = empty_image(input.context(), result, shape.argmax_dtype(), nhwc);
  // A maximum of zeros is zero but for dilated windows, which may hold padding only.
  const bool dilated = shape.h.dilation > 1 || shape.w.dilation > 1;
  if (input.known_zero() && !argmax.defined() && !dilated)
    y.storage().set_known_zero();
  else
    pool2d_forward(op, shape, input, y, argmax);
  auto node = wants_grad ? std::make_unique<Pool2dNode>(name, op, shape, nhwc, argmax) : nullptr;
  return Tape::record(std::move(y), {&x}, std::move(node));
}

class GlobalAverageNode final : public Node {
 public:
  GlobalAverageNode(const char* name, const Shape& shape) : name_(name), shape_(shape) {}
  const char* name() const override { return name_; }
  void backward(Gradients& gradients) override {
    const double area = static_cast<double>(shape_[2] * shape_[3]);
    gradients.give(0, affine(gradients.output(), 1 / area).value().expand(shape_));
  }

 private:
  const char* name_;
  Shape shape_;
};

/// One window over the whole image is a sum over two axes.
Var global_average(const char* name, const Var& x) {
  const Tensor& input = x.value();
  Tensor y = empty_image(input.context(), {input.size(0), input.size(1), 1, 1}, input.dtype(),
                         is_nhwc(input.layout()));
  if (input.known_zero())
    y.storage().set_known_zero();
  else
    sum_into(y, input, 1 / static_cast<double>(input.size(2) * input.size(3)));
  auto node =
      Tape::wants_grad({&x}) ? std::make_unique<GlobalAverageNode>(name, x.shape()) : nullptr;
  return Tape::record(std::move(y), {&x}, std::move(node));
}

}  // namespace

Var max_pool2d(const Var& x, const Pool2dParams& params) {
  return pool2d("max_pool2d", PoolOp::max, x,
                make_pool2d_shape("max_pool2d", PoolOp::max, x, params));
}

Var avg_pool2d(const Var& x, const Pool2dParams& params) {
  const Pool2dShape shape = make_pool2d_shape("avg_pool2d", PoolOp::average, x, params);
  if (params.padding == Padding(0) && params.kernel == Pair(shape.h.in, shape.w.in))
    return global_average("avg_pool2d", x);
  return pool2d("avg_pool2d", PoolOp::average, x, shape);
}

Var adaptive_avg_pool2d(const Var& x, Pair out) {
  const Pool2dShape shape = make_adaptive_pool2d_shape(x, out);
  if (out == Pair(1)) return global_average("adaptive_avg_pool2d", x);
  return pool2d("adaptive_avg_pool2d", PoolOp::average, x, shape);
}

}  // namespace zerone
