// Plain descriptions of data that every layer shares: element types, arithmetic modes, strided
// layouts and views. No ownership, no device API.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace zerone {

/// Element type of a tensor. i64 and u8 hold labels and images; arithmetic is on the float types.
enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, u8 };

constexpr std::size_t size_of(DType dtype) {  ///< bytes of an element
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {  ///< f64, f32, bf16 and f16
  return dtype != DType::i64 && dtype != DType::u8;
}

/// How f32 storage is multiplied. 16-bit storage multiplies natively and accumulates in f32; f64
/// multiplies in f64 in every mode.
///   strict  plain FMA chains
///   fp32    max |err| / sum |w||x| at most 2x that of an fp32 FMA loop (default)
///   tf32, bf16, fp16  operands rounded to that type, f32 accumulation
enum class Math : std::uint8_t { strict, fp32, tf32, bf16, fp16 };

/// What a layer applies to its result before storing it.
enum class Activation : std::uint8_t { none, relu };

inline constexpr int max_rank = 8;

/// Sizes and strides, outermost axis first. Strides count elements and may be 0 (broadcast) or
/// arbitrary (permuted, sliced); they are never negative.
struct Layout {
  int rank = 0;
  std::array<std::int64_t, max_rank> sizes{};
  std::array<std::int64_t, max_rank> strides{};

  constexpr std::int64_t numel() const {  ///< product of the sizes
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= sizes[i];
    return n;
  }
  bool operator==(const Layout&) const = default;
};

namespace kernels {

/// A strided operand of a kernel: `data` points at element (0, ..., 0).
struct ConstView {
  const void* data = nullptr;
  Layout layout;
  DType dtype = DType::f32;
};

/// A strided result. Distinct indices must address distinct elements.
struct View {
  void* data = nullptr;
  Layout layout;
  DType dtype = DType::f32;

  operator ConstView() const { return {data, layout, dtype}; }  ///< to read from
};

}  // namespace kernels
}  // namespace zerone
