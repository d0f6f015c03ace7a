// The pointwise contraction: linear layers on any view, and 1x1 convolutions.
#pragma once

#include <optional>

#include <zerone/autograd/tape.h>
#include <zerone/kernels/pointwise.h>
#include <zerone/ops/implementation.h>

namespace zerone {

/// What a linear layer does besides multiplying.
struct LinearParams {
  Activation activation = Activation::none;
  /// How f32 is multiplied; the context's mode by default.
  std::optional<Math> math = std::nullopt;
};

/// y[..., k] = act(sum over c of w[k, c] * x[..., c] + b[k])
///   x  [..., c_in], any strides: a row-major batch, or a permuted view such as
///      x.permute({0, 2, 3, 1}) of [n, c, h, w]; it is read where it lies, nothing is copied
///   w  [c_out, c_in], any strides     b  [c_out] or undefined
///   y  [..., c_out], in the memory order of x: a permuted view gives a permuted view
/// Floating-point tensors of one type and one context. Errors: ShapeError, DTypeError, DeviceError.
/// In the backward pass a gradient with gaps or repeats is first copied into y's layout.
/// @code
/// const Tensor image = Tensor::normal(context, {8, 16, 32, 32});  // (N,C,H,W)
/// const Tensor w = Tensor::normal(context, {10, 16}), b = Tensor::zeros(context, {10});
/// const Var y = linear(image.permute({0, 2, 3, 1}), w, b);  // [8, 32, 32, 10], x read in place
/// @endcode
Var linear(const Var& x, const Var& w, const Var& b = {}, const LinearParams& params = {});

// --- implementation lists -----------------------------------------------------------------------

enum class PointwisePass : std::uint8_t { forward, backward_data, backward_weight };

struct PointwiseDesc {
  /// Of the pass's own contraction: for backward_data that is shape.transposed() of the forward.
  kernels::PointwiseShape shape;
  PointwisePass pass{};
  DType dtype{};
  Math math{};
  Activation activation{};
  bool bias = false;          // forward: adds b; backward_weight: wants db
  bool operand_zero = false;  // an operand is known to be zero
  int alignment = 16;         // bytes that every operand's address is a multiple of, up to 16
  bool operator==(const PointwiseDesc&) const = default;
  std::size_t hash() const { return detail::hash_bytes(shape) + static_cast<std::size_t>(dtype); }
};
std::string to_string(const PointwiseDesc&);

/// forward and backward_data: y = act(W x + b), named by the roles in the pass's own contraction.
struct PointwiseArgs {
  const Tensor& x;  // [..., c_in]
  const Tensor& w;  // [c_out, c_in]
  const Tensor& b;  // [c_out] or undefined
  Tensor& y;        // [..., c_out]
  Tensor& result() const { return y; }
};
struct PointwiseWeightArgs {
  const Tensor& x;   // [..., c_in]
  const Tensor& dy;  // [..., c_out]
  Tensor& dw;        // [c_out, c_in]
  Tensor& db;        // [c_out] or undefined
  Tensor& result() const { return dw; }
};

using PointwiseList = ImplementationList<PointwiseDesc, PointwiseArgs>;
using PointwiseWeightList = ImplementationList<PointwiseDesc, PointwiseWeightArgs>;
const PointwiseList& pointwise_forward_list();
const PointwiseList& pointwise_backward_data_list();
const PointwiseWeightList& pointwise_backward_weight_list();

namespace pointwise_cpu {
std::span<const PointwiseList::Row> rows();
std::span<const PointwiseWeightList::Row> weight_rows();
}  // namespace pointwise_cpu
namespace pointwise_cuda {
std::span<const PointwiseList::Row> rows();
std::span<const PointwiseWeightList::Row> weight_rows();
}  // namespace pointwise_cuda

/// Whether the pixel axes of x and y (all but the last) fit the three of a PointwiseShape; fills
/// `shape` if so.
bool make_pointwise_shape(const Layout& x, const Layout& y, const Layout& w,
                          kernels::PointwiseShape& shape);

/// The passes on plain tensors: x [..., c_in], w [c_out, c_in], y [..., c_out] made by the caller.
void pointwise_forward(const Tensor& x, const Tensor& w, const Tensor& b, Tensor& y, Activation,
                       Math);
void pointwise_backward_data(const Tensor& dy, const Tensor& w, Tensor& dx, Math);
void pointwise_backward_weight(const Tensor& x, const Tensor& dy, Tensor& dw, Tensor& db, Math);

/// Bytes, up to 16, that x's address is a multiple of.
int alignment_of(const Tensor& x);
/// x in the layout of `like` (same shape): itself if it lies so, else a copy, counted as re-laid.
Tensor laid_out_like(const Tensor& x, const Tensor& like);

/// The tape node of y = act(x w^T + b); `channel_axis` of x and y holds the channels. w may be
/// given as [c_out, c_in, 1, 1].
Var pointwise(const char* name, const Var& x, const Var& w, const Var& b, int channel_axis,
              Activation activation, Math math);

}  // namespace zerone
