// Elementwise kernels on strided views. Unless stated otherwise: = semantics, operands have the
// sizes of `out`, input strides may be 0 (broadcast), any alignment; f64 computes in double, i64 in
// int64, the rest in float, rounded once at the store. Dtypes of one call are equal and among those
// named here. Results do not depend on `threads`.
#pragma once

#include <zerone/kernels/elementwise.h>
#include <zerone/kernels/types.h>

namespace zerone::kernels::cpu {

/// out = value, for all six dtypes; converted as by copy().
void fill(View out, double value, int threads);

/// out = x for any pair of the six dtypes. Conversion to an integer truncates toward zero,
/// saturates, and turns NaN into 0. x and out must not overlap.
void copy(View out, ConstView x, int threads);

/// out = op(x), float dtypes. `alpha` and `beta` serve the operations that name them. out may be
/// exactly x.
void unary(UnaryOp op, View out, ConstView x, double alpha, double beta, int threads);

/// out = op(a, b), float dtypes; add, sub and mul also i64. `alpha` and `beta` serve the operations
/// that name them. out may be exactly a or b.
void binary(BinaryOp op, View out, ConstView a, ConstView b, double alpha, double beta,
            int threads);
inline void binary(BinaryOp op, View out, ConstView a, ConstView b, int threads) {
  binary(op, out, a, b, 0, 0, threads);
}

/// out = (*scalar * scale) * (a - b), float dtypes; scalar has the dtype of out. The gradient of a
/// mean-square error. out may be exactly a or b.
void scaled_difference(View out, ConstView a, ConstView b, const void* scalar, double scale,
                       int threads);

}  // namespace zerone::kernels::cpu
