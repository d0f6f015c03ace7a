// Elementwise kernels on strided views. Unless stated otherwise: = semantics, operands have the
// sizes of `out`, input strides may be 0 (broadcast), any alignment; f64 computes in double, i64 in
// int64, the rest in float, rounded once at the store. Dtypes of one call are equal. An unsupported
// dtype is cudaErrorInvalidValue. Each element is written once by one thread: bitwise repeatable.
#pragma once

#include <cuda_runtime_api.h>

#include <zerone/kernels/elementwise.h>
#include <zerone/kernels/types.h>

namespace zerone::kernels::cuda {

/// out = value, for all six dtypes; converted as by copy().
[[nodiscard]] cudaError_t fill(View out, double value, cudaStream_t stream);

/// out = x for any pair of the six dtypes. Conversion to an integer truncates toward zero,
/// saturates, and turns NaN into 0. x and out must not overlap.
[[nodiscard]] cudaError_t copy(View out, ConstView x, cudaStream_t stream);

/// out = op(x), float dtypes. `alpha` and `beta` serve the operations that name them. out may be
/// exactly x.
[[nodiscard]] cudaError_t unary(UnaryOp op, View out, ConstView x, double alpha, double beta,
                                cudaStream_t stream);

/// out = op(a, b), float dtypes; add, sub and mul also i64. `alpha` and `beta` serve the operations
/// that name them. out may be exactly a or b.
[[nodiscard]] cudaError_t binary(BinaryOp op, View out, ConstView a, ConstView b, double alpha,
                                 double beta, cudaStream_t stream);
[[nodiscard]] inline cudaError_t binary(BinaryOp op, View out, ConstView a, ConstView b,
                                        cudaStream_t stream) {
  return binary(op, out, a, b, 0, 0, stream);
}

/// out = (*device_scalar * scale) * (a - b), float dtypes; device_scalar has the dtype of out. The
/// gradient of a mean-square error. out may be exactly a or b.
[[nodiscard]] cudaError_t scaled_difference(View out, ConstView a, ConstView b,
                                            const void* device_scalar, double scale,
                                            cudaStream_t stream);

}  // namespace zerone::kernels::cuda
