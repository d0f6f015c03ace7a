#include <zerone/ops/nn/sgd.h>

#include <fmt/format.h>

#include <zerone/core/error.h>
#include <zerone/core/views.h>

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

Sgd::Sgd(std::vector<Parameter> parameters, const SgdOptions& options_)
    : options(options_), parameters_(std::move(parameters)), momentum_(parameters_.size()) {
  for (const Parameter& parameter : parameters_)
    if (!parameter.value().is_dense())
      throw ShapeError(fmt::format("[sgd] parameter '{}' is a strided view: {}", parameter.name(),
                                   describe(parameter.value())));
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
