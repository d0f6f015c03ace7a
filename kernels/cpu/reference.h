// The oracle: every pass as the plain loop of its definition, any strides, all four float types.
// Sums are accumulated in double (in a fixed order, independent of `threads`) and rounded once.
// Write semantics `=`; outputs must not overlap inputs. No workspace.
#pragma once

#include <zerone/kernels/conv2d.h>
#include <zerone/kernels/pointwise.h>

namespace zerone::kernels::cpu::reference {

void conv2d_forward(const Conv2dShape& shape, const Conv2dForward& args, int threads);
void conv2d_backward_data(const Conv2dShape& shape, const Conv2dBackwardData& args, int threads);
void conv2d_backward_weight(const Conv2dShape& shape, const Conv2dBackwardWeight& args,
                            int threads);
void pointwise_forward(const PointwiseShape& shape, const PointwiseForward& args, int threads);
void pointwise_backward_weight(const PointwiseShape& shape, const PointwiseBackwardWeight& args,
                               int threads);

}  // namespace zerone::kernels::cpu::reference
