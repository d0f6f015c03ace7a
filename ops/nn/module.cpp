#include <zerone/ops/nn/module.h>

#include <fmt/format.h>
#include <cmath>

#include <zerone/core/error.h>
#include <zerone/ops/elementwise.h>

namespace zerone::nn {

void Module::collect(std::vector<Parameter>&, const std::string&) const {}

std::vector<Parameter> Module::parameters() const {
  std::vector<Parameter> parameters;
  collect(parameters, "");
  return parameters;
}

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : parameters()) count += parameter.value().numel();
  return count;
}

void Module::zero_grad() const {
  for (const Parameter& parameter : parameters()) parameter.zero_grad();
}

void prepare(const Module& module) {
  module.prepare();
}

void initialize(const Parameter& parameter, Init init) {
  Tensor& value = parameter.value();
  const Shape shape = value.shape();
  std::int64_t fan_in = 1;
  for (int i = 1; i < shape.rank(); ++i) fan_in *= shape[i];
  const double inverse = 1.0 / static_cast<double>(std::max<std::int64_t>(fan_in, 1));
  const Context context = value.context();
  switch (init) {
    case Init::zeros: value.copy_(Tensor::zeros(context, shape, value.dtype())); break;
    case Init::kaiming_normal:
      value.copy_(Tensor::normal(context, shape, 0, std::sqrt(2 * inverse), value.dtype()));
      break;
    case Init::kaiming_uniform: {
      const double bound = std::sqrt(6 * inverse);
      value.copy_(Tensor::uniform(context, shape, -bound, bound, value.dtype()));
      break;
    }
    case Init::uniform01: value.copy_(Tensor::uniform(context, shape, 0, 1, value.dtype())); break;
  }
  if (parameter.mask().defined()) parameter.set_mask(parameter.mask());
}

namespace {

/// A fresh parameter; zeros stay known zeros.
Parameter make_parameter(const Context& context, const Shape& shape, DType dtype, Init init,
                         const char* name) {
  Parameter parameter(Tensor::zeros(context, shape, dtype), name);
  if (init != Init::zeros) initialize(parameter, init);
  return parameter;
}

void append(std::vector<Parameter>& parameters, const std::string& prefix,
            const Parameter& parameter, const char* name) {
  if (!parameter.defined()) return;
  for (const Parameter& other : parameters)  // of a module that is used twice
    if (other.id() == parameter.id()) return;
  parameter.set_name(prefix + name);
  parameters.push_back(parameter);
}

}  // namespace

Conv2d::Conv2d(const Context& context, const Conv2dOptions& options)
    : params_{.stride = options.stride,
              .padding = options.padding,
              .dilation = options.dilation,
              .groups = options.groups,
              .activation = options.activation} {
  const bool fits = options.groups >= 1 && options.in_channels >= 1 && options.out_channels >= 1 &&
                    options.in_channels % options.groups == 0 &&
                    options.out_channels % options.groups == 0;
  if (!fits)
    throw ShapeError(fmt::format("[nn.Conv2d] {} channels in, {} out, {} groups",
                                 options.in_channels, options.out_channels, options.groups));
  weight = make_parameter(context,
                          {options.out_channels, options.in_channels / options.groups,
                           options.kernel.h, options.kernel.w},
                          options.dtype, options.init, "weight");
  if (options.bias)
    bias = make_parameter(context, {options.out_channels}, options.dtype, Init::zeros, "bias");
}

Var Conv2d::forward(const Var& x) {
  return conv2d(x, x.with(weight), x.with(bias), params_);
}

void Conv2d::collect(std::vector<Parameter>& parameters, const std::string& prefix) const {
  append(parameters, prefix, weight, "weight");
  append(parameters, prefix, bias, "bias");
}

Linear::Linear(const Context& context, const LinearOptions& options)
    : params_{.activation = options.activation} {
  if (options.in_features < 1 || options.out_features < 1)
    throw ShapeError(fmt::format("[nn.Linear] {} features in, {} out", options.in_features,
                                 options.out_features));
  weight = make_parameter(context, {options.out_features, options.in_features}, options.dtype,
                          options.init, "weight");
  if (options.bias)
    bias = make_parameter(context, {options.out_features}, options.dtype, Init::zeros, "bias");
}

Var Linear::forward(const Var& x) {
  return linear(x, x.with(weight), x.with(bias), params_);
}

void Linear::collect(std::vector<Parameter>& parameters, const std::string& prefix) const {
  append(parameters, prefix, weight, "weight");
  append(parameters, prefix, bias, "bias");
}

Var ReLU::forward(const Var& x) {
  return relu(x);
}

Var Sequential::forward(const Var& x) {
  Var y = x;
  for (const auto& module : modules_) y = module->forward(y);
  return y;
}

void Sequential::collect(std::vector<Parameter>& parameters, const std::string& prefix) const {
  for (std::size_t i = 0; i < modules_.size(); ++i)
    modules_[i]->collect(parameters, fmt::format("{}{}.", prefix, i));
}

void Sequential::prepare() const {
  for (const auto& module : modules_) module->prepare();
}

}  // namespace zerone::nn
