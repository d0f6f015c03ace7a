// Pointwise contraction on the CPU: 1x1 convolution and linear on any strided view, f32 and f64,
// vectorized for the best instruction set that the processor has (chosen at run time).
#pragma once

#include <cstddef>

#include <zerone/kernels/pointwise.h>

namespace zerone::kernels::cpu {

// Common to all functions below: operands of type f32 or f64, any strides, any alignment, nothing
// copied but panels that fit a cache. Outputs are overwritten and must not overlap an operand. Each
// sum is a chain of fused multiply-adds (products rounded first where the processor has none) in an
// order that depends on the shape and the instruction set alone, so results repeat bit for bit with
// any number of threads. `workspace` holds the bytes that the query of the same name returns for
// the same threads; its alignment is free.

/// y = act(w x + b). Pixel-contiguous outputs (NCHW, [B,T,C,H,W]) are computed 8 channels by 48
/// pixels at a time, channel-contiguous ones (NHWC, linear) 8 pixels by 48 channels. Outputs larger
/// than the last-level cache are stored around it where their rows are aligned to 64 bytes.
void pointwise_forward(const PointwiseShape& shape, const PointwiseForward& args, void* workspace,
                       int threads);
[[nodiscard]] std::size_t pointwise_forward_workspace_bytes(const PointwiseShape& shape,
                                                            DType dtype, int threads);

/// dw = sum over pixels of dy x, and db where it is not null (the gradient of a channel of ones).
/// Pixels are cut into a number of chunks that depends on the shape only; their sums are added in
/// order. No pixels: zeros.
void pointwise_backward_weight(const PointwiseShape& shape, const PointwiseBackwardWeight& args,
                               void* workspace, int threads);
[[nodiscard]] std::size_t pointwise_backward_weight_workspace_bytes(const PointwiseShape& shape,
                                                                    DType dtype, int threads);

}  // namespace zerone::kernels::cpu
