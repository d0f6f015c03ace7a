#include <zerone/ops/elementwise.h>

#include <fmt/format.h>
#include <cmath>

#include <zerone/core/error.h>
#include <zerone/core/half.h>
#include <zerone/core/views.h>
#include <zerone/ops/reduce.h>
#include <zerone/ops/view.h>

namespace zerone {

using kernels::BinaryOp;
using kernels::UnaryOp;

std::size_t UnaryDesc::hash() const {
  return static_cast<std::size_t>(numel * 256 + static_cast<int>(op) * 8 + static_cast<int>(dtype));
}
std::size_t BinaryDesc::hash() const {
  return static_cast<std::size_t>(numel * 256 + static_cast<int>(op) * 8 + static_cast<int>(dtype));
}

std::string to_string(const UnaryDesc& desc) {
  constexpr const char* names[] = {"relu",    "affine", "leaky_relu", "clamp",    "exp",      "log",
                                   "sigmoid", "tanh",   "silu",       "gelu_erf", "gelu_tanh"};
  return fmt::format("{} {} n={}", names[static_cast<int>(desc.op)], to_string(desc.dtype),
                     desc.numel);
}

std::string to_string(const BinaryDesc& desc) {
  constexpr const char* names[] = {"add",
                                   "sub",
                                   "mul",
                                   "div",
                                   "relu_backward",
                                   "leaky_relu_backward",
                                   "clamp_backward",
                                   "sigmoid_backward",
                                   "tanh_backward",
                                   "silu_backward",
                                   "gelu_erf_backward",
                                   "gelu_tanh_backward"};
  return fmt::format("{} {} n={}", names[static_cast<int>(desc.op)], to_string(desc.dtype),
                     desc.numel);
}

const UnaryList& unary_list() {
  static const UnaryList list("elementwise.unary", {
    elementwise_cpu::unary_rows(),
#if ZERONE_CUDA
        elementwise_cuda::unary_rows(),
#endif
  });
  return list;
}

const BinaryList& binary_list() {
  static const BinaryList list("elementwise.binary", {
    elementwise_cpu::binary_rows(),
#if ZERONE_CUDA
        elementwise_cuda::binary_rows(),
#endif
  });
  return list;
}

void require_floating(const char* op, const Tensor& x) {
  if (!x.defined() || !is_floating(x.dtype()))
    throw DTypeError(fmt::format("[{}] needs a floating-point tensor, got {}", op, describe(x)));
}

void require_compatible(const char* op, const Tensor& a, const Tensor& b) {
  require_floating(op, a);
  require_floating(op, b);
  require_same_context(op, a, b);
  if (a.dtype() != b.dtype())
    throw DTypeError(fmt::format("[{}] operands are {} and {}; convert one with to()", op,
                                 describe(a), describe(b)));
}

namespace {

/// Whether op(0) is 0.
bool keeps_zero(UnaryOp op, double alpha, double beta) {
  switch (op) {
    case UnaryOp::affine: return beta == 0 && std::isfinite(alpha);
    case UnaryOp::leaky_relu: return std::isfinite(alpha);
    case UnaryOp::clamp: return alpha <= 0 && beta >= 0;
    case UnaryOp::exp:
    case UnaryOp::log:
    case UnaryOp::sigmoid: return false;
    case UnaryOp::relu:
    case UnaryOp::tanh:
    case UnaryOp::silu:
    case UnaryOp::gelu_erf:
    case UnaryOp::gelu_tanh: return true;
  }
  return false;
}

/// Whether op(a, b) is 0 where a, b or both are.
bool gives_zero(BinaryOp op, bool a, bool b, double alpha) {
  switch (op) {
    case BinaryOp::mul:
    case BinaryOp::div: return false;  // NaN or infinity in the other
    case BinaryOp::relu_backward: return a || b;
    case BinaryOp::leaky_relu_backward: return a && std::isfinite(alpha);
    case BinaryOp::clamp_backward: return a;
    default: return a && b;
  }
}

Tensor apply_unary(UnaryOp op, const Tensor& x, double alpha = 1, double beta = 0) {
  Tensor y = Tensor::empty_like(x);
  if (x.numel() == 0) return y;
  if (x.known_zero() && keeps_zero(op, alpha, beta)) {
    y.storage().set_known_zero();
    return y;
  }
  unary_list().run(x.context().state(), {op, x.dtype(), x.numel()},
                   {mutable_view(y), view(x), alpha, beta});
  return y;
}

Var binary(const char* name, BinaryOp op, const Var& a, const Var& b,
           std::unique_ptr<Node> (*make_node)(const Var& a, const Var& b, const Tensor& y)) {
  require_compatible(name, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), name);
  const Tensor expanded_a = a.value().expand(shape), expanded_b = b.value().expand(shape);
  Tensor y = apply_binary(op, expanded_a, expanded_b);
  auto node = Tape::wants_grad({&a, &b}) ? make_node(a, b, y) : nullptr;
  return Tape::record(std::move(y), {&a, &b}, std::move(node));
}

class AddNode final : public Node {
 public:
  AddNode(const char* name, const Var& a, const Var& b, double sign)
      : name_(name), shape_a_(a.shape()), shape_b_(b.shape()), sign_(sign) {}
  const char* name() const override { return name_; }
  void backward(Gradients& gradients) override {
    const Tensor& dy = gradients.output();
    if (gradients.needs(0)) gradients.give(0, sum_to(dy, shape_a_));
    if (gradients.needs(1)) {
      Tensor db = sum_to(dy, shape_b_);
      gradients.give(1, sign_ < 0 ? apply_unary(UnaryOp::affine, db, -1) : db);
    }
  }

 private:
  const char* name_;
  Shape shape_a_, shape_b_;
  double sign_;
};

class MulNode final : public Node {
 public:
  MulNode(const Var& a, const Var& b) : a_(a.value()), b_(b.value()) {
    shape_a_ = a.shape();
    shape_b_ = b.shape();
  }
  const char* name() const override { return "mul"; }
  void backward(Gradients& gradients) override {
    const Tensor& dy = gradients.output();
    const Tensor& a = a_.get("mul", "its first operand");
    const Tensor& b = b_.get("mul", "its second operand");
    if (gradients.needs(0))
      gradients.give(0, sum_to(apply_binary(BinaryOp::mul, dy, b.expand(dy.shape())), shape_a_));
    if (gradients.needs(1))
      gradients.give(1, sum_to(apply_binary(BinaryOp::mul, dy, a.expand(dy.shape())), shape_b_));
  }

 private:
  Saved a_, b_;
  Shape shape_a_, shape_b_;
};

/// da = dy / b, db = -da * y
class DivNode final : public Node {
 public:
  DivNode(const Var& a, const Var& b, const Tensor& y)
      : b_(b.value()),
        y_(b.requires_grad() ? y : Tensor()),
        shape_a_(a.shape()),
        shape_b_(b.shape()) {}
  const char* name() const override { return "div"; }
  void backward(Gradients& gradients) override {
    const Tensor& dy = gradients.output();
    const Tensor& b = b_.get("div", "its second operand");
    const Tensor da = apply_binary(BinaryOp::div, dy, b.expand(dy.shape()));
    if (gradients.needs(0)) gradients.give(0, sum_to(da, shape_a_));
    if (gradients.needs(1)) {
      const Tensor product = apply_binary(BinaryOp::mul, da, y_.get("div", "its output"));
      gradients.give(1, apply_unary(UnaryOp::affine, sum_to(product, shape_b_), -1));
    }
  }

 private:
  Saved b_, y_;
  Shape shape_a_, shape_b_;
};

/// dx = op(dy, kept), where one of input and output is kept.
class UnaryNode final : public Node {
 public:
  enum class Keep { input, output };
  UnaryNode(const char* name, BinaryOp op, Keep keep, const Tensor& kept, double alpha, double beta)
      : name_(name), op_(op), keep_(keep), kept_(kept), alpha_(alpha), beta_(beta) {}
  const char* name() const override { return name_; }
  bool ends_in_relu() const override { return op_ == BinaryOp::relu_backward; }
  void backward(Gradients& gradients) override {
    const Tensor& kept = kept_.get(name_, keep_ == Keep::input ? "its input" : "its output");
    if (gradients.output_gated()) return gradients.give(0, gradients.output());
    gradients.give(0, apply_binary(op_, gradients.output(), kept, alpha_, beta_));
  }

 private:
  const char* name_;
  BinaryOp op_;
  Keep keep_;
  Saved kept_;
  double alpha_, beta_;
};

Var unary(const char* name, UnaryOp op, const Var& x, BinaryOp gradient, UnaryNode::Keep keep,
          double alpha = 0, double beta = 0) {
  require_floating(name, x);
  Tensor y = apply_unary(op, x, alpha, beta);
  std::unique_ptr<Node> node;
  if (Tape::wants_grad({&x})) {
    const Tensor& kept = keep == UnaryNode::Keep::input ? x.value() : y;
    node = std::make_unique<UnaryNode>(name, gradient, keep, kept, alpha, beta);
  }
  return Tape::record(std::move(y), {&x}, std::move(node));
}

/// What a tensor of this type holds when `value` is stored into it.
double stored(DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::bf16: return static_cast<double>(static_cast<float>(bf16(narrow)));
    case DType::f16: return static_cast<double>(static_cast<float>(f16(narrow)));
    case DType::f32: return static_cast<double>(narrow);
    default: return value;
  }
}

class AffineNode final : public Node {
 public:
  explicit AffineNode(double alpha) : alpha_(alpha) {}
  const char* name() const override { return "affine"; }
  void backward(Gradients& gradients) override {
    gradients.give(0, alpha_ == 1 ? gradients.output()
                                  : apply_unary(UnaryOp::affine, gradients.output(), alpha_));
  }

 private:
  double alpha_;
};

}  // namespace

Tensor apply_binary(BinaryOp op, const Tensor& a, const Tensor& b, double alpha, double beta) {
  const bool like_b = !a.is_dense() && b.is_dense();
  Tensor y = Tensor::empty_like(like_b ? b : a);
  if (y.numel() == 0) return y;
  if (gives_zero(op, a.known_zero(), b.known_zero(), alpha)) {
    y.storage().set_known_zero();
    return y;
  }
  binary_list().run(a.context().state(), {op, a.dtype(), y.numel()},
                    {mutable_view(y), view(a), view(b), alpha, beta});
  return y;
}

Var add(const Var& a, const Var& b) {
  return binary("add", BinaryOp::add, a, b,
                [](const Var& l, const Var& r, const Tensor&) -> std::unique_ptr<Node> {
                  return std::make_unique<AddNode>("add", l, r, 1);
                });
}

Var sub(const Var& a, const Var& b) {
  return binary("sub", BinaryOp::sub, a, b,
                [](const Var& l, const Var& r, const Tensor&) -> std::unique_ptr<Node> {
                  return std::make_unique<AddNode>("sub", l, r, -1);
                });
}

Var mul(const Var& a, const Var& b) {
  return binary("mul", BinaryOp::mul, a, b,
                [](const Var& l, const Var& r, const Tensor&) -> std::unique_ptr<Node> {
                  return std::make_unique<MulNode>(l, r);
                });
}

Var div(const Var& a, const Var& b) {
  return binary("div", BinaryOp::div, a, b,
                [](const Var& l, const Var& r, const Tensor& y) -> std::unique_ptr<Node> {
                  return std::make_unique<DivNode>(l, r, y);
                });
}

Var affine(const Var& x, double alpha, double beta) {
  require_floating("affine", x);
  auto node = Tape::wants_grad({&x}) ? std::make_unique<AffineNode>(alpha) : nullptr;
  return Tape::record(apply_unary(UnaryOp::affine, x, alpha, beta), {&x}, std::move(node));
}

Var relu(const Var& x) {
  return unary("relu", UnaryOp::relu, x, BinaryOp::relu_backward, UnaryNode::Keep::output);
}

Var leaky_relu(const Var& x, double slope) {
  // The output has the sign of the input, unless the slope is negative (or NaN).
  const auto keep = slope >= 0 ? UnaryNode::Keep::output : UnaryNode::Keep::input;
  return unary("leaky_relu", UnaryOp::leaky_relu, x, BinaryOp::leaky_relu_backward, keep, slope);
}

Var clamp(const Var& x, double low, double high) {
  require_floating("clamp", x);
  if (!(low <= high)) throw ShapeError(fmt::format("[clamp] low {} and high {}", low, high));
  return unary("clamp", UnaryOp::clamp, x, BinaryOp::clamp_backward, UnaryNode::Keep::input,
               stored(x.value().dtype(), low), stored(x.value().dtype(), high));
}

Var exp(const Var& x) {
  return unary("exp", UnaryOp::exp, x, BinaryOp::mul, UnaryNode::Keep::output);
}

Var log(const Var& x) {
  return unary("log", UnaryOp::log, x, BinaryOp::div, UnaryNode::Keep::input);
}

Var sigmoid(const Var& x) {
  return unary("sigmoid", UnaryOp::sigmoid, x, BinaryOp::sigmoid_backward, UnaryNode::Keep::output);
}

Var tanh(const Var& x) {
  return unary("tanh", UnaryOp::tanh, x, BinaryOp::tanh_backward, UnaryNode::Keep::output);
}

Var silu(const Var& x) {
  return unary("silu", UnaryOp::silu, x, BinaryOp::silu_backward, UnaryNode::Keep::input);
}

Var gelu(const Var& x, Gelu form) {
  return form == Gelu::erf ? unary("gelu", UnaryOp::gelu_erf, x, BinaryOp::gelu_erf_backward,
                                   UnaryNode::Keep::input)
                           : unary("gelu", UnaryOp::gelu_tanh, x, BinaryOp::gelu_tanh_backward,
                                   UnaryNode::Keep::input);
}

Var bias(const Var& x, const Var& b, int axis) {
  require_compatible("bias", x, b);
  axis = normalize_axis(axis, x.value().rank(), "bias");
  if (b.value().rank() != 1 || b.value().size(0) != x.value().size(axis))
    throw ShapeError(fmt::format("[bias] {} along axis {} of {}", describe(b), axis, describe(x)));
  std::array<std::int64_t, max_rank> sizes;
  sizes.fill(1);
  sizes[0] = b.value().size(0);
  return add(x, reshape(b, Shape(std::span<const std::int64_t>(
                               sizes.data(), static_cast<std::size_t>(x.value().rank() - axis)))));
}

}  // namespace zerone
