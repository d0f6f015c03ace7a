// Softmax and cross-entropy. A line is one softmax; two kernels walk lines, by what lies innermost:
//   along_lines   the line itself (rows of logits): a group of 1 to 32 or 256 threads a line
//   strides
//                 over it by 16-byte loads where sizes, strides and pointers allow
//   across_lines  other axes (classes of an NCHW image): a thread takes a vector of lines that lie
//                 side by side, 1 to 8 threads share the length
// A pass sums over each line, joins the sums of its threads in a fixed order, and maps the line, or
// does one of both. Largest element m and s = sum of exp(x - m) take one reading:
//   x <= m: s += exp(x - m)        x > m: s = s exp(m - x) + 1, m = x       (one exp an element)
// Losses go to the workspace in double chunks to be added. Floor: softmax reads a line once from
// memory and once from the caches, and writes it once; cross-entropy reads logits once forward, and
// backward reads and writes them once.
#include <zerone/kernels/cuda/softmax.h>

#include <zerone/kernels/cuda/axes.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int block_threads = 256;
constexpr int unroll = 4;                     // vectors in flight
constexpr std::int64_t many_lines = 1 << 16;  // enough threads without sharing a line
constexpr std::int64_t losses_per_block = 1 << 12;
constexpr std::int64_t max_loss_blocks = 1024;

template <class C>
constexpr C infinity = C(INFINITY);

/// What a thread knows of its part of a line.
template <class C, int N>
struct Sums {
  C values[N];
};

/// m, s, and further sums after them.
template <class C, int N>
struct Online {
  using State = Sums<C, N>;
  __device__ static State none() {
    State state{};
    state.values[0] = -infinity<C>;
    return state;
  }
  __device__ static void add(State& state, C x) {
    C& m = state.values[0];
    C& s = state.values[1];
    const C above = x - m;
    const C e = x == -infinity<C> ? C{0} : exp(-fabs(above));  // nothing, even while m is -Inf
    s = above > 0 ? fma(s, e, C{1}) : s + e;
    m = fmax(m, x);
  }
  __device__ static State join(const State& a, const State& b) {
    State result;
    const C m = fmax(a.values[0], b.values[0]);
    result.values[0] = m;
    result.values[1] =
        m == -infinity<C> ? a.values[1] + b.values[1]
                          : a.values[1] * exp(a.values[0] - m) + b.values[1] * exp(b.values[0] - m);
#pragma unroll
    for (int i = 2; i < N; ++i) result.values[i] = a.values[i] + b.values[i];
    return result;
  }
  /// NaN for +Inf - Inf, which add() does not see.
  __device__ static C sum(const State& state) {
    return state.values[0] == infinity<C> ? C(NAN) : state.values[1];
  }
};

/// y = scale exp(x - shift) + offset, and `target_offset` besides where the class is `target`.
template <class C>
struct ExpMap {
  C scale, shift, offset, target_offset;
  std::int64_t target;
};

// Passes. Operands are `inputs` images, the result if the pass writes one, then `extras` with one
// element a line. `first` is the line's first element of the first image.

template <class Element>
struct Softmax {
  using T = Element;
  using C = Compute<T>;
  static constexpr int inputs = 1, extras = 0;
  static constexpr bool sums = true, writes = true;
  bool log;

  using Scan = Online<C, 2>;
  using State = typename Scan::State;
  struct Values {
    C scale, shift;  // scale: 1 / s, or log s
  };
  __device__ static State none() { return Scan::none(); }
  __device__ void add(State& state, C x, C) const { Scan::add(state, x); }
  __device__ static State join(const State& a, const State& b) { return Scan::join(a, b); }
  __device__ Values values(const State& state, std::int64_t, const std::int64_t*) const {
    const C s = Scan::sum(state);
    return {log ? ::log(s) : C{1} / s, state.values[0]};
  }
  __device__ C map(const Values& v, C x, C, std::int64_t) const {
    return log ? (x - v.shift) - v.scale : exp(x - v.shift) * v.scale;
  }
};

/// Images y, dy, dx.
template <class Element>
struct SoftmaxGradient {
  using T = Element;
  using C = Compute<T>;
  static constexpr int inputs = 2, extras = 0;
  static constexpr bool sums = true, writes = true;
  bool log;

  using State = Sums<C, 1>;
  using Values = C;
  __device__ static State none() { return {}; }
  __device__ void add(State& state, C y, C dy) const {
    state.values[0] = log ? state.values[0] + dy : fma(y, dy, state.values[0]);
  }
  __device__ static State join(const State& a, const State& b) {
    return {{a.values[0] + b.values[0]}};
  }
  __device__ Values values(const State& state, std::int64_t, const std::int64_t*) const {
    return state.values[0];
  }
  __device__ C map(const Values& sum, C y, C dy, std::int64_t) const {
    return log ? dy - exp(y) * sum : y * (dy - sum);
  }
};

/// Image x; extras labels and loss.
template <class Element>
struct CrossEntropy {
  using T = Element;
  using C = Compute<T>;
  static constexpr int inputs = 1, extras = 2;
  static constexpr bool sums = true, writes = false;
  const std::int64_t* labels;
  T* losses;              // none: by the second extra
  C* line_losses;         // reduced: by line
  std::uint8_t* counted;  // reduced: by line, 0 if ignored
  C* saved;
  std::int64_t classes, ignored;
  C smoothing;

  using Scan = Online<C, 3>;  // m, s, sum of x
  using State = typename Scan::State;
  __device__ static State none() { return Scan::none(); }
  __device__ void add(State& state, C x, C) const {
    Scan::add(state, x);
    if (smoothing != 0) state.values[2] += x;
  }
  __device__ static State join(const State& a, const State& b) { return Scan::join(a, b); }
  __device__ void store(const State& state, const T* first, std::int64_t stride, std::int64_t line,
                        const std::int64_t* extra) const {
    const C m = state.values[0], s = Scan::sum(state);
    const std::int64_t label = labels[extra[0]];
    C loss = 0;
    if (label != ignored) {
      loss = C(NAN);
      if (label >= 0 && label < classes) {
        loss = log(s) + (C{1} - smoothing) * (m - widen(first[label * stride]));
        if (smoothing != 0) loss += smoothing * (m - state.values[2] / static_cast<C>(classes));
      }
    }
    saved[2 * line] = m;
    saved[2 * line + 1] = s;
    if (losses) {
      losses[extra[1]] = narrow<T>(loss);
    } else {
      line_losses[line] = loss;
      counted[line] = label != ignored;
    }
  }
};

/// Images x, dx; extras labels and dloss.
template <class Element>
struct CrossEntropyGradient {
  using T = Element;
  using C = Compute<T>;
  static constexpr int inputs = 1, extras = 2;
  static constexpr bool sums = false, writes = true;
  const std::int64_t* labels;
  const T* dloss;
  const C* saved;
  const C* factor;  // null: 1
  std::int64_t classes, ignored;
  C smoothing;

  struct State {};
  using Values = ExpMap<C>;
  __device__ Values values(const State&, std::int64_t line, const std::int64_t* extra) const {
    std::int64_t label = labels[extra[0]];
    C g = widen(dloss[extra[1]]);
    if (factor) g *= *factor;
    if (label == ignored) {
      g = 0;
      label = -1;
    } else if (label < 0 || label >= classes) {
      g = C(NAN);
      label = -1;
    }
    return {g / saved[2 * line + 1], saved[2 * line], -g * smoothing / static_cast<C>(classes),
            -g * (C{1} - smoothing), label};
  }
  __device__ C map(const Values& v, C x, C, std::int64_t at) const {
    const C offset = at == v.target ? v.offset + v.target_offset : v.offset;
    return fma(v.scale, exp(x - v.shift), offset);
  }
};

template <class Pass>
constexpr int images = Pass::inputs + (Pass::writes ? 1 : 0);
template <class Pass>
constexpr int operands = images<Pass> + Pass::extras;

template <class Pass>
struct Data {
  const typename Pass::T* inputs[2];
  typename Pass::T* result;
};

/// How lines are walked. `along` and `between` are the strides of an operand along a line and
/// between neighboring lines of a vector; across lines `rest` takes vectors.
template <int Operands>
struct Walk {
  Axes<Operands> rest;
  std::int64_t along[Operands] = {};
  std::int64_t between[Operands] = {};
  std::int64_t lines = 0, length = 0;
};

/// Calls f(index, count) so that index, index + step, ... below `end` are taken, several at once.
template <class F>
__device__ __forceinline__ void in_steps(std::int64_t index, std::int64_t end, int step, F&& f) {
  for (; index + (unroll - 1) * step < end; index += unroll * step) {
    f(index, std::integral_constant<int, unroll>{});
  }
  for (; index < end; index += step) f(index, std::integral_constant<int, 1>{});
}

/// Loads and stores of vectors at offsets from the bases of the images.
template <class Pass, int V>
struct Images {
  using T = typename Pass::T;
  using Loaded = Vector<T, V>;
  const Data<Pass>& data;
  const std::int64_t* base;

  __device__ __forceinline__ Loaded load(int input, std::int64_t offset) const {
    return *reinterpret_cast<const Loaded*>(data.inputs[input] + base[input] + offset);
  }
  __device__ __forceinline__ void store(std::int64_t offset, const Loaded& result) const {
    *reinterpret_cast<Loaded*>(data.result + base[Pass::inputs] + offset) = result;
  }
};

/// `count` vectors of each image from `index` on, `step` apart, at multiples of `stride[k]`: calls
/// f(u, x, dy) for each, after all loads.
template <int Count, class Pass, int V, class F>
__device__ __forceinline__ void take(const Images<Pass, V>& images_at, std::int64_t index, int step,
                                     const std::int64_t (&stride)[operands<Pass>], F&& f) {
  Vector<typename Pass::T, V> x[Count], dy[Count];
#pragma unroll
  for (int u = 0; u < Count; ++u) {
    x[u] = images_at.load(0, (index + u * step) * stride[0]);
    if constexpr (Pass::inputs == 2) dy[u] = images_at.load(1, (index + u * step) * stride[1]);
  }
#pragma unroll
  for (int u = 0; u < Count; ++u) f(index + u * step, x[u], Pass::inputs == 2 ? dy[u] : x[u]);
}

template <class Pass>
__device__ __forceinline__ typename Pass::State shuffled_down(const typename Pass::State& state,
                                                              int step) {
  typename Pass::State other;
  constexpr int count = sizeof(state.values) / sizeof(state.values[0]);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    other.values[i] = __shfl_down_sync(~0u, state.values[i], step);
  }
  return other;
}

template <class Pass>
__device__ __forceinline__ typename Pass::State of_lane(const typename Pass::State& state, int lane,
                                                        int width) {
  typename Pass::State other;
  constexpr int count = sizeof(state.values) / sizeof(state.values[0]);
#pragma unroll
  for (int i = 0; i < count; ++i) {
    other.values[i] = __shfl_sync(~0u, state.values[i], lane, width);
  }
  return other;
}

/// `group` threads a line: a power of two up to 32, or the block.
template <class Pass, int V>
__global__ void __launch_bounds__(block_threads)
    along_lines(const __grid_constant__ Pass pass, const __grid_constant__ Data<Pass> data,
                const __grid_constant__ Walk<operands<Pass>> walk, int group) {
  using T = typename Pass::T;
  const std::int64_t thread = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const std::int64_t line = thread / group;
  const int lane = threadIdx.x % group;
  const bool live = line < walk.lines;
  std::int64_t base[operands<Pass>] = {};
  if (live) walk.rest.offsets(line, base);
  const Images<Pass, V> images_at{data, base};
  std::int64_t stride[operands<Pass>];
#pragma unroll
  for (int k = 0; k < operands<Pass>; ++k) stride[k] = walk.along[k] * V;
  const std::int64_t end = live ? walk.length / V : 0;

  typename Pass::State state;
  if constexpr (Pass::sums) {
    state = Pass::none();
    in_steps(lane, end, group, [&](std::int64_t index, auto count) {
      take<count()>(images_at, index, group, stride, [&](auto, const auto& x, const auto& dy) {
#pragma unroll
        for (int j = 0; j < V; ++j) pass.add(state, widen(x.values[j]), widen(dy.values[j]));
      });
    });
    const int width = min(group, 32);
    for (int step = width / 2; step > 0; step /= 2) {
      state = Pass::join(state, shuffled_down<Pass>(state, step));
    }
    state = of_lane<Pass>(state, 0, width);
    if (group > 32) {
      constexpr int warps = block_threads / 32;
      __shared__ typename Pass::State of_warps[warps];
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = state;
      __syncthreads();
      state = of_warps[0];
#pragma unroll
      for (int i = 1; i < warps; ++i) state = Pass::join(state, of_warps[i]);
    }
  }
  if (!live) return;
  if constexpr (Pass::writes) {
    const auto values = pass.values(state, line, base + images<Pass>);
    in_steps(lane, end, group, [&](std::int64_t index, auto count) {
      take<count()>(
          images_at, index, group, stride, [&](std::int64_t at, const auto& x, const auto& dy) {
            Vector<T, V> result;
#pragma unroll
            for (int j = 0; j < V; ++j) {
              result.values[j] =
                  narrow<T>(pass.map(values, widen(x.values[j]), widen(dy.values[j]), at * V + j));
            }
            images_at.store(at * stride[Pass::inputs], result);
          });
    });
  } else {
    if (lane == 0) {
      pass.store(state, data.inputs[0] + base[0], walk.along[0], line, base + images<Pass>);
    }
  }
}

/// A thread takes V lines; `ty` threads share their length, block_threads / ty vectors lie side by
/// side.
template <class Pass, int V>
__global__ void __launch_bounds__(block_threads)
    across_lines(const __grid_constant__ Pass pass, const __grid_constant__ Data<Pass> data,
                 const __grid_constant__ Walk<operands<Pass>> walk, int ty) {
  using T = typename Pass::T;
  const int tx = block_threads / ty;
  const int row_lane = threadIdx.x / tx;
  const std::int64_t vector = std::int64_t{blockIdx.x} * tx + threadIdx.x % tx;
  const bool live = vector * V < walk.lines;
  std::int64_t base[operands<Pass>] = {};
  if (live) walk.rest.offsets(vector, base);
  const Images<Pass, V> images_at{data, base};
  std::int64_t stride[operands<Pass>];
#pragma unroll
  for (int k = 0; k < operands<Pass>; ++k) stride[k] = walk.along[k];
  const std::int64_t end = live ? walk.length : 0;

  typename Pass::State states[V];
  if constexpr (Pass::sums) {
#pragma unroll
    for (int j = 0; j < V; ++j) states[j] = Pass::none();
    in_steps(row_lane, end, ty, [&](std::int64_t index, auto count) {
      take<count()>(images_at, index, ty, stride, [&](auto, const auto& x, const auto& dy) {
#pragma unroll
        for (int j = 0; j < V; ++j) pass.add(states[j], widen(x.values[j]), widen(dy.values[j]));
      });
    });
    if (ty > 1) {
      __shared__ typename Pass::State shared[block_threads];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        __syncthreads();
        shared[threadIdx.x] = states[j];
        __syncthreads();
        states[j] = shared[threadIdx.x % tx];
        for (int i = 1; i < ty; ++i) {
          states[j] = Pass::join(states[j], shared[threadIdx.x % tx + i * tx]);
        }
      }
    }
  }
  if (!live) return;
  const auto extra_of = [&](int j, std::int64_t(&extra)[2]) {
#pragma unroll
    for (int k = 0; k < Pass::extras; ++k) {
      extra[k] = base[images<Pass> + k] + j * walk.between[images<Pass> + k];
    }
  };
  if constexpr (Pass::writes) {
    typename Pass::Values values[V];
#pragma unroll
    for (int j = 0; j < V; ++j) {
      std::int64_t extra[2];
      extra_of(j, extra);
      values[j] = pass.values(states[j], vector * V + j, extra);
    }
    in_steps(row_lane, end, ty, [&](std::int64_t index, auto count) {
      take<count()>(
          images_at, index, ty, stride, [&](std::int64_t at, const auto& x, const auto& dy) {
            Vector<T, V> result;
#pragma unroll
            for (int j = 0; j < V; ++j) {
              result.values[j] =
                  narrow<T>(pass.map(values[j], widen(x.values[j]), widen(dy.values[j]), at));
            }
            images_at.store(at * stride[Pass::inputs], result);
          });
    });
  } else {
    if (row_lane != 0) return;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      std::int64_t extra[2];
      extra_of(j, extra);
      pass.store(states[j], data.inputs[0] + base[0] + j * walk.between[0], walk.along[0],
                 vector * V + j, extra);
    }
  }
}

/// Lines along `axis` of all views, whose first `images` are dense data and in the order of the
/// first one's memory.
template <class Pass>
cudaError_t launch(const Pass& pass, int axis, const std::array<ConstView, operands<Pass>>& views,
                   cudaStream_t stream) {
  using T = typename Pass::T;
  constexpr int all = operands<Pass>, width = 16 / sizeof(T);
  std::array<const Layout*, all> layouts;
  for (int k = 0; k < all; ++k) layouts[k] = &views[k].layout;
  const CollapsedAxes<all> rest = collapse_without<all>(axis, layouts);
  Walk<all> walk;
  walk.lines = rest.numel();
  walk.length = layouts[0]->sizes[axis];
  if (walk.lines == 0 || walk.length == 0) return cudaSuccess;
  const int last = rest.rank - 1;
  bool dense_lines = walk.length % width == 0, dense_between = rest.rank > 0;
  if (dense_between) dense_between = rest.sizes[last] % width == 0;
  for (int k = 0; k < all; ++k) {
    walk.along[k] = layouts[k]->strides[axis];
    walk.between[k] = rest.rank > 0 ? rest.strides[k][last] : 0;
    if (k >= images<Pass>) continue;
    const bool aligned = is_aligned(views[k].data, 16);
    dense_lines = dense_lines && aligned && walk.along[k] == 1;
    dense_between = dense_between && aligned && walk.between[k] == 1 && walk.along[k] % width == 0;
    for (int i = 0; i < rest.rank; ++i) {
      const bool whole = rest.strides[k][i] % width == 0;
      dense_lines = dense_lines && whole;
      dense_between = dense_between && (whole || i == last);
    }
  }
  Data<Pass> data{};
  for (int k = 0; k < Pass::inputs; ++k) data.inputs[k] = static_cast<const T*>(views[k].data);
  if constexpr (Pass::writes) {
    data.result = static_cast<T*>(const_cast<void*>(views[Pass::inputs].data));
  }

  if (rest.rank > 0 && rest.sizes[last] >= 4 && walk.between[0] < walk.along[0]) {
    const int v = dense_between ? width : 1;
    walk.rest = Axes<all>(rest, v);
    const std::int64_t vectors = walk.lines / v;
    const int ty = vectors >= many_lines ? 1 : power_of_two_from(walk.length / 4, 8);
    const auto blocks = static_cast<unsigned>(ceil_div(vectors, block_threads / ty));
    if (dense_between) {
      across_lines<Pass, width><<<blocks, block_threads, 0, stream>>>(pass, data, walk, ty);
    } else {
      across_lines<Pass, 1><<<blocks, block_threads, 0, stream>>>(pass, data, walk, ty);
    }
  } else {
    const std::int64_t vectors = walk.length / (dense_lines ? width : 1);
    const int group = vectors >= 512 ? block_threads : power_of_two_from((vectors + 3) / 4, 32);
    const auto blocks = static_cast<unsigned>(ceil_div(walk.lines, block_threads / group));
    walk.rest = Axes<all>(rest);
    if (dense_lines) {
      along_lines<Pass, width><<<blocks, block_threads, 0, stream>>>(pass, data, walk, group);
    } else {
      along_lines<Pass, 1><<<blocks, block_threads, 0, stream>>>(pass, data, walk, group);
    }
  }
  return cudaGetLastError();
}

struct LossSum {
  double loss, samples;
};

/// The sum over the block's threads, in thread 0.
__device__ LossSum add_block(LossSum sum) {
  __shared__ LossSum shared[block_threads];
  shared[threadIdx.x] = sum;
  for (int step = block_threads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) {
      shared[threadIdx.x].loss += shared[threadIdx.x + step].loss;
      shared[threadIdx.x].samples += shared[threadIdx.x + step].samples;
    }
  }
  return shared[0];
}

template <class C>
__global__ void __launch_bounds__(block_threads)
    add_losses(const C* losses, const std::uint8_t* counted, std::int64_t lines, std::int64_t chunk,
               LossSum* partials) {
  LossSum sum{};
  const std::int64_t begin = blockIdx.x * chunk, end = min(begin + chunk, lines);
  for (std::int64_t i = begin + threadIdx.x; i < end; i += block_threads) {
    sum.loss += static_cast<double>(losses[i]);
    sum.samples += counted[i];
  }
  sum = add_block(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    finish_loss(const LossSum* partials, int count, bool mean, T* loss, Compute<T>* factor) {
  LossSum sum{};
  for (int i = threadIdx.x; i < count; i += block_threads) {
    sum.loss += partials[i].loss;
    sum.samples += partials[i].samples;
  }
  sum = add_block(sum);
  if (threadIdx.x != 0) return;
  const double scale = mean ? 1 / sum.samples : 1;
  *factor = static_cast<Compute<T>>(scale);
  *loss = narrow<T>(static_cast<Compute<T>>(scale * sum.loss));
}

/// (N, ...) as (N, 1, ...), or a scalar as one of such a shape.
ConstView with_class_axis(const ConstView& view, int rank) {
  ConstView result{view.data, {}, view.dtype};
  result.layout.rank = rank;
  for (int i = 0, from = 0; i < rank; ++i) {
    const bool kept = i != 1 && view.layout.rank > 0;
    result.layout.sizes[i] = kept ? view.layout.sizes[from] : 1;
    result.layout.strides[i] = kept ? view.layout.strides[from++] : 0;
  }
  return result;
}

/// Calls f(T()) with the type of `dtype`.
template <class F>
cudaError_t with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double());
    case DType::f32: return f(float());
    case DType::bf16: return f(__nv_bfloat16());
    case DType::f16: return f(__half());
    default: return cudaErrorInvalidValue;
  }
}

/// The workspace of a reduced loss.
struct LossSpace {
  std::int64_t lines, blocks, chunk;
  std::size_t losses, counted, bytes;  // offsets after the partial sums, and the end

  explicit LossSpace(const CrossEntropyForward& args)
      : lines(args.labels.layout.numel()),
        blocks(std::clamp<std::int64_t>(lines / losses_per_block, 1, max_loss_blocks)),
        chunk(ceil_div(lines, blocks)) {
    losses = static_cast<std::size_t>(blocks) * sizeof(LossSum);
    counted = losses + static_cast<std::size_t>(lines) * (args.x.dtype == DType::f64 ? 8 : 4);
    bytes = counted + static_cast<std::size_t>(lines);
  }
};

}  // namespace

cudaError_t softmax(const SoftmaxForward& args, cudaStream_t stream) {
  return with_type(args.x.dtype, [&](auto zero) {
    return launch(Softmax<decltype(zero)>{args.log}, args.axis, {args.x, args.y}, stream);
  });
}

cudaError_t softmax_backward(const SoftmaxBackward& args, cudaStream_t stream) {
  return with_type(args.y.dtype, [&](auto zero) {
    return launch(SoftmaxGradient<decltype(zero)>{args.log}, args.axis, {args.y, args.dy, args.dx},
                  stream);
  });
}

std::size_t cross_entropy_workspace_bytes(const CrossEntropyForward& args) {
  return args.reduction == Reduction::none ? 0 : LossSpace(args).bytes;
}

cudaError_t cross_entropy(const CrossEntropyForward& args, void* workspace, cudaStream_t stream) {
  return with_type(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const int rank = args.x.layout.rank;
    const bool reduced = args.reduction != Reduction::none;
    const LossSpace space(args);
    char* const bytes = static_cast<char*>(workspace);
    C* const losses = reduced ? reinterpret_cast<C*>(bytes + space.losses) : nullptr;
    auto* const counted =
        reduced ? reinterpret_cast<std::uint8_t*>(bytes + space.counted) : nullptr;
    C* const saved = static_cast<C*>(args.saved);
    const CrossEntropy<T> pass{static_cast<const std::int64_t*>(args.labels.data),
                               reduced ? nullptr : static_cast<T*>(args.loss.data),
                               losses,
                               counted,
                               saved,
                               args.x.layout.sizes[1],
                               args.ignored,
                               static_cast<C>(args.smoothing)};
    const cudaError_t status = launch(
        pass, 1, {args.x, with_class_axis(args.labels, rank), with_class_axis(args.loss, rank)},
        stream);
    if (status != cudaSuccess || !reduced) return status;
    auto* const partials = reinterpret_cast<LossSum*>(bytes);
    const int blocks = static_cast<int>(space.blocks);
    add_losses<C><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(
        losses, counted, space.lines, space.chunk, partials);
    if (const cudaError_t added = cudaGetLastError(); added != cudaSuccess) return added;
    finish_loss<T>
        <<<1, block_threads, 0, stream>>>(partials, blocks, args.reduction == Reduction::mean,
                                          static_cast<T*>(args.loss.data), saved + 2 * space.lines);
    return cudaGetLastError();
  });
}

cudaError_t cross_entropy_backward(const CrossEntropyBackward& args, cudaStream_t stream) {
  return with_type(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const int rank = args.x.layout.rank;
    const C* const saved = static_cast<const C*>(args.saved);
    const CrossEntropyGradient<T> pass{
        static_cast<const std::int64_t*>(args.labels.data),
        static_cast<const T*>(args.dloss.data),
        saved,
        args.reduction == Reduction::mean ? saved + 2 * args.labels.layout.numel() : nullptr,
        args.x.layout.sizes[1],
        args.ignored,
        static_cast<C>(args.smoothing)};
    return launch(
        pass, 1,
        {args.x, args.dx, with_class_axis(args.labels, rank), with_class_axis(args.dloss, rank)},
        stream);
  });
}

}  // namespace zerone::kernels::cuda
