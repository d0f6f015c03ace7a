// Softmax, its logarithm, and the cross-entropy of logits.
#pragma once

#include <zerone/autograd/tape.h>
#include <zerone/kernels/softmax.h>
#include <zerone/ops/implementation.h>

namespace zerone {

/// @name Softmax and cross-entropy
/// Floating-point x in any layout; results lie like x. The largest element of a line is subtracted
/// first, so no finite x overflows. f64 computes in double, the rest in f32, rounded once at the
/// store; results repeat bit for bit. A line that holds NaN or +Inf, or nothing but -Inf, becomes
/// NaN; -Inf beside finite values is a probability of exactly 0. Errors: ShapeError, DTypeError,
/// DeviceError.
/// @code
/// Tape tape;
/// const Var logits = tape.leaf(Tensor::normal(context, {4, 10}));
/// const Tensor labels = Tensor::from<std::int64_t>(context, {4}, {3, 0, 9, -100});  // one ignored
/// const Var loss = cross_entropy(logits, labels, Reduction::mean, 0.1);
/// tape.backward(loss);
/// const Tensor p = softmax(logits.value(), 1).value(), log_p = log_softmax(logits.value(),
/// -1).value();
/// @endcode
/// @{
/// exp(x) / sum of exp(x) over one axis; negative axes count from the end.
Var softmax(const Var& x, int axis);
/// log of softmax(x, axis), without computing it.
Var log_softmax(const Var& x, int axis);

/// Cross-entropy of softmax(logits, 1) and labels, as PyTorch has it: logits [N, C, ...], labels
/// i64 [N, ...], any layouts. With label t and e = label_smoothing in [0, 1] a sample's loss is
///   -(1 - e) log p_t - e / C * sum over classes of log p
/// and 0, with gradient 0, where the label is `ignore_index`. Reduction::mean divides the sum by
/// the number of samples that are not ignored (NaN if there are none), Reduction::none gives [N,
/// ...]. Probabilities are never stored: forward keeps two numbers a sample, and backward writes
/// the gradient of the logits in one pass over them.
///
/// A label outside of [0, C) is a ShapeError on the CPU, before anything is written. A GPU cannot
/// say so without stopping: there the sample's loss and gradient become NaN, and so does a reduced
/// loss. An ignored sample's gradient is NaN where its logits are, as in PyTorch.
Var cross_entropy(const Var& logits, const Tensor& labels, Reduction reduction = Reduction::mean,
                  double label_smoothing = 0, std::int64_t ignore_index = -100);
/// @}

// --- implementation lists -----------------------------------------------------------------------

struct SoftmaxDesc {
  DType dtype{};
  bool log = false;
  std::int64_t lines = 0, length = 0;  // softmaxes, and elements of each
  bool operator==(const SoftmaxDesc&) const = default;
  std::size_t hash() const;
};
struct CrossEntropyDesc {
  DType dtype{};
  Reduction reduction{};
  std::int64_t samples = 0, classes = 0;
  bool operator==(const CrossEntropyDesc&) const = default;
  std::size_t hash() const;
};
std::string to_string(const SoftmaxDesc&);
std::string to_string(const CrossEntropyDesc&);

using SoftmaxForwardList = ImplementationList<SoftmaxDesc, kernels::SoftmaxForward>;
using SoftmaxBackwardList = ImplementationList<SoftmaxDesc, kernels::SoftmaxBackward>;
using CrossEntropyForwardList = ImplementationList<CrossEntropyDesc, kernels::CrossEntropyForward>;
using CrossEntropyBackwardList =
    ImplementationList<CrossEntropyDesc, kernels::CrossEntropyBackward>;
const SoftmaxForwardList& softmax_forward_list();
const SoftmaxBackwardList& softmax_backward_list();
const CrossEntropyForwardList& cross_entropy_forward_list();
const CrossEntropyBackwardList& cross_entropy_backward_list();

namespace softmax_cpu {
std::span<const SoftmaxForwardList::Row> forward_rows();
std::span<const SoftmaxBackwardList::Row> backward_rows();
std::span<const CrossEntropyForwardList::Row> cross_entropy_forward_rows();
std::span<const CrossEntropyBackwardList::Row> cross_entropy_backward_rows();
}  // namespace softmax_cpu
namespace softmax_cuda {
std::span<const SoftmaxForwardList::Row> forward_rows();
std::span<const SoftmaxBackwardList::Row> backward_rows();
std::span<const CrossEntropyForwardList::Row> cross_entropy_forward_rows();
std::span<const CrossEntropyBackwardList::Row> cross_entropy_backward_rows();
}  // namespace softmax_cuda

}  // namespace zerone
