// One pass over many tensors: optimizer steps, and what is done to gradients as a whole. The list
// of tensors travels with the launch, so it may go once the call returns; a launch takes up to
// about 45 tensors of an optimizer or 120 gradients. Tensors may be empty and unaligned. Numbers
// that change from step to step are read on the device. An unsupported dtype is
// cudaErrorInvalidValue; everything is bitwise repeatable.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include <zerone/kernels/optimizer.h>

namespace zerone::kernels::cuda {

/// One step on every tensor, as optimizer_formulas.h says, in place; f64 computes in double, the
/// rest in float. Adam's clocks advance first, in a launch of their own.
[[nodiscard]] cudaError_t optimizer_step(const OptimizerStep& step,
                                         std::span<const OptimizerTensor> tensors,
                                         cudaStream_t stream);

/// *out = the norm of all tensors together. Squares are summed in double: the norm of f32 and
/// 16-bit gradients is finite exactly if all of them are. `workspace` holds
/// gradient_norm_workspace_bytes(tensors), aligned to 8.
[[nodiscard]] cudaError_t gradient_norm(std::span<const GradientTensor> tensors, double max_norm,
                                        GradientNorm* out, void* workspace, cudaStream_t stream);
std::size_t gradient_norm_workspace_bytes(std::span<const GradientTensor> tensors);

/// data *= *factor; a factor of 1 touches nothing.
[[nodiscard]] cudaError_t scale_gradients(std::span<const GradientTensor> tensors,
                                          const double* factor, cudaStream_t stream);

/// data = min(max(data, -limit), limit), NaN stays NaN.
[[nodiscard]] cudaError_t clamp_gradients(std::span<const GradientTensor> tensors, double limit,
                                          cudaStream_t stream);

/// One step of dynamic loss scaling.
[[nodiscard]] cudaError_t advance_loss_scale(LossScale* state, const LossScaleRule& rule,
                                             const double* overflow, cudaStream_t stream);

}  // namespace zerone::kernels::cuda
