// 2-D pooling, float dtypes (else cudaErrorInvalidValue), any strides and sizes. Values and the
// choice of a maximum are those of kernels/cpu/pool.h; the gradient of an element is summed by the
// thread that writes it, window by window in row-major order: no atomics, bitwise repeatable.
// Vectors are used where strides and addresses allow it, which changes no value.
#pragma once

#include <cuda_runtime_api.h>

#include <zerone/kernels/pool.h>

namespace zerone::kernels::cuda {

/// = semantics; y and argmax must overlap no other operand.
[[nodiscard]] cudaError_t pool2d_forward(PoolOp op, const Pool2dShape& shape,
                                         const Pool2dForward& args, cudaStream_t stream);

/// = semantics; dx must not overlap dy or argmax.
[[nodiscard]] cudaError_t pool2d_backward(PoolOp op, const Pool2dShape& shape,
                                          const Pool2dBackward& args, cudaStream_t stream);

}  // namespace zerone::kernels::cuda
