#include <zerone/ops/reduce.h>

#include <fmt/format.h>
#include <cmath>
#include <limits>

#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/ops/elementwise.h>

namespace zerone {

std::size_t ReduceDesc::hash() const {
  return static_cast<std::size_t>((in * 31 + out) * 64 + static_cast<int>(op) * 8 +
                                  static_cast<int>(dtype));
}

std::string to_string(const ReduceDesc& desc) {
  constexpr const char* names[] = {"sum", "squared_error_sum", "squared_error_backward"};
  return fmt::format("{} {} {} -> {}", names[static_cast<int>(desc.op)], to_string(desc.dtype),
                     desc.in, desc.out);
}

const ReduceList& reduce_list() {
  static const ReduceList list("reduce", {
    reduce_cpu::rows(),
#if ZERONE_CUDA
        reduce_cuda::rows(),
#endif
  });
  return list;
}

namespace {

/// x summed into `kept`: x's rank, each size x's or 1.
Tensor sum_keeping(const Tensor& x, const Shape& kept, double scale) {
  Tensor y = Tensor::empty(x.context(), kept, x.dtype());
  if (std::isinf(scale))
    y.fill_(std::numeric_limits<double>::quiet_NaN());  // the mean of nothing
  else if (x.known_zero())
    y.storage().set_known_zero();
  else
    sum_into(y, x, scale);
  return y;
}

class SumNode final : public Node {
 public:
  SumNode(const Shape& shape, const Shape& kept, double scale)
      : shape_(shape), kept_(kept), scale_(scale) {}
  const char* name() const override { return "sum"; }
  void backward(Gradients& gradients) override {
    Tensor dy = gradients.output();
    if (scale_ != 1) dy = affine(dy, scale_).value();
    gradients.give(0, dy.reshape(kept_).expand(shape_));
  }

 private:
  Shape shape_, kept_;
  double scale_;
};

class SquaredErrorNode final : public Node {
 public:
  SquaredErrorNode(const Tensor& a, const Tensor& b, double scale) : a_(a), b_(b), scale_(scale) {}
  const char* name() const override { return "mean_square_error"; }
  void backward(Gradients& gradients) override {
    const Tensor& a = a_.get(name(), "its first operand");
    const Tensor& b = b_.get(name(), "its second operand");
    const Tensor& upstream = gradients.output();
    for (int input = 0; input < 2; ++input) {
      if (!gradients.needs(input)) continue;
      Tensor gradient = Tensor::empty_like(a);
      if (a.numel() > 0)
        reduce_list().run(a.context().state(),
                          {ReduceOp::squared_error_backward, a.dtype(), a.numel(), a.numel()},
                          {.out = mutable_view(gradient),
                           .x = view(a),
                           .other = view(b),
                           .upstream = upstream.data(),
                           .scale = input == 0 ? scale_ : -scale_});
      gradients.give(input, gradient);
    }
  }

 private:
  Saved a_, b_;
  double scale_;
};

Var scaled_sum(const char* op, const Var& x, const Shape& kept, const Shape& result, double scale) {
  require_floating(op, x);
  Tensor y = sum_keeping(x, kept, scale).reshape(result);
  return Tape::record(
      std::move(y), {&x},
      Tape::wants_grad({&x}) ? std::make_unique<SumNode>(x.shape(), kept, scale) : nullptr);
}

Shape all_ones(int rank) {
  std::array<std::int64_t, max_rank> sizes;
  sizes.fill(1);
  return Shape(std::span<const std::int64_t>(sizes.data(), static_cast<std::size_t>(rank)));
}

}  // namespace

void sum_into(Tensor& y, const Tensor& x, double scale) {
  if (y.numel() == 0) return;
  reduce_list().run(x.context().state(), {ReduceOp::sum, x.dtype(), x.numel(), y.numel()},
                    {.out = mutable_view(y), .x = view(x), .scale = scale});
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  std::array<std::int64_t, max_rank> kept;
  kept.fill(1);
  const int added = x.rank() - shape.rank();
  for (int i = 0; i < shape.rank(); ++i) kept[static_cast<std::size_t>(added + i)] = shape[i];
  return sum_keeping(
             x,
             Shape(std::span<const std::int64_t>(kept.data(), static_cast<std::size_t>(x.rank()))),
             1)
      .reshape(shape);
}

Var sum(const Var& x) {
  return scaled_sum("sum", x, all_ones(x.value().rank()), Shape{}, 1);
}

Var sum(const Var& x, std::initializer_list<int> axes, bool keep) {
  const Shape shape = x.shape();
  std::array<std::int64_t, max_rank> kept{}, result{};
  std::array<bool, max_rank> summed{};
  for (const int axis : axes)
    summed[static_cast<std::size_t>(normalize_axis(axis, shape.rank(), "sum"))] = true;
  std::size_t result_rank = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.rank()); ++i) {
    kept[i] = summed[i] ? 1 : shape.begin()[i];
    if (keep || !summed[i]) result[result_rank++] = kept[i];
  }
  return scaled_sum(
      "sum", x,
      Shape(std::span<const std::int64_t>(kept.data(), static_cast<std::size_t>(shape.rank()))),
      Shape(std::span<const std::int64_t>(result.data(), result_rank)), 1);
}

Var mean(const Var& x) {
  return scaled_sum("mean", x, all_ones(x.value().rank()), Shape{},
                    1.0 / static_cast<double>(x.value().numel()));
}

Var mean_square_error(const Var& a, const Var& b) {
  require_compatible("mean_square_error", a, b);
  if (a.shape() != b.shape())
    throw ShapeError(fmt::format("[mean_square_error] {} and {}", describe(a), describe(b)));
  const std::int64_t count = a.value().numel();
  const double scale = 1.0 / static_cast<double>(count);
  Tensor y = Tensor::empty(a.value().context(), Shape{}, a.value().dtype());
  if (count == 0)
    y.fill_(std::numeric_limits<double>::quiet_NaN());
  else
    reduce_list().run(
        a.value().context().state(), {ReduceOp::squared_error_sum, a.value().dtype(), count, 1},
        {.out = mutable_view(y), .x = view(a.value()), .other = view(b.value()), .scale = scale});
  auto node = Tape::wants_grad({&a, &b})
                  ? std::make_unique<SquaredErrorNode>(a.value(), b.value(), 2 * scale)
                  : nullptr;
  return Tape::record(std::move(y), {&a, &b}, std::move(node));
}

}  // namespace zerone
