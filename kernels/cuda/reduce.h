// Sums over axes of strided views. Accumulation is in f32 (f64 for f64) in an order fixed by sizes,
// strides and the 16-byte alignment of the operands, never by the device: bitwise repeatable.
// Float dtypes only (else cudaErrorInvalidValue).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include <zerone/kernels/types.h>

namespace zerone::kernels::cuda {

/// Bytes of workspace that sum() needs, at most 1 MiB; 0 where it needs none.
std::size_t sum_workspace_bytes(const Layout& out, const Layout& x, DType dtype);

/// out = scale * (sum of x over every axis where out has size 1), = semantics. out has the rank and
/// dtype of x, and each of its sizes is x's or 1; x strides may be 0. A sum of nothing is 0.
/// `workspace` is aligned to 8 bytes and overwritten; out must overlap neither x nor it.
[[nodiscard]] cudaError_t sum(View out, ConstView x, double scale, void* workspace,
                              cudaStream_t stream);

/// Bytes of workspace that squared_error_sum() needs for operands of the sizes of `a`.
std::size_t squared_error_sum_workspace_bytes(const Layout& a, DType dtype);

/// *out_scalar = scale * sum((a - b)^2), = semantics; a, b and the scalar have one dtype, a and b
/// equal sizes and any strides. Otherwise as sum().
[[nodiscard]] cudaError_t squared_error_sum(void* out_scalar, ConstView a, ConstView b,
                                            double scale, void* workspace, cudaStream_t stream);

}  // namespace zerone::kernels::cuda
