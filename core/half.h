// 16-bit floating-point storage types on the host. Arithmetic happens in float: convert, compute,
// convert back (round to nearest even; overflow gives infinity; NaN stays NaN).
#pragma once

#include <cstdint>

namespace zerone {

/// bfloat16: 8 exponent bits, 7 fraction bits.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value);
  explicit operator float() const;  ///< exact
};

/// IEEE binary16: 5 exponent bits, 10 fraction bits.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  explicit f16(float value);
  explicit operator float() const;  ///< exact
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

}  // namespace zerone
