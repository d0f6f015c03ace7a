// Batch normalization.
#pragma once

#include <zerone/autograd/tape.h>
#include <zerone/kernels/batch_norm.h>
#include <zerone/ops/implementation.h>

namespace zerone {

/// Which statistics, and how they move.
struct BatchNormParams {
  /// Statistics of x, and running statistics updated; else the running statistics are used.
  bool training = true;
  double momentum = 0.1;
  double eps = 1e-5;
};

/// y = (x - mean) / sqrt(var + eps) * weight + bias for each channel of x, as PyTorch has it: x is
/// [N, C] to [N, C, D, H, W], in any layout; the result lies like x. weight, bias, running_mean and
/// running_var are [C] and may be undefined (1, 0, not kept), the running ones both or neither;
/// they have one floating-point type: x's, or f32 beside 16-bit x.
///
/// In training mean and var (biased) are those of x, and
///   running_mean = (1 - momentum) running_mean + momentum mean
///   running_var  = (1 - momentum) running_var  + momentum var n / (n - 1)
/// are updated in place, on the device, also by each replay of a graph; nothing happens to them if
/// x is empty. Gradients go to x, weight and bias, in training through the statistics, too; they
/// use what the forward pass found, so running statistics may change before backward.
///
/// f64 computes in double, the rest in f32; kernels/batch_norm.h bounds the error of the statistics
/// however far the mean lies from 0. Results repeat bit for bit. A channel that holds NaN or an
/// infinity becomes NaN in training, its running statistics included; in evaluation each element
/// stands for itself.
///
/// Errors: ShapeError (a rank other than 2 to 5, sizes of the channel tensors, one value a channel
/// in training, evaluation without running statistics), DTypeError, DeviceError.
/// @code
/// const Tensor x = Tensor::normal(context, {8, 4, 5, 5}, 3, 2);
/// Tensor mean = Tensor::zeros(context, {4}), variance = Tensor::full(context, {4}, 1);
/// const Var y = batch_norm(x, {}, {}, mean, variance);  // mean 0, variance 1; moves both
/// const Var z = batch_norm(x, {}, {}, mean, variance, {.training = false});
/// @endcode
Var batch_norm(const Var& x, const Var& weight, const Var& bias, Tensor& running_mean,
               Tensor& running_var, const BatchNormParams& params = {});

// --- implementation lists -----------------------------------------------------------------------

struct BatchNormDesc {
  DType dtype{}, channel_dtype{};
  bool training = true;
  std::int64_t channels = 0, values = 0;  // values of a channel
  bool operator==(const BatchNormDesc&) const = default;
  std::size_t hash() const;
};
std::string to_string(const BatchNormDesc&);

using BatchNormForwardList = ImplementationList<BatchNormDesc, kernels::BatchNormForward>;
using BatchNormBackwardList = ImplementationList<BatchNormDesc, kernels::BatchNormBackward>;
const BatchNormForwardList& batch_norm_forward_list();
const BatchNormBackwardList& batch_norm_backward_list();

namespace batch_norm_cpu {
std::span<const BatchNormForwardList::Row> forward_rows();
std::span<const BatchNormBackwardList::Row> backward_rows();
}  // namespace batch_norm_cpu
namespace batch_norm_cuda {
std::span<const BatchNormForwardList::Row> forward_rows();
std::span<const BatchNormBackwardList::Row> backward_rows();
}  // namespace batch_norm_cuda

}  // namespace zerone
