// How loops of *_isa.cpp files see rows of any float type and stride: as contiguous blocks of the
// compute type, in place where they are that, else through a buffer on the stack that stays in the
// L1 cache. Internal linkage, compiled once for each instruction set; Eigen is renamed before.
#pragma once

#include <array>

#include <zerone/kernels/cpu/elementwise_isa.h>
#include <zerone/kernels/cpu/number.h>

namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE {
namespace {

constexpr std::int64_t wide_block = 512;  // elements; 4 KB a buffer at most

template <class T>
constexpr bool is_wide = std::is_same_v<T, Compute<T>>;

/// n values of x in the compute type, to `out`.
template <class T>
void widen(std::int64_t n, const T* x, std::int64_t stride, Compute<T>* out) {
  if (stride != 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<Compute<T>>(x[i * stride]);
  } else if constexpr (is_wide<T>) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = x[i];
  } else {
    Eigen::Map<Eigen::ArrayXf>(out, n) =
        Eigen::Map<const Eigen::Array<T, -1, 1>>(x, n).template cast<float>();
  }
}

/// n <= wide_block values of x in the compute type: in place or in `buffer`.
template <class T>
const Compute<T>* widened(std::int64_t n, const T* x, std::int64_t stride, Compute<T>* buffer) {
  if constexpr (is_wide<T>) {
    if (stride == 1) return x;
  }
  widen(n, x, stride, buffer);
  return buffer;
}

/// Where results in the compute type go before narrow(): in place or in `buffer`.
template <class T>
Compute<T>* result_at(T* out, std::int64_t stride, Compute<T>* buffer) {
  if constexpr (is_wide<T>) {
    if (stride == 1) return out;
  }
  return buffer;
}

/// Rounds and stores n results that result_at() sent to a buffer.
template <class T>
void narrow(std::int64_t n, T* out, std::int64_t stride, const Compute<T>* results) {
  if constexpr (is_wide<T>) {
    if (stride == 1) return;
  } else if (stride == 1) {
    Eigen::Map<Eigen::Array<T, -1, 1>>(out, n) =
        Eigen::Map<const Eigen::ArrayXf>(results, n).template cast<T>();
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) out[i * stride] = static_cast<T>(results[i]);
}

/// f(row, first column, count) for each block of at most wide_block columns.
template <int Operands, class F>
void for_each_block(const Rows<Operands>& rows, F&& f) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    for (std::int64_t at = 0; at < rows.columns; at += wide_block) {
      f(row, at, rows.columns - at < wide_block ? rows.columns - at : wide_block);
    }
  }
}

template <int Operands>
std::int64_t offset(const Rows<Operands>& rows, int operand, std::int64_t row,
                    std::int64_t column) {
  return row * rows.outer[operand] + column * rows.inner[operand];
}

/// f(count, values of each operand) for runs of at most wide_block columns, whatever their row:
/// short rows are gathered.
template <class T, std::size_t Operands, class F>
void for_each_run(const Rows<static_cast<int>(Operands)>& rows,
                  const std::array<const T*, Operands>& data, F&& f) {
  Compute<T> buffers[Operands][wide_block];
  std::array<const Compute<T>*, Operands> in;
  if (2 * rows.columns > wide_block) {
    for_each_block(rows, [&](std::int64_t row, std::int64_t at, std::int64_t n) {
      for (int k = 0; k < static_cast<int>(Operands); ++k) {
        in[k] = widened(n, data[k] + offset(rows, k, row, at), rows.inner[k], buffers[k]);
      }
      f(n, in);
    });
    return;
  }
  const std::int64_t together = wide_block / rows.columns;
  for (std::int64_t first = 0; first < rows.rows; first += together) {
    const std::int64_t count = rows.rows - first < together ? rows.rows - first : together;
    for (int k = 0; k < static_cast<int>(Operands); ++k) {
      in[k] = buffers[k];
      for (std::int64_t i = 0; i < count; ++i) {
        widen(rows.columns, data[k] + offset(rows, k, first + i, 0), rows.inner[k],
              buffers[k] + i * rows.columns);
      }
    }
    f(count * rows.columns, in);
  }
}

/// Sum of value(i) for i < n, in interleaved partial sums.
template <class C, class F>
C sum_of(std::int64_t n, F&& value) {
  constexpr int lanes = 128 / sizeof(C);
  C sums[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += value(i + lane);
  }
  for (; i < n; ++i) sums[i % lanes] += value(i);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

}  // namespace
}  // namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE
