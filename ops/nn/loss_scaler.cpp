#include <zerone/ops/nn/loss_scaler.h>

#include <fmt/format.h>

#include <zerone/core/error.h>
#include <zerone/ops/elementwise.h>
#include <zerone/ops/nn/gradients.h>

namespace zerone::nn {

namespace {

constexpr std::int64_t numbers = sizeof(kernels::LossScale) / sizeof(double);

}  // namespace

LossScaler::LossScaler(const Context& context, const LossScalerOptions& options)
    : rule_{.growth = options.growth, .backoff = options.backoff, .interval = options.interval} {
  const bool fits = options.initial_scale > 0 && options.growth > 1 && options.backoff > 0 &&
                    options.backoff < 1 && options.interval >= 1;
  if (!fits)
    throw ShapeError(fmt::format("[loss_scaler] scale {}, growth {}, backoff {}, interval {}",
                                 options.initial_scale, options.growth, options.backoff,
                                 options.interval));
  state_ = Tensor::from<double>(context, {numbers},
                                {options.initial_scale, 1 / options.initial_scale, 0});
}

Var LossScaler::scale(const Var& loss) const {
  require_floating("loss_scaler", loss);
  require_same_context("loss_scaler", state_, loss);
  return mul(loss, state_.slice(0, 0, 1).reshape(Shape{}).to(loss.value().dtype()));
}

void LossScaler::unscale(const Optimizer& optimizer) {
  if (overflow_.defined())
    throw ShapeError("[loss_scaler] unscale was called already; step comes next");
  overflow_ = grad_norm(optimizer.parameters()).slice(0, 2, 3);
  scale_grad(optimizer.parameters(), state_.slice(0, 1, 2));
}

void LossScaler::step(Optimizer& optimizer) {
  StepInputs inputs{.skip = overflow_};
  if (!overflow_.defined())
    inputs = {.gradient_scale = state_.slice(0, 1, 2),
              .skip = grad_norm(optimizer.parameters()).slice(0, 2, 3)};
  overflow_ = Tensor();
  optimizer.step(inputs);
  gradient_list().run(state_.context().state(), {GradientOp::advance_loss_scale, 1, numbers},
                      {.number = inputs.skip.data<double>(),
                       .loss_scale = static_cast<kernels::LossScale*>(state_.mutable_data()),
                       .loss_scale_rule = rule_});
}

std::vector<NamedTensor> LossScaler::state() const {
  return {{"scale", state_.slice(0, 0, 1).reshape(Shape{})},
          {"growth_tracker", state_.slice(0, 2, 3).reshape(Shape{})}};
}

void LossScaler::load_state(std::span<const NamedTensor> given) {
  double scale = 0, steps = -1;
  for (const NamedTensor& entry : given) {
    if (entry.tensor.numel() != 1) continue;
    if (entry.name == "scale") scale = entry.tensor.item();
    if (entry.name == "growth_tracker") steps = entry.tensor.item();
  }
  if (!(scale > 0) || !(steps >= 0))
    throw ShapeError("[loss_scaler] load_state takes a positive 'scale' and a 'growth_tracker'");
  state_.copy_(Tensor::from<double>(state_.context(), {numbers}, {scale, 1 / scale, steps}));
}

}  // namespace zerone::nn
