// C++ types of the element types, for CPU kernels. Includes Eigen: for .cpp files only.
#pragma once

#include <Eigen/Core>

#include <cstdint>

#include <zerone/kernels/types.h>

namespace zerone::kernels::cpu {

/// What a value of T is computed in: double for f64 and i64, else float.
template <class T>
using Compute = std::conditional_t<(sizeof(T) > 4), double, float>;

/// Calls f(T()) with the C++ type of `dtype`.
template <class F>
decltype(auto) with_any_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double());
    case DType::bf16: return f(Eigen::bfloat16());
    case DType::f16: return f(Eigen::half());
    case DType::i64: return f(std::int64_t());
    case DType::u8: return f(std::uint8_t());
    case DType::f32: break;
  }
  return f(float());
}

/// The same for the float types alone.
template <class F>
decltype(auto) with_float_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double());
    case DType::bf16: return f(Eigen::bfloat16());
    case DType::f16: return f(Eigen::half());
    default: return f(float());
  }
}

}  // namespace zerone::kernels::cpu
