#include <zerone/ops/nn/gradients.h>

#include <fmt/format.h>
#include <vector>

#include <zerone/core/error.h>
#include <zerone/ops/elementwise.h>

namespace zerone {

std::size_t GradientDesc::hash() const {
  return static_cast<std::size_t>((numel * 1024 + tensors) * 4 + static_cast<int>(op));
}

std::string to_string(const GradientDesc& desc) {
  constexpr const char* names[] = {"norm", "scale", "clamp", "advance_loss_scale"};
  return fmt::format("{} tensors={} n={}", names[static_cast<int>(desc.op)], desc.tensors,
                     desc.numel);
}

const GradientList& gradient_list() {
  static const GradientList list("gradients", {
    gradients_cpu::rows(),
#if ZERONE_CUDA
        gradients_cuda::rows(),
#endif
  });
  return list;
}

namespace nn {

namespace {

enum class Access : std::uint8_t { read, write };

void run(const char* name, GradientOp op, std::span<const Parameter> parameters, Access access,
         GradientArgs args) {
  std::vector<kernels::GradientTensor> tensors;
  std::int64_t numel = 0;
  for (const Parameter& parameter : parameters) {
    Tensor& gradient = parameter.grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    require_floating(name, gradient);
    require_same_context(name, parameters[0].value(), gradient);
    if (!gradient.is_dense()) gradient = gradient.clone();
    void* data =
        access == Access::write ? gradient.mutable_data() : const_cast<void*>(gradient.data());
    tensors.push_back({data, gradient.numel(), gradient.dtype()});
    numel += gradient.numel();
  }
  args.tensors = tensors;
  gradient_list().run(parameters[0].value().context().state(),
                      {op, static_cast<std::int64_t>(tensors.size()), numel}, args);
}

void require_parameters(const char* name, std::span<const Parameter> parameters) {
  if (parameters.empty()) throw ShapeError(fmt::format("[{}] no parameters", name));
}

void require_limit(const char* name, double limit) {
  if (!(limit >= 0)) throw ShapeError(fmt::format("[{}] limit {}", name, limit));
}

}  // namespace

Tensor grad_norm(std::span<const Parameter> parameters, double max_norm) {
  require_parameters("grad_norm", parameters);
  Tensor norm = Tensor::empty(parameters[0].value().context(),
                              {sizeof(kernels::GradientNorm) / sizeof(double)}, DType::f64);
  run("grad_norm", GradientOp::norm, parameters, Access::read,
      {.norm = static_cast<kernels::GradientNorm*>(norm.mutable_data()), .limit = max_norm});
  return norm;
}

void scale_grad(std::span<const Parameter> parameters, const Tensor& factor) {
  require_parameters("scale_grad", parameters);
  require_same_context("scale_grad", parameters[0].value(), factor);
  if (factor.dtype() != DType::f64 || factor.numel() != 1)
    throw DTypeError(
        fmt::format("[scale_grad] the factor is {}, not one f64 number", describe(factor)));
  run("scale_grad", GradientOp::scale, parameters, Access::write,
      {.number = factor.data<double>()});
}

Tensor clip_grad_norm(std::span<const Parameter> parameters, double max_norm) {
  require_limit("clip_grad_norm", max_norm);
  const Tensor norm = grad_norm(parameters, max_norm);
  scale_grad(parameters, norm.slice(0, 1, 2));
  return norm.slice(0, 0, 1).reshape(Shape{});
}

void clip_grad_value(std::span<const Parameter> parameters, double limit) {
  require_parameters("clip_grad_value", parameters);
  require_limit("clip_grad_value", limit);
  run("clip_grad_value", GradientOp::clamp, parameters, Access::write, {.limit = limit});
}

}  // namespace nn
}  // namespace zerone
