#include <zerone/ops/dropout.h>

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <zerone/core/error.h>
#include <zerone/kernels/dropout.h>
#include <zerone/ops/elementwise.h>

namespace zerone {

std::size_t DropoutDesc::hash() const {
  return static_cast<std::size_t>(numel * 16 + (backward ? 8 : 0) + static_cast<int>(dtype));
}

std::string to_string(const DropoutDesc& desc) {
  return fmt::format("{} {} n={}", desc.backward ? "backward" : "forward", to_string(desc.dtype),
                     desc.numel);
}

const DropoutList& dropout_list() {
  static const DropoutList list("dropout", {
    dropout_cpu::rows(),
#if ZERONE_CUDA
        dropout_cuda::rows(),
#endif
  });
  return list;
}

namespace {

/// x if it lies in memory as y does, else y with x copied into it: what a kernel that walks memory
/// reads to write y.
Tensor aligned_with(Tensor& y, const Tensor& x) {
  bool same = x.is_dense();
  for (int i = 0; same && i < x.rank(); ++i)
    same = x.layout().sizes[i] == 1 || x.layout().strides[i] == y.layout().strides[i];
  if (same) return x;
  y.copy_(x);
  return y;
}

class DropoutNode final : public Node {
 public:
  DropoutNode(const Tensor& y, const Tensor& flags, double scale)
      : layout_(y.layout()), flags_(flags), scale_(scale) {}
  const char* name() const override { return "dropout"; }
  void backward(Gradients& gradients) override {
    const Tensor& dy = gradients.output();
    if (dy.known_zero()) return gradients.give(0, dy);
    const Tensor& flags = flags_.get("dropout", "its record of what was dropped");
    Tensor dx = Tensor::view_of(std::make_shared<Storage>(dy.context(), dy.bytes()), 0, layout_,
                                dy.dtype());
    const Tensor source = aligned_with(dx, dy);
    dropout_list().run(dy.context().state(),
                       {.dtype = dy.dtype(), .numel = dy.numel(), .backward = true},
                       {.out = dx.mutable_data(),
                        .x = source.data(),
                        .kept = flags.data<std::uint8_t>(),
                        .scale = scale_});
    gradients.give(0, std::move(dx));
  }

 private:
  Layout layout_;  // of the result
  Saved flags_;
  double scale_;
};

}  // namespace

Var dropout(const Var& x, double p, bool training) {
  require_floating("dropout", x);
  if (!(p >= 0 && p <= 1))
    throw ShapeError(fmt::format("[dropout] p = {} is no probability, for {}", p, describe(x)));
  const std::int64_t n = x.value().numel();
  if (!training || p == 0 || n == 0) return x;

  const Context context = x.value().context();
  const bool wanted = Tape::wants_grad({&x});
  Tensor y = Tensor::empty_like(x), flags;
  if (wanted) flags = Tensor::empty(context, {kernels::dropout_flag_bytes(n)}, DType::u8);
  const double kept = std::round((1 - p) * 0x1p32);  // of 2^32
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  if (x.value().known_zero() && !wanted) {
    y.storage().set_known_zero();
  } else {
    const Tensor source = aligned_with(y, x);
    dropout_list().run(context.state(), {.dtype = y.dtype(), .numel = n},
                       {.out = y.mutable_data(),
                        .x = source.data(),
                        .flags = wanted ? flags.mutable_data<std::uint8_t>() : nullptr,
                        .highest_kept = static_cast<std::uint32_t>(std::max(kept, 1.0) - 1),
                        .scale = scale});
  }
  context.state().random_offset += static_cast<std::uint64_t>(n);
  auto node = wanted ? std::make_unique<DropoutNode>(y, flags, scale) : nullptr;
  return Tape::record(std::move(y), {&x}, std::move(node));
}

}  // namespace zerone
