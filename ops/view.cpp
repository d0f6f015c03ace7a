#include <zerone/ops/view.h>

#include <array>

#include <zerone/ops/reduce.h>

namespace zerone {
namespace {

class PermuteNode final : public Node {
 public:
  PermuteNode(std::initializer_list<int> axes, int rank) : rank_(rank) {
    int i = 0;
    for (const int axis : axes)
      inverse_[static_cast<std::size_t>(normalize_axis(axis, rank, "permute"))] = i++;
  }
  const char* name() const override { return "permute"; }
  void backward(Gradients& gradients) override {
    gradients.give(0, gradients.output().permute(
                          std::span<const int>(inverse_.data(), static_cast<std::size_t>(rank_))));
  }

 private:
  int rank_;
  std::array<int, max_rank> inverse_{};
};

class ReshapeNode final : public Node {
 public:
  explicit ReshapeNode(const Shape& shape) : shape_(shape) {}
  const char* name() const override { return "reshape"; }
  void backward(Gradients& gradients) override {
    gradients.give(0, gradients.output().contiguous().reshape(shape_));
  }

 private:
  Shape shape_;
};

class SliceNode final : public Node {
 public:
  SliceNode(const Shape& shape, int axis, std::int64_t begin, std::int64_t end, std::int64_t step)
      : shape_(shape), axis_(axis), begin_(begin), end_(end), step_(step) {}
  const char* name() const override { return "slice"; }
  void backward(Gradients& gradients) override {
    const Tensor& dy = gradients.output();
    Tensor dx = Tensor::zeros(dy.context(), shape_, dy.dtype());
    if (!dy.known_zero()) dx.slice(axis_, begin_, end_, step_).copy_(dy);
    gradients.give(0, dx);
  }

 private:
  Shape shape_;
  int axis_;
  std::int64_t begin_, end_, step_;
};

class ExpandNode final : public Node {
 public:
  explicit ExpandNode(const Shape& shape) : shape_(shape) {}
  const char* name() const override { return "expand"; }
  void backward(Gradients& gradients) override {
    gradients.give(0, sum_to(gradients.output(), shape_));
  }

 private:
  Shape shape_;
};

class LayoutNode final : public Node {
 public:
  const char* name() const override { return "contiguous"; }
  void backward(Gradients& gradients) override { gradients.give(0, gradients.output()); }
};

}  // namespace

Var permute(const Var& x, std::initializer_list<int> axes) {
  Tensor y = x.value().permute(axes);
  return Tape::record(std::move(y), {&x}, std::make_unique<PermuteNode>(axes, x.value().rank()));
}

Var reshape(const Var& x, const Shape& shape) {
  return Tape::record(x.value().reshape(shape), {&x}, std::make_unique<ReshapeNode>(x.shape()));
}

Var reshape(const Var& x, std::initializer_list<std::int64_t> sizes) {
  return Tape::record(x.value().reshape(sizes), {&x}, std::make_unique<ReshapeNode>(x.shape()));
}

Var slice(const Var& x, int axis, std::int64_t begin, std::int64_t end, std::int64_t step) {
  return Tape::record(x.value().slice(axis, begin, end, step), {&x},
                      std::make_unique<SliceNode>(x.shape(), axis, begin, end, step));
}

Var expand(const Var& x, const Shape& shape) {
  return Tape::record(x.value().expand(shape), {&x}, std::make_unique<ExpandNode>(x.shape()));
}

Var contiguous(const Var& x) {
  return Tape::record(x.value().contiguous(), {&x}, std::make_unique<LayoutNode>());
}

Var contiguous_nhwc(const Var& x) {
  return Tape::record(x.value().contiguous_nhwc(), {&x}, std::make_unique<LayoutNode>());
}

}  // namespace zerone
