#include <zerone/ops/nn/module.h>

#include <fmt/format.h>
#include <cmath>
#include <unordered_set>

#include <zerone/core/error.h>
#include <zerone/ops/elementwise.h>

namespace zerone::nn {

Var Module::operator()(const Var& x) {
  Var y = forward(x);
  if (forward_hook_) forward_hook_(x, y);
  return y;
}

namespace {

void walk(const Module& module, const std::string& path, std::unordered_set<const Module*>& seen,
          const std::function<void(const std::string&, const Module&)>& f) {
  if (!seen.insert(&module).second) return;
  f(path, module);
  for (const auto& [name, inside] : module.members().modules)
    walk(*inside, path.empty() ? name : path + "." + name, seen, f);
}

}  // namespace

void Module::for_each_module(
    const std::function<void(const std::string&, const Module&)>& f) const {
  std::unordered_set<const Module*> seen;
  walk(*this, "", seen, f);
}

std::vector<Parameter> Module::parameters() const {
  std::vector<Parameter> all;
  std::unordered_set<const void*> seen;
  for_each_module([&](const std::string& path, const Module& module) {
    for (const auto& [name, parameter] : module.members().parameters) {
      if (!parameter.defined() || !seen.insert(parameter.id()).second) continue;
      parameter.set_name(path.empty() ? name : path + "." + name);
      all.push_back(parameter);
    }
  });
  return all;
}

std::vector<NamedTensor> Module::buffers() const {
  std::vector<NamedTensor> all;
  for_each_module([&](const std::string& path, const Module& module) {
    for (const NamedTensor& buffer : module.members().buffers)
      if (buffer.tensor.defined())
        all.push_back({path.empty() ? buffer.name : path + "." + buffer.name, buffer.tensor});
  });
  return all;
}

void Module::train(bool on) {
  training_ = on;
  for (const auto& [name, inside] : members().modules) inside->train(on);
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
  module.for_each_module([](const std::string&, const Module& one) { one.prepare(); });
}

void initialize(const Parameter& parameter, Init init) {
  Tensor& value = parameter.value();
  const Shape shape = value.shape();
  std::int64_t fan_in = 1, fan_out = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (i != 0) fan_in *= shape[i];
    if (i != 1) fan_out *= shape[i];
  }
  const double inverse = 1.0 / static_cast<double>(std::max<std::int64_t>(fan_in, 1));
  const double xavier = 1.0 / static_cast<double>(std::max<std::int64_t>(fan_in + fan_out, 1));
  const Context context = value.context();
  const auto uniform = [&](double bound) {
    value.copy_(Tensor::uniform(context, shape, -bound, bound, value.dtype()));
  };
  const auto normal = [&](double stddev) {
    value.copy_(Tensor::normal(context, shape, 0, stddev, value.dtype()));
  };
  switch (init) {
    case Init::zeros: value.copy_(Tensor::zeros(context, shape, value.dtype())); break;
    case Init::kaiming_normal: normal(std::sqrt(2 * inverse)); break;
    case Init::kaiming_uniform: uniform(std::sqrt(6 * inverse)); break;
    case Init::xavier_normal: normal(std::sqrt(2 * xavier)); break;
    case Init::xavier_uniform: uniform(std::sqrt(6 * xavier)); break;
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

std::string Conv2d::description() const {
  const Shape shape = weight.value().shape();
  return fmt::format("Conv2d {} -> {}, {}x{}", shape[1] * params_.groups, shape[0], shape[2],
                     shape[3]);
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

std::string Linear::description() const {
  const Shape shape = weight.value().shape();
  return fmt::format("Linear {} -> {}", shape[1], shape[0]);
}

Var Sequential::forward(const Var& x) {
  Var y = x;
  for (const auto& module : modules_) y = (*module)(y);
  return y;
}

Members Sequential::members() const {
  Members members;
  for (std::size_t i = 0; i < modules_.size(); ++i)
    members.modules.emplace_back(std::to_string(i), modules_[i].get());
  return members;
}

}  // namespace zerone::nn
