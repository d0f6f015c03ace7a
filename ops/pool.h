// 2-D pooling: maxima, means and adaptive means over windows of an image.
#pragma once

#include <optional>

#include <zerone/autograd/tape.h>
#include <zerone/kernels/pool.h>
#include <zerone/ops/conv2d.h>
#include <zerone/ops/implementation.h>

namespace zerone {

/// The windows of max_pool2d and avg_pool2d.
struct Pool2dParams {
  Pair kernel;
  std::optional<Pair> stride = std::nullopt;  // of the windows; the kernel by default
  Padding padding = 0;
  Pair dilation = 1;  // max_pool2d only
  /// Rounds the number of windows up instead of down: the last one may reach over the bottom or
  /// right border, but begins inside the image or the padding in front of it.
  bool ceil_mode = false;
  /// avg_pool2d only: padding counts in the divisor. Where ceil_mode lets a window reach beyond the
  /// padding, what lies there never counts.
  bool count_padding = true;
};

/// @name 2-D pooling
/// x [n, c, h, w], floating point, any strides; NCHW and NHWC are the fast ones. The result
/// [n, c, h_out, w_out] is NHWC if the channels of x lie closer than its columns, else NCHW, and so
/// is the gradient. The values follow torch.nn.functional. Results repeat bit for bit. No operand
/// is written, none is kept for the gradient.
///
///   h_out = floor((h + top + bottom - dilation.h * (kernel.h - 1) - 1) / stride.h) + 1
///
/// or with ceil, less the windows that would begin behind the image.
///
/// Errors: ShapeError naming the sizes and parameters if x is not rank 4, c, h or w is 0, padding
/// exceeds half of the kernel (PyTorch's rule; dilation does not count), or no window fits;
/// DTypeError.
/// @code
/// const Tensor x = Tensor::normal(context, {2, 4, 9, 9});
/// const Var largest = max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1});  // [2, 4, 5, 5]
/// const Var means = avg_pool2d(x, {.kernel = 3});                                // [2, 4, 3, 3]
/// const Var global = adaptive_avg_pool2d(x, 1);                                  // [2, 4, 1, 1]
/// @endcode
/// @{
/// The largest element of each window; padding never wins. NaN wins, the last one if there are
/// several; of equal elements (0.0 and -0.0 are equal) the first, and it alone gets the gradient. A
/// dilated window that holds padding only gives -infinity. The gradient keeps one byte an output
/// (eight where a window has more than 256 taps); without a gradient nothing is kept.
Var max_pool2d(const Var& x, const Pool2dParams& params);

/// The sum of each window, from +0, over its size (see count_padding).
Var avg_pool2d(const Var& x, const Pool2dParams& params);

/// `out` windows that cover x evenly: window p has rows [floor(p * h / out.h), ceil((p + 1) * h /
/// out.h)). An `out` of 0 gives an empty result. For one window, here and in avg_pool2d, the
/// gradient is an expanded view.
Var adaptive_avg_pool2d(const Var& x, Pair out);
/// @}

// --- implementation lists -----------------------------------------------------------------------

struct Pool2dDesc {
  kernels::Pool2dShape shape;
  kernels::PoolOp op{};
  DType dtype{};
  bool argmax = false;  // forward: written, too
  bool operator==(const Pool2dDesc&) const = default;
  std::size_t hash() const {
    return detail::hash_bytes(shape) + static_cast<std::size_t>(op) * 16 +
           static_cast<std::size_t>(dtype) * 2 + (argmax ? 1 : 0);
  }
};
std::string to_string(const Pool2dDesc&);

using Pool2dForwardList = ImplementationList<Pool2dDesc, kernels::Pool2dForward>;
using Pool2dBackwardList = ImplementationList<Pool2dDesc, kernels::Pool2dBackward>;
const Pool2dForwardList& pool2d_forward_list();
const Pool2dBackwardList& pool2d_backward_list();

namespace pool_cpu {
std::span<const Pool2dForwardList::Row> forward_rows();
std::span<const Pool2dBackwardList::Row> backward_rows();
}  // namespace pool_cpu
namespace pool_cuda {
std::span<const Pool2dForwardList::Row> forward_rows();
std::span<const Pool2dBackwardList::Row> backward_rows();
}  // namespace pool_cuda

/// The problem without its strides, checked; `name` is the operation's, for errors.
kernels::Pool2dShape make_pool2d_shape(const char* name, kernels::PoolOp op, const Tensor& x,
                                       const Pool2dParams& params);
kernels::Pool2dShape make_adaptive_pool2d_shape(const Tensor& x, Pair out);

/// The passes on plain tensors; results are made by the caller. The strides in `shape` are replaced
/// by the operands' own. `argmax` has the sizes of y and the type shape.argmax_dtype(); undefined
/// where it is not wanted, and for averages.
void pool2d_forward(kernels::PoolOp op, kernels::Pool2dShape shape, const Tensor& x, Tensor& y,
                    Tensor& argmax);
void pool2d_backward(kernels::PoolOp op, kernels::Pool2dShape shape, const Tensor& dy,
                     const Tensor& argmax, Tensor& dx);

}  // namespace zerone
