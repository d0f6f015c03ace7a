#include <zerone/core/half.h>

#include <bit>

#include <Eigen/Core>

namespace zerone {

bf16::bf16(float value) : bits(std::bit_cast<std::uint16_t>(Eigen::bfloat16(value))) {}
bf16::operator float() const {
  return static_cast<float>(std::bit_cast<Eigen::bfloat16>(bits));
}

f16::f16(float value) : bits(std::bit_cast<std::uint16_t>(Eigen::half(value))) {}
f16::operator float() const {
  return static_cast<float>(std::bit_cast<Eigen::half>(bits));
}

}  // namespace zerone
