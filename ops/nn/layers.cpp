#include <zerone/ops/nn/layers.h>

#include <fmt/format.h>

#include <zerone/core/error.h>
#include <zerone/ops/dropout.h>
#include <zerone/ops/softmax.h>
#include <zerone/ops/view.h>

namespace zerone::nn {
namespace {

std::string describe(const char* name, const Pool2dParams& params) {
  const Pair stride = params.stride.value_or(params.kernel);
  return fmt::format("{} {}x{}, stride {}x{}", name, params.kernel.h, params.kernel.w, stride.h,
                     stride.w);
}

}  // namespace

Var Softmax::forward(const Var& x) {
  return softmax(x, axis_);
}

std::string MaxPool2d::description() const {
  return describe("MaxPool2d", params_);
}
std::string AvgPool2d::description() const {
  return describe("AvgPool2d", params_);
}
std::string AdaptiveAvgPool2d::description() const {
  return fmt::format("AdaptiveAvgPool2d {}x{}", out_.h, out_.w);
}

Var Flatten::forward(const Var& x) {
  const Shape shape = x.shape();
  if (shape.rank() < 2)
    throw ShapeError(fmt::format("[nn.Flatten] x has rank {}; it takes [N, ...]", shape.rank()));
  std::int64_t rest = 1;
  for (int i = 1; i < shape.rank(); ++i) rest *= shape[i];
  return reshape(contiguous(x), {shape[0], rest});
}

BatchNorm::BatchNorm(const Context& context, const BatchNormOptions& options) : options_(options) {
  if (options.channels < 1)
    throw ShapeError(fmt::format("[nn.BatchNorm] {} channels", options.channels));
  const Shape shape{options.channels};
  running_mean = Tensor::zeros(context, shape, options.dtype);
  running_var = Tensor::full(context, shape, 1, options.dtype);
  if (!options.affine) return;
  weight = Parameter(Tensor::full(context, shape, 1, options.dtype), "weight");
  bias = Parameter(Tensor::zeros(context, shape, options.dtype), "bias");
}

Members BatchNorm::members() const {
  return {.parameters = {{"weight", weight}, {"bias", bias}},
          .buffers = {{"running_mean", running_mean}, {"running_var", running_var}}};
}

std::string BatchNorm::description() const {
  return fmt::format("BatchNorm {}", options_.channels);
}

Var BatchNorm::forward(const Var& x) {
  return batch_norm(x, x.with(weight), x.with(bias), running_mean, running_var,
                    {.training = training(), .momentum = options_.momentum, .eps = options_.eps});
}

std::string Dropout::description() const {
  return fmt::format("Dropout {}", p_);
}

Var Dropout::forward(const Var& x) {
  return dropout(x, p_, training());
}

}  // namespace zerone::nn
