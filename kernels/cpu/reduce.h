// Sums over axes of strided views, float dtypes. Every sum is accumulated in double and rounded
// once; its order follows from sizes and strides alone, so it does not depend on `threads`.
#pragma once

#include <zerone/kernels/types.h>

namespace zerone::kernels::cpu {

/// out = scale * (sum of x over every axis where out has size 1), = semantics. out has the rank and
/// dtype of x, and each of its sizes is x's or 1; x strides may be 0. A sum of nothing is 0. out
/// must not overlap x.
void sum(View out, ConstView x, double scale, int threads);

/// *out_scalar = scale * sum((a - b)^2), = semantics; a, b and the scalar have one dtype, a and b
/// equal sizes and any strides. A sum of nothing is 0.
void squared_error_sum(void* out_scalar, ConstView a, ConstView b, double scale, int threads);

}  // namespace zerone::kernels::cpu
