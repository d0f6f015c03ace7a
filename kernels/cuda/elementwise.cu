// Elementwise kernels. The host collapses the axes of all operands together, then one of three
// kernels runs:
//   map_flat      everything dense in one order: 256 threads x 4 vectors of 16 bytes per operand,
//                 all loads issued before the first store; elements before the first and after the
//                 last whole vector go to block 0.
//   map_strided   any strides: the same vectors where the innermost axis allows it (an operand that
//                 is constant along it is loaded as a scalar), else single elements. Indices are
//                 decoded from 32 bits by multiplication; larger problems are cut on the host.
//   copy_transposed  copies whose operands run along different innermost axes: a 64 x 64 tile
//                 (32 x 32 for 8 bytes) through shared memory, 16-byte accesses on both sides where
//                 sizes and strides allow. Rows are padded by one bank, which leaves two-way
//                 conflicts, far from binding.
// Floor: the bytes of the operands at copy bandwidth.
#include <zerone/kernels/cuda/elementwise.h>

#include <algorithm>
#include <cstdint>

#include <zerone/kernels/elementwise_formulas.h>
#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int block_threads = 256;
constexpr int unroll = 4;  // vectors in flight per thread and operand
constexpr int per_block = block_threads * unroll;
constexpr std::int64_t index_limit = std::int64_t{1} << 31;  // of 32-bit decoding

// Operations: `inputs` operands of types A and B make elements of type Out.

/// Also moves elements of equal size whatever their type.
template <class T, class From>
struct Convert {
  using Out = T;
  using A = From;
  using B = From;
  static constexpr int inputs = 1;

  template <int V>
  __device__ void operator()(T (&out)[V], const From (&a)[V], const From (&)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      if constexpr (std::is_same_v<T, From>) {
        out[i] = a[i];
      } else {
        out[i] = narrow<T>(widen(a[i]));
      }
    }
  }
};

template <class T>
struct Fill {
  using Out = T;
  using A = T;
  using B = T;
  static constexpr int inputs = 0;
  T value;

  template <int V>
  __device__ void operator()(T (&out)[V], const T (&)[V], const T (&)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = value;
  }
};

/// What elementwise_formulas.h asks for. CUDA's functions keep denormals and, in float, err by 2
/// units in the last place at most, normcdff by 5.
struct Functions {
  static __device__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  static __device__ double fma(double a, double b, double c) { return __fma_rn(a, b, c); }
  static __device__ float exp(float x) { return expf(x); }
  static __device__ double exp(double x) { return ::exp(x); }
  static __device__ float log(float x) { return logf(x); }
  static __device__ double log(double x) { return ::log(x); }
  static __device__ float tanh(float x) { return tanhf(x); }
  static __device__ double tanh(double x) { return ::tanh(x); }
  /// The approximate division errs by 2 units in the last place in this range.
  static __device__ float inverse(float x) { return __fdividef(1, x); }
  static __device__ double inverse(double x) { return 1 / x; }
  static __device__ Normal<float> normal(float x) {
    // e^(-t^2/2) with t^2 = square + rest: the rounding of the square would cost 2^-24 t^2/2.
    const float t = fabsf(x) > 15.0f ? 15.0f : x;
    const float square = __fmul_rn(t, t), rest = __fmaf_rn(t, t, -square);
    const float e = expf(-0.5f * square);
    return {normcdff(x), 0.398942280f * __fmaf_rn(-0.5f * rest, e, e)};
  }
  static __device__ Normal<double> normal(double x) {
    return {normcdf(x), 0.39894228040143267794 * ::exp(-0.5 * x * x)};
  }
};

template <class T, UnaryOp op>
struct Unary {
  using Out = T;
  using A = T;
  using B = T;
  static constexpr int inputs = 1;
  Compute<T> alpha, beta;

  template <int V>
  __device__ void operator()(T (&out)[V], const T (&a)[V], const T (&)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      out[i] = narrow<T>(apply<Functions, op>(widen(a[i]), alpha, beta));
    }
  }
};

template <class T, BinaryOp op>
struct Binary {
  using Out = T;
  using A = T;
  using B = T;
  static constexpr int inputs = 2;
  Compute<T> alpha, beta;

  template <int V>
  __device__ void operator()(T (&out)[V], const T (&a)[V], const T (&b)[V]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      out[i] = narrow<T>(apply<Functions, op>(widen(a[i]), widen(b[i]), alpha, beta));
    }
  }
};

template <class T>
struct ScaledDifference {
  using Out = T;
  using A = T;
  using B = T;
  static constexpr int inputs = 2;
  const T* scalar;
  Compute<T> scale;

  template <int V>
  __device__ void operator()(T (&out)[V], const T (&a)[V], const T (&b)[V]) const {
    const Compute<T> factor = widen(*scalar) * scale;
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = narrow<T>(factor * (widen(a[i]) - widen(b[i])));
  }
};

template <class Op>
constexpr int vector_width = 16 / static_cast<int>(std::max({sizeof(typename Op::Out),
                                                             sizeof(typename Op::A),
                                                             sizeof(typename Op::B)}));

/// `head` elements, `vectors` vectors, then the rest of `count`; see the top of the file.
template <class Op>
__global__ void __launch_bounds__(block_threads)
    map_flat(Op op, typename Op::Out* out, const typename Op::A* a, const typename Op::B* b,
             std::int64_t count, std::int64_t vectors, int head) {
  constexpr int V = vector_width<Op>;
  using VectorOut = Vector<typename Op::Out, V>;
  using VectorA = Vector<typename Op::A, V>;
  using VectorB = Vector<typename Op::B, V>;
  const std::int64_t first = std::int64_t{blockIdx.x} * per_block + threadIdx.x;
  VectorA va[unroll];
  VectorB vb[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t i = first + u * block_threads;
    if (i >= vectors) continue;
    if constexpr (Op::inputs >= 1) va[u] = reinterpret_cast<const VectorA*>(a + head)[i];
    if constexpr (Op::inputs >= 2) vb[u] = reinterpret_cast<const VectorB*>(b + head)[i];
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t i = first + u * block_threads;
    if (i >= vectors) continue;
    VectorOut result;
    op(result.values, va[u].values, vb[u].values);
    reinterpret_cast<VectorOut*>(out + head)[i] = result;
  }
  if (blockIdx.x != 0) return;
  std::int64_t i = threadIdx.x;
  if (i >= head) i += vectors * V;
  if (i >= count || (threadIdx.x >= 2 * V)) return;
  typename Op::Out result[1];
  typename Op::A ea[1];
  typename Op::B eb[1];
  if constexpr (Op::inputs >= 1) ea[0] = a[i];
  if constexpr (Op::inputs >= 2) eb[0] = b[i];
  op(result, ea, eb);
  out[i] = result[0];
}

/// `count` vectors on a grid of `rank` >= 1 axes, outermost first; strides in elements per step.
template <int Operands>
struct StridedGrid {
  std::uint32_t count = 0;
  int rank = 1;
  FastDivisor sizes[max_rank];
  std::int64_t strides[Operands][max_rank] = {};
  bool constant[Operands] = {};  // along the vector: loaded as one element

  __device__ __forceinline__ void offsets(std::uint32_t index,
                                          std::int64_t (&offset)[Operands]) const {
#pragma unroll
    for (int k = 0; k < Operands; ++k) offset[k] = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      const std::uint32_t quotient = sizes[axis].quotient(index);
      const std::int64_t at = index - quotient * sizes[axis].divisor;
#pragma unroll
      for (int k = 0; k < Operands; ++k) offset[k] += at * strides[k][axis];
      index = quotient;
    }
#pragma unroll
    for (int k = 0; k < Operands; ++k) offset[k] += std::int64_t{index} * strides[k][0];
  }
};

template <int V, class T>
__device__ __forceinline__ Vector<T, V> load(const T* pointer, bool constant) {
  if constexpr (V > 1) {
    if (!constant) return *reinterpret_cast<const Vector<T, V>*>(pointer);
  }
  Vector<T, V> result;
  result.values[0] = *pointer;
#pragma unroll
  for (int i = 1; i < V; ++i) result.values[i] = result.values[0];
  return result;
}

template <class Op, int V>
__global__ void __launch_bounds__(block_threads)
    map_strided(Op op, typename Op::Out* out, const typename Op::A* a, const typename Op::B* b,
                const __grid_constant__ StridedGrid<Op::inputs + 1> grid) {
  const std::uint32_t first = blockIdx.x * per_block + threadIdx.x;
  Vector<typename Op::A, V> va[unroll];
  Vector<typename Op::B, V> vb[unroll];
  std::int64_t target[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::uint32_t i = first + u * block_threads;
    if (i >= grid.count) continue;
    std::int64_t offset[Op::inputs + 1];
    grid.offsets(i, offset);
    target[u] = offset[0];
    if constexpr (Op::inputs >= 1) va[u] = load<V>(a + offset[1], grid.constant[1]);
    if constexpr (Op::inputs >= 2) vb[u] = load<V>(b + offset[2], grid.constant[2]);
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    if (first + u * block_threads >= grid.count) continue;
    Vector<typename Op::Out, V> result;
    op(result.values, va[u].values, vb[u].values);
    *reinterpret_cast<Vector<typename Op::Out, V>*>(out + target[u]) = result;
  }
}

template <int Operands>
StridedGrid<Operands> make_grid(const CollapsedAxes<Operands>& axes, int width) {
  StridedGrid<Operands> grid;
  grid.count = static_cast<std::uint32_t>(axes.numel() / width);
  grid.rank = std::max(axes.rank, 1);
  for (int axis = 0; axis < axes.rank; ++axis) {
    const bool inner = axis == axes.rank - 1;
    grid.sizes[axis] =
        FastDivisor(static_cast<std::uint32_t>(axes.sizes[axis] / (inner ? width : 1)));
    for (int k = 0; k < Operands; ++k) {
      grid.strides[k][axis] = axes.strides[k][axis] * (inner ? width : 1);
      if (inner) grid.constant[k] = axes.strides[k][axis] == 0;
    }
  }
  return grid;
}

/// Whether operand `k` can be read (or, where `may_be_constant` is false, written) in vectors of
/// `width` elements along the innermost axis.
template <int Operands>
bool takes_vectors(const CollapsedAxes<Operands>& axes, int k, const void* data,
                   std::size_t element_bytes, int width, bool may_be_constant) {
  const int inner = axes.rank - 1;
  if (inner < 0 || axes.sizes[inner] % width != 0) return false;
  if (axes.strides[k][inner] == 0) return may_be_constant;
  if (axes.strides[k][inner] != 1) return false;
  for (int axis = 0; axis < inner; ++axis) {
    if (axes.strides[k][axis] % width != 0) return false;
  }
  return is_aligned(data, std::min<std::size_t>(16, element_bytes * width));
}

template <int Operands>
bool is_flat(const CollapsedAxes<Operands>& axes) {
  if (axes.rank != 1) return false;
  for (int k = 0; k < Operands; ++k) {
    if (axes.strides[k][0] != 1) return false;
  }
  return true;
}

inline unsigned blocks_for(std::int64_t work) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

/// Calls f(axes, begins) for parts of fewer than 2^31 elements, where begins[k] is the offset of
/// the part in operand k.
template <int Operands, class F>
cudaError_t for_each_part(const CollapsedAxes<Operands>& axes,
                          const std::array<std::int64_t, Operands>& begins, const F& f) {
  if (axes.numel() < index_limit) return f(axes, begins);
  int longest = 0;
  for (int axis = 1; axis < axes.rank; ++axis) {
    if (axes.sizes[axis] > axes.sizes[longest]) longest = axis;
  }
  CollapsedAxes<Operands> part = axes;
  part.sizes[longest] = (axes.sizes[longest] / 2 + 15) / 16 * 16;  // keeps vectors whole
  if (part.sizes[longest] >= axes.sizes[longest]) part.sizes[longest] = axes.sizes[longest] / 2;
  if (const cudaError_t status = for_each_part<Operands>(part, begins, f); status != cudaSuccess) {
    return status;
  }
  std::array<std::int64_t, Operands> rest = begins;
  for (int k = 0; k < Operands; ++k) rest[k] += part.sizes[longest] * axes.strides[k][longest];
  part.sizes[longest] = axes.sizes[longest] - part.sizes[longest];
  return for_each_part<Operands>(part, rest, f);
}

/// Runs `op` on collapsed axes: operand 0 is out, then a and b as far as the operation has them.
template <class Op>
cudaError_t map(const Op& op, void* out_data, const void* a_data, const void* b_data,
                const CollapsedAxes<Op::inputs + 1>& axes, cudaStream_t stream) {
  constexpr int operands = Op::inputs + 1;
  constexpr int V = vector_width<Op>;
  using Out = typename Op::Out;
  using A = typename Op::A;
  using B = typename Op::B;
  const std::int64_t count = axes.numel();
  if (count == 0) return cudaSuccess;

  if (is_flat(axes)) {
    for (int head = 0; head < V; ++head) {
      if (!is_aligned(static_cast<Out*>(out_data) + head, alignof(Vector<Out, V>)) ||
          (operands > 1 &&
           !is_aligned(static_cast<const A*>(a_data) + head, alignof(Vector<A, V>))) ||
          (operands > 2 &&
           !is_aligned(static_cast<const B*>(b_data) + head, alignof(Vector<B, V>)))) {
        continue;
      }
      const int used = static_cast<int>(std::min<std::int64_t>(head, count));
      const std::int64_t vectors = (count - used) / V;
      map_flat<Op><<<std::max(1u, blocks_for(vectors)), block_threads, 0, stream>>>(
          op, static_cast<Out*>(out_data), static_cast<const A*>(a_data),
          static_cast<const B*>(b_data), count, vectors, used);
      return cudaGetLastError();
    }
  }

  return for_each_part<operands>(
      axes, {}, [&](const CollapsedAxes<operands>& part, const auto& begins) {
        Out* const out = static_cast<Out*>(out_data) + begins[0];
        const A* a = static_cast<const A*>(a_data);
        const B* b = static_cast<const B*>(b_data);
        bool vectors = takes_vectors(part, 0, out, sizeof(Out), V, false);
        if constexpr (operands > 1) {
          a += begins[1];
          vectors = vectors && takes_vectors(part, 1, a, sizeof(A), V, true);
        }
        if constexpr (operands > 2) {
          b += begins[2];
          vectors = vectors && takes_vectors(part, 2, b, sizeof(B), V, true);
        }
        const StridedGrid<operands> grid = make_grid(part, vectors ? V : 1);
        const unsigned blocks = blocks_for(grid.count);
        if (vectors) {
          map_strided<Op, V><<<blocks, block_threads, 0, stream>>>(op, out, a, b, grid);
        } else {
          map_strided<Op, 1><<<blocks, block_threads, 0, stream>>>(op, out, a, b, grid);
        }
        return cudaGetLastError();
      });
}

/// The tiled copy: axis a is innermost in out (stride 1), axis b in x (stride 1); `batch` holds the
/// other axes.
struct TransposeGrid {
  std::uint32_t size_a, size_b;
  std::int64_t x_stride_a, out_stride_b;
  FastDivisor tiles_a, tiles_b;
  int batch_rank = 0;
  FastDivisor batch[max_rank];
  std::int64_t x_batch[max_rank], out_batch[max_rank];
  bool x_vectors, out_vectors;
};

template <class T>
constexpr std::uint32_t tile_side = sizeof(T) == 8 ? 32 : 64;

template <class T>
__global__ void __launch_bounds__(block_threads)
    copy_transposed(T* out, const T* x, const __grid_constant__ TransposeGrid grid) {
  constexpr std::uint32_t side = tile_side<T>;
  constexpr std::uint32_t V = 16 / sizeof(T);
  constexpr std::uint32_t pad = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  __shared__ T tile[side][side + pad];  // (a, b)

  std::uint32_t rest = grid.tiles_a.quotient(blockIdx.x);
  const std::uint32_t a0 = (blockIdx.x - rest * grid.tiles_a.divisor) * side;
  std::uint32_t batch = grid.tiles_b.quotient(rest);
  const std::uint32_t b0 = (rest - batch * grid.tiles_b.divisor) * side;
  x += a0 * grid.x_stride_a + b0;
  out += b0 * grid.out_stride_b + a0;
  for (int axis = grid.batch_rank - 1; axis >= 0; --axis) {
    const std::uint32_t quotient = grid.batch[axis].quotient(batch);
    const std::int64_t at = batch - quotient * grid.batch[axis].divisor;
    x += at * grid.x_batch[axis];
    out += at * grid.out_batch[axis];
    batch = quotient;
  }
  const std::uint32_t count_a = min(side, grid.size_a - a0);
  const std::uint32_t count_b = min(side, grid.size_b - b0);

  constexpr std::uint32_t vector_lanes = side / V, vector_rows = block_threads / vector_lanes;
  constexpr std::uint32_t scalar_rows = block_threads / side;
  if (grid.x_vectors) {
    constexpr std::uint32_t passes = side / vector_rows;
    const std::uint32_t b = threadIdx.x % vector_lanes * V, row = threadIdx.x / vector_lanes;
    Vector<T, V> values[passes];
#pragma unroll
    for (std::uint32_t p = 0; p < passes; ++p) {
      const std::uint32_t a = row + p * vector_rows;
      if (a < count_a && b < count_b) {
        values[p] = *reinterpret_cast<const Vector<T, V>*>(x + a * grid.x_stride_a + b);
      }
    }
#pragma unroll
    for (std::uint32_t p = 0; p < passes; ++p) {
#pragma unroll
      for (std::uint32_t i = 0; i < V; ++i)
        tile[row + p * vector_rows][b + i] = values[p].values[i];
    }
  } else {
    constexpr std::uint32_t passes = side / scalar_rows;
    const std::uint32_t b = threadIdx.x % side, row = threadIdx.x / side;
    T values[passes];
#pragma unroll
    for (std::uint32_t p = 0; p < passes; ++p) {
      const std::uint32_t a = row + p * scalar_rows;
      if (a < count_a && b < count_b) values[p] = x[a * grid.x_stride_a + b];
    }
#pragma unroll
    for (std::uint32_t p = 0; p < passes; ++p) tile[row + p * scalar_rows][b] = values[p];
  }
  __syncthreads();
  if (grid.out_vectors) {
    const std::uint32_t a = threadIdx.x % vector_lanes * V, row = threadIdx.x / vector_lanes;
    if (a >= count_a) return;
#pragma unroll
    for (std::uint32_t b = row; b < side; b += vector_rows) {
      if (b >= count_b) break;
      Vector<T, V> values;
#pragma unroll
      for (std::uint32_t i = 0; i < V; ++i) values.values[i] = tile[a + i][b];
      *reinterpret_cast<Vector<T, V>*>(out + b * grid.out_stride_b + a) = values;
    }
  } else {
    const std::uint32_t a = threadIdx.x % side, row = threadIdx.x / side;
    if (a >= count_a) return;
#pragma unroll
    for (std::uint32_t b = row; b < side; b += scalar_rows) {
      if (b >= count_b) break;
      out[b * grid.out_stride_b + a] = tile[a][b];
    }
  }
}

/// The axis to pair with the innermost one in a tiled copy, or -1 where tiles do not pay.
int transposed_axis(const CollapsedAxes<2>& axes) {
  const int inner = axes.rank - 1;
  constexpr std::int64_t least = 12;  // shorter sides leave most of a tile empty
  if (inner < 1 || axes.strides[0][inner] != 1 || axes.strides[1][inner] <= 1) return -1;
  if (axes.sizes[inner] < least) return -1;
  for (int axis = 0; axis < inner; ++axis) {
    if (axes.strides[1][axis] == 1 && axes.sizes[axis] >= least) return axis;
  }
  return -1;
}

template <class T>
cudaError_t transpose(T* out, const T* x, const CollapsedAxes<2>& axes, int axis_b,
                      cudaStream_t stream) {
  constexpr std::int64_t side = tile_side<T>;
  constexpr std::int64_t V = 16 / sizeof(T);
  const int axis_a = axes.rank - 1;
  TransposeGrid grid;
  grid.size_a = static_cast<std::uint32_t>(axes.sizes[axis_a]);
  grid.size_b = static_cast<std::uint32_t>(axes.sizes[axis_b]);
  grid.x_stride_a = axes.strides[1][axis_a];
  grid.out_stride_b = axes.strides[0][axis_b];
  const std::int64_t tiles_a = (axes.sizes[axis_a] + side - 1) / side;
  const std::int64_t tiles_b = (axes.sizes[axis_b] + side - 1) / side;
  grid.tiles_a = FastDivisor(static_cast<std::uint32_t>(tiles_a));
  grid.tiles_b = FastDivisor(static_cast<std::uint32_t>(tiles_b));
  grid.x_vectors = grid.size_b % V == 0 && grid.x_stride_a % V == 0 && is_aligned(x, 16);
  grid.out_vectors = grid.size_a % V == 0 && grid.out_stride_b % V == 0 && is_aligned(out, 16);
  std::int64_t blocks = tiles_a * tiles_b;
  for (int axis = 0; axis < axis_a; ++axis) {
    if (axis == axis_b) continue;
    const int at = grid.batch_rank++;
    grid.batch[at] = FastDivisor(static_cast<std::uint32_t>(axes.sizes[axis]));
    grid.x_batch[at] = axes.strides[1][axis];
    grid.out_batch[at] = axes.strides[0][axis];
    grid.x_vectors = grid.x_vectors && axes.strides[1][axis] % V == 0;
    grid.out_vectors = grid.out_vectors && axes.strides[0][axis] % V == 0;
    blocks *= axes.sizes[axis];
  }
  copy_transposed<T><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(out, x, grid);
  return cudaGetLastError();
}

/// Moves elements of sizeof(T) bytes.
template <class T>
cudaError_t move(void* out, const void* x, const CollapsedAxes<2>& axes, cudaStream_t stream) {
  if (const int axis_b = transposed_axis(axes); axis_b >= 0) {
    return for_each_part<2>(axes, {}, [&](const CollapsedAxes<2>& part, const auto& begins) {
      return transpose(static_cast<T*>(out) + begins[0], static_cast<const T*>(x) + begins[1], part,
                       axis_b, stream);
    });
  }
  return map(Convert<T, T>{}, out, x, nullptr, axes, stream);
}

template <class T>
cudaError_t convert_to(void* out, ConstView x, const CollapsedAxes<2>& axes, cudaStream_t stream) {
  const auto from = [&]<class From>(From) -> cudaError_t {
    if constexpr (std::is_same_v<T, From>) {
      return cudaErrorInvalidValue;  // equal dtypes are moved
    } else {
      return map(Convert<T, From>{}, out, x.data, nullptr, axes, stream);
    }
  };
  switch (x.dtype) {
    case DType::f64: return from(double{});
    case DType::f32: return from(float{});
    case DType::bf16: return from(__nv_bfloat16{});
    case DType::f16: return from(__half{});
    case DType::i64: return from(std::int64_t{});
    case DType::u8: return from(std::uint8_t{});
  }
  return cudaErrorInvalidValue;
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

template <class T>
T saturated(double value) {
  if (value != value) return 0;
  if constexpr (std::is_same_v<T, std::uint8_t>) {
    return static_cast<T>(value < 0 ? 0 : value > 255 ? 255 : value);
  } else {
    if (value >= 0x1p63) return INT64_MAX;
    if (value < -0x1p63) return INT64_MIN;
    return static_cast<T>(value);
  }
}

}  // namespace

cudaError_t fill(View out, double value, cudaStream_t stream) {
  const CollapsedAxes<1> axes = collapse_axes<1>({&out.layout});
  const auto run = [&]<class T>(T element) {
    return map(Fill<T>{element}, out.data, nullptr, nullptr, axes, stream);
  };
  switch (out.dtype) {
    case DType::f64: return run(value);
    case DType::f32: return run(static_cast<float>(value));
    case DType::bf16: return run(__double2bfloat16(value));
    case DType::f16: return run(__double2half(value));
    case DType::i64: return run(saturated<std::int64_t>(value));
    case DType::u8: return run(saturated<std::uint8_t>(value));
  }
  return cudaErrorInvalidValue;
}

cudaError_t copy(View out, ConstView x, cudaStream_t stream) {
  const CollapsedAxes<2> axes = collapse_axes<2>({&out.layout, &x.layout});
  if (axes.numel() == 0) return cudaSuccess;
  if (out.dtype == x.dtype) {
    switch (size_of(out.dtype)) {
      case 8: return move<std::uint64_t>(out.data, x.data, axes, stream);
      case 4: return move<std::uint32_t>(out.data, x.data, axes, stream);
      case 2: return move<std::uint16_t>(out.data, x.data, axes, stream);
      default: return move<std::uint8_t>(out.data, x.data, axes, stream);
    }
  }
  if (out.dtype == DType::i64) return convert_to<std::int64_t>(out.data, x, axes, stream);
  if (out.dtype == DType::u8) return convert_to<std::uint8_t>(out.data, x, axes, stream);
  return with_float_type(out.dtype,
                         [&]<class T>(T) { return convert_to<T>(out.data, x, axes, stream); });
}

cudaError_t unary(UnaryOp op, View out, ConstView x, double alpha, double beta,
                  cudaStream_t stream) {
  if (out.dtype != x.dtype) return cudaErrorInvalidValue;
  const CollapsedAxes<2> axes = collapse_axes<2>({&out.layout, &x.layout});
  return with_float_type(out.dtype, [&]<class T>(T) {
    return with_op(op, [&]<UnaryOp f>(Constant<f>) {
      const Unary<T, f> functor{static_cast<Compute<T>>(alpha), static_cast<Compute<T>>(beta)};
      return map(functor, out.data, x.data, nullptr, axes, stream);
    });
  });
}

cudaError_t binary(BinaryOp op, View out, ConstView a, ConstView b, double alpha, double beta,
                   cudaStream_t stream) {
  if (out.dtype != a.dtype || out.dtype != b.dtype) return cudaErrorInvalidValue;
  const CollapsedAxes<3> axes = collapse_axes<3>({&out.layout, &a.layout, &b.layout});
  const auto run = [&]<class T>(T) {
    return with_op(op, [&]<BinaryOp f>(Constant<f>) -> cudaError_t {
      if constexpr (takes<T>(f)) {
        const Binary<T, f> functor{static_cast<Compute<T>>(alpha), static_cast<Compute<T>>(beta)};
        return map(functor, out.data, a.data, b.data, axes, stream);
      } else {
        return cudaErrorInvalidValue;
      }
    });
  };
  return out.dtype == DType::i64 ? run(std::int64_t{}) : with_float_type(out.dtype, run);
}

cudaError_t scaled_difference(View out, ConstView a, ConstView b, const void* device_scalar,
                              double scale, cudaStream_t stream) {
  if (out.dtype != a.dtype || out.dtype != b.dtype) return cudaErrorInvalidValue;
  const CollapsedAxes<3> axes = collapse_axes<3>({&out.layout, &a.layout, &b.layout});
  return with_float_type(out.dtype, [&]<class T>(T) {
    const ScaledDifference<T> functor{static_cast<const T*>(device_scalar),
                                      static_cast<Compute<T>>(scale)};
    return map(functor, out.data, a.data, b.data, axes, stream);
  });
}

}  // namespace zerone::kernels::cuda
