// Softmax and cross-entropy on the CPU, float dtypes; contracts in kernels/softmax.h. f64 computes
// in double, the rest in float, sums of a line are kept in double. Results do not depend on
// `threads`. NaN and infinities: a line that holds NaN, +Inf or -Inf alone becomes NaN; -Inf beside
// finite values is a probability of 0.
#pragma once

#include <zerone/kernels/softmax.h>

namespace zerone::kernels::cpu {

void softmax(const SoftmaxForward& args, int threads);
void softmax_backward(const SoftmaxBackward& args, int threads);

/// The first label, in the order of `labels`, that is neither in [0, classes) nor `ignored`; null
/// if there is none.
const std::int64_t* find_bad_label(ConstView labels, std::int64_t classes, std::int64_t ignored);
void cross_entropy(const CrossEntropyForward& args, int threads);
void cross_entropy_backward(const CrossEntropyBackward& args, int threads);

}  // namespace zerone::kernels::cpu
