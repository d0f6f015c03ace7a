// Batch normalization on the CPU, float dtypes; contracts in kernels/batch_norm.h. f64 computes in
// double, the rest in float; totals are kept in double. Results do not depend on `threads`.
#pragma once

#include <zerone/kernels/batch_norm.h>

namespace zerone::kernels::cpu {

void batch_norm(const BatchNormForward& args, int threads);
void batch_norm_backward(const BatchNormBackward& args, int threads);

}  // namespace zerone::kernels::cpu
