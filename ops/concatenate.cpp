#include <zerone/ops/concatenate.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <zerone/core/error.h>

namespace zerone {
namespace {

class ConcatenateNode final : public Node {
 public:
  /// `ends`: where each input ends along the axis.
  ConcatenateNode(int axis, std::vector<std::int64_t> ends) : axis_(axis), ends_(std::move(ends)) {}
  const char* name() const override { return "concatenate"; }
  void backward(Gradients& gradients) override {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < ends_.size(); begin = ends_[i++])
      if (gradients.needs(static_cast<int>(i)))
        gradients.give(static_cast<int>(i), gradients.output().slice(axis_, begin, ends_[i]));
  }

 private:
  int axis_;
  std::vector<std::int64_t> ends_;
};

/// Uninitialized, of x's type and context; in x's memory order if that has no gaps. Where strides
/// are equal an axis of size 1, which has no place of its own, counts as the inner one.
Tensor empty_in_order_of(const Tensor& x, const Shape& shape) {
  if (!x.is_dense()) return Tensor::empty(x.context(), shape, x.dtype());
  const auto rank = static_cast<std::size_t>(x.rank());
  const Layout& layout = x.layout();
  std::array<int, max_rank> order{}, inverse{};
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.begin() + rank, [&](int a, int b) {
    return std::pair(layout.strides[a], layout.sizes[a] != 1) >
           std::pair(layout.strides[b], layout.sizes[b] != 1);
  });
  std::array<std::int64_t, max_rank> sizes{};
  for (std::size_t i = 0; i < rank; ++i) {
    sizes[i] = shape[order[i]];
    inverse[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  }
  return Tensor::empty(x.context(), Shape(std::span<const std::int64_t>(sizes.data(), rank)),
                       x.dtype())
      .permute(std::span<const int>(inverse.data(), rank));
}

void require_joinable(std::span<const Var> inputs, int axis) {
  const Tensor& first = inputs[0];
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    const Tensor& x = inputs[i];
    const auto clash = [&] {
      return fmt::format("[concatenate] input {} is {}, input 0 is {}", i, describe(x),
                         describe(first));
    };
    if (!(x.context() == first.context()))
      throw DeviceError(fmt::format("{}; one is in {}, the other in {}", clash(),
                                    x.context().name(), first.context().name()));
    if (x.dtype() != first.dtype()) throw DTypeError(clash() + "; convert one with to()");
    bool fits = x.rank() == first.rank();
    for (int k = 0; fits && k < x.rank(); ++k) fits = k == axis || x.size(k) == first.size(k);
    if (!fits) throw ShapeError(fmt::format("{}; only sizes of axis {} may differ", clash(), axis));
  }
}

}  // namespace

Var concatenate(std::span<const Var> inputs, int axis) {
  if (inputs.empty()) throw ShapeError("[concatenate] no inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].defined() || inputs[i].value().rank() == 0)
      throw ShapeError(fmt::format("[concatenate] input {} of {} has no axis: {}", i, inputs.size(),
                                   describe(inputs[i])));
  axis = normalize_axis(axis, inputs[0].value().rank(), "concatenate");
  require_joinable(inputs, axis);

  std::vector<std::int64_t> ends;
  std::vector<const Var*> operands;
  const Tensor* order = &inputs[0].value();  // whose memory order the result takes
  bool zero = true;
  for (const Var& input : inputs) {
    const Tensor& x = input;
    ends.push_back((ends.empty() ? 0 : ends.back()) + x.size(axis));
    operands.push_back(&input);
    zero = zero && (x.known_zero() || x.numel() == 0);
    if (x.is_dense() && (!order->is_dense() || x.numel() > order->numel())) order = &x;
  }
  std::array<std::int64_t, max_rank> sizes{};
  std::copy_n(order->layout().sizes.begin(), order->rank(), sizes.begin());
  sizes[static_cast<std::size_t>(axis)] = ends.back();
  Tensor y = empty_in_order_of(*order, Shape(std::span<const std::int64_t>(
                                           sizes.data(), static_cast<std::size_t>(order->rank()))));

  if (zero) {
    y.storage().set_known_zero();
  } else {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& x = inputs[i];
      if (x.numel() == 0) continue;
      Tensor part = y.slice(axis, ends[i] - x.size(axis), ends[i]);
      if (x.known_zero())
        part.fill_(0);
      else
        part.copy_(x);
    }
  }
  auto node = Tape::wants_grad(operands) ? std::make_unique<ConcatenateNode>(axis, std::move(ends))
                                         : nullptr;
  return Tape::record(std::move(y), operands, std::move(node));
}

Var concatenate(std::initializer_list<Var> inputs, int axis) {
  return concatenate(std::span<const Var>(inputs.begin(), inputs.size()), axis);
}

}  // namespace zerone
