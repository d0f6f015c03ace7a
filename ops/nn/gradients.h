// What is done to the gradients of many parameters together.
#pragma once

#include <span>
#include <string>

#include <zerone/autograd/parameter.h>
#include <zerone/kernels/optimizer.h>
#include <zerone/ops/implementation.h>

namespace zerone {

// --- implementation list: one pass over gradients of any types -----------------------------------

enum class GradientOp : std::uint8_t { norm, scale, clamp, advance_loss_scale };

struct GradientDesc {
  GradientOp op{};
  std::int64_t tensors = 0, numel = 0;
  bool operator==(const GradientDesc&) const = default;
  std::size_t hash() const;
};
/// Every pointer is to device memory.
struct GradientArgs {
  std::span<const kernels::GradientTensor> tensors{};
  kernels::GradientNorm* norm = nullptr;  // norm: the result
  double limit = 0;                       // norm: the largest allowed; clamp
  const double* number = nullptr;         // scale: the factor; advance_loss_scale: the overflow
  kernels::LossScale* loss_scale = nullptr;
  kernels::LossScaleRule loss_scale_rule{};
};
std::string to_string(const GradientDesc&);
using GradientList = ImplementationList<GradientDesc, GradientArgs>;
const GradientList& gradient_list();
namespace gradients_cpu {
std::span<const GradientList::Row> rows();
}
namespace gradients_cuda {
std::span<const GradientList::Row> rows();
}

namespace nn {

/// @name Gradients of many parameters
/// For the parameters of one context; those without a gradient are left out. Nothing waits for the
/// device, everything can be captured in a Graph and repeats bit for bit. A gradient with gaps or
/// repetitions is replaced by a dense copy. Two gradients must not share memory; those of a tape
/// never do. ShapeError where there is no parameter at all.
/// @code
/// const Parameter w(Tensor::normal(context, {4, 8}), "w");
/// Tape tape;
/// tape.backward(sum(mul(tape.parameter(w), tape.parameter(w))));
/// const Tensor norm = nn::clip_grad_norm(std::span(&w, 1), 1.0);  // on the device
/// nn::clip_grad_value(std::span(&w, 1), 0.1);
/// @endcode
/// @{
/// Multiplies every gradient by min(1, max_norm / (norm + 1e-6)), as PyTorch's
/// clip_grad_norm_, and returns the norm before that: the 2-norm of all gradients as one vector, an
/// f64 scalar on the device, 0 where there are none. A norm that is NaN makes all gradients NaN, an
/// infinite one makes them 0 (NaN where they were infinite).
Tensor clip_grad_norm(std::span<const Parameter> parameters, double max_norm);

/// Limits every element to [-limit, limit]; NaN stays NaN.
void clip_grad_value(std::span<const Parameter> parameters, double limit);

/// Multiplies every gradient by one f64 number on the device.
void scale_grad(std::span<const Parameter> parameters, const Tensor& factor);

/// A kernels::GradientNorm on the device: f64 [3] = norm, factor that clips it to max_norm, and
/// whether it is infinite or NaN. Squares are summed in f64, so for f32 and 16-bit gradients that
/// is so exactly if one of them is.
Tensor grad_norm(std::span<const Parameter> parameters, double max_norm = 1);
/// @}

}  // namespace nn
}  // namespace zerone
