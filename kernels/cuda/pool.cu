// Pooling, a thread a result vector. Vectors lie along the channels where those are innermost
// (NHWC); else columns are innermost, forward results are single ones (neighbors read the same
// lines from L1) and gradients are vectors of columns. Threads are numbered in the order of memory.
//
//   forward         All taps of a 2x2 or 3x3 window (K = 2, 3) are loaded before the first is
//                   used, absent ones replaced by what changes nothing; other windows in loops.
//   forward_pairs   2x2 windows, stride 2, no padding, rows of columns: a thread loads V elements
//                   of two rows and makes V / 2 results.
//   backward        Each element of dx sums over the windows that hold it, in row-major order. A
//                   window with its maximum at tap a is at column a - r * kw of tap row r, if that
//                   is one; so a row of columns needs no division and no atomic. Four windows are
//                   loaded at once.
//
// Index arithmetic is in 32 bits, with divisions by multiplication; batches beyond 2^31 elements
// are cut into launches, and images beyond that take the same kernels in 64 bits without vectors.
// Floor: the bytes of x and y, and of dy, argmax and dx, at copy bandwidth. Windows that overlap
// much, and averages over large ones, are bound by L1 or by the loop instead.
#include <zerone/kernels/cuda/pool.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int block_threads = 256;
constexpr std::int64_t index_limit = std::int64_t{1} << 31;

struct None {};  // the type of argmax where there is none

/// n / divisor for n >= 0.
template <class Index>
struct Divider {
  FastDivisor fast;
  Index divisor = 1;

  Divider() = default;
  explicit Divider(Index d) : divisor(d) {
    if (sizeof(Index) == 4) fast = FastDivisor(static_cast<std::uint32_t>(d));
  }
  __device__ __forceinline__ Index operator()(Index n) const {
    if constexpr (sizeof(Index) == 4) return static_cast<Index>(fast.quotient(n));
    return n / divisor;
  }
};

/// The problem with the numbering of its threads.
template <class Index>
struct Problem {
  PoolAxis<Index> h, w;
  Divider<Index> stride_h, stride_w;
  std::int64_t x_strides[4], y_strides[4], argmax_strides[4];
  // Threads are numbered (n, c, row, column), or (n, row, column, c) with `channels_inside`; in
  // steps of a vector along the innermost axis.
  Divider<Index> inner, middle, outer;
  bool channels_inside = false;
  std::int64_t threads = 0;
};

/// Where a thread works: the first lane of its vector.
template <class Index>
struct Place {
  Index n, c, row, column;
};

/// `along_c`, `along_w`: elements in a vector.
template <class Index>
__device__ __forceinline__ Place<Index> place_of(const Problem<Index>& s, Index thread, int along_c,
                                                 int along_w) {
  const Index inner = s.inner(thread), d = thread - inner * s.inner.divisor;
  const Index middle = s.middle(inner), b = inner - middle * s.middle.divisor;
  const Index n = s.outer(middle), a = middle - n * s.outer.divisor;
  if (s.channels_inside) return {n, d * along_c, a, b * along_w};
  return {n, a * along_c, b, d * along_w};
}

template <class Index>
__device__ __forceinline__ std::int64_t offset(const std::int64_t (&strides)[4], Index n, Index c,
                                               Index row, Index column) {
  return n * strides[0] + c * strides[1] + row * strides[2] + column * strides[3];
}

template <class T, int V>
__device__ __forceinline__ Vector<T, V> load(const T* from) {
  return *reinterpret_cast<const Vector<T, V>*>(from);
}
template <int V, class T>
__device__ __forceinline__ void store(T* to, const Vector<T, V>& values) {
  *reinterpret_cast<Vector<T, V>*>(to) = values;
}

/// What V lanes of a maximum hold; A is the type of argmax, or None.
template <class T, class A, int V>
struct Largest {
  using C = Compute<T>;
  C best[V];
  A places[V];

  __device__ static T neutral() { return narrow<T>(-static_cast<C>(INFINITY)); }
  template <class Index>
  __device__ explicit Largest(Index first_tap) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      best[v] = -static_cast<C>(INFINITY);
      if constexpr (!std::is_same_v<A, None>) places[v] = static_cast<A>(first_tap);
    }
  }
  template <class Index>
  __device__ void take(int v, T element, Index tap) {
    const C value = widen(element);
    const bool better = value > best[v] || value != value;
    best[v] = better ? value : best[v];
    if constexpr (!std::is_same_v<A, None>) places[v] = better ? static_cast<A>(tap) : places[v];
  }
  template <class Index>
  __device__ Vector<T, V> result(Index) const {
    Vector<T, V> y;
#pragma unroll
    for (int v = 0; v < V; ++v) y.values[v] = narrow<T>(best[v]);
    return y;
  }
  __device__ void store_places(A* to) const {
    if constexpr (!std::is_same_v<A, None>) {
      Vector<A, V> all;
#pragma unroll
      for (int v = 0; v < V; ++v) all.values[v] = places[v];
      store<V>(to, all);
    }
  }
};

/// What V lanes of an average hold.
template <class T, int V>
struct Total {
  using C = Compute<T>;
  C sum[V] = {};

  __device__ static T neutral() { return narrow<T>(C{0}); }
  template <class Index>
  __device__ explicit Total(Index) {}
  template <class Index>
  __device__ void take(int v, T element, Index) {
    sum[v] += widen(element);
  }
  template <class Index>
  __device__ Vector<T, V> result(Index divisor) const {
    Vector<T, V> y;
#pragma unroll
    for (int v = 0; v < V; ++v) y.values[v] = narrow<T>(sum[v] / static_cast<C>(divisor));
    return y;
  }
  __device__ void store_places(None*) const {}
};

/// Lanes of an operation: Largest<T, A, V> with an argmax of type A, or Total<T, V>.
template <class A>
struct Max {
  using Argmax = A;
  static constexpr bool averages = false;
  template <class T, int V>
  using Lanes = Largest<T, A, V>;
};
struct Average {
  using Argmax = None;
  static constexpr bool averages = true;
  template <class T, int V>
  using Lanes = Total<T, V>;
};

template <class Op, class T, class Index, int K, int V>
__global__ void __launch_bounds__(block_threads)
    forward(const __grid_constant__ Problem<Index> s, const T* x, T* y,
            typename Op::Argmax* argmax) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (thread >= s.threads) return;
  const auto [n, c, p, q] = place_of(s, static_cast<Index>(thread), V, 1);
  // Taps are counted from (row, column) on.
  Index row = p * s.h.stride - s.h.pad, column = q * s.w.stride - s.w.pad;
  PoolRange<Index> rows, columns;
  if (K == 0 && s.h.kernel == 0) {
    rows = pool_window(s.h, p), columns = pool_window(s.w, q);
    row = column = 0;
  } else {
    rows = pool_taps(s.h, p), columns = pool_taps(s.w, q);
  }
  typename Op::template Lanes<T, V> lanes(rows.begin * s.w.kernel + columns.begin);
  const T* const from = x + offset(s.x_strides, n, c, row, column);
  const std::int64_t down = s.h.dilation * s.x_strides[2], right = s.w.dilation * s.x_strides[3];
  if constexpr (K > 0) {
    Vector<T, V> taps[K * K];
#pragma unroll
    for (int r = 0; r < K; ++r) {
#pragma unroll
      for (int t = 0; t < K; ++t) {
        Vector<T, V>& tap = taps[r * K + t];
#pragma unroll
        for (int v = 0; v < V; ++v) tap.values[v] = lanes.neutral();
        if (r >= rows.begin && r < rows.end && t >= columns.begin && t < columns.end) {
          tap = load<T, V>(from + r * down + t * right);
        }
      }
    }
#pragma unroll
    for (int tap = 0; tap < K * K; ++tap) {
#pragma unroll
      for (int v = 0; v < V; ++v) lanes.take(v, taps[tap].values[v], tap);
    }
  } else {
    for (Index r = rows.begin; r < rows.end; ++r) {
#pragma unroll 4
      for (Index t = columns.begin; t < columns.end; ++t) {
        const Vector<T, V> tap = load<T, V>(from + r * down + t * right);
#pragma unroll
        for (int v = 0; v < V; ++v) lanes.take(v, tap.values[v], r * s.w.kernel + t);
      }
    }
  }
  Index divisor = 1;
  if constexpr (Op::averages) divisor = pool_divisor(s.h, p) * pool_divisor(s.w, q);
  store<V>(y + offset(s.y_strides, n, c, p, q), lanes.result(divisor));
  if constexpr (!std::is_same_v<typename Op::Argmax, None>) {
    lanes.store_places(argmax + offset(s.argmax_strides, n, c, p, q));
  }
}

template <class Op, class T, int V>
__global__ void __launch_bounds__(block_threads)
    forward_pairs(const __grid_constant__ Problem<std::int32_t> s, const T* x, T* y,
                  typename Op::Argmax* argmax) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (thread >= s.threads) return;
  const auto [n, c, p, q] = place_of(s, static_cast<std::int32_t>(thread), 1, V / 2);
  const T* const from = x + offset(s.x_strides, n, c, 2 * p, 2 * q);
  const Vector<T, V> rows[2] = {load<T, V>(from), load<T, V>(from + s.x_strides[2])};
  typename Op::template Lanes<T, V / 2> lanes(0);
#pragma unroll
  for (int tap = 0; tap < 4; ++tap) {
#pragma unroll
    for (int v = 0; v < V / 2; ++v) lanes.take(v, rows[tap / 2].values[2 * v + tap % 2], tap);
  }
  store<V / 2>(y + offset(s.y_strides, n, c, p, q), lanes.result(4));
  if constexpr (!std::is_same_v<typename Op::Argmax, None>) {
    lanes.store_places(argmax + offset(s.argmax_strides, n, c, p, q));
  }
}

/// The tap of window o that position i is; -1 if it is none.
template <class Index>
__device__ __forceinline__ Index tap_at(const PoolAxis<Index>& axis, Index o, Index i) {
  const Index distance = i + axis.pad - o * axis.stride;
  if (axis.dilation == 1) return distance;
  return distance % axis.dilation == 0 ? distance / axis.dilation : -1;
}

/// dx in vectors of V channels.
template <class Op, class T, class Index, int V>
__global__ void __launch_bounds__(block_threads)
    backward_channels(const __grid_constant__ Problem<Index> s, const T* dy,
                      const typename Op::Argmax* argmax, T* dx) {
  using C = Compute<T>;
  const std::int64_t thread = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (thread >= s.threads) return;
  const auto [n, c, i, j] = place_of(s, static_cast<Index>(thread), V, 1);
  const PoolRange<Index> rows = pool_windows_over(s.h, i, s.stride_h);
  const PoolRange<Index> columns = pool_windows_over(s.w, j, s.stride_w);
  C sums[V] = {};
  for (Index p = rows.begin; p < rows.end; ++p) {
#pragma unroll 2
    for (Index q = columns.begin; q < columns.end; ++q) {
      const Vector<T, V> gradient = load<T, V>(dy + offset(s.y_strides, n, c, p, q));
      if constexpr (Op::averages) {
        const C divisor = static_cast<C>(pool_divisor(s.h, p) * pool_divisor(s.w, q));
#pragma unroll
        for (int v = 0; v < V; ++v) sums[v] += widen(gradient.values[v]) / divisor;
      } else {
        using A = typename Op::Argmax;
        const Vector<A, V> places = load<A, V>(argmax + offset(s.argmax_strides, n, c, p, q));
        const Index r = tap_at(s.h, p, i), t = tap_at(s.w, q, j);
        if (r < 0 || t < 0) continue;
        const A tap = static_cast<A>(r * s.w.kernel + t);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          if (places.values[v] == tap) sums[v] += widen(gradient.values[v]);
        }
      }
    }
  }
  Vector<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.values[v] = narrow<T>(sums[v]);
  store<V>(dx + offset(s.x_strides, n, c, i, j), result);
}

/// dx in vectors of V columns.
template <class Op, class T, class Index, int V>
__global__ void __launch_bounds__(block_threads)
    backward_columns(const __grid_constant__ Problem<Index> s, const T* dy,
                     const typename Op::Argmax* argmax, T* dx) {
  using C = Compute<T>;
  constexpr int batch = 4;  // windows in flight
  const std::int64_t thread = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (thread >= s.threads) return;
  const auto [n, c, i, j] = place_of(s, static_cast<Index>(thread), 1, V);
  const PoolRange<Index> rows = pool_windows_over(s.h, i, s.stride_h);
  PoolRange<Index> columns = pool_windows_over(s.w, j, s.stride_w);
  if (V > 1) columns.end = pool_windows_over(s.w, j + (V - 1), s.stride_w).end;
  C sums[V] = {};
  for (Index p = rows.begin; p < rows.end; ++p) {
    Index first_tap = 0, divisor = 1;
    if constexpr (Op::averages) {
      divisor = pool_divisor(s.h, p);
    } else {
      const Index r = tap_at(s.h, p, i);
      if (r < 0) continue;
      first_tap = r * s.w.kernel;
    }
    const T* const gradients = dy + offset(s.y_strides, n, c, p, Index{0});
    const typename Op::Argmax* places = argmax;
    if constexpr (!Op::averages) places += offset(s.argmax_strides, n, c, p, Index{0});
    for (Index q0 = columns.begin; q0 < columns.end; q0 += batch) {
      T gradient[batch];
      typename Op::Argmax place[batch];
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        if (q0 + k >= columns.end) continue;
        gradient[k] = gradients[(q0 + k) * s.y_strides[3]];
        if constexpr (!Op::averages) place[k] = places[(q0 + k) * s.argmax_strides[3]];
      }
#pragma unroll
      for (int k = 0; k < batch; ++k) {
        const Index q = q0 + k;
        if (q >= columns.end) continue;
        const C whole = widen(gradient[k]);
        if constexpr (Op::averages) {
          const C share = whole / static_cast<C>(divisor * pool_divisor(s.w, q));
          const PoolRange<Index> window = pool_window(s.w, q);
#pragma unroll
          for (int v = 0; v < V; ++v) {
            if (j + v >= window.begin && j + v < window.end) sums[v] += share;
          }
        } else {
          const Index t = static_cast<Index>(place[k]) - first_tap;
          const Index lane =
              t >= 0 && t < s.w.kernel ? q * s.w.stride - s.w.pad + t * s.w.dilation - j : -1;
#pragma unroll
          for (int v = 0; v < V; ++v) {
            if (lane == v) sums[v] += whole;
          }
        }
      }
    }
  }
  Vector<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.values[v] = narrow<T>(sums[v]);
  store<V>(dx + offset(s.x_strides, n, c, i, j), result);
}

// --- host ---------------------------------------------------------------------------------------

template <class Index>
PoolAxis<Index> narrowed(const PoolAxis<>& a) {
  const auto index = [](std::int64_t value) { return static_cast<Index>(value); };
  return {index(a.in),       index(a.out), index(a.kernel),      index(a.stride),
          index(a.dilation), index(a.pad), index(a.count_begin), index(a.count_end)};
}

/// Whether every position and every product of an axis fits in 31 bits.
bool fits(const PoolAxis<>& a) {
  if (a.kernel == 0) return (a.in + 1) * (a.out + 1) < index_limit;
  return std::max({a.in, a.kernel * a.dilation, a.stride}) < index_limit / 4;
}

/// The problem whose threads make vectors of (along_c, along_w) elements of a tensor of `height`
/// rows and `width` columns.
template <class Index>
Problem<Index> make_problem(const Pool2dShape& s, std::int64_t height, std::int64_t width,
                            bool channels_inside, int along_c, int along_w) {
  Problem<Index> problem;
  problem.h = narrowed<Index>(s.h), problem.w = narrowed<Index>(s.w);
  problem.stride_h = Divider<Index>(problem.h.stride);
  problem.stride_w = Divider<Index>(problem.w.stride);
  std::copy(s.x_strides.begin(), s.x_strides.end(), problem.x_strides);
  std::copy(s.y_strides.begin(), s.y_strides.end(), problem.y_strides);
  std::copy(s.argmax_strides.begin(), s.argmax_strides.end(), problem.argmax_strides);
  const auto channels = static_cast<Index>(s.c / along_c), rows = static_cast<Index>(height),
             columns = static_cast<Index>(width / along_w);
  problem.channels_inside = channels_inside;
  problem.inner = Divider<Index>(channels_inside ? channels : columns);
  problem.middle = Divider<Index>(channels_inside ? columns : rows);
  problem.outer = Divider<Index>(channels_inside ? rows : channels);
  problem.threads = s.n * channels * rows * columns;
  return problem;
}

unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>((threads + block_threads - 1) / block_threads);
}

/// Whether a tensor can be accessed in vectors of `width` along `axis` (of N,C,H,W).
template <class T>
bool takes_vectors(const void* data, const std::array<std::int64_t, 4>& strides, int axis,
                   int width) {
  for (int i = 0; i < 4; ++i) {
    if (i == axis ? strides[i] != 1 : strides[i] % width != 0) return false;
  }
  return is_aligned(data, std::min<std::size_t>(16, sizeof(T) * width));
}

bool channels_inside(const std::array<std::int64_t, 4>& strides, std::int64_t c) {
  return c > 1 && strides[1] < strides[3];
}

/// x, y and argmax; backward dy, dx and argmax.
template <class Op, class T>
struct Operands {
  const T* in;
  T* out;
  typename Op::Argmax* argmax;
};

template <class Op, class T, class Index, int K, int V>
cudaError_t launch_forward(const Pool2dShape& s, const Operands<Op, T>& o, bool inside,
                           cudaStream_t stream) {
  const auto problem = make_problem<Index>(s, s.h.out, s.w.out, inside, V, 1);
  forward<Op, T, Index, K, V>
      <<<blocks_for(problem.threads), block_threads, 0, stream>>>(problem, o.in, o.out, o.argmax);
  return cudaGetLastError();
}

/// forward_pairs() if the problem is one of V elements a row and thread; false if not.
template <class Op, class T, int V>
bool launch_pairs(const Pool2dShape& s, const Operands<Op, T>& o, cudaStream_t stream) {
  const auto even = [](const PoolAxis<>& a) {
    return a.kernel == 2 && a.stride == 2 && a.dilation == 1 && a.pad == 0 && 2 * a.out <= a.in;
  };
  using A = typename Op::Argmax;
  constexpr int results = V / 2;
  if (!even(s.h) || !even(s.w) || s.w.out % results != 0 ||
      !takes_vectors<T>(o.in, s.x_strides, 3, V) ||
      !takes_vectors<T>(o.out, s.y_strides, 3, results) ||
      (!std::is_same_v<A, None> && !takes_vectors<A>(o.argmax, s.argmax_strides, 3, results))) {
    return false;
  }
  const auto problem = make_problem<std::int32_t>(s, s.h.out, s.w.out, false, 1, results);
  forward_pairs<Op, T, V>
      <<<blocks_for(problem.threads), block_threads, 0, stream>>>(problem, o.in, o.out, o.argmax);
  return true;
}

/// Fewer than 2^31 elements in x and in y, and axes that fit().
template <class Op, class T>
cudaError_t forward_narrow(const Pool2dShape& s, const Operands<Op, T>& o, cudaStream_t stream) {
  using A = typename Op::Argmax;
  constexpr int V = 16 / sizeof(T);
  const bool inside = channels_inside(s.x_strides, s.c);
  const std::int64_t k = s.h.kernel == s.w.kernel ? s.h.kernel : 0;
  if constexpr (std::is_same_v<A, std::int64_t>) {  // large windows
    return launch_forward<Op, T, std::int32_t, 0, 1>(s, o, inside, stream);
  } else {
    if (launch_pairs<Op, T, V>(s, o, stream)) return cudaGetLastError();
    if constexpr (V > 2) {
      if (launch_pairs<Op, T, V / 2>(s, o, stream)) return cudaGetLastError();
    }
    const bool vectors =
        inside && s.c % V == 0 && takes_vectors<T>(o.in, s.x_strides, 1, V) &&
        takes_vectors<T>(o.out, s.y_strides, 1, V) &&
        (std::is_same_v<A, None> || takes_vectors<A>(o.argmax, s.argmax_strides, 1, V));
    const auto with_width = [&]<int Width>(std::integral_constant<int, Width>) {
      if (k == 2) return launch_forward<Op, T, std::int32_t, 2, Width>(s, o, inside, stream);
      if (k == 3) return launch_forward<Op, T, std::int32_t, 3, Width>(s, o, inside, stream);
      return launch_forward<Op, T, std::int32_t, 0, Width>(s, o, inside, stream);
    };
    return vectors ? with_width(std::integral_constant<int, V>{})
                   : with_width(std::integral_constant<int, 1>{});
  }
}

template <class Op, class T, class Index, int V>
cudaError_t launch_backward_channels(const Pool2dShape& s, const Operands<Op, T>& o,
                                     cudaStream_t stream) {
  const auto problem = make_problem<Index>(s, s.h.in, s.w.in, true, V, 1);
  backward_channels<Op, T, Index, V>
      <<<blocks_for(problem.threads), block_threads, 0, stream>>>(problem, o.in, o.argmax, o.out);
  return cudaGetLastError();
}

template <class Op, class T, class Index, int V>
cudaError_t launch_backward_columns(const Pool2dShape& s, const Operands<Op, T>& o,
                                    cudaStream_t stream) {
  const auto problem = make_problem<Index>(s, s.h.in, s.w.in, false, 1, V);
  backward_columns<Op, T, Index, V>
      <<<blocks_for(problem.threads), block_threads, 0, stream>>>(problem, o.in, o.argmax, o.out);
  return cudaGetLastError();
}

/// As forward_narrow().
template <class Op, class T>
cudaError_t backward_narrow(const Pool2dShape& s, const Operands<Op, T>& o, cudaStream_t stream) {
  using A = typename Op::Argmax;
  constexpr int V = 16 / sizeof(T);
  if (channels_inside(s.x_strides, s.c)) {
    const bool vectors =
        s.c % V == 0 && takes_vectors<T>(o.out, s.x_strides, 1, V) &&
        takes_vectors<T>(o.in, s.y_strides, 1, V) &&
        (std::is_same_v<A, None> || takes_vectors<A>(o.argmax, s.argmax_strides, 1, V));
    if (vectors && !std::is_same_v<A, std::int64_t>) {
      return launch_backward_channels<Op, T, std::int32_t, V>(s, o, stream);
    }
    return launch_backward_channels<Op, T, std::int32_t, 1>(s, o, stream);
  }
  if (s.w.in % V == 0 && takes_vectors<T>(o.out, s.x_strides, 3, V)) {
    return launch_backward_columns<Op, T, std::int32_t, V>(s, o, stream);
  }
  return launch_backward_columns<Op, T, std::int32_t, 1>(s, o, stream);
}

/// Calls narrow_part(part, operands) for as many images at a time as 32-bit indices allow, or
/// wide_part(shape, operands) where they do not reach. Images lie in_step and out_step apart.
template <class Op, class T, class Narrow, class Wide>
cudaError_t in_parts(Pool2dShape s, Operands<Op, T> o, std::int64_t in_step, std::int64_t out_step,
                     const Narrow& narrow_part, const Wide& wide_part) {
  const std::int64_t image = s.c * std::max(s.h.in * s.w.in, s.h.out * s.w.out);
  if (!fits(s.h) || !fits(s.w) || image >= index_limit - 16) return wide_part(s, o);
  const std::int64_t images = s.n, most = (index_limit - 1) / image;
  for (std::int64_t first = 0; first < images; first += most) {
    s.n = std::min(most, images - first);
    const Operands<Op, T> part{o.in + first * in_step, o.out + first * out_step,
                               o.argmax + (o.argmax ? first * s.argmax_strides[0] : 0)};
    if (const cudaError_t status = narrow_part(s, part); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

template <class Op, class T>
cudaError_t run_forward(const Pool2dShape& shape, const Pool2dForward& args, cudaStream_t stream) {
  return in_parts<Op, T>(
      shape,
      {static_cast<const T*>(args.x), static_cast<T*>(args.y),
       static_cast<typename Op::Argmax*>(args.argmax)},
      shape.x_strides[0], shape.y_strides[0],
      [&](const Pool2dShape& s, const auto& o) { return forward_narrow<Op, T>(s, o, stream); },
      [&](const Pool2dShape& s, const auto& o) {
        const bool inside = channels_inside(s.x_strides, s.c);
        return launch_forward<Op, T, std::int64_t, 0, 1>(s, o, inside, stream);
      });
}

template <class Op, class T>
cudaError_t run_backward(const Pool2dShape& shape, const Pool2dBackward& args,
                         cudaStream_t stream) {
  return in_parts<Op, T>(
      shape,
      {static_cast<const T*>(args.dy), static_cast<T*>(args.dx),
       static_cast<typename Op::Argmax*>(const_cast<void*>(args.argmax))},
      shape.y_strides[0], shape.x_strides[0],
      [&](const Pool2dShape& s, const auto& o) { return backward_narrow<Op, T>(s, o, stream); },
      [&](const Pool2dShape& s, const auto& o) {
        return channels_inside(s.x_strides, s.c)
                   ? launch_backward_channels<Op, T, std::int64_t, 1>(s, o, stream)
                   : launch_backward_columns<Op, T, std::int64_t, 1>(s, o, stream);
      });
}

/// Calls f(T{}) with the element type of a float dtype.
template <class F>
cudaError_t with_float_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(__nv_bfloat16{});
    case DType::f16: return f(__half{});
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t pool2d_forward(PoolOp op, const Pool2dShape& s, const Pool2dForward& args,
                           cudaStream_t stream) {
  if (s.n * s.c * s.h.out * s.w.out == 0) return cudaSuccess;
  return with_float_type(args.dtype, [&]<class T>(T) {
    if (op == PoolOp::average) return run_forward<Average, T>(s, args, stream);
    if (args.argmax == nullptr) return run_forward<Max<None>, T>(s, args, stream);
    return s.argmax_dtype() == DType::u8 ? run_forward<Max<std::uint8_t>, T>(s, args, stream)
                                         : run_forward<Max<std::int64_t>, T>(s, args, stream);
  });
}

cudaError_t pool2d_backward(PoolOp op, const Pool2dShape& s, const Pool2dBackward& args,
                            cudaStream_t stream) {
  if (s.n * s.c * s.h.in * s.w.in == 0) return cudaSuccess;
  return with_float_type(args.dtype, [&]<class T>(T) {
    if (op == PoolOp::average) return run_backward<Average, T>(s, args, stream);
    return s.argmax_dtype() == DType::u8 ? run_backward<Max<std::uint8_t>, T>(s, args, stream)
                                         : run_backward<Max<std::int64_t>, T>(s, args, stream);
  });
}

}  // namespace zerone::kernels::cuda
