#include <zerone/ops/nn/optimizer.h>

#include <fmt/format.h>
#include <algorithm>
#include <map>

#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/ops/elementwise.h>

namespace zerone {

std::size_t OptimizerDesc::hash() const {
  return static_cast<std::size_t>((numel * 1024 + tensors) * 16 + static_cast<int>(dtype) * 2 +
                                  static_cast<int>(rule));
}

std::string to_string(const OptimizerDesc& desc) {
  return fmt::format("{} {} tensors={} n={}",
                     desc.rule == kernels::OptimizerRule::sgd ? "sgd" : "adam",
                     to_string(desc.dtype), desc.tensors, desc.numel);
}

const OptimizerList& optimizer_list() {
  static const OptimizerList list("optimizer", {
    optimizer_cpu::rows(),
#if ZERONE_CUDA
        optimizer_cuda::rows(),
#endif
  });
  return list;
}

namespace nn {

namespace {

/// Whether b's elements lie in memory as a's do: the kernels walk both alike.
bool lie_alike(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return false;
  for (int i = 0; i < a.rank(); ++i)
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  return true;
}

/// Zeros in x's memory order.
Tensor zeros_like(const Tensor& x, DType dtype) {
  const auto bytes = static_cast<std::size_t>(x.numel()) * size_of(dtype);
  return Tensor::view_of(Storage::zeros(x.context(), bytes), 0, x.layout(), dtype);
}

const double* device_number(const char* name, const char* what, const Tensor& x,
                            const Tensor& beside) {
  if (!x.defined()) return nullptr;
  require_same_context(name, beside, x);
  if (x.dtype() != DType::f64 || x.numel() != 1)
    throw DTypeError(fmt::format("[{}] {} is {}, not one f64 number", name, what, describe(x)));
  return x.data<double>();
}

}  // namespace

Optimizer::Optimizer(const char* name, std::vector<Parameter> parameters, double learning_rate,
                     bool master_weights, const kernels::OptimizerStep& rule)
    : name_(name), rule_(rule) {
  const bool adam = rule.rule == kernels::OptimizerRule::adam;
  const auto is_beta = [](double beta) { return beta >= 0 && beta < 1; };
  const bool fits = rule.momentum >= 0 && rule.weight_decay >= 0 && rule.epsilon >= 0 &&
                    is_beta(rule.beta1) && is_beta(rule.beta2) &&
                    (!rule.nesterov || rule.momentum > 0);
  if (!fits)
    throw ShapeError(fmt::format(
        "[{}] momentum {}{}, betas {} and {}, epsilon {}, weight decay {}: none may be negative, "
        "betas are below 1, and nesterov needs momentum",
        name, rule.momentum, rule.nesterov ? " (nesterov)" : "", rule.beta1, rule.beta2,
        rule.epsilon, rule.weight_decay));
  for (Parameter& parameter : parameters) {
    if (!parameter.defined()) throw ShapeError(fmt::format("[{}] undefined parameter", name));
    const bool seen =
        std::any_of(parameters_.begin(), parameters_.end(), [&](const Parameter& other) {
          return other.id() == parameter.id();  // shared by two modules
        });
    if (seen) continue;
    const Tensor& value = parameter.value();
    require_floating(name, value);
    if (!parameters_.empty()) require_same_context(name, parameters_[0].value(), value);
    if (!value.is_dense())
      throw ShapeError(fmt::format("[{}] parameter '{}' is a strided view: {}", name,
                                   parameter.name(), describe(value)));
    State state{.name = parameter.name(), .first = {}, .second = {}, .master = {}, .clock = {}};
    if (state.name.empty()) state.name = std::to_string(parameters_.size());
    const DType wide = value.dtype() == DType::f64 ? DType::f64 : DType::f32;
    if (adam || rule.momentum != 0) state.first = zeros_like(value, wide);
    if (adam) state.second = zeros_like(value, wide);
    if (master_weights && size_of(value.dtype()) == 2) state.master = zeros_like(value, wide);
    states_.push_back(std::move(state));
    parameters_.push_back(std::move(parameter));
  }
  if (parameters_.empty()) throw ShapeError(fmt::format("[{}] no parameters", name));
  const Context context = parameters_[0].value().context();
  if (adam) {
    constexpr std::int64_t numbers = sizeof(kernels::OptimizerClock) / sizeof(double);
    const auto count = static_cast<std::int64_t>(states_.size());
    const Tensor clocks = Tensor::zeros(context, {count, numbers}, DType::f64);
    for (std::int64_t i = 0; i < count; ++i)
      states_[static_cast<std::size_t>(i)].clock = clocks.slice(0, i, i + 1);
  }
  device_rate_ = Tensor::empty(context, {}, DType::f64);
  set_learning_rate(learning_rate);
}

void Optimizer::set_learning_rate(double rate) {
  if (!(rate >= 0)) throw ShapeError(fmt::format("[{}] learning rate {}", name_, rate));
  learning_rate_ = rate;
  device_rate_.fill_(rate);
}

void Optimizer::zero_grad() const {
  for (const Parameter& parameter : parameters_) parameter.zero_grad();
}

kernels::OptimizerTensor Optimizer::operand(const Parameter& parameter, State& state,
                                            std::vector<Tensor>& kept) const {
  Tensor& value = parameter.value();
  Tensor gradient = parameter.grad();
  require_compatible(name_, value, gradient);
  const auto fits = [&value](const Tensor& x) { return !x.defined() || lie_alike(value, x); };
  const bool changed =
      state.first.defined() &&
      size_of(state.first.dtype()) != std::max<std::size_t>(size_of(value.dtype()), 4);
  if (!value.is_dense() || value.shape() != gradient.shape() || changed || !fits(state.first) ||
      !fits(state.master) || !fits(parameter.mask()))
    throw ShapeError(fmt::format(
        "[{}] parameter '{}' is {}, but its gradient is {}, its state {}, its master {} and its "
        "mask {}",
        name_, state.name, describe(value), describe(gradient), describe(state.first),
        describe(state.master), describe(parameter.mask())));
  if (!lie_alike(value, gradient)) {
    Tensor copy = Tensor::empty_like(value);
    copy.copy_(gradient);
    gradient = copy;
  }
  kept.push_back(gradient);
  kernels::OptimizerTensor tensor{
      .value = value.mutable_data(), .gradient = gradient.data(), .count = value.numel()};
  if (state.first.defined()) tensor.first = state.first.mutable_data();
  if (state.second.defined()) tensor.second = state.second.mutable_data();
  if (state.master.defined() && size_of(value.dtype()) == 2)
    tensor.master = state.master.mutable_data<float>();
  if (state.clock.defined())
    tensor.clock = static_cast<kernels::OptimizerClock*>(state.clock.mutable_data());
  if (parameter.mask().defined()) tensor.mask = parameter.mask().data<std::uint8_t>();
  return tensor;
}

void Optimizer::step(const StepInputs& inputs) {
  kernels::OptimizerStep step = rule_;
  step.learning_rate = device_rate_.data<double>();
  step.gradient_scale =
      device_number(name_, "the gradient scale", inputs.gradient_scale, device_rate_);
  step.skip = device_number(name_, "the skip flag", inputs.skip, device_rate_);
  std::vector<kernels::OptimizerTensor> tensors;
  std::vector<Tensor> gradients;  // kept until they are read
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    std::int64_t numel = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& value = parameters_[i].value();
      if (value.dtype() != dtype || value.numel() == 0 || !parameters_[i].grad().defined())
        continue;
      tensors.push_back(operand(parameters_[i], states_[i], gradients));
      numel += value.numel();
    }
    if (tensors.empty()) continue;
    step.dtype = dtype;
    optimizer_list().run(device_rate_.context().state(),
                         {rule_.rule, dtype, static_cast<std::int64_t>(tensors.size()), numel},
                         {step, tensors});
    tensors.clear();
  }
}

std::vector<NamedTensor> Optimizer::state() const {
  const bool adam = rule_.rule == kernels::OptimizerRule::adam;
  std::vector<NamedTensor> all{{"learning_rate", device_rate_}};
  const auto add = [&all](const State& state, const char* suffix, const Tensor& tensor) {
    if (tensor.defined()) all.push_back({state.name + suffix, tensor});
  };
  for (const State& state : states_) {
    add(state, adam ? ".exp_avg" : ".momentum_buffer", state.first);
    add(state, ".exp_avg_sq", state.second);
    add(state, ".master", state.master);
    if (state.clock.defined()) add(state, ".step", state.clock.slice(1, 0, 1).reshape(Shape{}));
  }
  std::vector<std::string> names;
  for (const NamedTensor& entry : all) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    throw ShapeError(fmt::format("[{}] two parameters have the state '{}'", name_, *twice));
  return all;
}

void Optimizer::load_state(std::span<const NamedTensor> given) {
  std::map<std::string, Tensor> targets;
  for (const NamedTensor& entry : state()) targets.emplace(entry.name, entry.tensor);
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  for (const NamedTensor& entry : given) {
    const auto target = targets.find(entry.name);
    if (target == targets.end())
      throw ShapeError(fmt::format("[{}] load_state: there is no '{}', or it is given twice", name_,
                                   entry.name));
    const Tensor& to = target->second;
    if (!entry.tensor.defined() || to.shape() != entry.tensor.shape())
      throw ShapeError(fmt::format("[{}] load_state: '{}' is {}, the file has {}", name_,
                                   entry.name, describe(to), describe(entry.tensor)));
    if (to.dtype() != entry.tensor.dtype())
      throw DTypeError(fmt::format("[{}] load_state: '{}' is {}, the file has {}", name_,
                                   entry.name, describe(to), describe(entry.tensor)));
    copies.emplace_back(to, entry.tensor);
    targets.erase(target);
  }
  if (!targets.empty())
    throw ShapeError(
        fmt::format("[{}] load_state: '{}' is missing", name_, targets.begin()->first));
  for (auto& [to, from] : copies) to.copy_(from);
  learning_rate_ = device_rate_.item();
}

Sgd::Sgd(std::vector<Parameter> parameters, const SgdOptions& options)
    : Optimizer("sgd", std::move(parameters), options.learning_rate, options.master_weights,
                {.rule = kernels::OptimizerRule::sgd,
                 .nesterov = options.nesterov,
                 .momentum = options.momentum,
                 .weight_decay = options.weight_decay}) {}

namespace {

template <class Options>
kernels::OptimizerStep adam_rule(const Options& options, bool decoupled_decay) {
  return {.rule = kernels::OptimizerRule::adam,
          .decoupled_decay = decoupled_decay,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .epsilon = options.epsilon,
          .weight_decay = options.weight_decay};
}

}  // namespace

Adam::Adam(std::vector<Parameter> parameters, const AdamOptions& options)
    : Optimizer("adam", std::move(parameters), options.learning_rate, options.master_weights,
                adam_rule(options, false)) {}

AdamW::AdamW(std::vector<Parameter> parameters, const AdamWOptions& options)
    : Optimizer("adamw", std::move(parameters), options.learning_rate, options.master_weights,
                adam_rule(options, true)) {}

}  // namespace nn
}  // namespace zerone
