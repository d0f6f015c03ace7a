// Dense 2-D convolution and the pointwise contraction for f32 and f64: a cache-sized tile of the
// im2col matrix at a time, multiplied with Eigen. Any strides, groups, dilation and padding.
//
// All functions: write semantics `=`; outputs must not overlap inputs; `threads` >= 1 changes
// neither the tiles nor the order of a sum, so results repeat bit for bit for any number of
// threads. They differ in the last bits between instruction sets (see isa.h).
// `workspace` is 64-byte aligned, at least as large as the query of the same name says for the
// same arguments, and needs no initial value.
#pragma once

#include <cstddef>

#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/pointwise.h>

namespace zerone::kernels::cpu::dense {

std::size_t conv2d_forward_workspace(const Conv2dShape& shape, DType dtype, int threads);
std::size_t conv2d_backward_data_workspace(const Conv2dShape& shape, DType dtype, int threads);
std::size_t conv2d_backward_weight_workspace(const Conv2dShape& shape, DType dtype, int threads);
std::size_t pointwise_forward_workspace(const PointwiseShape& shape, DType dtype, int threads);
std::size_t pointwise_backward_weight_workspace(const PointwiseShape& shape, DType dtype,
                                                int threads);

/// y = activation(conv(x, w) + bias).
void conv2d_forward(const Conv2dShape& shape, const Conv2dForward& args, void* workspace,
                    int threads);
/// dx, one forward pass for each residue of the input position modulo the stride: no scatter.
void conv2d_backward_data(const Conv2dShape& shape, const Conv2dBackwardData& args, void* workspace,
                          int threads);
/// dw, as an ordered sum over chunks of the pixels; the chunks depend on the shape alone.
void conv2d_backward_weight(const Conv2dShape& shape, const Conv2dBackwardWeight& args,
                            void* workspace, int threads);

void pointwise_forward(const PointwiseShape& shape, const PointwiseForward& args, void* workspace,
                       int threads);
void pointwise_backward_weight(const PointwiseShape& shape, const PointwiseBackwardWeight& args,
                               void* workspace, int threads);

}  // namespace zerone::kernels::cpu::dense
