// Comparison with an f64 result under an error contract.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <zerone/core/tensor.h>
#include <zerone/kernels/types.h>

#include "support/random.h"

namespace zerone::test {

/// Unit roundoff.
inline double unit(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x1p-53;
    case DType::f32: return 0x1p-24;
    case DType::f16: return 0x1p-11;
    default: return 0x1p-8;
  }
}

/// |error| <= of_sum * sum|w||x| + of_value * |expected| + floor, or bit-for-bit equality with the
/// expected value rounded once to `dtype`.
struct Contract {
  DType dtype = DType::f32;
  bool exact = false;
  double of_sum = 0, of_value = 0, floor = 0;
};

/// The contract of a sum of `terms` products. Errors of an FMA loop add up like a random walk, so
/// accumulation may cost (4 + 2 sqrt(terms)) u; rounding both factors to a narrower type costs 2 of
/// its u, 4 where a library truncates; a 16-bit result is rounded once more.
inline Contract product_contract(DType dtype, Math math, std::int64_t terms) {
  const double accumulate = 4 + 2 * std::sqrt(static_cast<double>(terms));
  Contract contract{.dtype = dtype};
  contract.of_sum = accumulate * unit(dtype == DType::f64 ? DType::f64 : DType::f32);
  if (dtype == DType::f64) return contract;
  if (dtype == DType::f32) {
    if (math == Math::tf32 || math == Math::fp16) contract.of_sum += 4 * 0x1p-11;
    if (math == Math::bf16) contract.of_sum += 4 * 0x1p-8;
    // Denormal products may be flushed.
    contract.floor = 8 * static_cast<double>(terms + 1) * 0x1p-126;
  } else {
    contract.of_value = 1.001 * unit(dtype);
    contract.floor = dtype == DType::f16 ? 0x1p-24 : 0x1p-120;
  }
  return contract;
}

/// Small-integer data, whose partial sums all fit the accumulator: no rounding but the store's.
inline Contract exact_contract(DType dtype) {
  return {.dtype = dtype, .exact = true};
}

/// Rounded results of a library that may round a 16-bit intermediate as well.
inline Contract twice_rounded(Contract contract) {
  if (contract.dtype == DType::f16 || contract.dtype == DType::bf16)
    contract.of_sum += 2 * unit(contract.dtype);
  return contract;
}

/// Empty if all is well; else where and by how much the first fault departs. `magnitude` holds
/// sum|w||x|, and may be empty for an exact contract.
inline std::string mismatch(const std::vector<double>& actual, const std::vector<double>& expected,
                            const std::vector<double>& magnitude, const Contract& contract) {
  if (actual.size() != expected.size())
    return fmt::format("{} values, expected {}", actual.size(), expected.size());
  std::string first;
  std::size_t faults = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    double wanted = expected[i], allowed = 0;
    if (contract.exact)
      wanted = rounded(contract.dtype, wanted);
    else
      allowed =
          contract.of_sum * magnitude[i] + contract.of_value * std::abs(wanted) + contract.floor;
    const bool both_nan = std::isnan(actual[i]) && std::isnan(wanted);
    if (both_nan || actual[i] == wanted || std::abs(actual[i] - wanted) <= allowed) continue;
    if (faults++ == 0)
      first = fmt::format("element {} of {} is {:.9g}, expected {:.9g} +- {:.3g}", i, actual.size(),
                          actual[i], wanted, allowed);
  }
  return faults == 0 ? "" : fmt::format("{} ({} wrong)", first, faults);
}

/// Row-major values, whatever the type.
inline std::vector<double> values_of(const Tensor& x) {
  return x.to(DType::f64).to_vector<double>();
}

/// A row-major tensor of any floating-point type.
inline Tensor make_tensor(const Context& context, const Shape& shape,
                          const std::vector<double>& values, DType dtype = DType::f64) {
  return Tensor::from<double>(context, shape, values).to(dtype);
}

}  // namespace zerone::test
