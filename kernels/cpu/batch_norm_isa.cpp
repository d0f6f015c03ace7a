// Loops of batch normalization, compiled once for each instruction set (see isa.h). Statistics take
// two passes over a run of values that stays in the L1 cache: its mean, then sums of d = x - mean
// and of d^2, corrected for the rounding of the mean; runs are joined in double.
#if !defined(ZERONE_ISA_NAMESPACE)
#define ZERONE_ISA_NAMESPACE baseline
#endif
#define ZERONE_JOIN_(a, b) a##b
#define ZERONE_JOIN(a, b) ZERONE_JOIN_(a, b)
#define Eigen ZERONE_JOIN(zerone_eigen_, ZERONE_ISA_NAMESPACE)
#define EIGEN_MPL2_ONLY
#include <Eigen/Core>

#include <zerone/kernels/cpu/batch_norm_isa.h>
#include <zerone/kernels/cpu/wide_rows.h>

namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE {
namespace {

using Index = std::int64_t;

constexpr Index run_rows = 64;  // rows of a run where channels are the columns

/// Joins `count` values of each channel with the given mean and sum of squares around it:
///   M2 = M2_a + M2_b + (mean_b - mean_a)^2 n_a n_b / n
void join_run(ChannelTotals& totals, double count, const double* mean, const double* squares,
              int channels) {
  const double n = totals.count + count;
  if (count == 0) return;
  const double share = count / n, weight = totals.count * share;
  for (int j = 0; j < channels; ++j) {
    const double step = mean[j] - totals.first[j];
    totals.first[j] += step * share;
    totals.second[j] += squares[j] + step * step * weight;
  }
  totals.count = n;
}

void join(ChannelTotals& totals, const ChannelTotals& more, int channels) {
  join_run(totals, more.count, more.first.data(), more.second.data(), channels);
}

template <class C>
OfChannels<C> converted(const OfChannels<double>& values, Index channels) {
  OfChannels<C> result;
  for (Index j = 0; j < channels; ++j) result[j] = static_cast<C>(values[j]);
  return result;
}

template <class T>
void statistics_along(const Rows<1>& rows, const T* x, ChannelTotals& totals) {
  using C = Compute<T>;
  for_each_run<T, 1>(rows, {x}, [&](Index n, const auto& operands) {
    const C* in = operands[0];
    const C mean = sum_of<C>(n, [in](Index i) { return in[i]; }) / static_cast<C>(n);
    const double rest = sum_of<C>(n, [in, mean](Index i) { return in[i] - mean; });
    const double squares =
        sum_of<C>(n, [in, mean](Index i) { return (in[i] - mean) * (in[i] - mean); });
    const double count = static_cast<double>(n);
    const double exact_mean = static_cast<double>(mean) + rest / count;
    const double around_mean = squares - rest * rest / count;
    join_run(totals, count, &exact_mean, &around_mean, 1);
  });
}

template <class T>
void statistics_across(const Rows<1>& rows, const T* x, ChannelTotals& totals) {
  using C = Compute<T>;
  const Index channels = rows.columns;
  C buffer[channel_block];
  for (Index first = 0; first < rows.rows; first += run_rows) {
    const Index count = rows.rows - first < run_rows ? rows.rows - first : run_rows;
    const auto row = [&](Index i) {
      return widened(channels, x + offset(rows, 0, first + i, 0), rows.inner[0], buffer);
    };
    const C inverse = C(1) / static_cast<C>(count);
    OfChannels<C> mean{}, rest{}, squares{};
    for (Index i = 0; i < count; ++i) {
      const C* in = row(i);
      for (Index j = 0; j < channels; ++j) mean[j] += in[j];
    }
    for (Index j = 0; j < channels; ++j) mean[j] *= inverse;
    for (Index i = 0; i < count; ++i) {
      const C* in = row(i);
      for (Index j = 0; j < channels; ++j) {
        const C d = in[j] - mean[j];
        rest[j] += d;
        squares[j] += d * d;
      }
    }
    OfChannels<double> exact_mean, around_mean;
    const double n = static_cast<double>(count);
    for (Index j = 0; j < channels; ++j) {
      const double left = static_cast<double>(rest[j]);
      exact_mean[j] = static_cast<double>(mean[j]) + left / n;
      around_mean[j] = static_cast<double>(squares[j]) - left * left / n;
    }
    join_run(totals, n, exact_mean.data(), around_mean.data(), static_cast<int>(channels));
  }
}

void statistics(const Rows<1>& rows, DType dtype, bool across, const void* x,
                ChannelTotals& totals) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(x);
    across ? statistics_across(rows, from, totals) : statistics_along(rows, from, totals);
  });
}

template <class T>
void gradient_sums_along(const Rows<2>& rows, const T* x, const T* dy, const ChannelMap& map,
                         ChannelTotals& totals) {
  using C = Compute<T>;
  const C mean = static_cast<C>(map.shift[0]);
  for_each_run<T, 2>(rows, {x, dy}, [&](Index n, const auto& operands) {
    const C *in = operands[0], *up = operands[1];
    totals.first[0] += sum_of<C>(n, [up](Index i) { return up[i]; });
    totals.second[0] += sum_of<C>(n, [=](Index i) { return up[i] * (in[i] - mean); });
  });
}

template <class T>
void gradient_sums_across(const Rows<2>& rows, const T* x, const T* dy, const ChannelMap& map,
                          ChannelTotals& totals) {
  using C = Compute<T>;
  const Index channels = rows.columns;
  C x_buffer[channel_block], dy_buffer[channel_block];
  const OfChannels<C> mean = converted<C>(map.shift, channels);
  for (Index first = 0; first < rows.rows; first += run_rows) {
    const Index last = rows.rows - first < run_rows ? rows.rows : first + run_rows;
    OfChannels<C> sums{}, products{};
    for (Index i = first; i < last; ++i) {
      const C* in = widened(channels, x + offset(rows, 0, i, 0), rows.inner[0], x_buffer);
      const C* up = widened(channels, dy + offset(rows, 1, i, 0), rows.inner[1], dy_buffer);
      for (Index j = 0; j < channels; ++j) {
        sums[j] += up[j];
        products[j] += up[j] * (in[j] - mean[j]);
      }
    }
    for (Index j = 0; j < channels; ++j) {
      totals.first[j] += static_cast<double>(sums[j]);
      totals.second[j] += static_cast<double>(products[j]);
    }
  }
}

void gradient_sums(const Rows<2>& rows, DType dtype, bool across, const void* x, const void* dy,
                   const ChannelMap& map, ChannelTotals& totals) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* in = static_cast<const T*>(x);
    const T* up = static_cast<const T*>(dy);
    across ? gradient_sums_across(rows, in, up, map, totals)
           : gradient_sums_along(rows, in, up, map, totals);
  });
}

/// f(row, first column, count, channel index of a column) for each block; the last is j or 0.
template <int Operands, class F>
void for_each_mapped(const Rows<Operands>& rows, bool across, F&& f) {
  if (across) {
    for_each_block(rows,
                   [&](Index row, Index at, Index n) { f(row, at, n, [](Index j) { return j; }); });
  } else {
    for_each_block(
        rows, [&](Index row, Index at, Index n) { f(row, at, n, [](Index) { return Index{0}; }); });
  }
}

void normalize(const Rows<2>& rows, DType dtype, bool across, void* y, const void* x,
               const ChannelMap& map) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const Index channels = across ? rows.columns : 1;
    const OfChannels<C> shift = converted<C>(map.shift, channels);
    const OfChannels<C> scale = converted<C>(map.scale, channels);
    const OfChannels<C> add = converted<C>(map.offset, channels);
    C x_buffer[wide_block], y_buffer[wide_block];
    for_each_mapped(rows, across, [&](Index row, Index at, Index n, auto channel) {
      T* out = static_cast<T*>(y) + offset(rows, 0, row, at);
      const C* in =
          widened(n, static_cast<const T*>(x) + offset(rows, 1, row, at), rows.inner[1], x_buffer);
      C* result = result_at(out, rows.inner[0], y_buffer);
#pragma GCC ivdep
      for (Index j = 0; j < n; ++j) {
        const Index c = channel(j);
        result[j] = (in[j] - shift[c]) * scale[c] + add[c];
      }
      narrow(n, out, rows.inner[0], result);
    });
  });
}

void input_gradient(const Rows<3>& rows, DType dtype, bool across, void* dx, const void* dy,
                    const void* x, const ChannelMap& map) {
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const Index channels = across ? rows.columns : 1;
    const OfChannels<C> shift = converted<C>(map.shift, channels);
    const OfChannels<C> scale = converted<C>(map.scale, channels);
    const OfChannels<C> add = converted<C>(map.offset, channels);
    const OfChannels<C> slope = converted<C>(map.slope, channels);
    C dy_buffer[wide_block], x_buffer[wide_block], dx_buffer[wide_block];
    for_each_mapped(rows, across, [&](Index row, Index at, Index n, auto channel) {
      T* out = static_cast<T*>(dx) + offset(rows, 0, row, at);
      const C* up = widened(n, static_cast<const T*>(dy) + offset(rows, 1, row, at), rows.inner[1],
                            dy_buffer);
      const C* in =
          widened(n, static_cast<const T*>(x) + offset(rows, 2, row, at), rows.inner[2], x_buffer);
      C* result = result_at(out, rows.inner[0], dx_buffer);
#pragma GCC ivdep
      for (Index j = 0; j < n; ++j) {
        const Index c = channel(j);
        result[j] = up[j] * scale[c] + ((in[j] - shift[c]) * slope[c] + add[c]);
      }
      narrow(n, out, rows.inner[0], result);
    });
  });
}

}  // namespace

extern const BatchNormLoops batch_norm_loops;
const BatchNormLoops batch_norm_loops = {statistics, gradient_sums, normalize, input_gradient,
                                         join};

}  // namespace zerone::kernels::cpu::ZERONE_ISA_NAMESPACE
