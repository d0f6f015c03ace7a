// Row loops of the elementwise and reduction kernels, compiled once for each instruction set (see
// isa.h). A row is cut into blocks: operands of the compute type with stride 1 are used in place,
// others are widened or gathered into a buffer on the stack that stays in the L1 cache, so that the
// arithmetic always runs on contiguous values of the compute type and vectorizes.
#if !defined(ZERONE_ISA_NAMESPACE)
#define ZERONE_ISA_NAMESPACE baseline
#endif
#define ZERONE_JOIN_(a, b) a##b
#define ZERONE_JOIN(a, b) ZERONE_JOIN_(a, b)
#define Eigen ZERONE_JOIN(zerone_eigen_, ZERONE_ISA_NAMESPACE)
#define EIGEN_MPL2_ONLY
#include <Eigen/Core>

#include <cmath>
#include <cstring>

#include <zerone/kernels/cpu/elementwise_isa.h>
#include <zerone/kernels/cpu/elementwise_math.h>
#include <zerone/kernels/cpu/number.h>

namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE {
namespace {

using Index = std::int64_t;
using Bfloat16 = Eigen::bfloat16;
using Half = Eigen::half;

constexpr Index block = 512;  // elements; 4 KB a buffer at most

/// What T is computed in.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t,
                                std::conditional_t<std::is_same_v<T, double>, double, float>>;

template <class T>
constexpr bool is_16_bit_float = std::is_same_v<T, Bfloat16> || std::is_same_v<T, Half>;

/// A float whose rounding to a shorter type equals that of `value`: cut off, with the last bit set
/// where bits were lost (round to odd).
inline float to_odd(double value) {
  float cut = static_cast<float>(value);
  if (static_cast<double>(cut) == value || value != value) return cut;
  std::uint32_t bits;
  std::memcpy(&bits, &cut, sizeof bits);
  if (std::fabs(static_cast<double>(cut)) > std::fabs(value)) --bits;
  bits |= 1;
  std::memcpy(&cut, &bits, sizeof bits);
  return cut;
}

template <class To, class From>
inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_16_bit_float<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (is_16_bit_float<To>) {
    if constexpr (std::is_same_v<From, float> || std::is_same_v<From, std::uint8_t>) {
      return static_cast<To>(static_cast<float>(value));
    } else {
      return static_cast<To>(to_odd(static_cast<double>(value)));
    }
  } else if constexpr (std::is_same_v<To, std::uint8_t>) {
    if constexpr (std::is_same_v<From, std::int64_t>) {
      return static_cast<std::uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
    } else {
      const From limited = value > From(0) ? (value < From(255) ? value : From(255)) : From(0);
      return static_cast<std::uint8_t>(static_cast<int>(limited));
    }
  } else if constexpr (std::is_same_v<To, std::int64_t> && std::is_floating_point_v<From>) {
    constexpr From limit = From(9223372036854775808.0);  // 2^63
    if (value >= limit) return INT64_MAX;
    if (value < -limit) return INT64_MIN;
    return value == value ? static_cast<std::int64_t>(value) : 0;
  } else {
    return static_cast<To>(value);
  }
}

/// out[i*out_stride] = x[i*x_stride], converted. No overlap.
template <class To, class From>
void convert_row(Index n, To* __restrict out, Index out_stride, const From* __restrict x,
                 Index x_stride) {
  if (out_stride == 1 && x_stride == 1) {
    if constexpr (std::is_same_v<To, From>) {
      std::memcpy(out, x, static_cast<std::size_t>(n) * sizeof(To));
    } else if constexpr ((is_16_bit_float<To> && std::is_same_v<From, float>) ||
                         (is_16_bit_float<From> && std::is_same_v<To, float>)) {
      using Out = Eigen::Map<Eigen::Array<To, -1, 1>>;
      using In = Eigen::Map<const Eigen::Array<From, -1, 1>>;
      Out(out, n) = In(x, n).template cast<To>();
    } else {
      for (Index i = 0; i < n; ++i) out[i] = convert<To>(x[i]);
    }
  } else if (x_stride == 0) {
    const To value = convert<To>(x[0]);
    for (Index i = 0; i < n; ++i) out[i * out_stride] = value;
  } else if (out_stride == 1) {
    for (Index i = 0; i < n; ++i) out[i] = convert<To>(x[i * x_stride]);
  } else {
    for (Index i = 0; i < n; ++i) out[i * out_stride] = convert<To>(x[i * x_stride]);
  }
}

/// n values of x in the compute type: in place or in `buffer`.
template <class T>
const Wide<T>* widened(Index n, const T* x, Index stride, Wide<T>* buffer) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    if (stride == 1) return x;
  }
  convert_row(n, buffer, 1, x, stride);
  return buffer;
}

/// Where n results in the compute type go before finish(): in place or in `buffer`.
template <class T>
Wide<T>* result_at(T* out, Index stride, Wide<T>* buffer) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    if (stride == 1) return out;
  }
  return buffer;
}

template <class T>
void finish(Index n, T* out, Index stride, const Wide<T>* buffer) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    if (stride == 1) return;
  }
  convert_row(n, out, stride, buffer, 1);
}

/// f(row, first column, count) for each block.
template <int Operands, class F>
void for_each_block(const Rows<Operands>& rows, F&& f) {
  for (Index row = 0; row < rows.rows; ++row) {
    for (Index at = 0; at < rows.columns; at += block) {
      f(row, at, rows.columns - at < block ? rows.columns - at : block);
    }
  }
}

template <int Operands>
Index offset(const Rows<Operands>& rows, int operand, Index row, Index column) {
  return row * rows.outer[operand] + column * rows.inner[operand];
}

/// out = f(x) per element, in the compute type; out may be exactly x.
template <class T, class F>
void map(const Rows<2>& rows, T* out, const T* x, F f) {
  Wide<T> x_buffer[block], out_buffer[block];
  for_each_block(rows, [&](Index row, Index at, Index n) {
    T* out_row = out + offset(rows, 0, row, at);
    const Wide<T>* in = widened(n, x + offset(rows, 1, row, at), rows.inner[1], x_buffer);
    Wide<T>* result = result_at(out_row, rows.inner[0], out_buffer);
#pragma GCC ivdep
    for (Index i = 0; i < n; ++i) result[i] = f(in[i]);
    finish(n, out_row, rows.inner[0], result);
  });
}

/// out = f(a, b) per element, in the compute type; out may be exactly a or b.
template <class T, class F>
void map(const Rows<3>& rows, T* out, const T* a, const T* b, F f) {
  Wide<T> a_buffer[block], b_buffer[block], out_buffer[block];
  for_each_block(rows, [&](Index row, Index at, Index n) {
    T* out_row = out + offset(rows, 0, row, at);
    const Wide<T>* left = widened(n, a + offset(rows, 1, row, at), rows.inner[1], a_buffer);
    const Wide<T>* right = widened(n, b + offset(rows, 2, row, at), rows.inner[2], b_buffer);
    Wide<T>* result = result_at(out_row, rows.inner[0], out_buffer);
#pragma GCC ivdep
    for (Index i = 0; i < n; ++i) result[i] = f(left[i], right[i]);
    finish(n, out_row, rows.inner[0], result);
  });
}

/// Sums values in `lanes` interleaved double accumulators.
struct Accumulator {
  static constexpr Index lanes = 16;
  double sums[lanes] = {};

  template <class F>
  void add(Index n, F&& value) {
    Index i = 0;
    for (; i + lanes <= n; i += lanes) {
      for (Index lane = 0; lane < lanes; ++lane) sums[lane] += value(i + lane);
    }
    for (; i < n; ++i) sums[i % lanes] += value(i);
  }

  double total() const {
    double folded[lanes];
    for (Index lane = 0; lane < lanes; ++lane) folded[lane] = sums[lane];
    for (Index width = lanes / 2; width > 0; width /= 2) {
      for (Index lane = 0; lane < width; ++lane) folded[lane] += folded[lane + width];
    }
    return folded[0];
  }
};

/// Copies whose rows are contiguous in x and whose columns are contiguous in out, through a buffer:
/// every cache line of either is touched once while it is in reach.
template <class To, class From>
void transpose_rows(const Rows<2>& rows, To* out, const From* x) {
  constexpr Index side = 32;
  To tile[side][side];
  for (Index row = 0; row < rows.rows; row += side) {
    const Index height = rows.rows - row < side ? rows.rows - row : side;
    for (Index column = 0; column < rows.columns; column += side) {
      const Index width = rows.columns - column < side ? rows.columns - column : side;
      for (Index i = 0; i < height; ++i) {
        convert_row(width, tile[i], 1, x + (row + i) * rows.outer[1] + column, 1);
      }
      for (Index j = 0; j < width; ++j) {
        To* to = out + row + (column + j) * rows.inner[0];
        for (Index i = 0; i < height; ++i) to[i] = tile[i][j];
      }
    }
  }
}

void fill_rows(const Rows<1>& rows, DType dtype, void* out, double value) {
  with_any_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T converted = convert<T>(value);
    for (Index row = 0; row < rows.rows; ++row) {
      T* to = static_cast<T*>(out) + row * rows.outer[0];
      if (rows.inner[0] == 1) {
        for (Index i = 0; i < rows.columns; ++i) to[i] = converted;
      } else {
        for (Index i = 0; i < rows.columns; ++i) to[i * rows.inner[0]] = converted;
      }
    }
  });
}

void copy_rows(const Rows<2>& rows, DType to, DType from, void* out, const void* x) {
  with_any_type(to, [&](auto out_zero) {
    using To = decltype(out_zero);
    with_any_type(from, [&](auto x_zero) {
      using From = decltype(x_zero);
      To* out_data = static_cast<To*>(out);
      const From* x_data = static_cast<const From*>(x);
      if (rows.inner[1] == 1 && rows.inner[0] != 1 && rows.outer[0] == 1) {
        transpose_rows(rows, out_data, x_data);
        return;
      }
      for (Index row = 0; row < rows.rows; ++row) {
        convert_row(rows.columns, out_data + row * rows.outer[0], rows.inner[0],
                    x_data + row * rows.outer[1], rows.inner[1]);
      }
    });
  });
}

void unary_rows(const Rows<2>& rows, DType dtype, UnaryOp op, void* out, const void* x,
                double alpha, double beta) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Wide<T>;
    T* to = static_cast<T*>(out);
    const T* from = static_cast<const T*>(x);
    const C a = static_cast<C>(alpha), b = static_cast<C>(beta);
    with_op(op, [&]<UnaryOp f>(Constant<f>) {
      map(rows, to, from, [a, b](C v) { return apply<Functions, f>(v, a, b); });
    });
  });
}

void binary_rows(const Rows<3>& rows, DType dtype, BinaryOp op, void* out, const void* a,
                 const void* b, double alpha, double beta) {
  with_any_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Wide<T>;
    const C first = static_cast<C>(alpha), second = static_cast<C>(beta);
    with_op(op, [&]<BinaryOp f>(Constant<f>) {
      if constexpr (takes<T>(f)) {
        map(rows, static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b),
            [=](C u, C v) { return apply<Functions, f>(u, v, first, second); });
      }
    });
  });
}

void scaled_difference_rows(const Rows<3>& rows, DType dtype, void* out, const void* a,
                            const void* b, const void* scalar, double scale) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Wide<T>;
    const C factor = convert<C>(*static_cast<const T*>(scalar)) * static_cast<C>(scale);
    map(rows, static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b),
        [factor](C u, C v) { return factor * (u - v); });
  });
}

double sum_rows(const Rows<1>& rows, DType dtype, const void* x) {
  return with_any_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    Accumulator sum;
    Wide<T> buffer[block];
    for_each_block(rows, [&](Index row, Index at, Index n) {
      const Wide<T>* in =
          widened(n, static_cast<const T*>(x) + offset(rows, 0, row, at), rows.inner[0], buffer);
      sum.add(n, [in](Index i) { return static_cast<double>(in[i]); });
    });
    return sum.total();
  });
}

void add_columns_rows(const Rows<1>& rows, DType dtype, const void* x, double* sums) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    Wide<T> buffer[block];
    for_each_block(rows, [&](Index row, Index at, Index n) {
      const Wide<T>* in =
          widened(n, static_cast<const T*>(x) + offset(rows, 0, row, at), rows.inner[0], buffer);
      for (Index i = 0; i < n; ++i) sums[at + i] += static_cast<double>(in[i]);
    });
  });
}

double squared_error_rows(const Rows<2>& rows, DType dtype, const void* a, const void* b) {
  return with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    Accumulator sum;
    Wide<T> a_buffer[block], b_buffer[block];
    for_each_block(rows, [&](Index row, Index at, Index n) {
      const Wide<T>* left =
          widened(n, static_cast<const T*>(a) + offset(rows, 0, row, at), rows.inner[0], a_buffer);
      const Wide<T>* right =
          widened(n, static_cast<const T*>(b) + offset(rows, 1, row, at), rows.inner[1], b_buffer);
      sum.add(n, [=](Index i) {
        const double difference = static_cast<double>(left[i]) - static_cast<double>(right[i]);
        return difference * difference;
      });
    });
    return sum.total();
  });
}

}  // namespace

extern const RowLoops row_loops;
const RowLoops row_loops = {
    fill_rows, copy_rows,        unary_rows,        binary_rows, scaled_difference_rows,
    sum_rows,  add_columns_rows, squared_error_rows};

}  // namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE
