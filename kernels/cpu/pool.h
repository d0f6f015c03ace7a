// 2-D pooling, float dtypes, any strides.
//
// The maximum of a window is its first largest element, or its last NaN if it has one; -0.0 and 0.0
// are equal, so the first one stays. A window without a tap in the image gives -infinity, and no
// gradient. A mean is the sum of the window, which starts at +0, divided once. f64 computes in
// double, all else in float. A gradient is summed by the thread that owns the element, over the
// windows in row-major order (averages where columns are innermost: first those of each row of
// windows): results do not depend on `threads`.
#pragma once

#include <zerone/kernels/pool.h>

namespace zerone::kernels::cpu {

/// = semantics; y and argmax must overlap no other operand.
void pool2d_forward(PoolOp op, const Pool2dShape& shape, const Pool2dForward& args, int threads);

/// = semantics; dx must not overlap dy or argmax.
void pool2d_backward(PoolOp op, const Pool2dShape& shape, const Pool2dBackward& args, int threads);

}  // namespace zerone::kernels::cpu
