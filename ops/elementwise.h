// Elementwise operations with broadcasting.
#pragma once

#include <zerone/autograd/tape.h>
#include <zerone/kernels/elementwise.h>
#include <zerone/ops/implementation.h>

namespace zerone {

// All take floating-point tensors of one type and one context, in any layout, and give a new
// tensor in the memory order of the first operand of full size. Shapes broadcast as in NumPy; the
// gradient of a broadcast operand has that operand's shape. Errors: ShapeError, DTypeError,
// DeviceError, each naming the operation and both operands. Results repeat bit for bit.

Var add(const Var& a, const Var& b);
Var sub(const Var& a, const Var& b);
Var mul(const Var& a, const Var& b);
/// max(x, 0); NaN stays NaN. The gradient is 0 at 0.
Var relu(const Var& x);
/// alpha * x + beta
Var affine(const Var& x, double alpha, double beta = 0);
/// x + b along one axis of x: b has one axis, of that size.
Var bias(const Var& x, const Var& b, int axis = 1);

inline Var operator+(const Var& a, const Var& b) {
  return add(a, b);
}
inline Var operator-(const Var& a, const Var& b) {
  return sub(a, b);
}
inline Var operator*(const Var& a, const Var& b) {
  return mul(a, b);
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
Tensor apply_binary(kernels::BinaryOp op, const Tensor& a, const Tensor& b);

/// Throws DTypeError unless x is a floating-point tensor.
void require_floating(const char* op, const Tensor& x);
/// Same context and same floating-point type.
void require_compatible(const char* op, const Tensor& a, const Tensor& b);

}  // namespace zerone
