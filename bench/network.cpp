#include "bench/network.h"

#include <fmt/format.h>
#include <algorithm>

namespace zerone::bench {
namespace {

constexpr int layers = 11;

std::int64_t channels_in(int layer) {
  return layer == 0 ? 3 : 64;
}

Conv2dParams params_of(int layer, Math math) {
  return {
      .padding = 1, .activation = layer == 0 ? Activation::none : Activation::relu, .math = math};
}

/// Conv, then ten times (conv, ReLU).
Var network(Var x, std::span<const Var> weights, Math math) {
  for (int layer = 0; layer < layers; ++layer)
    x = conv2d(x, weights[static_cast<std::size_t>(layer)], {}, params_of(layer, math));
  return x;
}

Tensors forward(const Tensors& operands, Math math) {
  const std::vector<Var> weights(operands.begin() + 1, operands.begin() + 1 + layers);
  return {network(operands[0], weights, math)};
}

Tensors forward_backward(const Tensors& operands, Math math) {
  Tape tape;
  std::vector<Var> weights;
  for (int layer = 0; layer < layers; ++layer)
    weights.push_back(tape.leaf(operands[static_cast<std::size_t>(1 + layer)]));
  const Var y = network(tape.constant(operands[0]), weights, math);
  tape.backward(y, {.seed = operands[1 + layers]});
  Tensors gradients;
  for (const Var& weight : weights) gradients.push_back(tape.grad(weight));
  return gradients;
}

/// operands: x, weights, the gradient of the result, every layer's result.
Tensors backward_data(const Tensors& operands, Math math) {
  Tensor gradient = operands[1 + layers];
  for (int layer = layers - 1; layer >= 0; --layer) {
    const auto at = static_cast<std::size_t>(layer);
    const Tensor& x = layer == 0 ? operands[0] : operands[1 + layers + at];
    const Tensor& w = operands[1 + at];
    if (layer == layers - 1)
      gradient =
          apply_binary(kernels::BinaryOp::relu_backward, gradient, operands[2 + layers + at]);
    // As the tape does it: the ReLU of the layer in front is folded into dx.
    Tensor dx = Tensor::empty_like(x);
    conv2d_backward_data(make_conv2d_shape(x, w, params_of(layer, math)), gradient, w, dx, math,
                         layer >= 2 ? x : Tensor());
    gradient = dx;
  }
  return {gradient};
}

}  // namespace

Cost network_cost(std::int64_t batch, const std::string& pass, Mode mode) {
  Cost total;
  for (int layer = 0; layer < layers; ++layer) {
    const auto c_in = static_cast<double>(channels_in(layer));
    const auto n = static_cast<double>(batch);
    const double x = n * c_in * 1024, w = 64 * c_in * 9, y = n * 64 * 1024;
    std::vector<std::string> passes{pass};
    if (pass == "forward_backward") {
      passes = {"forward", "backward_weight"};
      if (layer > 0) passes.push_back("backward_data");  // nobody asks for x's gradient
    }
    for (const std::string& each : passes) {
      const Cost cost = contraction_cost(x, w, y, y * c_in * 9, each, mode);
      total.bytes += cost.bytes;
      total.flops += cost.flops;
    }
  }
  return total;
}

Workload network_workload(const Context& context, std::int64_t batch, const std::string& kind,
                          const std::string& pass, Mode mode, bool nhwc) {
  const auto laid_out = [&](const Tensor& x) { return nhwc ? x.contiguous_nhwc() : x; };
  Workload work;
  work.operands.push_back({laid_out(normal(context, {batch, 3, 32, 32}, mode.storage, 1)), 1});
  for (int layer = 0; layer < layers; ++layer) {
    const char* pattern = kind == "zero" ? "all" : "scattered";
    const double fraction = kind == "scattered90" ? 0.9 : 0;
    Tensor weight =
        laid_out(conv_weight(context, {64, channels_in(layer), 3, 3}, mode.storage,
                             static_cast<std::uint64_t>(10 + layer), pattern, fraction));
    prepare(weight);
    work.operands.push_back({weight});
  }
  const Math math = mode.math;
  work.same_values = fmt::format("network {} {} {}", kind, pass, to_string(mode.storage));
  work.tolerance = std::min(10 * tolerance_of(mode), 0.2);
  if (pass == "forward") {
    work.compute = [math](const Tensors& operands) { return forward(operands, math); };
    work.checked = {1};
    return work;
  }
  const Tensor seed = normal(context, {batch, 64, 32, 32}, mode.storage, 2);
  work.operands.push_back({laid_out(seed), 1, true});
  if (pass == "forward_backward") {
    // A rounding that moves an activation across 0 switches a whole gradient on or off: one of them
    // shifts a weight's gradient by 0.7 % of the largest, and tf32 and bf16 make many. The passes
    // are checked closely, one by one, in the suite conv2d.
    work.tolerance = mode.storage != DType::f32 ? 0.8 : mode.math == Math::fp32 ? 0.05 : 0.4;
    work.compute = [math](const Tensors& operands) { return forward_backward(operands, math); };
    work.checked.assign(layers, 0);
    return work;
  }
  work.same_values.clear();  // the activations are operands, and differ by rounding
  Tensor y = work.operands[0].tensor;
  for (int layer = 0; layer < layers; ++layer) {
    y = conv2d(y, work.operands[static_cast<std::size_t>(1 + layer)].tensor, {},
               params_of(layer, math));
    work.operands.push_back({y, 1});
  }
  work.compute = [math](const Tensors& operands) { return backward_data(operands, math); };
  work.checked = {1};
  return work;
}

}  // namespace zerone::bench
