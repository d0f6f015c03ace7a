// Dynamic loss scaling: keeps the small gradients of f16 networks above zero.
#pragma once

#include <vector>

#include <zerone/autograd/tape.h>
#include <zerone/core/safetensors.h>
#include <zerone/ops/nn/optimizer.h>

namespace zerone::nn {

/// Defaults are those of PyTorch's GradScaler.
struct LossScalerOptions {
  double initial_scale = 65536;
  double growth = 2;     ///< factor after `interval` steps in a row without overflow
  double backoff = 0.5;  ///< factor after an overflow
  std::int64_t interval = 2000;
};

/// One for each optimizer:
/// @code
/// nn::Linear layer(context, {.in_features = 4, .out_features = 1});
/// nn::AdamW optimizer(layer.parameters());
/// nn::LossScaler scaler(context);
/// Tape tape;
/// const Var loss = mean(layer(tape.constant(Tensor::normal(context, {8, 4}))));
/// tape.backward(scaler.scale(loss));
/// scaler.unscale(optimizer);  // only if gradients are looked at before the step
/// nn::clip_grad_norm(optimizer.parameters(), 1);
/// scaler.step(optimizer);
/// @endcode
/// Scale, overflow and the count of good steps stay on the device: nothing waits for it, and the
/// whole can be captured in a Graph (construct the scaler before).
class LossScaler {
 public:
  explicit LossScaler(const Context&, const LossScalerOptions& options = {});

  /// loss * scale, in the loss's type. An f16 loss overflows from a scale of 65536 on (its gradient
  /// is the scale), so the first step of the default options is skipped and halves it.
  Var scale(const Var& loss) const;

  /// Divides the gradients by the scale now, instead of inside the step, which then skips if they
  /// were infinite or NaN before. Once a step: ShapeError otherwise.
  void unscale(const Optimizer& optimizer);

  /// The optimizer's step on unscaled gradients, which changes nothing at all if one of the
  /// gradients is infinite or NaN. Then the scale backs off; after `interval` good steps it grows,
  /// unless beyond what f32 holds.
  void step(Optimizer& optimizer);

  /// The scale in force: waits for the device.
  double current_scale() const { return state_.slice(0, 0, 1).item(); }

  /// "scale" and "growth_tracker" as views of the live memory, for files.
  std::vector<NamedTensor> state() const;
  /// Copies such a list, from any device. ShapeError unless it holds both, as f64 scalars.
  void load_state(std::span<const NamedTensor> state);

 private:
  kernels::LossScaleRule rule_;
  Tensor state_;     // a kernels::LossScale: f64 [3]
  Tensor overflow_;  // f64 [1], of the gradients that were unscaled; undefined before
};

}  // namespace zerone::nn
