// Batch normalization. Forward: statistics of chunks of each channel, finish_statistics joins them,
// map y. Backward: sums of dy and dy (x - mean) of chunks, finish_gradients, map dx. All four
// passes over the images are one of two kernels, by which axis lies innermost in memory:
//   by_rows     another axis (NCHW): a block of 256 threads takes up to 16384 values of one channel
//   by_columns  channels (NHWC): threads tx x ty hold tx vectors of channels and stride over the
//               pixels by ty, up to 64 a thread
// with 16-byte loads where sizes, strides and pointers allow, 4 in flight a thread and operand.
// A thread measures its at most 64 values of a channel from the first of them and hands count, mean
// and squares on in double, where joins lose nothing:
//   M2 = M2_a + M2_b + (mean_b - mean_a)^2 n_a n_b / n
// Floor: x read twice and y written once; backward x and dy read twice and dx written once.
#include <zerone/kernels/cuda/batch_norm.h>

#include <zerone/kernels/cuda/axes.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int block_threads = 256;
constexpr int unroll = 4;                     // vectors in flight
constexpr std::int64_t thread_values = 64;    // of a channel, at most
constexpr std::int64_t target_blocks = 2048;  // where each still has `least_values` a thread
constexpr std::int64_t least_values = 8;

/// Sums over values of a channel. Statistics: mean and sum of (x - mean)^2; gradients: sum of dy
/// and of dy (x - mean).
struct Totals {
  double count, first, second;
};

/// What a map does to a channel: (x - shift) scale + offset, or dy scale + (x - shift) slope +
/// offset.
template <class C>
struct ChannelMap {
  C shift, scale, offset, slope;
};

// Passes over the images. Operands are x, then dy if there are two inputs, then the result.

template <class Element>
struct Statistics {
  using T = Element;
  using C = Compute<T>;
  static constexpr int inputs = 1;
  static constexpr bool writes = false;
  Totals* partials;

  struct Lane {
    C shift = 0, sum = 0, squares = 0;
  };
  __device__ Lane lane(std::int64_t) const { return {}; }
  __device__ static void start(Lane& lane, C x) { lane.shift = x; }
  __device__ static void add(Lane& lane, C x, C) {
    const C d = x - lane.shift;
    lane.sum += d;
    lane.squares = fma(d, d, lane.squares);
  }
  /// `other` started alike.
  __device__ static void fold(Lane& lane, const Lane& other) {
    lane.sum += other.sum;
    lane.squares += other.squares;
  }
  __device__ static Totals totals(const Lane& lane, std::int64_t values) {
    if (values == 0) return {0, 0, 0};
    const double count = static_cast<double>(values), sum = lane.sum, mean = sum / count;
    return {count, lane.shift + mean, lane.squares - sum * mean};
  }
  __device__ static Totals join(const Totals& a, const Totals& b) {
    if (b.count == 0) return a;
    const double count = a.count + b.count, share = b.count / count, step = b.first - a.first;
    return {count, fma(step, share, a.first), a.second + b.second + step * step * share * a.count};
  }
};

template <class Element>
struct GradientSums {
  using T = Element;
  using C = Compute<T>;
  static constexpr int inputs = 2;
  static constexpr bool writes = false;
  Totals* partials;
  const C* mean;

  struct Lane {
    C shift = 0, sum = 0, products = 0;
  };
  __device__ Lane lane(std::int64_t channel) const { return {mean[channel], 0, 0}; }
  __device__ static void start(Lane&, C) {}
  __device__ static void add(Lane& lane, C x, C dy) {
    lane.sum += dy;
    lane.products = fma(dy, x - lane.shift, lane.products);
  }
  __device__ static void fold(Lane& lane, const Lane& other) {
    lane.sum += other.sum;
    lane.products += other.products;
  }
  __device__ static Totals totals(const Lane& lane, std::int64_t values) {
    return {static_cast<double>(values), lane.sum, lane.products};
  }
  __device__ static Totals join(const Totals& a, const Totals& b) {
    return {a.count + b.count, a.first + b.first, a.second + b.second};
  }
};

template <class Element>
struct Normalize {
  using T = Element;
  using C = Compute<T>;
  static constexpr int inputs = 1;
  static constexpr bool writes = true;
  const ChannelMap<C>* maps;

  using Lane = ChannelMap<C>;
  __device__ Lane lane(std::int64_t channel) const { return maps[channel]; }
  __device__ static C map(const Lane& lane, C x, C) {
    return fma(x - lane.shift, lane.scale, lane.offset);
  }
};

template <class Element>
struct InputGradient {
  using T = Element;
  using C = Compute<T>;
  static constexpr int inputs = 2;
  static constexpr bool writes = true;
  const ChannelMap<C>* maps;

  using Lane = ChannelMap<C>;
  __device__ Lane lane(std::int64_t channel) const { return maps[channel]; }
  __device__ static C map(const Lane& lane, C x, C dy) {
    return fma(dy, lane.scale, fma(x - lane.shift, lane.slope, lane.offset));
  }
};

/// How the images are walked: operands as the pass orders them.
template <int Operands>
struct Walk {
  Axes<Operands> rest;  // every axis but the channels
  std::int64_t channels = 0;
  std::int64_t channel_strides[Operands] = {};
  std::int64_t length = 0, chunk = 0;  // by_rows: vectors of a channel; by_columns: pixels
  std::uint32_t splits = 1;            // chunks that cover the length
  std::uint32_t tiles = 1;             // by_columns: tx vectors of channels each
  int tx = 1;
};

template <class Pass>
struct Operands {
  static constexpr int count = Pass::inputs + (Pass::writes ? 1 : 0);
  const typename Pass::T* inputs[2];
  typename Pass::T* result;
};

/// A thread's share of a pass; `base` is where its channels start in each operand.
template <class Pass, int V>
struct Chunk {
  using T = typename Pass::T;
  using C = Compute<T>;
  static constexpr int operands = Operands<Pass>::count;

  const Operands<Pass>& data;
  const Axes<operands>& rest;
  std::int64_t (&base)[operands];

  __device__ Vector<T, V> load(int input, const std::int64_t (&at)[operands]) const {
    return *reinterpret_cast<const Vector<T, V>*>(data.inputs[input] + base[input] + at[input]);
  }

  /// Takes `Count` vectors, `step` apart.
  template <int Count>
  __device__ __forceinline__ void take(std::int64_t index, int step,
                                       typename Pass::Lane (&lanes)[V]) const {
    Vector<T, V> x[Count], dy[Count];
    std::int64_t at[Count][operands];
#pragma unroll
    for (int u = 0; u < Count; ++u) {
      rest.offsets(index + u * step, at[u]);
      x[u] = load(0, at[u]);
      if constexpr (Pass::inputs == 2) dy[u] = load(1, at[u]);
    }
#pragma unroll
    for (int u = 0; u < Count; ++u) {
      [[maybe_unused]] Vector<T, V> result;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const C up = Pass::inputs == 2 ? widen(dy[u].values[j]) : C{0};
        if constexpr (Pass::writes) {
          result.values[j] = narrow<T>(Pass::map(lanes[j], widen(x[u].values[j]), up));
        } else {
          Pass::add(lanes[j], widen(x[u].values[j]), up);
        }
      }
      if constexpr (Pass::writes) {
        *reinterpret_cast<Vector<T, V>*>(data.result + base[operands - 1] + at[u][operands - 1]) =
            result;
      }
    }
  }

  __device__ __forceinline__ void take_all(std::int64_t index, std::int64_t end, int step,
                                           typename Pass::Lane (&lanes)[V]) const {
    for (; index + (unroll - 1) * step < end; index += unroll * step) {
      take<unroll>(index, step, lanes);
    }
    for (; index < end; index += step) take<1>(index, step, lanes);
  }
};

/// Totals of the lower half of `width` threads joined with those of the upper half, to one.
template <class Pass>
__device__ __forceinline__ Totals join_warp(Totals totals, int width) {
  for (int step = width / 2; step > 0; step /= 2) {
    const Totals other{__shfl_down_sync(~0u, totals.count, step),
                       __shfl_down_sync(~0u, totals.first, step),
                       __shfl_down_sync(~0u, totals.second, step)};
    totals = Pass::join(totals, other);
  }
  return totals;
}

template <class Pass, int V>
__global__ void __launch_bounds__(block_threads)
    by_rows(const __grid_constant__ Pass pass, const __grid_constant__ Operands<Pass> data,
            const __grid_constant__ Walk<Operands<Pass>::count> walk) {
  constexpr int operands = Operands<Pass>::count;
  using Lane = typename Pass::Lane;
  const std::uint32_t channel = blockIdx.x / walk.splits, split = blockIdx.x % walk.splits;
  std::int64_t base[operands];
#pragma unroll
  for (int k = 0; k < operands; ++k) base[k] = channel * walk.channel_strides[k];
  const Chunk<Pass, V> chunk{data, walk.rest, base};
  const std::int64_t begin = split * walk.chunk + threadIdx.x;
  const std::int64_t end = min(split * walk.chunk + walk.chunk, walk.length);
  Lane lanes[V];
#pragma unroll
  for (int j = 0; j < V; ++j) lanes[j] = pass.lane(channel);
  if constexpr (!Pass::writes) {
    if (begin < end) {
      std::int64_t at[operands];
      walk.rest.offsets(begin, at);
      const auto first = widen(data.inputs[0][base[0] + at[0]]);
#pragma unroll
      for (int j = 0; j < V; ++j) Pass::start(lanes[j], first);
    }
  }
  chunk.take_all(begin, end, block_threads, lanes);
  if constexpr (!Pass::writes) {
#pragma unroll
    for (int half = V / 2; half > 0; half /= 2) {
#pragma unroll
      for (int j = 0; j < half; ++j) Pass::fold(lanes[j], lanes[j + half]);
    }
    const std::int64_t taken = begin < end ? (end - begin + block_threads - 1) / block_threads : 0;
    Totals totals = join_warp<Pass>(Pass::totals(lanes[0], taken * V), 32);
    constexpr int warps = block_threads / 32;
    __shared__ Totals of_warps[warps];
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = totals;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    totals = threadIdx.x < warps ? of_warps[threadIdx.x] : Totals{0, 0, 0};
    totals = join_warp<Pass>(totals, warps);
    if (threadIdx.x == 0) pass.partials[blockIdx.x] = totals;
  }
}

template <class Pass, int V>
__global__ void __launch_bounds__(block_threads)
    by_columns(const __grid_constant__ Pass pass, const __grid_constant__ Operands<Pass> data,
               const __grid_constant__ Walk<Operands<Pass>::count> walk) {
  constexpr int operands = Operands<Pass>::count;
  using Lane = typename Pass::Lane;
  const std::uint32_t tile = blockIdx.x / walk.splits, split = blockIdx.x % walk.splits;
  const int ty = block_threads / walk.tx;
  const int column_lane = threadIdx.x % walk.tx, row_lane = threadIdx.x / walk.tx;
  const std::int64_t channel = (std::int64_t{tile} * walk.tx + column_lane) * V;
  const bool live = channel < walk.channels;
  std::int64_t base[operands];
#pragma unroll
  for (int k = 0; k < operands; ++k) base[k] = channel * walk.channel_strides[k];
  const Chunk<Pass, V> chunk{data, walk.rest, base};
  const std::int64_t begin = split * walk.chunk + row_lane;
  const std::int64_t end = live ? min(split * walk.chunk + walk.chunk, walk.length) : 0;
  Lane lanes[V] = {};
  if (live) {
#pragma unroll
    for (int j = 0; j < V; ++j) lanes[j] = pass.lane(channel + j);
  }
  if constexpr (!Pass::writes) {
    if (begin < end) {
      std::int64_t at[operands];
      walk.rest.offsets(begin, at);
      const auto first = chunk.load(0, at);
#pragma unroll
      for (int j = 0; j < V; ++j) Pass::start(lanes[j], widen(first.values[j]));
    }
  }
  chunk.take_all(begin, end, ty, lanes);
  if constexpr (!Pass::writes) {
    const std::int64_t taken = begin < end ? (end - begin + ty - 1) / ty : 0;
    __shared__ Totals shared[block_threads];
    Totals& mine = shared[threadIdx.x];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      __syncthreads();
      mine = Pass::totals(lanes[j], taken);
      for (int step = ty / 2; step > 0; step /= 2) {
        __syncthreads();
        if (row_lane < step) mine = Pass::join(mine, shared[threadIdx.x + step * walk.tx]);
      }
      if (live && row_lane == 0) pass.partials[(channel + j) * walk.splits + split] = mine;
    }
  }
}

/// Per-channel tensors of x's type or of its compute type.
struct Channels {
  void* data = nullptr;
  std::int64_t stride = 0;
  bool wide = false;

  template <class T>
  __device__ Compute<T> get(std::int64_t channel, Compute<T> missing) const {
    if (!data) return missing;
    return wide ? static_cast<const Compute<T>*>(data)[channel * stride]
                : widen(static_cast<const T*>(data)[channel * stride]);
  }
  template <class T>
  __device__ void set(std::int64_t channel, double value) const {
    if (!data) return;
    if (wide) {
      static_cast<Compute<T>*>(data)[channel * stride] = static_cast<Compute<T>>(value);
    } else {
      static_cast<T*>(data)[channel * stride] = narrow<T>(static_cast<Compute<T>>(value));
    }
  }
  template <class T>
  __device__ void move_toward(std::int64_t channel, double target, double momentum) const {
    const double value = get<T>(channel, 0);
    set<T>(channel, value + momentum * (target - value));
  }
};

/// Joins `splits` partial sums of a channel, a warp a channel; lane 0 has the result.
template <class Pass>
__device__ Totals join_partials(const Totals* partials, std::int64_t channel,
                                std::uint32_t splits) {
  Totals totals{0, 0, 0};
  for (std::uint32_t i = threadIdx.x % 32; i < splits; i += 32) {
    totals = Pass::join(totals, partials[channel * splits + i]);
  }
  return join_warp<Pass>(totals, 32);
}

template <class T>
struct FinishForward {
  Channels weight, bias, given_mean, given_var, running_mean, running_var;
  Compute<T>* mean;
  Compute<T>* inv_std;
  double momentum, eps;
  bool training;
};

template <class T>
__global__ void __launch_bounds__(block_threads)
    finish_statistics(const __grid_constant__ FinishForward<T> args, const Totals* partials,
                      std::uint32_t splits, ChannelMap<Compute<T>>* maps, std::int64_t channels) {
  using C = Compute<T>;
  const std::int64_t channel = std::int64_t{blockIdx.x} * (block_threads / 32) + threadIdx.x / 32;
  if (channel >= channels) return;
  double mean, variance;
  if (args.training) {
    const Totals totals = join_partials<Statistics<T>>(partials, channel, splits);
    mean = totals.first;
    variance = totals.second / totals.count;
    if (threadIdx.x % 32 != 0) return;
    args.running_mean.template move_toward<T>(channel, mean, args.momentum);
    args.running_var.template move_toward<T>(channel, totals.second / (totals.count - 1),
                                             args.momentum);
  } else {
    if (threadIdx.x % 32 != 0) return;
    mean = args.given_mean.template get<T>(channel, 0);
    variance = args.given_var.template get<T>(channel, 1);
  }
  const C inv_std = static_cast<C>(1 / sqrt(variance + args.eps));
  args.mean[channel] = static_cast<C>(mean);
  args.inv_std[channel] = inv_std;
  maps[channel] = {static_cast<C>(mean), inv_std * args.weight.template get<T>(channel, 1),
                   args.bias.template get<T>(channel, C(-0.0)), C{0}};  // -0 leaves -0 as it is
}

template <class T>
struct FinishBackward {
  Channels dweight, dbias, weight;
  const Compute<T>* mean;
  const Compute<T>* inv_std;
  double count;
  bool training;
};

/// `splits` is 0 where no sums were needed.
template <class T>
__global__ void __launch_bounds__(block_threads)
    finish_gradients(const __grid_constant__ FinishBackward<T> args, const Totals* partials,
                     std::uint32_t splits, ChannelMap<Compute<T>>* maps, std::int64_t channels) {
  using C = Compute<T>;
  const std::int64_t channel = std::int64_t{blockIdx.x} * (block_threads / 32) + threadIdx.x / 32;
  if (channel >= channels) return;
  const Totals totals = join_partials<GradientSums<T>>(partials, channel, splits);
  if (threadIdx.x % 32 != 0) return;
  const double inv_std = args.inv_std[channel];
  const double scale = inv_std * args.weight.template get<T>(channel, 1);
  args.dbias.template set<T>(channel, totals.first);
  args.dweight.template set<T>(channel, totals.second * inv_std);
  if (args.training) {
    maps[channel] = {args.mean[channel], static_cast<C>(scale),
                     static_cast<C>(-scale * totals.first / args.count),
                     static_cast<C>(-scale * inv_std * inv_std * totals.second / args.count)};
  } else {
    maps[channel] = {C{0}, static_cast<C>(scale), C(-0.0), C{0}};
  }
}

template <int Operands>
struct Plan {
  CollapsedAxes<Operands> rest;
  bool columns = false;
  int width = 1;  // elements a vector
  Walk<Operands> walk;

  std::int64_t blocks() const {
    return std::int64_t{walk.splits} * (columns ? walk.tiles : walk.channels);
  }
};

template <int Operands>
Plan<Operands> make_plan(const std::array<ConstView, Operands>& views) {
  std::array<const Layout*, Operands> layouts;
  for (int k = 0; k < Operands; ++k) layouts[k] = &views[k].layout;
  Plan<Operands> plan;
  plan.rest = collapse_without<Operands>(1, layouts);
  Walk<Operands>& walk = plan.walk;
  walk.channels = layouts[0]->sizes[1];
  const std::int64_t values = plan.rest.numel();
  if (values == 0 || walk.channels == 0) return plan;

  bool aligned = true, dense = true;
  const int width = static_cast<int>(16 / size_of(views[0].dtype));
  for (int k = 0; k < Operands; ++k) {
    const std::int64_t stride = walk.channel_strides[k] = layouts[k]->strides[1];
    aligned = aligned && is_aligned(views[k].data, 16);
    dense = dense && stride == 1;
  }
  plan.columns =
      walk.channels > 1 &&
      (plan.rest.rank == 0 || layouts[0]->strides[1] < plan.rest.strides[0][plan.rest.rank - 1]);
  bool vectors = aligned && in_vectors(plan.rest, !plan.columns && plan.rest.rank > 0, width);
  if (plan.columns) {
    vectors = vectors && dense && walk.channels % width == 0;
  } else {
    vectors = vectors && plan.rest.rank > 0;
    for (const std::int64_t stride : walk.channel_strides) vectors = vectors && stride % width == 0;
  }
  plan.width = vectors ? width : 1;

  // Chunks so long that about target_blocks blocks are busy.
  const std::int64_t each = values * walk.channels / (target_blocks * block_threads);
  std::int64_t chunk;
  if (plan.columns) {
    const std::int64_t columns = walk.channels / plan.width;
    walk.tx = power_of_two_from(columns, 32);
    walk.tiles = static_cast<std::uint32_t>(ceil_div(columns, walk.tx));
    walk.length = values;
    chunk = std::clamp(each / plan.width, least_values, thread_values) * (block_threads / walk.tx);
  } else {
    walk.length = values / plan.width;
    chunk = std::clamp(each, least_values, thread_values) / plan.width * block_threads;
  }
  walk.splits = static_cast<std::uint32_t>(ceil_div(walk.length, chunk));
  walk.chunk = ceil_div(walk.length, walk.splits);
  walk.rest = Axes<Operands>(plan.rest, plan.columns ? 1 : plan.width);
  return plan;
}

template <class Pass>
cudaError_t launch(const Plan<Operands<Pass>::count>& plan, const Pass& pass,
                   const Operands<Pass>& data, cudaStream_t stream) {
  constexpr int V = 16 / sizeof(typename Pass::T);
  const auto blocks = static_cast<unsigned>(plan.blocks());
  if (plan.columns) {
    if (plan.width > 1) {
      by_columns<Pass, V><<<blocks, block_threads, 0, stream>>>(pass, data, plan.walk);
    } else {
      by_columns<Pass, 1><<<blocks, block_threads, 0, stream>>>(pass, data, plan.walk);
    }
  } else if (plan.width > 1) {
    by_rows<Pass, V><<<blocks, block_threads, 0, stream>>>(pass, data, plan.walk);
  } else {
    by_rows<Pass, 1><<<blocks, block_threads, 0, stream>>>(pass, data, plan.walk);
  }
  return cudaGetLastError();
}

unsigned warps_for(std::int64_t channels) {
  return static_cast<unsigned>(ceil_div(channels, block_threads / 32));
}

/// Maps come first in the workspace, then partial sums.
std::size_t maps_bytes(std::int64_t channels, DType dtype) {
  return static_cast<std::size_t>(channels) * 4 * (dtype == DType::f64 ? 8 : 4);
}

template <int Operands>
std::size_t partials_bytes(const Plan<Operands>& plan) {
  return static_cast<std::size_t>(plan.walk.channels * plan.walk.splits) * sizeof(Totals);
}

Channels channels_of(const ConstView& view, DType x) {
  return {const_cast<void*>(view.data), view.data ? view.layout.strides[0] : 0, view.dtype != x};
}

template <class T>
cudaError_t forward(const BatchNormForward& args, void* workspace, cudaStream_t stream) {
  using C = Compute<T>;
  const DType dtype = args.x.dtype;
  const std::int64_t channels = args.x.layout.sizes[1];
  auto* const maps = static_cast<ChannelMap<C>*>(workspace);
  auto* const partials = reinterpret_cast<Totals*>(maps + channels);
  const T* const x = static_cast<const T*>(args.x.data);
  std::uint32_t splits = 0;
  if (args.training) {
    const auto plan = make_plan<1>({args.x});
    splits = plan.walk.splits;
    const cudaError_t status = launch(plan, Statistics<T>{partials},
                                      Operands<Statistics<T>>{{x, nullptr}, nullptr}, stream);
    if (status != cudaSuccess) return status;
  }
  const FinishForward<T> finish{channels_of(args.weight, dtype),
                                channels_of(args.bias, dtype),
                                channels_of(args.given_mean, dtype),
                                channels_of(args.given_var, dtype),
                                channels_of(args.running_mean, dtype),
                                channels_of(args.running_var, dtype),
                                static_cast<C*>(args.mean),
                                static_cast<C*>(args.inv_std),
                                args.momentum,
                                args.eps,
                                args.training};
  finish_statistics<T>
      <<<warps_for(channels), block_threads, 0, stream>>>(finish, partials, splits, maps, channels);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  return launch(make_plan<2>({args.x, args.y}), Normalize<T>{maps},
                Operands<Normalize<T>>{{x, nullptr}, static_cast<T*>(args.y.data)}, stream);
}

template <class T>
cudaError_t backward(const BatchNormBackward& args, void* workspace, cudaStream_t stream) {
  using C = Compute<T>;
  const DType dtype = args.x.dtype;
  const std::int64_t channels = args.x.layout.sizes[1];
  auto* const maps = static_cast<ChannelMap<C>*>(workspace);
  auto* const partials = reinterpret_cast<Totals*>(maps + channels);
  const T* const x = static_cast<const T*>(args.x.data);
  const T* const dy = static_cast<const T*>(args.dy.data);
  T* const dx = static_cast<T*>(args.dx.data);
  const C* const mean = static_cast<const C*>(args.mean);
  const auto sums = make_plan<2>({args.x, args.dy});
  const bool empty = args.x.layout.numel() == 0;
  std::uint32_t splits = 0;
  if (!empty && (args.dweight.data || args.dbias.data || args.training)) {
    splits = sums.walk.splits;
    const cudaError_t status = launch(sums, GradientSums<T>{partials, mean},
                                      Operands<GradientSums<T>>{{x, dy}, nullptr}, stream);
    if (status != cudaSuccess) return status;
  }
  const FinishBackward<T> finish{channels_of(args.dweight, dtype),
                                 channels_of(args.dbias, dtype),
                                 channels_of(args.weight, dtype),
                                 mean,
                                 static_cast<const C*>(args.inv_std),
                                 empty ? 1.0 : static_cast<double>(sums.rest.numel()),
                                 args.training};
  finish_gradients<T>
      <<<warps_for(channels), block_threads, 0, stream>>>(finish, partials, splits, maps, channels);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess || empty || !dx) return status;
  if (!args.training) {  // dx = dy weight inv_std; x may hold anything
    return launch(make_plan<2>({args.dy, args.dx}), Normalize<T>{maps},
                  Operands<Normalize<T>>{{dy, nullptr}, dx}, stream);
  }
  return launch(make_plan<3>({args.x, args.dy, args.dx}), InputGradient<T>{maps},
                Operands<InputGradient<T>>{{x, dy}, dx}, stream);
}

}  // namespace

std::size_t batch_norm_workspace_bytes(const BatchNormForward& args) {
  return maps_bytes(args.x.layout.sizes[1], args.x.dtype) +
         (args.training ? partials_bytes(make_plan<1>({args.x})) : 0);
}

cudaError_t batch_norm(const BatchNormForward& args, void* workspace, cudaStream_t stream) {
  if (args.x.layout.numel() == 0) return cudaSuccess;
  switch (args.x.dtype) {
    case DType::f64: return forward<double>(args, workspace, stream);
    case DType::f32: return forward<float>(args, workspace, stream);
    case DType::bf16: return forward<__nv_bfloat16>(args, workspace, stream);
    case DType::f16: return forward<__half>(args, workspace, stream);
    default: return cudaErrorInvalidValue;
  }
}

std::size_t batch_norm_backward_workspace_bytes(const BatchNormBackward& args) {
  return maps_bytes(args.x.layout.sizes[1], args.x.dtype) +
         partials_bytes(make_plan<2>({args.x, args.dy}));
}

cudaError_t batch_norm_backward(const BatchNormBackward& args, void* workspace,
                                cudaStream_t stream) {
  if (args.x.layout.sizes[1] == 0) return cudaSuccess;
  switch (args.x.dtype) {
    case DType::f64: return backward<double>(args, workspace, stream);
    case DType::f32: return backward<float>(args, workspace, stream);
    case DType::bf16: return backward<__nv_bfloat16>(args, workspace, stream);
    case DType::f16: return backward<__half>(args, workspace, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace zerone::kernels::cuda
