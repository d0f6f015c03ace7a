// Seeds, random numbers that are equal everywhere, and the values that tests put into tensors.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <zerone/core/half.h>
#include <zerone/kernels/types.h>

namespace zerone::test {

/// Seed of all random tests; the environment variable ZERONE_TEST_SEED overrides the fixed one.
inline std::uint64_t base_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("ZERONE_TEST_SEED");
    const std::uint64_t value = given ? std::strtoull(given, nullptr, 0) : 20250117;
    fmt::print("ZERONE_TEST_SEED={}\n", value);
    return value;
  }();
  return seed;
}

/// Whether a sweep runs its case number `index`: all, only ZERONE_TEST_CASE, or every
/// ZERONE_TEST_STRIDE-th.
inline bool case_wanted(int index) {
  static const char* const only = std::getenv("ZERONE_TEST_CASE");
  static const char* const stride = std::getenv("ZERONE_TEST_STRIDE");
  if (only) return std::atoi(only) == index;
  return !stride || index % std::atoi(stride) == 0;
}

/// What to type to run one case of a sweep again.
inline std::string reproduction(int index, const std::string& problem) {
  return fmt::format("ZERONE_TEST_SEED={} ZERONE_TEST_CASE={}: {}", base_seed(), index, problem);
}

/// SplitMix64: the same numbers on every platform and standard library.
class Random {
 public:
  /// The stream of case `index` under the base seed.
  explicit Random(std::uint64_t index) : state_(base_seed() * 0x9e3779b97f4a7c15u + index) {
    (void)bits();
  }
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// On [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  /// On [0, 1).
  double real() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  bool chance(double probability) { return real() < probability; }
  /// Mean 0, variance 1, nearly normal.
  double normal() {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += real();
    return (sum - 2) * 1.7320508075688772;
  }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[bits() % choices.size()];
  }

 private:
  std::uint64_t state_;
};

/// The value that a tensor of this type holds when `value` is stored into it.
inline double rounded(DType dtype, double value) {
  switch (dtype) {
    case DType::f32: return static_cast<double>(static_cast<float>(value));
    case DType::bf16:
      return static_cast<double>(static_cast<float>(bf16(static_cast<float>(value))));
    case DType::f16: return static_cast<double>(static_cast<float>(f16(static_cast<float>(value))));
    default: return value;
  }
}

/// `count` values that `dtype` represents exactly: integers of [-3, 3], or nearly normal numbers.
inline std::vector<double> random_values(Random& random, std::int64_t count, DType dtype,
                                         bool integers) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values)
    value = integers ? static_cast<double>(random.integer(-3, 3)) : rounded(dtype, random.normal());
  return values;
}

inline std::vector<double> absolute(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

}  // namespace zerone::test
