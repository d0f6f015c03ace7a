// One pass over many tensors: optimizer steps, and what is done to gradients as a whole. Tensors
// may be empty, unaligned and of any number; results do not depend on `threads`.
#pragma once

#include <span>

#include <zerone/kernels/optimizer.h>

namespace zerone::kernels::cpu {

/// One step on every tensor, as optimizer_formulas.h says, in place; f64 computes in double, the
/// rest in float. Adam's clocks advance first.
void optimizer_step(const OptimizerStep& step, std::span<const OptimizerTensor> tensors,
                    int threads);

/// *out = the norm of all tensors together. Squares are summed in double: the norm of f32 and
/// 16-bit gradients is finite exactly if all of them are.
void gradient_norm(std::span<const GradientTensor> tensors, double max_norm, GradientNorm* out,
                   int threads);

/// data *= *factor; a factor of 1 touches nothing.
void scale_gradients(std::span<const GradientTensor> tensors, const double* factor, int threads);

/// data = min(max(data, -limit), limit), NaN stays NaN.
void clamp_gradients(std::span<const GradientTensor> tensors, double limit, int threads);

/// One step of dynamic loss scaling.
void advance_loss_scale(LossScale* state, const LossScaleRule& rule, const double* overflow);

}  // namespace zerone::kernels::cpu
