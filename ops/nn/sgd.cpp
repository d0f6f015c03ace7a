#include <zerone/ops/nn/sgd.h>

#include <fmt/format.h>
#include <algorithm>

#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/ops/elementwise.h>

namespace zerone {

std::string to_string(const SgdDesc& desc) {
  return fmt::format("sgd {} n={}{}{}", to_string(desc.dtype), desc.numel,
                     desc.momentum ? " momentum" : "", desc.mask ? " mask" : "");
}

const SgdList& sgd_list() {
  static const SgdList list("sgd", {
    sgd_cpu::rows(),
#if ZERONE_CUDA
        sgd_cuda::rows(),
#endif
  });
  return list;
}

namespace nn {

namespace {

/// Whether b's elements lie in memory as a's do: the kernel walks both alike.
bool lie_alike(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return false;
  for (int i = 0; i < a.rank(); ++i)
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

void expect_dense(const Parameter& parameter) {
  if (!parameter.value().is_dense())
    throw ShapeError(fmt::format("[sgd] parameter '{}' is a strided view: {}", parameter.name(),
                                 describe(parameter.value())));
}

}  // namespace

Sgd::Sgd(std::vector<Parameter> parameters, const SgdOptions& options_) : options(options_) {
  for (Parameter& parameter : parameters) {
    if (!parameter.defined()) throw ShapeError("[sgd] undefined parameter");
    expect_dense(parameter);
    const bool seen = std::any_of(parameters_.begin(), parameters_.end(), [&](const Parameter& p) {
      return p.id() == parameter.id();  // shared by two modules
    });
    if (!seen) parameters_.push_back(std::move(parameter));
  }
  momentum_.resize(parameters_.size());
}

void Sgd::zero_grad() const {
  for (const Parameter& parameter : parameters_) parameter.zero_grad();
}

void Sgd::step() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    Tensor& value = parameter.value();
    if (!parameter.grad().defined() || value.numel() == 0) continue;
    Tensor& momentum = momentum_[i];
    require_compatible("sgd", value, parameter.grad());
    expect_dense(parameter);
    const bool fits = value.shape() == parameter.grad().shape() &&
                      (!momentum.defined() ||
                       (lie_alike(value, momentum) && value.dtype() == momentum.dtype())) &&
                      (!parameter.mask().defined() || lie_alike(value, parameter.mask()));
    if (!fits)
      throw ShapeError(fmt::format(
          "[sgd] parameter '{}' is {}, but its gradient is {}, its momentum {} and its mask {}",
          parameter.name(), describe(value), describe(parameter.grad()), describe(momentum),
          describe(parameter.mask())));
    const bool first = options.momentum != 0 && !momentum.defined();
    if (first) momentum = Tensor::empty_like(value);
    kernels::SgdStep step{.value = mutable_view(value),
                          .gradient = view(parameter.grad()),
                          .learning_rate = options.learning_rate,
                          .momentum = options.momentum,
                          .weight_decay = options.weight_decay,
                          .first_step = first};
    if (options.momentum != 0) step.momentum_buffer = momentum.mutable_data();
    if (parameter.mask().defined()) step.mask = parameter.mask().data();
    sgd_list().run(
        value.context().state(),
        {value.dtype(), options.momentum != 0, parameter.mask().defined(), value.numel()}, step);
  }
}

}  // namespace nn
}  // namespace zerone
