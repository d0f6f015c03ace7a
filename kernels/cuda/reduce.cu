// Sums over axes. The axes of x fall into kept ones (they number the outputs) and reduced ones;
// each kind is merged where memory allows. Which kind lies innermost in memory picks the kernel:
//   sum_rows     innermost reduced (everything to a scalar, bias gradient in NCHW): a group of 1 to
//                32 or 256 threads per output strides over its elements, up to 16 bytes a load and
//                several loads in flight, then adds by a shuffle tree.
//   sum_columns  innermost kept (bias gradient in NHWC, sum over a batch): threads tx x ty hold
//                tx vectors of columns, stride over the rows by ty, then add by a tree over ty.
// Few outputs with long reductions are split into `splits` parts, a number that depends on the
// shape only (about 1024 blocks of at least 8192 elements each), whose partial sums combine() adds,
// one warp per output. Floor: one read of x at copy bandwidth.
#include <zerone/kernels/cuda/reduce.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include <zerone/kernels/elementwise.h>
#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int block_threads = 256;
constexpr std::int64_t target_blocks = 1024;
constexpr std::int64_t least_chunk = 8192;  // elements a block should at least add
constexpr std::int64_t column_tile = 128;   // columns of one block, for counting splits

/// An index space and the offsets of its points in two operands.
struct Axes {
  int rank = 1;
  bool wide = false;  // 2^31 points or more: plain 64-bit division
  FastDivisor divisors[max_rank];
  std::int64_t sizes[max_rank] = {};
  std::int64_t strides[2][max_rank] = {};

  __device__ __forceinline__ void offsets(std::int64_t index, std::int64_t& first,
                                          std::int64_t& second) const {
    first = second = 0;
    if (wide) {
      for (int axis = rank - 1; axis > 0; --axis) {
        const std::int64_t quotient = index / sizes[axis];
        const std::int64_t at = index - quotient * sizes[axis];
        first += at * strides[0][axis];
        second += at * strides[1][axis];
        index = quotient;
      }
    } else {
      std::uint32_t rest = static_cast<std::uint32_t>(index);
      for (int axis = rank - 1; axis > 0; --axis) {
        const std::uint32_t quotient = divisors[axis].quotient(rest);
        const std::int64_t at = rest - quotient * divisors[axis].divisor;
        first += at * strides[0][axis];
        second += at * strides[1][axis];
        rest = quotient;
      }
      index = rest;
    }
    first += index * strides[0][0];
    second += index * strides[1][0];
  }
};

template <class C>
__device__ __forceinline__ C warp_sum(C value, int width) {
  for (int step = width / 2; step > 0; step /= 2)
    value += __shfl_down_sync(~0u, value, step, width);
  return value;
}

/// Where results go: out when there is one split, else partial sums (output, split).
template <class T>
struct Sink {
  T* out;
  Compute<T>* partials;
  Compute<T> scale;
  std::int64_t splits;

  __device__ __forceinline__ void store(std::int64_t output, std::int64_t split,
                                        std::int64_t out_offset, Compute<T> value) const {
    if (splits == 1) {
      out[out_offset] = narrow<T>(scale * value);
    } else {
      partials[output * splits + split] = value;
    }
  }
};

/// Kept axes: strides of x and out. Reduced axes, in vectors of V: strides of x, and of b where the
/// squared difference x - b is summed. `chunk` and `length` count vectors.
template <class T, int V, bool Squares>
__global__ void __launch_bounds__(block_threads)
    sum_rows(const T* x, const T* b, const __grid_constant__ Axes kept,
             const __grid_constant__ Axes reduced, const __grid_constant__ Sink<T> sink,
             std::int64_t outputs, std::int64_t length, std::int64_t chunk, int group) {
  using C = Compute<T>;
  constexpr int unroll = V > 1 ? 4 : 8;
  const std::int64_t thread = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const int lane = threadIdx.x % group;
  const std::int64_t item = thread / group;
  const std::int64_t output = sink.splits == 1 ? item : item / sink.splits;
  const std::int64_t split = sink.splits == 1 ? 0 : item - output * sink.splits;
  const bool live = output < outputs;
  std::int64_t x_begin = 0, out_offset = 0;
  if (live) kept.offsets(output, x_begin, out_offset);

  C sums[V] = {};
  const auto add = [&](const Vector<T, V>& values, const Vector<T, V>& others) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      if constexpr (Squares) {
        const C difference = widen(values.values[j]) - widen(others.values[j]);
        sums[j] = fma(difference, difference, sums[j]);
      } else {
        sums[j] += widen(values.values[j]);
      }
    }
  };
  if (live) {
    std::int64_t i = split * chunk + lane;
    const std::int64_t end = min(split * chunk + chunk, length);
    for (; i + (unroll - 1) * group < end; i += unroll * group) {
      Vector<T, V> values[unroll], others[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        std::int64_t x_offset, b_offset;
        reduced.offsets(i + u * group, x_offset, b_offset);
        values[u] = *reinterpret_cast<const Vector<T, V>*>(x + x_begin + x_offset);
        if constexpr (Squares) others[u] = *reinterpret_cast<const Vector<T, V>*>(b + b_offset);
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) add(values[u], others[u]);
    }
    for (; i < end; i += group) {
      std::int64_t x_offset, b_offset;
      reduced.offsets(i, x_offset, b_offset);
      const auto values = *reinterpret_cast<const Vector<T, V>*>(x + x_begin + x_offset);
      Vector<T, V> others;
      if constexpr (Squares) others = *reinterpret_cast<const Vector<T, V>*>(b + b_offset);
      add(values, others);
    }
  }
#pragma unroll
  for (int step = V / 2; step > 0; step /= 2) {
#pragma unroll
    for (int j = 0; j < step; ++j) sums[j] += sums[j + step];
  }
  C total = warp_sum(sums[0], min(group, 32));
  if (group > 32) {  // the whole block works on one output
    __shared__ C of_warps[block_threads / 32];
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x < 32) {
      total = threadIdx.x < block_threads / 32 ? of_warps[threadIdx.x] : C{0};
      total = warp_sum(total, block_threads / 32);
    }
  }
  if (live && lane == 0) sink.store(output, split, out_offset, total);
}

/// The last kept axis has `columns` elements, V of them to a thread; `outer` holds the other kept
/// axes. `chunk` and `length` count rows.
template <class T, int V>
__global__ void __launch_bounds__(block_threads)
    sum_columns(const T* x, const __grid_constant__ Axes outer,
                const __grid_constant__ Axes reduced, const __grid_constant__ Sink<T> sink,
                std::int64_t columns, std::int64_t x_stride, std::int64_t out_stride,
                std::int64_t length, std::int64_t chunk, int tx) {
  using C = Compute<T>;
  constexpr int unroll = 4;
  __shared__ C shared[block_threads * V];
  const int ty = block_threads / tx, column_lane = threadIdx.x % tx, row_lane = threadIdx.x / tx;
  const std::uint32_t tiles = static_cast<std::uint32_t>((columns + tx * V - 1) / (tx * V));
  const std::uint32_t splits = static_cast<std::uint32_t>(sink.splits);
  const std::uint32_t tile_index = blockIdx.x / splits, split = blockIdx.x - tile_index * splits;
  const std::uint32_t outer_index = tile_index / tiles;
  const std::int64_t column =
      (std::int64_t{tile_index - outer_index * tiles} * tx + column_lane) * V;
  std::int64_t x_begin, out_begin;
  outer.offsets(outer_index, x_begin, out_begin);
  x += x_begin + column * x_stride;

  C sums[V] = {};
  const auto add = [&](const Vector<T, V>& values) {
#pragma unroll
    for (int j = 0; j < V; ++j) sums[j] += widen(values.values[j]);
  };
  if (column < columns) {
    std::int64_t i = split * chunk + row_lane;
    const std::int64_t end = min(split * chunk + chunk, length);
    std::int64_t offset, unused;
    for (; i + (unroll - 1) * ty < end; i += unroll * ty) {
      Vector<T, V> values[unroll];
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
        reduced.offsets(i + u * ty, offset, unused);
        values[u] = *reinterpret_cast<const Vector<T, V>*>(x + offset);
      }
#pragma unroll
      for (int u = 0; u < unroll; ++u) add(values[u]);
    }
    for (; i < end; i += ty) {
      reduced.offsets(i, offset, unused);
      add(*reinterpret_cast<const Vector<T, V>*>(x + offset));
    }
  }
#pragma unroll
  for (int j = 0; j < V; ++j) shared[j * block_threads + threadIdx.x] = sums[j];
  for (int step = ty / 2; step > 0; step /= 2) {
    __syncthreads();
    if (row_lane >= step) continue;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      C* const mine = shared + j * block_threads + threadIdx.x;
      *mine += mine[step * tx];
    }
  }
  if (row_lane != 0) return;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    if (column + j >= columns) return;
    sink.store(outer_index * columns + column + j, split, out_begin + (column + j) * out_stride,
               shared[j * block_threads + threadIdx.x]);
  }
}

/// Adds the partial sums of each output, a warp per output.
template <class T>
__global__ void __launch_bounds__(block_threads)
    combine(const __grid_constant__ Axes kept, const __grid_constant__ Sink<T> sink,
            std::int64_t outputs) {
  const std::int64_t output = std::int64_t{blockIdx.x} * (block_threads / 32) + threadIdx.x / 32;
  if (output >= outputs) return;
  const int lane = threadIdx.x % 32;
  const Compute<T>* const partials = sink.partials + output * sink.splits;
  Compute<T> total = 0;
#pragma unroll 8
  for (std::int64_t i = lane; i < sink.splits; i += 32) total += partials[i];
  total = warp_sum(total, 32);
  if (lane != 0) return;
  std::int64_t unused, out_offset;
  kept.offsets(output, unused, out_offset);
  sink.out[out_offset] = narrow<T>(sink.scale * total);
}

/// Axes on the host, outermost first.
struct HostAxes {
  int rank = 0;
  std::array<std::int64_t, max_rank> sizes{};
  std::array<std::array<std::int64_t, max_rank>, 2> strides{};

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= sizes[i];
    return n;
  }

  void push(std::int64_t size, std::int64_t first, std::int64_t second) {
    sizes[rank] = size;
    strides[0][rank] = first;
    strides[1][rank] = second;
    ++rank;
  }

  /// For the device, with the innermost axis in steps of `width`.
  Axes on_device(int width) const {
    Axes axes;
    axes.rank = std::max(rank, 1);
    axes.wide = numel() >= std::int64_t{1} << 31;
    for (int i = 0; i < rank; ++i) {
      const std::int64_t step = i == rank - 1 ? width : 1;
      axes.sizes[i] = sizes[i] / step;
      if (!axes.wide && axes.sizes[i] > 0) {
        axes.divisors[i] = FastDivisor(static_cast<std::uint32_t>(axes.sizes[i]));
      }
      for (int k = 0; k < 2; ++k) axes.strides[k][i] = strides[k][i] * step;
    }
    return axes;
  }
};

struct Plan {
  HostAxes kept;     // strides of x and out
  HostAxes reduced;  // strides of x, and of b in a squared error
  bool columns = false;
  std::int64_t outputs = 1, length = 1;  // points of kept and of reduced
  std::int64_t splits = 1, chunk = 1;    // `splits` parts of `chunk` reduced points cover `length`
};

/// Cuts the reduction into parts of a multiple of `granule` points, where one part takes `blocks`
/// blocks and each point stands for `elements_per_point` elements of such a block.
void set_splits(Plan& plan, std::int64_t elements_per_point, std::int64_t blocks,
                std::int64_t granule) {
  const std::int64_t elements = plan.length * elements_per_point;
  const std::int64_t most =
      std::max<std::int64_t>(1, target_blocks / std::max<std::int64_t>(blocks, 1));
  const std::int64_t wanted = std::clamp<std::int64_t>(elements / least_chunk, 1, most);
  const std::int64_t share = (plan.length + wanted - 1) / wanted;
  plan.chunk = std::max<std::int64_t>(1, (share + granule - 1) / granule) * granule;
  plan.splits = std::max<std::int64_t>(1, (plan.length + plan.chunk - 1) / plan.chunk);
}

Plan plan_sum(const Layout& out, const Layout& x) {
  struct Axis {
    std::int64_t size, x_stride, out_stride;
    bool reduced;
  };
  std::array<Axis, max_rank> sorted;
  int rank = 0;
  const auto lies_inside = [](std::int64_t inner, std::int64_t outer) {
    return inner != 0 && (outer == 0 || outer > inner);  // stride 0 counts as outermost
  };
  for (int i = 0; i < x.rank; ++i) {
    if (x.sizes[i] == 1) continue;
    const Axis axis{x.sizes[i], x.strides[i], out.strides[i], out.sizes[i] == 1};
    int at = rank++;
    for (; at > 0 && lies_inside(sorted[at - 1].x_stride, axis.x_stride); --at) {
      sorted[at] = sorted[at - 1];
    }
    sorted[at] = axis;
  }
  Plan plan;
  for (int i = 0; i < rank; ++i) {
    const Axis& axis = sorted[i];
    HostAxes& axes = axis.reduced ? plan.reduced : plan.kept;
    const bool neighbor = i > 0 && sorted[i - 1].reduced == axis.reduced;
    const int last = axes.rank - 1;
    if (neighbor && axes.strides[0][last] == axis.x_stride * axis.size &&
        (axis.reduced || axes.strides[1][last] == axis.out_stride * axis.size)) {
      axes.sizes[last] *= axis.size;
      axes.strides[0][last] = axis.x_stride;
      axes.strides[1][last] = axis.reduced ? 0 : axis.out_stride;
    } else {
      axes.push(axis.size, axis.x_stride, axis.reduced ? 0 : axis.out_stride);
    }
  }
  plan.columns = rank > 0 && !sorted[rank - 1].reduced;
  plan.outputs = plan.kept.numel();
  plan.length = plan.reduced.numel();
  if (plan.columns) {
    const std::int64_t columns = plan.kept.sizes[plan.kept.rank - 1];
    const std::int64_t tiles = (columns + column_tile - 1) / column_tile;
    set_splits(plan, std::min(columns, column_tile),
               columns == 0 ? 1 : plan.outputs / columns * tiles, 1);
  } else {
    set_splits(plan, 1, plan.outputs, 16);  // 16 keeps vectors whole
  }
  return plan;
}

Plan plan_squared_error(const CollapsedAxes<2>& axes) {
  Plan plan;
  for (int i = 0; i < axes.rank; ++i) {
    plan.reduced.push(axes.sizes[i], axes.strides[0][i], axes.strides[1][i]);
  }
  plan.length = plan.reduced.numel();
  set_splits(plan, 1, 1, 16);
  return plan;
}

std::size_t workspace_bytes(const Plan& plan, DType dtype) {
  if (plan.splits == 1) return 0;
  return static_cast<std::size_t>(plan.outputs * plan.splits) * (dtype == DType::f64 ? 8 : 4);
}

/// Whether the strides in operand `k` step over whole vectors, but for axis `innermost` of `axes`
/// (-1: none is exempt), which must be dense.
bool in_vectors(const HostAxes& axes, int k, int innermost, int width) {
  for (int i = 0; i < axes.rank; ++i) {
    if (i == innermost ? axes.strides[k][i] != 1 || axes.sizes[i] % width != 0
                       : axes.strides[k][i] % width != 0) {
      return false;
    }
  }
  return true;
}

int power_of_two_from(std::int64_t least, int most) {
  int power = 1;
  while (power < most && power < least) power *= 2;
  return power;
}

template <class T, int V, bool Squares>
void launch_rows(const Plan& plan, const Sink<T>& sink, const T* x, const T* b,
                 cudaStream_t stream) {
  const std::int64_t chunk = plan.splits == 1 ? plan.length / V : plan.chunk / V;
  const int group = chunk >= 512 ? block_threads : power_of_two_from((chunk + 3) / 4, 32);
  const std::int64_t per_block = block_threads / group;
  const std::int64_t blocks = (plan.outputs * plan.splits + per_block - 1) / per_block;
  sum_rows<T, V, Squares><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(
      x, b, plan.kept.on_device(1), plan.reduced.on_device(V), sink, plan.outputs, plan.length / V,
      chunk, group);
}

template <class T, int V>
void launch_columns(const Plan& plan, const Sink<T>& sink, const T* x, cudaStream_t stream) {
  const int last = plan.kept.rank - 1;
  HostAxes outer = plan.kept;
  --outer.rank;
  const std::int64_t columns = plan.kept.sizes[last];
  const std::int64_t vectors = columns / V;
  const int rows = power_of_two_from(plan.length, block_threads);
  const int tx = power_of_two_from(vectors, std::max(32, block_threads / rows));
  const std::int64_t tiles = (vectors + tx - 1) / tx;
  const std::int64_t blocks = outer.numel() * tiles * plan.splits;
  sum_columns<T, V><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(
      x, outer.on_device(1), plan.reduced.on_device(1), sink, columns, plan.kept.strides[0][last],
      plan.kept.strides[1][last], plan.length, plan.chunk, tx);
}

template <class T, bool Squares>
cudaError_t run(const Plan& plan, void* out, const void* x_data, const void* b_data, double scale,
                void* workspace, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(T);
  if (plan.outputs == 0) return cudaSuccess;
  const T* const x = static_cast<const T*>(x_data);
  const T* const b = static_cast<const T*>(b_data);
  const Sink<T> sink{static_cast<T*>(out), static_cast<Compute<T>*>(workspace),
                     static_cast<Compute<T>>(scale), plan.splits};
  const int inner_kept = plan.columns ? plan.kept.rank - 1 : -1;
  const int inner_reduced = plan.columns ? -1 : plan.reduced.rank - 1;
  const bool vectors =
      (plan.columns || inner_reduced >= 0) && is_aligned(x, 16) &&
      in_vectors(plan.kept, 0, inner_kept, V) && in_vectors(plan.reduced, 0, inner_reduced, V) &&
      (!Squares || (is_aligned(b, 16) && in_vectors(plan.reduced, 1, inner_reduced, V)));
  if constexpr (!Squares) {
    if (plan.columns) {
      if (vectors) {
        launch_columns<T, V>(plan, sink, x, stream);
      } else {
        launch_columns<T, 1>(plan, sink, x, stream);
      }
    }
  }
  if (!plan.columns) {
    if (vectors) {
      launch_rows<T, V, Squares>(plan, sink, x, b, stream);
    } else {
      launch_rows<T, 1, Squares>(plan, sink, x, b, stream);
    }
  }
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  if (plan.splits == 1) return cudaSuccess;
  constexpr std::int64_t per_block = block_threads / 32;
  const std::int64_t blocks = (plan.outputs + per_block - 1) / per_block;
  combine<T><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(plan.kept.on_device(1),
                                                                          sink, plan.outputs);
  return cudaGetLastError();
}

template <bool Squares>
cudaError_t run_typed(const Plan& plan, DType dtype, void* out, const void* x, const void* b,
                      double scale, void* workspace, cudaStream_t stream) {
  switch (dtype) {
    case DType::f64: return run<double, Squares>(plan, out, x, b, scale, workspace, stream);
    case DType::f32: return run<float, Squares>(plan, out, x, b, scale, workspace, stream);
    case DType::bf16: return run<__nv_bfloat16, Squares>(plan, out, x, b, scale, workspace, stream);
    case DType::f16: return run<__half, Squares>(plan, out, x, b, scale, workspace, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

std::size_t sum_workspace_bytes(const Layout& out, const Layout& x, DType dtype) {
  return workspace_bytes(plan_sum(out, x), dtype);
}

cudaError_t sum(View out, ConstView x, double scale, void* workspace, cudaStream_t stream) {
  if (out.dtype != x.dtype || out.layout.rank != x.layout.rank) return cudaErrorInvalidValue;
  return run_typed<false>(plan_sum(out.layout, x.layout), x.dtype, out.data, x.data, nullptr, scale,
                          workspace, stream);
}

std::size_t squared_error_sum_workspace_bytes(const Layout& a, DType dtype) {
  return workspace_bytes(plan_squared_error(collapse_axes<2>({&a, &a})), dtype);
}

cudaError_t squared_error_sum(void* out_scalar, ConstView a, ConstView b, double scale,
                              void* workspace, cudaStream_t stream) {
  if (a.dtype != b.dtype) return cudaErrorInvalidValue;
  const CollapsedAxes<2> axes = collapse_axes<2>({&a.layout, &b.layout});
  return run_typed<true>(plan_squared_error(axes), a.dtype, out_scalar, a.data, b.data, scale,
                         workspace, stream);
}

}  // namespace zerone::kernels::cuda
