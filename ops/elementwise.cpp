#include <zerone/ops/elementwise.h>

#include <fmt/format.h>
#include <cmath>

#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/ops/reduce.h>
#include <zerone/ops/view.h>

namespace zerone {

using kernels::BinaryOp;
using kernels::UnaryOp;

std::size_t UnaryDesc::hash() const {
  return static_cast<std::size_t>(numel * 64 + static_cast<int>(op) * 8 + static_cast<int>(dtype));
}
std::size_t BinaryDesc::hash() const {
  return static_cast<std::size_t>(numel * 64 + static_cast<int>(op) * 8 + static_cast<int>(dtype));
}

std::string to_string(const UnaryDesc& desc) {
  constexpr const char* names[] = {"relu", "affine"};
  return fmt::format("{} {} n={}", names[static_cast<int>(desc.op)], to_string(desc.dtype),
                     desc.numel);
}

std::string to_string(const BinaryDesc& desc) {
  constexpr const char* names[] = {"add", "sub", "mul", "relu_backward"};
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

Tensor apply_unary(UnaryOp op, const Tensor& x, double alpha = 1, double beta = 0) {
  Tensor y = Tensor::empty_like(x);
  if (x.numel() == 0) return y;
  if (x.known_zero() && beta == 0 && std::isfinite(alpha)) {
    y.storage().set_known_zero();
    return y;
  }
  unary_list().run(x.context().state(), {op, x.dtype(), x.numel()},
                   {mutable_view(y), view(x), alpha, beta});
  return y;
}

Var binary(const char* name, BinaryOp op, const Var& a, const Var& b,
           std::unique_ptr<Node> (*make_node)(const Var&, const Var&)) {
  require_compatible(name, a, b);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), name);
  const Tensor expanded_a = a.value().expand(shape), expanded_b = b.value().expand(shape);
  Tensor y = apply_binary(op, expanded_a, expanded_b);
  return Tape::record(std::move(y), {&a, &b},
                      Tape::wants_grad({&a, &b}) ? make_node(a, b) : nullptr);
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

class ReluNode final : public Node {
 public:
  explicit ReluNode(const Tensor& y) : y_(y) {}
  const char* name() const override { return "relu"; }
  void backward(Gradients& gradients) override {
    gradients.give(
        0, apply_binary(BinaryOp::relu_backward, gradients.output(), y_.get("relu", "its output")));
  }

 private:
  Saved y_;
};

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

Tensor apply_binary(BinaryOp op, const Tensor& a, const Tensor& b) {
  const bool like_b = !a.is_dense() && b.is_dense();
  Tensor y = Tensor::empty_like(like_b ? b : a);
  if (y.numel() == 0) return y;
  const bool zero = (op == BinaryOp::relu_backward && (a.known_zero() || b.known_zero())) ||
                    (op != BinaryOp::mul && a.known_zero() && b.known_zero());
  if (zero) {
    y.storage().set_known_zero();
    return y;
  }
  binary_list().run(a.context().state(), {op, a.dtype(), y.numel()},
                    {mutable_view(y), view(a), view(b)});
  return y;
}

Var add(const Var& a, const Var& b) {
  return binary("add", BinaryOp::add, a, b,
                [](const Var& l, const Var& r) -> std::unique_ptr<Node> {
                  return std::make_unique<AddNode>("add", l, r, 1);
                });
}

Var sub(const Var& a, const Var& b) {
  return binary("sub", BinaryOp::sub, a, b,
                [](const Var& l, const Var& r) -> std::unique_ptr<Node> {
                  return std::make_unique<AddNode>("sub", l, r, -1);
                });
}

Var mul(const Var& a, const Var& b) {
  return binary("mul", BinaryOp::mul, a, b,
                [](const Var& l, const Var& r) -> std::unique_ptr<Node> {
                  return std::make_unique<MulNode>(l, r);
                });
}

Var relu(const Var& x) {
  require_floating("relu", x);
  Tensor y = apply_unary(UnaryOp::relu, x);
  auto node = Tape::wants_grad({&x}) ? std::make_unique<ReluNode>(y) : nullptr;
  return Tape::record(std::move(y), {&x}, std::move(node));
}

Var affine(const Var& x, double alpha, double beta) {
  require_floating("affine", x);
  auto node = Tape::wants_grad({&x}) ? std::make_unique<AffineNode>(alpha) : nullptr;
  return Tape::record(apply_unary(UnaryOp::affine, x, alpha, beta), {&x}, std::move(node));
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
