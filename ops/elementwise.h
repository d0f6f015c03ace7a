// Elementwise operations with broadcasting.
#pragma once

#include <zerone/autograd/tape.h>
#include <zerone/kernels/elementwise.h>
#include <zerone/ops/implementation.h>

namespace zerone {

/// @name Arithmetic
/// All take floating-point tensors of one type and one context, in any layout, and give a new
/// tensor in the memory order of the first operand of full size. Shapes broadcast as in NumPy; the
/// gradient of a broadcast operand has that operand's shape. Errors: ShapeError, DTypeError,
/// DeviceError, each naming the operation and both operands. Results repeat bit for bit.
/// @code
/// const Tensor x = Tensor::normal(context, {4, 3}), row = Tensor::uniform(context, {3}, 1, 2);
/// const Var y = x * row + x;              // broadcasts, as NumPy does
/// const Var z = div(sub(y, x), row);      // x, up to rounding
/// const Var half = affine(x, 0.5);        // x / 2
/// const Var shifted = bias(x, row);       // row along axis 1
/// @endcode
/// @{
Var add(const Var& a, const Var& b);
Var sub(const Var& a, const Var& b);
Var mul(const Var& a, const Var& b);
Var div(const Var& a, const Var& b);
/// alpha * x + beta
Var affine(const Var& x, double alpha, double beta = 0);
/// x + b along one axis of x: b has one axis, of that size.
Var bias(const Var& x, const Var& b, int axis = 1);
/// @}

/// @name Functions of one operand
/// NaN stays NaN; infinities and -0.0 give what PyTorch gives, in values
/// and gradients: silu(-inf) and gelu(-inf) are NaN, as are both functions' gradients at
/// infinities. Large finite values never give NaN. Errors of f32 in units of the last place, on
/// both devices: exp, log and tanh 2, sigmoid 4, silu 5, gelu 9; gelu's tanh form 6 and 3 for each
/// unit of the exponent it takes, 1.6 |x| + 0.07 |x|^3. Where the factor of x is denormal, silu and
/// gelu have its digits. bf16 and f16 compute in f32 and round once. f64 errs by a few units of the
/// last place, and by 2^-53 x^2 of the value in the tail of gelu.
/// @code
/// const Tensor x = Tensor::from<float>(context, {4}, {-2, -0.5, 0.5, 2});
/// const Var y = relu(x);                    // 0 0 0.5 2
/// const Var z = leaky_relu(x, 0.1);         // -0.2 -0.05 0.5 2
/// const Var c = clamp(x, -1, 1);            // -1 -0.5 0.5 1
/// const Var s = silu(x), g = gelu(x, Gelu::tanh);
/// const Var p = sigmoid(x), t = tanh(x);
/// const Var e = log(exp(x));                // x, up to rounding
/// @endcode
/// @{
/// max(x, 0), 0.0 for -0.0. The gradient is 0 at 0.
Var relu(const Var& x);
/// x > 0 ? x : slope * x. The gradient is slope at 0 and at NaN.
Var leaky_relu(const Var& x, double slope = 0.01);
/// x limited to [low, high], bounds that are first rounded to the type of x. The gradient is 1
/// within and on the bounds, else (and at NaN) 0. Throws ShapeError unless low <= high.
Var clamp(const Var& x, double low, double high);
Var exp(const Var& x);
/// Natural logarithm: -inf at 0, NaN below.
Var log(const Var& x);
/// 1 / (1 + e^-x)
Var sigmoid(const Var& x);
Var tanh(const Var& x);
/// x * sigmoid(x)
Var silu(const Var& x);

/// Gaussian error linear units, arXiv:1606.08415.
enum class Gelu : std::uint8_t {
  erf,   ///< x P(x), with P the distribution function of the standard normal
  tanh,  ///< x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, within 5e-4 of it
};
Var gelu(const Var& x, Gelu form = Gelu::erf);
/// @}

/// @name Operators
/// add, sub, mul, div and affine, spelled as operators.
/// @{
inline Var operator+(const Var& a, const Var& b) {
  return add(a, b);
}
inline Var operator-(const Var& a, const Var& b) {
  return sub(a, b);
}
inline Var operator*(const Var& a, const Var& b) {
  return mul(a, b);
}
inline Var operator/(const Var& a, const Var& b) {
  return div(a, b);
}
inline Var operator+(const Var& x, double value) {
  return affine(x, 1, value);
}
inline Var operator-(const Var& x, double value) {
  return affine(x, 1, -value);
}
inline Var operator*(const Var& x, double value) {
  return affine(x, value);
}
/// x * (1 / value): a rounding more than a quotient has.
inline Var operator/(const Var& x, double value) {
  return affine(x, 1 / value);
}
/// @}

// --- implementation lists -----------------------------------------------------------------------

struct UnaryDesc {
  kernels::UnaryOp op{};
  DType dtype{};
  std::int64_t numel = 0;
  bool operator==(const UnaryDesc&) const = default;
  std::size_t hash() const;
};
struct UnaryArgs {
  kernels::View out;
  kernels::ConstView x;
  double alpha = 1, beta = 0;
};

struct BinaryDesc {
  kernels::BinaryOp op{};
  DType dtype{};
  std::int64_t numel = 0;
  bool operator==(const BinaryDesc&) const = default;
  std::size_t hash() const;
};
struct BinaryArgs {
  kernels::View out;
  kernels::ConstView a, b;
  double alpha = 0, beta = 0;
};

std::string to_string(const UnaryDesc&);
std::string to_string(const BinaryDesc&);

using UnaryList = ImplementationList<UnaryDesc, UnaryArgs>;
using BinaryList = ImplementationList<BinaryDesc, BinaryArgs>;
const UnaryList& unary_list();
const BinaryList& binary_list();

namespace elementwise_cpu {
std::span<const UnaryList::Row> unary_rows();
std::span<const BinaryList::Row> binary_rows();
}  // namespace elementwise_cpu
namespace elementwise_cuda {
std::span<const UnaryList::Row> unary_rows();
std::span<const BinaryList::Row> binary_rows();
}  // namespace elementwise_cuda

/// binary(op, a, b) without a tape, on operands already broadcast to one shape.
Tensor apply_binary(kernels::BinaryOp op, const Tensor& a, const Tensor& b, double alpha = 0,
                    double beta = 0);

/// Throws DTypeError unless x is a floating-point tensor.
void require_floating(const char* op, const Tensor& x);
/// Same context and same floating-point type.
void require_compatible(const char* op, const Tensor& a, const Tensor& b);

}  // namespace zerone
