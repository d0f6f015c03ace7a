#include <zerone/ops/softmax.h>

#include <fmt/format.h>

#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/ops/elementwise.h>

namespace zerone {

std::size_t SoftmaxDesc::hash() const {
  return static_cast<std::size_t>((lines * 31 + length) * 16 + static_cast<int>(dtype) * 2 + log);
}
std::size_t CrossEntropyDesc::hash() const {
  return static_cast<std::size_t>((samples * 31 + classes) * 32 + static_cast<int>(dtype) * 4 +
                                  static_cast<int>(reduction));
}

std::string to_string(const SoftmaxDesc& desc) {
  return fmt::format("{} {} {} lines of {}", desc.log ? "log_softmax" : "softmax",
                     to_string(desc.dtype), desc.lines, desc.length);
}
std::string to_string(const CrossEntropyDesc& desc) {
  constexpr const char* names[] = {"mean", "sum", "none"};
  return fmt::format("cross_entropy {} {} samples of {} classes, {}", to_string(desc.dtype),
                     desc.samples, desc.classes, names[static_cast<int>(desc.reduction)]);
}

const SoftmaxForwardList& softmax_forward_list() {
  static const SoftmaxForwardList list("softmax.forward", {
    softmax_cpu::forward_rows(),
#if ZERONE_CUDA
        softmax_cuda::forward_rows(),
#endif
  });
  return list;
}

const SoftmaxBackwardList& softmax_backward_list() {
  static const SoftmaxBackwardList list("softmax.backward", {
    softmax_cpu::backward_rows(),
#if ZERONE_CUDA
        softmax_cuda::backward_rows(),
#endif
  });
  return list;
}

const CrossEntropyForwardList& cross_entropy_forward_list() {
  static const CrossEntropyForwardList list("cross_entropy.forward", {
    softmax_cpu::cross_entropy_forward_rows(),
#if ZERONE_CUDA
        softmax_cuda::cross_entropy_forward_rows(),
#endif
  });
  return list;
}

const CrossEntropyBackwardList& cross_entropy_backward_list() {
  static const CrossEntropyBackwardList list("cross_entropy.backward", {
    softmax_cpu::cross_entropy_backward_rows(),
#if ZERONE_CUDA
        softmax_cuda::cross_entropy_backward_rows(),
#endif
  });
  return list;
}

namespace {

class SoftmaxNode final : public Node {
 public:
  SoftmaxNode(const Tensor& y, int axis, const SoftmaxDesc& desc)
      : y_(y), axis_(axis), desc_(desc) {}
  const char* name() const override { return desc_.log ? "log_softmax" : "softmax"; }
  void backward(Gradients& gradients) override {
    const Tensor& y = y_.get(name(), "its output");
    Tensor dx = Tensor::empty_like(y);
    if (y.numel() > 0)
      softmax_backward_list().run(y.context().state(), desc_,
                                  {.dx = mutable_view(dx),
                                   .dy = view(gradients.output()),
                                   .y = view(y),
                                   .axis = axis_,
                                   .log = desc_.log});
    gradients.give(0, std::move(dx));
  }

 private:
  Saved y_;
  int axis_;
  SoftmaxDesc desc_;
};

Var apply_softmax(const char* name, const Var& x_var, int axis, bool log) {
  require_floating(name, x_var);
  const Tensor& x = x_var.value();
  axis = normalize_axis(axis, x.rank(), name);
  const std::int64_t length = x.size(axis);
  const SoftmaxDesc desc{x.dtype(), log, length == 0 ? 0 : x.numel() / length, length};
  Tensor y = Tensor::empty_like(x);
  if (x.numel() > 0)
    softmax_forward_list().run(x.context().state(), desc,
                               {.y = mutable_view(y), .x = view(x), .axis = axis, .log = log});
  auto node = Tape::wants_grad({&x_var}) ? std::make_unique<SoftmaxNode>(y, axis, desc) : nullptr;
  return Tape::record(std::move(y), {&x_var}, std::move(node));
}

class CrossEntropyNode final : public Node {
 public:
  CrossEntropyNode(const Tensor& logits, const Tensor& labels, const Tensor& sums,
                   const CrossEntropyDesc& desc, double smoothing, std::int64_t ignored)
      : logits_(logits),
        labels_(labels),
        sums_(sums),
        desc_(desc),
        smoothing_(smoothing),
        ignored_(ignored) {}
  const char* name() const override { return "cross_entropy"; }
  void backward(Gradients& gradients) override {
    const Tensor& logits = logits_.get(name(), "its logits");
    Tensor dx = Tensor::empty_like(logits);
    if (logits.numel() > 0)
      cross_entropy_backward_list().run(logits.context().state(), desc_,
                                        {.dx = mutable_view(dx),
                                         .x = view(logits),
                                         .labels = view(labels_.get(name(), "its labels")),
                                         .dloss = view(gradients.output()),
                                         .saved = sums_.get(name(), "its sums").data(),
                                         .reduction = desc_.reduction,
                                         .smoothing = smoothing_,
                                         .ignored = ignored_});
    gradients.give(0, std::move(dx));
  }

 private:
  Saved logits_, labels_, sums_;
  CrossEntropyDesc desc_;
  double smoothing_;
  std::int64_t ignored_;
};

/// [N, C, ...] without C.
Shape sample_shape(const Shape& logits) {
  std::array<std::int64_t, max_rank> sizes{};
  std::size_t rank = 0;
  for (int axis = 0; axis < logits.rank(); ++axis)
    if (axis != 1) sizes[rank++] = logits[axis];
  return Shape(std::span<const std::int64_t>(sizes.data(), rank));
}

}  // namespace

Var softmax(const Var& x, int axis) {
  return apply_softmax("softmax", x, axis, false);
}

Var log_softmax(const Var& x, int axis) {
  return apply_softmax("log_softmax", x, axis, true);
}

Var cross_entropy(const Var& logits, const Tensor& labels, Reduction reduction,
                  double label_smoothing, std::int64_t ignore_index) {
  require_floating("cross_entropy", logits);
  const Tensor& x = logits.value();
  require_same_context("cross_entropy", x, labels);
  if (labels.dtype() != DType::i64)
    throw DTypeError(fmt::format("[cross_entropy] labels are {}, expected i64", describe(labels)));
  if (x.rank() < 2 || x.size(1) == 0 || labels.shape() != sample_shape(x.shape()))
    throw ShapeError(fmt::format(
        "[cross_entropy] logits {} and labels {}: expected [N, C, ...] with C > 0 and [N, ...]",
        describe(x), describe(labels)));
  if (!(label_smoothing >= 0 && label_smoothing <= 1))
    throw ShapeError(fmt::format("[cross_entropy] label_smoothing {} is not in [0, 1], for {}",
                                 label_smoothing, describe(x)));
  const CrossEntropyDesc desc{x.dtype(), reduction, labels.numel(), x.size(1)};
  const DType compute = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor loss = Tensor::empty(x.context(), reduction == Reduction::none ? labels.shape() : Shape{},
                              x.dtype());
  Tensor sums = Tensor::empty(x.context(), {kernels::cross_entropy_saved(desc.samples)}, compute);
  if (loss.numel() > 0)
    cross_entropy_forward_list().run(x.context().state(), desc,
                                     {.x = view(x),
                                      .labels = view(labels),
                                      .loss = mutable_view(loss),
                                      .saved = sums.mutable_data(),
                                      .reduction = reduction,
                                      .smoothing = label_smoothing,
                                      .ignored = ignore_index});
  auto node =
      Tape::wants_grad({&logits})
          ? std::make_unique<CrossEntropyNode>(x, labels, sums, desc, label_smoothing, ignore_index)
          : nullptr;
  return Tape::record(std::move(loss), {&logits}, std::move(node));
}

}  // namespace zerone
