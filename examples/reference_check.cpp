#include "reference_check.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <limits>

using namespace zerone;

namespace {

/// Largest |a - b| / largest |b|.
double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i]))
      return std::numeric_limits<double>::infinity();
    error = std::max(error, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  if (error == 0) return 0;
  return largest == 0 ? std::numeric_limits<double>::infinity() : error / largest;
}

}  // namespace

double tolerance(DType dtype, Math math, int layers) {
  // Half the distance between neighboring numbers, of the type that operands are rounded to.
  double unit = std::ldexp(1, -24);
  const bool narrow = dtype == DType::f16 || (dtype == DType::f32 && math == Math::fp16) ||
                      (dtype == DType::f32 && math == Math::tf32);
  if (narrow) unit = std::ldexp(1, -12);
  if (dtype == DType::bf16 || (dtype == DType::f32 && math == Math::bf16)) unit = std::ldexp(1, -9);
  // fp32 sums of several hundred terms round at each term; narrow types round operands once.
  return unit * (unit < 1e-6 ? 64 : 8) * (1 + std::sqrt(layers));
}

ReferenceCheck::ReferenceCheck(Device device, int threads)
    : context_(device, {.threads = threads, .stream = nullptr}) {
  const std::string row = to_string(device.type) + ".reference";
  for (const char* op :
       {"conv2d.forward", "conv2d.backward_data", "conv2d.backward_weight", "pointwise.forward",
        "pointwise.backward_data", "pointwise.backward_weight"})
    forced_.push_back(std::make_unique<ScopedForce>(context_, op, row));
}

void ReferenceCheck::evaluate(const std::vector<ReferenceLayer>& layers, const Tested& tested,
                              const std::vector<Values>& activations) {
  const auto here = [this](const Tensor& x) { return x.to(DType::f64).contiguous().to(context_); };
  last_ = {};
  Tape tape;
  const Var x = tape.leaf(here(tested.x));
  const Var start = tested.dx.defined() ? x : tape.constant(x.value());
  std::vector<Var> leaves;
  Var h = start;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const ReferenceLayer& layer = layers[i];
    Tensor w = here(layer.weight.value());
    if (w.rank() == 2) w = w.reshape({w.size(0), w.size(1), 1, 1});
    const Var weight = tape.leaf(w);
    const Var bias = layer.bias.defined() ? tape.leaf(here(layer.bias.value())) : Var();
    leaves.push_back(weight);
    if (bias.defined()) leaves.push_back(bias);
    h = conv2d(h, weight, bias, {.padding = layer.padding, .math = {}});
    Values expected = h.value().to_vector<double>();
    if (layer.relu) {
      for (double& value : expected) value = std::max(value, 0.0);
      Values side(activations[i].size());
      std::transform(activations[i].begin(), activations[i].end(), side.begin(),
                     [](double value) { return value > 0 ? 1.0 : 0.0; });
      h = mul(h, tape.constant(Tensor::from(context_, h.shape(), side)));
    }
    last_.activations.push_back(std::move(expected));
  }
  tape.backward(h, {.seed = here(tested.seed)});
  if (tested.dx.defined()) leaves.push_back(x);
  for (const Var& leaf : leaves) last_.gradients.push_back(tape.grad(leaf).to_vector<double>());
}

Agreement ReferenceCheck::compare(const std::vector<ReferenceLayer>& layers, const Tested& tested,
                                  double allowed) {
  const auto on_host = [](const Tensor& x) { return x.to(DType::f64).to_vector<double>(); };
  std::vector<Values> activations, gradients;
  std::vector<std::string> names;
  std::vector<Values> inputs{on_host(tested.x), on_host(tested.seed),
                             Values{tested.dx.defined() ? 1.0 : 0.0}};
  for (const Tensor& activation : tested.activations) activations.push_back(on_host(activation));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const ReferenceLayer& layer = layers[i];
    inputs.push_back(on_host(layer.weight.value()));
    gradients.push_back(on_host(layer.weight.grad()));
    names.push_back(fmt::format("weight gradient of layer {}", i));
    if (layer.bias.defined()) {
      inputs.push_back(on_host(layer.bias.value()));
      gradients.push_back(on_host(layer.bias.grad()));
      names.push_back(fmt::format("bias gradient of layer {}", i));
    }
    if (!layer.relu) continue;
    inputs.emplace_back();
    for (const double value : activations[i]) inputs.back().push_back(value > 0 ? 1.0 : 0.0);
  }
  if (tested.dx.defined()) {
    gradients.push_back(on_host(tested.dx));
    names.emplace_back("gradient of the input");
  }
  if (inputs != last_.inputs) {
    evaluate(layers, tested, activations);
    last_.inputs = std::move(inputs);
  }

  Agreement agreement;
  agreement.tolerance = allowed;
  double worst = -1;
  const auto note = [&](double& kind, const Values& a, const Values& b, const std::string& name) {
    const double error = relative_error(a, b);
    kind = std::max(kind, error);
    if (error > worst) agreement.worst = name;
    worst = std::max(worst, error);
  };
  for (std::size_t i = 0; i < activations.size(); ++i)
    note(agreement.forward, activations[i], last_.activations[i],
         fmt::format("result of layer {}", i));
  for (std::size_t i = 0; i < gradients.size(); ++i)
    note(agreement.gradients, gradients[i], last_.gradients[i], names[i]);
  return agreement;
}

Tensor first_and_last(const Tensor& batch) {
  const std::int64_t n = batch.size(0);
  return batch.slice(0, 0, n, std::max<std::int64_t>(n - 1, 1));
}

void seed_first_and_last(Tensor& seed) {
  seed.fill_(0);
  Tensor images = first_and_last(seed);
  // The same numbers at each call, whatever the context.
  const Context host(Device::cpu(), {.seed = 7, .stream = nullptr});
  images.copy_(Tensor::normal(host, images.shape(), 0, 1));
}
