// Pointwise contraction on the FMA units.
//
//   forward          y[p, k]  = act(sum_c x[p, c] w[k, c] + b[k])
//   backward weight  dw[k, c] = sum_p x[p, c] dy[p, k],   db[k] = sum_p dy[p, k]
//
// Both are the product of two panels: a "left" one made of x (forward: pixels x c_in, backward:
// c_in x pixels) and a "right" one made of w or dy, contracted over a "depth" axis (c_in, or
// pixels). A block owns a rows x cols tile of the result (rows: left, cols: right) and walks the
// depth in steps:
//
//   global -> registers   each thread fetches quads of 4 elements for step s+1 while step s is
//                         multiplied. A quad lies along whichever axis is contiguous in memory, as
//                         one vector load if sizes, strides and base allow it, else as 4 single
//                         loads whose lanes run along the axis with the smaller stride. The access
//                         is chosen per operand at launch, so no layout is ever copied or excluded.
//   registers -> shared   converted to the accumulator type and stored depth-major, [depth][kept],
//                         two stages, one barrier a step. Row strides of 4 mod 8 words keep the
//                         transposing stores of 2 x 16 lanes free of bank conflicts.
//   shared -> registers   a thread owns micro_rows x micro_cols (8 x 8) results as quads half a
//   tile
//                         apart; a warp is 8 x 4 threads, so its 16-byte reads are one contiguous
//                         128-byte and one 64-byte row, broadcast.
//
// Pixel offsets (a division each) are computed once a tile into a table in shared memory; images
// smaller than a tile (7x7) are no special case. Staging through registers rather than cp.async
// lets 16-bit types be widened once an element and sm_75 run the same code; with two blocks of 8
// warps on a processor a step lasts about 2000 cycles, longer than the latency of memory.
//
// Where every operand is read in quads, an instantiation without the code for single elements keeps
// its addresses in registers over the steps; the general one computes them anew in each.
//
// W is read again by every pixel tile from L2 (64 KB beside 64 KB of x at 128 -> 128).
// Further forward kernels: "narrow" (few channels, pixels contiguous) keeps 64 results a thread and
// W in shared memory, x goes straight from memory to registers; "few" (at most 16 pixels) gives a
// warp one output channel of 4 pixels, lanes along c_in.
//
// Floors on H200 (60 TFLOP/s FMA, 4.2 TB/s): 128 -> 128 on 2.05 M pixels 1.12 ms a pass (FMA);
// 16 -> 16 and 32 -> 32 on the same pixels 0.062 and 0.125 ms (memory).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <zerone/kernels/cuda/pointwise.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

namespace zerone::kernels::cuda {
namespace {

// ---------------------------------------------------------------------------------------------
// Elements and packs

template <class T>
using AccOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// N consecutive elements as they lie in memory. All bits zero is all elements zero.
template <class T, int N>
struct Pack {
  static constexpr int words = N * static_cast<int>(sizeof(T)) / 4;
  static_assert(words >= 1);
  std::uint32_t word[words];
};

template <class T, int N>
__device__ Pack<T, N> load_pack(const T* from) {
  using P = Pack<T, N>;
  static_assert(P::words == 1 || P::words == 2 || P::words % 4 == 0);
  P pack;
  if constexpr (P::words == 1) {
    asm volatile("ld.global.nc.L2::128B.u32 %0, [%1];" : "=r"(pack.word[0]) : "l"(from));
  } else if constexpr (P::words == 2) {
    asm volatile("ld.global.nc.L2::128B.v2.u32 {%0, %1}, [%2];"
                 : "=r"(pack.word[0]), "=r"(pack.word[1])
                 : "l"(from));
  } else {
#pragma unroll
    for (int i = 0; i < P::words; i += 4) {
      asm volatile("ld.global.nc.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(pack.word[i]), "=r"(pack.word[i + 1]), "=r"(pack.word[i + 2]),
                     "=r"(pack.word[i + 3])
                   : "l"(reinterpret_cast<const std::uint32_t*>(from) + i));
    }
  }
  return pack;
}

/// Element `i` of a pack, widened. `i` must be known at compile time after unrolling.
template <class T, int N>
__device__ AccOf<T> element(const Pack<T, N>& pack, int i) {
  if constexpr (std::is_same_v<T, double>) {
    return __hiloint2double(static_cast<int>(pack.word[2 * i + 1]),
                            static_cast<int>(pack.word[2 * i]));
  } else if constexpr (std::is_same_v<T, float>) {
    return __uint_as_float(pack.word[i]);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const std::uint32_t word = pack.word[i / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  } else {
    const auto bits = static_cast<unsigned short>(pack.word[i / 2] >> (16 * (i % 2)));
    return __half2float(__ushort_as_half(bits));
  }
}

/// Sets element `i`, which was zero, from one element in memory.
template <class T, int N>
__device__ void load_element(Pack<T, N>& pack, int i, const T* from) {
  if constexpr (sizeof(T) == 8) {
    const auto bits = __ldg(reinterpret_cast<const unsigned long long*>(from));
    pack.word[2 * i] = static_cast<std::uint32_t>(bits);
    pack.word[2 * i + 1] = static_cast<std::uint32_t>(bits >> 32);
  } else if constexpr (sizeof(T) == 4) {
    pack.word[i] = __ldg(reinterpret_cast<const unsigned int*>(from));
  } else {
    const std::uint32_t bits = __ldg(reinterpret_cast<const unsigned short*>(from));
    pack.word[i / 2] |= bits << (16 * (i % 2));
  }
}

template <class T>
__device__ AccOf<T> load_one(const T* from) {
  if constexpr (sizeof(T) >= 4) {
    return __ldg(from);
  } else {
    Pack<T, 2> pack{};
    load_element<T, 2>(pack, 0, from);
    return element<T, 2>(pack, 0);
  }
}

template <class T>
__device__ T round_to(AccOf<T> value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return value;
  }
}

/// Rounds N values and stores them as one access (two for 32 bytes).
template <class T, int N>
__device__ void store_pack(T* to, const AccOf<T> (&value)[N]) {
  struct alignas(std::min<std::size_t>(16, N * sizeof(T))) Block {
    T at[std::min<std::size_t>(N, 16 / sizeof(T))];
  };
  constexpr int step = sizeof(Block) / sizeof(T);
#pragma unroll
  for (int i = 0; i < N; i += step) {
    Block block;
#pragma unroll
    for (int j = 0; j < step; ++j) block.at[j] = round_to<T>(value[i + j]);
    *reinterpret_cast<Block*>(to + i) = block;
  }
}

template <class Acc>
__device__ Acc activated(Acc value, bool relu) {
  return relu && value < Acc(0) ? Acc(0) : value;  // NaN stays
}

// ---------------------------------------------------------------------------------------------
// Panels: a depth x kept slab of an operand on its way from global to shared memory

/// threadIdx.x, read anew at each call: addresses that depend on it are computed where they are
/// used, a few integer operations a step, and do not occupy registers that results need.
__device__ int fresh_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// How a panel's elements lie in memory: contiguous along the kept or the depth axis in aligned
/// quads, or single elements with lanes along one of them.
enum class Access : int { kept_quads, depth_quads, kept_singles, depth_singles };

/// `quads_only` leaves out the code for single elements and keeps addresses in registers.
template <class T, int kept, int depth, int threads, bool quads_only>
struct Panel {
  using Acc = AccOf<T>;
  static constexpr int quads = kept * depth / 4 / threads;
  static constexpr int row_stride = kept + 4;
  static_assert(quads * 4 * threads == kept * depth, "every thread fetches the same share");
  static_assert(kept % 4 == 0 && depth % 4 == 0);

  static constexpr bool keeps_addresses = quads_only && quads <= 4;

  Pack<T, 4> quad[quads];
  const T* source[keeps_addresses ? quads : 1];

  static __device__ int quad_thread() {
    return keeps_addresses ? static_cast<int>(threadIdx.x) : fresh_thread();
  }
  static __device__ int quad_m(int group, bool along_kept) {
    return along_kept ? group % (kept / 4) * 4 : group / (depth / 4);
  }
  static __device__ int quad_k(int group, bool along_kept) {
    return along_kept ? group / (kept / 4) : group % (depth / 4) * 4;
  }

  /// Element (k, m) of the slab lies at base + fixed(k, m) + moving(k), in elements; `fixed` is the
  /// same in every step. Both are valid for k < depth_left and every m.
  template <class Fixed>
  __device__ void prepare(const T* base, Access access, Fixed fixed) {
    if constexpr (keeps_addresses) {
      const bool along_kept = access == Access::kept_quads;
#pragma unroll
      for (int u = 0; u < quads; ++u) {
        const int group = quad_thread() + u * threads;
        source[u] = base + fixed(quad_k(group, along_kept), quad_m(group, along_kept));
      }
    }
  }

  /// Fetches the slab. Rows at and past depth_left are zero.
  template <class Fixed, class Moving>
  __device__ void load(const T* base, Access access, std::int64_t depth_left, Fixed fixed,
                       Moving moving) {
    const int limit = depth_left < depth ? static_cast<int>(depth_left) : depth;
    if (quads_only || access <= Access::depth_quads) {
      const bool along_kept = access == Access::kept_quads;
#pragma unroll
      for (int u = 0; u < quads; ++u) {
        const int group = quad_thread() + u * threads;
        const int k = quad_k(group, along_kept);
        quad[u] = {};
        if (limit == depth || k < limit) {
          if constexpr (keeps_addresses) {
            quad[u] = load_pack<T, 4>(source[u] + moving(k));
          } else {
            quad[u] = load_pack<T, 4>(base + fixed(k, quad_m(group, along_kept)) + moving(k));
          }
        }
      }
    } else {
      const int thread = fresh_thread();
#pragma unroll
      for (int u = 0; u < quads; ++u) {
        quad[u] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int single = thread + (u * 4 + i) * threads;
          const bool along_kept = access == Access::kept_singles;
          const int m = along_kept ? single % kept : single / depth;
          const int k = along_kept ? single / kept : single % depth;
          if (k < limit) load_element<T, 4>(quad[u], i, base + fixed(k, m) + moving(k));
        }
      }
    }
  }

  /// Widens the fetched slab into shared memory, row k of it at `slab + k * row_stride`.
  __device__ void store(Acc* slab, Access access) const {
    if (access == Access::kept_quads) {
#pragma unroll
      for (int u = 0; u < quads; ++u) {
        const int group = quad_thread() + u * threads;
        Acc value[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) value[i] = element<T, 4>(quad[u], i);
        store_pack<Acc, 4>(slab + quad_k(group, true) * row_stride + quad_m(group, true), value);
      }
    } else if (quads_only || access == Access::depth_quads) {
#pragma unroll
      for (int u = 0; u < quads; ++u) {
        const int group = quad_thread() + u * threads;
        Acc* at = slab + quad_k(group, false) * row_stride + quad_m(group, false);
#pragma unroll
        for (int i = 0; i < 4; ++i) at[i * row_stride] = element<T, 4>(quad[u], i);
      }
    } else {
      const int thread = fresh_thread();
#pragma unroll
      for (int u = 0; u < quads; ++u) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int single = thread + (u * 4 + i) * threads;
          const bool along_kept = access == Access::kept_singles;
          const int m = along_kept ? single % kept : single / depth;
          const int k = along_kept ? single / kept : single % depth;
          slab[k * row_stride + m] = element<T, 4>(quad[u], i);
        }
      }
    }
  }
};

// ---------------------------------------------------------------------------------------------
// Tiles

/// A block's tile. `slices` groups of threads share the tile and take every slices-th row of a
/// step; their sums are added in order at the end.
template <int rows_, int cols_, int depth_, int micro_rows_, int micro_cols_, int slices_,
          int min_blocks_>
struct Config {
  static constexpr int rows = rows_, cols = cols_, depth = depth_;
  static constexpr int micro_rows = micro_rows_, micro_cols = micro_cols_;
  static constexpr int slices = slices_, min_blocks = min_blocks_;
  static constexpr int threads_x = rows / micro_rows, threads_y = cols / micro_cols;
  static constexpr int slice_threads = threads_x * threads_y;
  static constexpr int threads = slice_threads * slices;
  static constexpr int left_slab = depth * (rows + 4), right_slab = depth * (cols + 4);
  static constexpr int stage = left_slab + right_slab;
  static_assert(micro_rows % 4 == 0 && micro_cols % 4 == 0);
  static_assert(rows % micro_rows == 0 && cols % micro_cols == 0 && depth % slices == 0);
  static_assert(threads % 32 == 0 && threads >= cols && threads % cols == 0);
  static_assert(slices == 1 || 2 * stage >= rows * cols, "the stages hold a tile for the slices");
};

// Forward. 16-bit types step 16 deep, which keeps rows of 32 bytes when channels are contiguous.
template <class T>
inline constexpr int tile_depth = sizeof(T) == 2 ? 16 : 8;
template <class T>
using ForwardWide = Config<128, 128, tile_depth<T>, 8, 8, 1, 2>;
template <class T>
using ForwardHalf = Config<128, 64, tile_depth<T>, 8, 8, 1, sizeof(T) == 2 ? 3 : 4>;
template <class T>
using ForwardSlim = Config<128, 32, tile_depth<T>, 8, 8, 1, sizeof(T) == 2 ? 4 : 6>;
using ForwardSmall = Config<32, 32, 32, 4, 4, 2, 4>;

// Backward weight.
using WeightWide = Config<128, 128, 8, 8, 8, 1, 2>;
using WeightHalf = Config<64, 64, 8, 8, 8, 1, 6>;
using WeightSlim = Config<32, 32, 32, 8, 8, 8, 3>;
using WeightDouble = Config<32, 32, 32, 4, 4, 2, 3>;

/// A thread's place in its block's tile.
template <class C>
struct Place {
  int slice, lane, x, y;  // lane: index within the slice

  __device__ Place() {
    slice = threadIdx.x / C::slice_threads;
    lane = threadIdx.x % C::slice_threads;
    if constexpr (C::threads_x % 8 == 0 && C::threads_y % 4 == 0) {
      const int warp = lane / 32;
      x = warp % (C::threads_x / 8) * 8 + lane % 8;
      y = warp / (C::threads_x / 8) * 4 + lane % 32 / 8;
    } else {
      x = lane % C::threads_x;
      y = lane / C::threads_x;
    }
  }
  /// Tile row of the thread's i-th micro row, and the same for columns.
  __device__ int row(int i) const { return i / 4 * (C::threads_x * 4) + x * 4 + i % 4; }
  __device__ int col(int j) const { return j / 4 * (C::threads_y * 4) + y * 4 + j % 4; }
};

template <class C, class Acc>
using Micro = Acc[C::micro_rows][C::micro_cols];

template <class Acc>
__device__ void read_quad(Acc* to, const Acc* from) {
  if constexpr (sizeof(Acc) == 4) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else {
    const double2 a = reinterpret_cast<const double2*>(from)[0];
    const double2 b = reinterpret_cast<const double2*>(from)[1];
    to[0] = a.x, to[1] = a.y, to[2] = b.x, to[3] = b.y;
  }
}

/// acc += left x right over one step.
template <class C, class Acc>
__device__ void multiply(Micro<C, Acc>& acc, const Acc* left, const Acc* right,
                         const Place<C>& place) {
#pragma unroll
  for (int step = 0; step < C::depth / C::slices; ++step) {
    const int k = step * C::slices + place.slice;
    Acc a[C::micro_rows], b[C::micro_cols];
#pragma unroll
    for (int i = 0; i < C::micro_rows; i += 4) {
      read_quad(a + i, left + k * (C::rows + 4) + place.row(i));
    }
#pragma unroll
    for (int j = 0; j < C::micro_cols; j += 4) {
      read_quad(b + j, right + k * (C::cols + 4) + place.col(j));
    }
#pragma unroll
    for (int j = 0; j < C::micro_cols; ++j) {
#pragma unroll
      for (int i = 0; i < C::micro_rows; ++i) acc[i][j] += a[i] * b[j];
    }
  }
}

/// Adds the sums of slices 1, 2, ... to those of slice 0, in this order. `scratch` holds a tile.
template <class C, class Acc>
__device__ void combine_slices(Micro<C, Acc>& acc, Acc* scratch, const Place<C>& place) {
#pragma unroll 1
  for (int slice = 1; slice < C::slices; ++slice) {
    __syncthreads();
    if (place.slice == slice) {
#pragma unroll
      for (int i = 0; i < C::micro_rows; ++i) {
#pragma unroll
        for (int j = 0; j < C::micro_cols; ++j) {
          scratch[(i * C::micro_cols + j) * C::slice_threads + place.lane] = acc[i][j];
        }
      }
    }
    __syncthreads();
    if (place.slice == 0) {
#pragma unroll
      for (int i = 0; i < C::micro_rows; ++i) {
#pragma unroll
        for (int j = 0; j < C::micro_cols; ++j) {
          acc[i][j] += scratch[(i * C::micro_cols + j) * C::slice_threads + place.lane];
        }
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------
// Pixels

/// The pixel grid: innermost sizes and, per operand, strides in elements, outermost axis first.
struct Grid {
  std::int64_t total;
  std::int64_t size1, size2;
  bool short_index;  // total < 2^32: 32-bit divisions do
  std::int64_t x[3], y[3];
};

struct Coordinates {
  std::int64_t at[3];
  __device__ std::int64_t offset(const std::int64_t (&stride)[3]) const {
    return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
  }
};

__device__ Coordinates locate(const Grid& grid, std::int64_t pixel) {
  if (grid.short_index) {
    const auto p = static_cast<std::uint32_t>(pixel);
    auto size1 = static_cast<std::uint32_t>(grid.size1);
    auto size2 = static_cast<std::uint32_t>(grid.size2);
    // Opaque, so that their reciprocals are not kept in registers across a loop.
    asm volatile("" : "+r"(size1), "+r"(size2));
    const std::uint32_t line = p / size2, image = line / size1;
    return {{image, line - image * size1, p - line * size2}};
  }
  std::int64_t size1 = grid.size1, size2 = grid.size2;
  asm volatile("" : "+l"(size1), "+l"(size2));
  const std::int64_t line = pixel / size2, image = line / size1;
  return {{image, line - image * size1, pixel - line * size2}};
}

struct ForwardProblem {
  Grid grid;
  const void* x;
  const void* w;
  const void* bias;
  void* y;
  std::int64_t x_channel, y_channel, w_out, w_in;  // strides
  int c_in, c_out;
  int col_tiles;
  Access x_access, w_access, y_access;  // kept: pixels for x and y, output channels for w
  bool relu;
};

// ---------------------------------------------------------------------------------------------
// Forward kernels

/// One tile of C::rows pixels x C::cols output channels a block; column tiles of the same pixels
/// are neighbours, so that they share x in L2.
template <class C, class T, bool quads_only>
__global__ void __launch_bounds__(C::threads, C::min_blocks)
    pointwise_forward_tile(const __grid_constant__ ForwardProblem p) {
  using Acc = AccOf<T>;
  __shared__ alignas(16) Acc slabs[2 * C::stage];
  __shared__ std::int64_t x_offset[C::rows], y_offset[C::rows];

  const std::int64_t row_tile = blockIdx.x / p.col_tiles;
  const int first_col = static_cast<int>(blockIdx.x - row_tile * p.col_tiles) * C::cols;
  const std::int64_t first_pixel = row_tile * C::rows;
  const std::int64_t pixels_left = p.grid.total - first_pixel;
  const int pixels = pixels_left < C::rows ? static_cast<int>(pixels_left) : C::rows;

  // Rows past the last pixel read the tile's first pixel and are never stored.
  for (int m = threadIdx.x; m < C::rows; m += C::threads) {
    const Coordinates at = locate(p.grid, first_pixel + (m < pixels ? m : 0));
    x_offset[m] = at.offset(p.grid.x);
    y_offset[m] = at.offset(p.grid.y);
  }
  __syncthreads();

  const auto* x = static_cast<const T*>(p.x);
  const auto* w = static_cast<const T*>(p.w) + first_col * p.w_out;
  const int cols = p.c_out - first_col;  // columns past it read the first one
  Panel<T, C::rows, C::depth, C::threads, quads_only> left;
  Panel<T, C::cols, C::depth, C::threads, quads_only> right;
  const auto x_at = [&](int k, int m) { return x_offset[m] + k * p.x_channel; };
  const auto w_at = [&](int k, int m) { return (m < cols ? m : 0) * p.w_out + k * p.w_in; };
  left.prepare(x, p.x_access, x_at);
  right.prepare(w, p.w_access, w_at);
  const auto load = [&](int step) {
    const std::int64_t c = static_cast<std::int64_t>(step) * C::depth;
    left.load(x, p.x_access, p.c_in - c, x_at, [&](int) { return c * p.x_channel; });
    right.load(w, p.w_access, p.c_in - c, w_at, [&](int) { return c * p.w_in; });
  };
  const auto store = [&](int step) {
    Acc* slab = slabs + step % 2 * C::stage;
    left.store(slab, p.x_access);
    right.store(slab + C::left_slab, p.w_access);
  };

  const Place<C> place;
  Micro<C, Acc> acc{};
  const int steps = (p.c_in + C::depth - 1) / C::depth;
  if (steps > 0) {
    load(0);
    store(0);
    __syncthreads();
  }
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const Acc* slab = slabs + step % 2 * C::stage;
    if (step + 1 < steps) load(step + 1);
    multiply<C>(acc, slab, slab + C::left_slab, place);
    if (step + 1 < steps) store(step + 1);
    __syncthreads();
  }
  if constexpr (C::slices > 1) {
    combine_slices<C>(acc, slabs, place);
    if (place.slice != 0) return;
  }

#pragma unroll
  for (int j = 0; j < C::micro_cols; ++j) {
    const int k = first_col + place.col(j);
    const Acc bias =
        p.bias != nullptr && k < p.c_out ? load_one(static_cast<const T*>(p.bias) + k) : Acc(0);
#pragma unroll
    for (int i = 0; i < C::micro_rows; ++i) acc[i][j] = activated(acc[i][j] + bias, p.relu);
  }

  auto* y = static_cast<T*>(p.y) + first_col * p.y_channel;
  if (p.y_access == Access::kept_quads) {
#pragma unroll
    for (int i = 0; i < C::micro_rows; i += 4) {
      const int m = place.row(i);
      if (m >= pixels) continue;
      T* at = y + y_offset[m];
#pragma unroll
      for (int j = 0; j < C::micro_cols; ++j) {
        const int k = place.col(j);
        const Acc value[4] = {acc[i][j], acc[i + 1][j], acc[i + 2][j], acc[i + 3][j]};
        if (k < cols) store_pack<T, 4>(at + k * p.y_channel, value);
      }
    }
  } else if (p.y_access == Access::depth_quads) {
#pragma unroll
    for (int i = 0; i < C::micro_rows; ++i) {
      const int m = place.row(i);
      if (m >= pixels) continue;
      T* at = y + y_offset[m];
#pragma unroll
      for (int j = 0; j < C::micro_cols; j += 4) {
        const int k = place.col(j);
        const Acc value[4] = {acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]};
        if (k < cols) store_pack<T, 4>(at + k, value);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < C::micro_rows; ++i) {
      const int m = place.row(i);
      if (m >= pixels) continue;
      T* at = y + y_offset[m];
#pragma unroll
      for (int j = 0; j < C::micro_cols; ++j) {
        const int k = place.col(j);
        if (k < cols) at[k * p.y_channel] = round_to<T>(acc[i][j]);
      }
    }
  }
}

inline constexpr int narrow_threads = 128;
inline constexpr int narrow_weights = 8192;  // f32 values of W in shared memory
inline constexpr int narrow_batch = 8;       // channels fetched together

/// Few channels, pixels contiguous in x and y in aligned quads: a thread owns `run` consecutive
/// pixels x `outs` output channels; W lies in shared memory as [c_in rounded up][outs].
template <class T, int run, int outs>
__global__ void __launch_bounds__(narrow_threads, 4)
    pointwise_forward_narrow(const __grid_constant__ ForwardProblem p) {
  static_assert(run * outs == 64);
  __shared__ alignas(16) float weights[narrow_weights];
  const std::int64_t row_tile = blockIdx.x / p.col_tiles;
  const int first_col = static_cast<int>(blockIdx.x - row_tile * p.col_tiles) * outs;
  const int cols = p.c_out - first_col;
  const int depth = (p.c_in + narrow_batch - 1) / narrow_batch * narrow_batch;
  const auto* w = static_cast<const T*>(p.w) + first_col * p.w_out;
  for (int i = threadIdx.x; i < depth * outs; i += narrow_threads) {
    const int c = i / outs, k = i % outs;
    weights[i] = c < p.c_in && k < cols ? load_one(w + c * p.w_in + k * p.w_out) : 0.0f;
  }
  __syncthreads();

  const std::int64_t pixel = (row_tile * narrow_threads + threadIdx.x) * run;
  if (pixel >= p.grid.total) return;
  const Coordinates at = locate(p.grid, pixel);
  const auto* x = static_cast<const T*>(p.x) + at.offset(p.grid.x);
  float acc[outs][run]{};
#pragma unroll 1
  for (int c = 0; c < p.c_in; c += narrow_batch) {
    Pack<T, run> value[narrow_batch];
#pragma unroll
    for (int i = 0; i < narrow_batch; ++i) {
      value[i] = {};
      if (c + i < p.c_in) value[i] = load_pack<T, run>(x + (c + i) * p.x_channel);
    }
#pragma unroll
    for (int i = 0; i < narrow_batch; ++i) {
#pragma unroll
      for (int k = 0; k < outs; k += 4) {
        float weight[4];
        read_quad(weight, weights + (c + i) * outs + k);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int r = 0; r < run; ++r) {
            acc[k + j][r] += element<T, run>(value[i], r) * weight[j];
          }
        }
      }
    }
  }

  auto* y = static_cast<T*>(p.y) + at.offset(p.grid.y) + first_col * p.y_channel;
#pragma unroll
  for (int k = 0; k < outs; ++k) {
    if (k >= cols) break;
    const float bias =
        p.bias != nullptr ? load_one(static_cast<const T*>(p.bias) + first_col + k) : 0.0f;
#pragma unroll
    for (int r = 0; r < run; ++r) acc[k][r] = activated(acc[k][r] + bias, p.relu);
    store_pack<T, run>(y + k * p.y_channel, acc[k]);
  }
}

inline constexpr int few_threads = 128;
inline constexpr int few_run = 4;      // pixels a warp takes
inline constexpr int few_pixels = 16;  // most pixels that this kernel is chosen for

/// A handful of pixels: one warp an output channel and few_run pixels, lanes along c_in.
template <class T>
__global__ void __launch_bounds__(few_threads)
    pointwise_forward_few(const __grid_constant__ ForwardProblem p) {
  using Acc = AccOf<T>;
  const int lane = threadIdx.x % 32;
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * (few_threads / 32) + threadIdx.x / 32;
  const std::int64_t group = warp / p.c_out;
  const auto k = static_cast<int>(warp - group * p.c_out);
  const std::int64_t first_pixel = group * few_run;
  if (first_pixel >= p.grid.total) return;
  const std::int64_t left = p.grid.total - first_pixel;

  const T* x[few_run];
  std::int64_t y_offset[few_run];
#pragma unroll
  for (int r = 0; r < few_run; ++r) {
    const Coordinates at = locate(p.grid, first_pixel + (r < left ? r : 0));
    x[r] = static_cast<const T*>(p.x) + at.offset(p.grid.x);
    y_offset[r] = at.offset(p.grid.y);
  }
  const auto* w = static_cast<const T*>(p.w) + k * p.w_out;
  Acc acc[few_run]{};
#pragma unroll 4
  for (int c = lane; c < p.c_in; c += 32) {
    const Acc weight = load_one(w + c * p.w_in);
#pragma unroll
    for (int r = 0; r < few_run; ++r) acc[r] += load_one(x[r] + c * p.x_channel) * weight;
  }
#pragma unroll
  for (int r = 0; r < few_run; ++r) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      acc[r] += __shfl_xor_sync(0xffffffffu, acc[r], step);
    }
  }
  if (lane != 0) return;
  const Acc bias = p.bias != nullptr ? load_one(static_cast<const T*>(p.bias) + k) : Acc(0);
  auto* y = static_cast<T*>(p.y) + k * p.y_channel;
#pragma unroll
  for (int r = 0; r < few_run; ++r) {
    if (r < left) y[y_offset[r]] = round_to<T>(activated(acc[r] + bias, p.relu));
  }
}

// ---------------------------------------------------------------------------------------------
// Backward-weight kernels

struct WeightProblem {
  Grid grid;
  const void* x;
  const void* dy;
  void* partial_dw;  // Acc [splits][c_out][c_in], null if dw is not wanted
  void* partial_db;  // Acc [splits][c_out], null if db is not wanted
  std::int64_t x_channel, y_channel;
  std::int64_t chunk;  // pixels a split, a multiple of 32
  int c_in, c_out;
  int row_tiles, col_tiles;
  Access x_access, dy_access;  // kept: channels
};

inline constexpr int table_pixels = 256;

/// One tile of C::rows input x C::cols output channels of one split a block; blocks of the same
/// split are neighbours. The first row tile also sums dy: thread t takes column t % cols and every
/// threads/cols-th row of each step.
template <class C, class T, bool quads_only>
__global__ void __launch_bounds__(C::threads, C::min_blocks)
    pointwise_weight_tile(const __grid_constant__ WeightProblem p) {
  using Acc = AccOf<T>;
  static_assert(table_pixels % C::depth == 0);
  __shared__ alignas(16) Acc slabs[2 * C::stage];
  __shared__ std::int64_t x_offset[table_pixels], dy_offset[table_pixels];

  const int tiles = p.row_tiles * p.col_tiles;
  const std::int64_t split = blockIdx.x / tiles;
  const int tile = static_cast<int>(blockIdx.x - split * tiles);
  const int first_row = tile % p.row_tiles * C::rows, first_col = tile / p.row_tiles * C::cols;
  const int rows = p.c_in - first_row, cols = p.c_out - first_col;
  const std::int64_t begin = split * p.chunk;
  const std::int64_t end = begin + p.chunk < p.grid.total ? begin + p.chunk : p.grid.total;
  const bool with_dw = p.partial_dw != nullptr && p.c_in > 0;
  const bool with_db = p.partial_db != nullptr && first_row == 0;

  const auto* x = static_cast<const T*>(p.x) + first_row * p.x_channel;
  const auto* dy = static_cast<const T*>(p.dy) + first_col * p.y_channel;
  Panel<T, C::rows, C::depth, C::threads, quads_only> left;
  Panel<T, C::cols, C::depth, C::threads, quads_only> right;
  constexpr int table_steps = table_pixels / C::depth;
  // Channels past the last read the tile's first one and are never stored.
  const auto x_at = [&](int, int m) { return (m < rows ? m : 0) * p.x_channel; };
  const auto dy_at = [&](int, int m) { return (m < cols ? m : 0) * p.y_channel; };
  left.prepare(x, p.x_access, x_at);
  right.prepare(dy, p.dy_access, dy_at);
  const auto load = [&](std::int64_t step) {
    const std::int64_t pixel = begin + step * C::depth;
    const int base = static_cast<int>(step % table_steps) * C::depth;
    if (base == 0) {  // every thread has passed the barrier after the table's last use
#pragma unroll 1
      for (int i = threadIdx.x; i < table_pixels; i += C::threads) {
        if (pixel + i < end) {
          const Coordinates at = locate(p.grid, pixel + i);
          x_offset[i] = at.offset(p.grid.x);
          dy_offset[i] = at.offset(p.grid.y);
        }
      }
      __syncthreads();
    }
    if (with_dw) {
      left.load(x, p.x_access, end - pixel, x_at, [&](int k) { return x_offset[base + k]; });
    }
    right.load(dy, p.dy_access, end - pixel, dy_at, [&](int k) { return dy_offset[base + k]; });
  };
  const auto store = [&](std::int64_t step) {
    Acc* slab = slabs + step % 2 * C::stage;
    if (with_dw) left.store(slab, p.x_access);
    right.store(slab + C::left_slab, p.dy_access);
  };

  const Place<C> place;
  Micro<C, Acc> acc{};
  Acc db = 0;
  const int db_col = threadIdx.x % C::cols, db_row = threadIdx.x / C::cols;
  constexpr int db_rows = C::threads / C::cols;
  const std::int64_t steps = end > begin ? (end - begin + C::depth - 1) / C::depth : 0;
  if (steps > 0) {
    load(0);
    store(0);
    __syncthreads();
  }
#pragma unroll 1
  for (std::int64_t step = 0; step < steps; ++step) {
    const Acc* slab = slabs + step % 2 * C::stage;
    if (step + 1 < steps) load(step + 1);
    if (with_dw) multiply<C>(acc, slab, slab + C::left_slab, place);
    if (with_db) {
#pragma unroll
      for (int k = 0; k < C::depth / db_rows; ++k) {
        db += slab[C::left_slab + (k * db_rows + db_row) * (C::cols + 4) + db_col];
      }
    }
    if (step + 1 < steps) store(step + 1);
    __syncthreads();
  }

  if (with_db) {  // uniform over the block
    slabs[threadIdx.x] = db;
    __syncthreads();
    if (threadIdx.x < C::cols && db_col < cols) {
      Acc sum = slabs[threadIdx.x];
#pragma unroll 1
      for (int r = 1; r < db_rows; ++r) sum += slabs[r * C::cols + threadIdx.x];
      static_cast<Acc*>(p.partial_db)[split * p.c_out + first_col + db_col] = sum;
    }
  }
  if (!with_dw) return;
  if constexpr (C::slices > 1) {
    combine_slices<C>(acc, slabs, place);
    if (place.slice != 0) return;
  }
  auto* partial = static_cast<Acc*>(p.partial_dw) + first_row +
                  (split * p.c_out + first_col) * static_cast<std::int64_t>(p.c_in);
#pragma unroll
  for (int j = 0; j < C::micro_cols; ++j) {
    const int k = place.col(j);
    if (k >= cols) continue;
    Acc* at = partial + static_cast<std::int64_t>(k) * p.c_in;
#pragma unroll
    for (int i = 0; i < C::micro_rows; i += 4) {
      const int c = place.row(i);
      const Acc value[4] = {acc[i][j], acc[i + 1][j], acc[i + 2][j], acc[i + 3][j]};
      if (p.c_in % 4 == 0) {
        if (c < rows) store_pack<Acc, 4>(at + c, value);
      } else {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          if (c + r < rows) at[c + r] = value[r];
        }
      }
    }
  }
}

inline constexpr int reduce_outputs = 32, reduce_ways = 8;

/// Adds the splits: thread (o, r) of a block sums splits r, r + 8, ... of output o in one chain,
/// then the 8 chains are added in order. Outputs are dw[k, c] at k * c_in + c, then db[k].
template <class T>
__global__ void __launch_bounds__(reduce_outputs* reduce_ways)
    pointwise_weight_reduce(const AccOf<T>* partial_dw, const AccOf<T>* partial_db, T* dw, T* db,
                            std::int64_t weights, int c_in, int c_out, std::int64_t stride_out,
                            std::int64_t stride_in, int splits) {
  using Acc = AccOf<T>;
  __shared__ Acc chains[reduce_ways][reduce_outputs];
  const int lane = threadIdx.x % reduce_outputs, way = threadIdx.x / reduce_outputs;
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * reduce_outputs + lane;
  const bool is_dw = output < weights;
  const std::int64_t k_db = output - weights;
  const bool active = is_dw || (db != nullptr && k_db < c_out);
  const Acc* from = is_dw ? partial_dw + output : partial_db + k_db;
  const std::int64_t stride = is_dw ? weights : c_out;
  Acc sum = 0;
  if (active) {
#pragma unroll 8
    for (int split = way; split < splits; split += reduce_ways) sum += from[split * stride];
  }
  chains[way][lane] = sum;
  __syncthreads();
  if (way != 0 || !active) return;
#pragma unroll
  for (int r = 1; r < reduce_ways; ++r) sum += chains[r][lane];
  if (is_dw) {
    const std::int64_t k = output / c_in, c = output - k * c_in;
    dw[k * stride_out + c * stride_in] = round_to<T>(sum);
  } else {
    db[k_db] = round_to<T>(sum);
  }
}

// ---------------------------------------------------------------------------------------------
// Launchers

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Processors that tile choices and split counts are made for, on every device, so that results
/// never depend on the device.
inline constexpr std::int64_t planned_processors = 132;
inline constexpr std::int64_t max_blocks = 0x7fffffff;

/// Copies the shape's pixel axes without those of size 1, aligned to the innermost.
struct Axes {
  std::array<std::int64_t, 3> size{1, 1, 1}, x{}, y{};
};

Axes compact(const PointwiseShape& s) {
  Axes axes;
  int to = 2;
  for (int from = 2; from >= 0; --from) {
    if (s.pixels[from] == 1) continue;
    axes.size[to] = s.pixels[from];
    axes.x[to] = s.x_strides[from];
    axes.y[to] = s.y_strides[from];
    --to;
  }
  return axes;
}

Grid grid_of(const Axes& axes) {
  Grid grid{};
  grid.total = axes.size[0] * axes.size[1] * axes.size[2];
  grid.size1 = axes.size[1];
  grid.size2 = axes.size[2];
  grid.short_index = grid.total <= 0xffffffff;
  for (int i = 0; i < 3; ++i) {
    grid.x[i] = axes.x[i];
    grid.y[i] = axes.y[i];
  }
  return grid;
}

bool aligned(const void* pointer, std::size_t element) {
  const std::size_t bytes = std::min<std::size_t>(16, 4 * element);
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

enum class Contiguous { pixel_quads, channel_quads, pixel_singles, channel_singles };

/// How x, y or dy is best read or written.
Contiguous contiguity(const Axes& axes, const std::array<std::int64_t, 3>& stride,
                      std::int64_t channel_stride, std::int64_t channels, const void* base,
                      std::size_t element) {
  const bool outer_quads = stride[0] % 4 == 0 && stride[1] % 4 == 0 && aligned(base, element);
  const bool many_pixels = axes.size[2] > 1, many_channels = channels > 1;
  if (many_pixels && stride[2] == 1 && axes.size[2] % 4 == 0 && outer_quads &&
      (channel_stride % 4 == 0 || !many_channels)) {
    return Contiguous::pixel_quads;
  }
  if (many_channels && channel_stride == 1 && channels % 4 == 0 && outer_quads &&
      stride[2] % 4 == 0) {
    return Contiguous::channel_quads;
  }
  if (many_channels && (!many_pixels || stride[2] == 0 || channel_stride < stride[2])) {
    return Contiguous::channel_singles;
  }
  return Contiguous::pixel_singles;
}

Access access_of(Contiguous contiguous, bool pixels_kept) {
  switch (contiguous) {
    case Contiguous::pixel_quads: return pixels_kept ? Access::kept_quads : Access::depth_quads;
    case Contiguous::channel_quads: return pixels_kept ? Access::depth_quads : Access::kept_quads;
    case Contiguous::pixel_singles:
      return pixels_kept ? Access::kept_singles : Access::depth_singles;
    case Contiguous::channel_singles:
      return pixels_kept ? Access::depth_singles : Access::kept_singles;
  }
  return Access::kept_singles;
}

bool is_quads(Access access) {
  return access <= Access::depth_quads;
}

/// Access of w as a panel that keeps c_out and contracts c_in.
Access weight_access(const PointwiseShape& s, const void* w, std::size_t element) {
  const bool ok = aligned(w, element);
  if (s.w_stride_out == 1 && s.c_out % 4 == 0 && ok && (s.w_stride_in % 4 == 0 || s.c_in == 1)) {
    return Access::kept_quads;
  }
  if (s.w_stride_in == 1 && s.c_in % 4 == 0 && ok && (s.w_stride_out % 4 == 0 || s.c_out == 1)) {
    return Access::depth_quads;
  }
  return s.w_stride_in < s.w_stride_out ? Access::depth_singles : Access::kept_singles;
}

template <class C, class T>
cudaError_t launch_forward_tile(ForwardProblem& p, cudaStream_t stream) {
  p.col_tiles = static_cast<int>(ceil_div(p.c_out, C::cols));
  const std::int64_t blocks = ceil_div(p.grid.total, C::rows) * p.col_tiles;
  if (blocks > max_blocks) return cudaErrorInvalidConfiguration;
  const auto grid = static_cast<unsigned>(blocks);
  if constexpr (C::threads_x % 16 == 0) {  // the small tile waits on latency, not on instructions
    if (is_quads(p.x_access) && is_quads(p.w_access)) {
      pointwise_forward_tile<C, T, true><<<grid, C::threads, 0, stream>>>(p);
      return cudaGetLastError();
    }
  }
  pointwise_forward_tile<C, T, false><<<grid, C::threads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <class T, int run, int outs>
cudaError_t launch_forward_narrow(ForwardProblem& p, cudaStream_t stream) {
  p.col_tiles = static_cast<int>(ceil_div(p.c_out, outs));
  const std::int64_t blocks = ceil_div(p.grid.total, run * narrow_threads) * p.col_tiles;
  if (blocks > max_blocks) return cudaErrorInvalidConfiguration;
  pointwise_forward_narrow<T, run, outs>
      <<<static_cast<unsigned>(blocks), narrow_threads, 0, stream>>>(p);
  return cudaGetLastError();
}

/// Estimated cycles of a tile choice: whole waves of tiles at the tile's FMA rate (percent, the
/// inverse of its efficiency), and no less than the latency of its steps.
template <class C>
std::int64_t forward_cycles(const ForwardProblem& p, int percent) {
  constexpr std::int64_t step_latency = 900, lanes = 128;
  const std::int64_t tiles = ceil_div(p.grid.total, C::rows) * ceil_div(p.c_out, C::cols);
  const std::int64_t waves = ceil_div(tiles, planned_processors);
  const std::int64_t steps = ceil_div(p.c_in, C::depth);
  return std::max(waves * (C::rows * C::cols / lanes) * steps * C::depth * percent / 100,
                  steps * step_latency);
}

template <class T>
cudaError_t forward(const PointwiseShape& s, const PointwiseForward& args, cudaStream_t stream) {
  const Axes axes = compact(s);
  ForwardProblem p{};
  p.grid = grid_of(axes);
  p.x = args.x;
  p.w = args.w;
  p.bias = args.bias;
  p.y = args.y;
  p.x_channel = s.x_channel_stride;
  p.y_channel = s.y_channel_stride;
  p.w_out = s.w_stride_out;
  p.w_in = s.w_stride_in;
  p.c_in = static_cast<int>(s.c_in);
  p.c_out = static_cast<int>(s.c_out);
  p.relu = args.activation == Activation::relu;
  const Contiguous x = contiguity(axes, axes.x, s.x_channel_stride, s.c_in, args.x, sizeof(T));
  const Contiguous y = contiguity(axes, axes.y, s.y_channel_stride, s.c_out, args.y, sizeof(T));
  p.x_access = access_of(x, true);
  p.y_access = access_of(y, true);
  p.w_access = weight_access(s, args.w, sizeof(T));

  if (p.grid.total <= few_pixels) {
    const std::int64_t warps = ceil_div(p.grid.total, few_run) * p.c_out;
    const std::int64_t blocks = ceil_div(warps, few_threads / 32);
    if (blocks > max_blocks) return cudaErrorInvalidConfiguration;
    pointwise_forward_few<T><<<static_cast<unsigned>(blocks), few_threads, 0, stream>>>(p);
    return cudaGetLastError();
  }
  if constexpr (std::is_same_v<T, double>) {
    return launch_forward_tile<ForwardSmall, T>(p, stream);
  } else {
    constexpr std::int64_t narrow_least_pixels = 32768;
    const bool quads = x == Contiguous::pixel_quads && y == Contiguous::pixel_quads;
    if (quads && p.grid.total >= narrow_least_pixels) {
      if (p.c_out <= 16 && p.c_in <= 128) return launch_forward_narrow<T, 4, 16>(p, stream);
      if ((p.c_out <= 32 && p.c_in <= 64) || p.c_in <= 16) {
        return launch_forward_narrow<T, 2, 32>(p, stream);
      }
    }
    const std::int64_t wide = forward_cycles<ForwardWide<T>>(p, 100);
    const std::int64_t half = forward_cycles<ForwardHalf<T>>(p, 106);
    const std::int64_t slim = forward_cycles<ForwardSlim<T>>(p, 120);
    const std::int64_t small = forward_cycles<ForwardSmall>(p, 200);
    const std::int64_t least = std::min({wide, half, slim, small});
    if (least == wide) return launch_forward_tile<ForwardWide<T>, T>(p, stream);
    if (least == half) return launch_forward_tile<ForwardHalf<T>, T>(p, stream);
    if (least == slim) return launch_forward_tile<ForwardSlim<T>, T>(p, stream);
    return launch_forward_tile<ForwardSmall, T>(p, stream);
  }
}

enum class WeightTile { wide, half, slim, dbl };

struct WeightPlan {
  WeightTile tile = WeightTile::wide;
  int row_tiles = 1, col_tiles = 1;
  std::int64_t splits = 1, chunk = 0;
};

template <class C>
std::int64_t padded_area(const PointwiseShape& s) {
  return ceil_div(s.c_in, C::rows) * C::rows * ceil_div(s.c_out, C::cols) * C::cols;
}

/// Tile and splits: as many splits as fill the planned processors about once with the tile's
/// resident blocks (twice if the tiles alone nearly do), none shorter than 64 pixels.
template <class C>
WeightPlan plan_splits(const PointwiseShape& s, WeightTile tile) {
  constexpr std::int64_t least_chunk = 64, chunk_unit = 32;
  WeightPlan plan;
  plan.tile = tile;
  plan.row_tiles = static_cast<int>(std::max<std::int64_t>(1, ceil_div(s.c_in, C::rows)));
  plan.col_tiles = static_cast<int>(ceil_div(s.c_out, C::cols));
  const std::int64_t tiles = static_cast<std::int64_t>(plan.row_tiles) * plan.col_tiles;
  const std::int64_t resident = planned_processors * C::min_blocks;
  const std::int64_t slots = tiles * 8 > resident ? 2 * resident : resident;
  const std::int64_t pixels = s.pixel_count();
  std::int64_t splits = std::max<std::int64_t>(1, slots / tiles);
  splits = std::min(splits, std::max<std::int64_t>(1, pixels / least_chunk));
  plan.chunk = ceil_div(ceil_div(pixels, splits), chunk_unit) * chunk_unit;
  plan.splits = plan.chunk > 0 ? ceil_div(pixels, plan.chunk) : 1;
  return plan;
}

WeightPlan plan_weight(const PointwiseShape& s, DType dtype) {
  if (s.c_out <= 0) return {};
  if (dtype == DType::f64) return plan_splits<WeightDouble>(s, WeightTile::dbl);
  // Cost in percent of the wide tile's FMA rate; few pixels want many small tiles.
  constexpr std::int64_t many_pixels = 16384;
  const std::int64_t wide = padded_area<WeightWide>(s) * 100;
  const std::int64_t half = padded_area<WeightHalf>(s) * 115;
  const std::int64_t slim = padded_area<WeightSlim>(s) * 160;
  if (s.pixel_count() >= many_pixels && wide <= std::min(half, slim)) {
    return plan_splits<WeightWide>(s, WeightTile::wide);
  }
  if (half <= slim) return plan_splits<WeightHalf>(s, WeightTile::half);
  return plan_splits<WeightSlim>(s, WeightTile::slim);
}

std::int64_t partial_values(const PointwiseShape& s, const WeightPlan& plan) {
  return plan.splits * s.c_out * (s.c_in + 1);
}

template <class C, class T>
cudaError_t launch_weight_tile(const WeightProblem& p, std::int64_t splits, cudaStream_t stream) {
  const std::int64_t blocks = splits * p.row_tiles * p.col_tiles;
  if (blocks > max_blocks) return cudaErrorInvalidConfiguration;
  const auto grid = static_cast<unsigned>(blocks);
  if constexpr (!std::is_same_v<T, double>) {
    if (is_quads(p.x_access) && is_quads(p.dy_access)) {
      pointwise_weight_tile<C, T, true><<<grid, C::threads, 0, stream>>>(p);
      return cudaGetLastError();
    }
  }
  pointwise_weight_tile<C, T, false><<<grid, C::threads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <class T>
cudaError_t backward_weight(const PointwiseShape& s, const PointwiseBackwardWeight& args,
                            DType dtype, void* workspace, cudaStream_t stream) {
  using Acc = AccOf<T>;
  const WeightPlan plan = plan_weight(s, dtype);
  const Axes axes = compact(s);
  const bool with_dw = args.dw != nullptr && s.c_in > 0;
  WeightProblem p{};
  p.grid = grid_of(axes);
  p.x = args.x;
  p.dy = args.dy;
  auto* partial_dw = static_cast<Acc*>(workspace);
  Acc* partial_db = partial_dw + plan.splits * s.c_out * s.c_in;
  p.partial_dw = with_dw ? partial_dw : nullptr;
  p.partial_db = args.db != nullptr ? partial_db : nullptr;
  p.x_channel = s.x_channel_stride;
  p.y_channel = s.y_channel_stride;
  p.chunk = plan.chunk;
  p.c_in = static_cast<int>(s.c_in);
  p.c_out = static_cast<int>(s.c_out);
  p.row_tiles = with_dw ? plan.row_tiles : 1;
  p.col_tiles = plan.col_tiles;
  p.x_access =
      access_of(contiguity(axes, axes.x, s.x_channel_stride, s.c_in, args.x, sizeof(T)), false);
  p.dy_access =
      access_of(contiguity(axes, axes.y, s.y_channel_stride, s.c_out, args.dy, sizeof(T)), false);

  cudaError_t error = cudaSuccess;
  if constexpr (std::is_same_v<T, double>) {
    error = launch_weight_tile<WeightDouble, T>(p, plan.splits, stream);
  } else if (plan.tile == WeightTile::wide) {
    error = launch_weight_tile<WeightWide, T>(p, plan.splits, stream);
  } else if (plan.tile == WeightTile::half) {
    error = launch_weight_tile<WeightHalf, T>(p, plan.splits, stream);
  } else {
    error = launch_weight_tile<WeightSlim, T>(p, plan.splits, stream);
  }
  if (error != cudaSuccess) return error;

  const std::int64_t weights = with_dw ? s.c_out * s.c_in : 0;
  const std::int64_t outputs = weights + (args.db != nullptr ? s.c_out : 0);
  const std::int64_t blocks = ceil_div(outputs, reduce_outputs);
  if (blocks > max_blocks) return cudaErrorInvalidConfiguration;
  pointwise_weight_reduce<T>
      <<<static_cast<unsigned>(blocks), reduce_outputs * reduce_ways, 0, stream>>>(
          partial_dw, partial_db, static_cast<T*>(args.dw), static_cast<T*>(args.db), weights,
          p.c_in, p.c_out, s.w_stride_out, s.w_stride_in, static_cast<int>(plan.splits));
  return cudaGetLastError();
}

bool channels_fit(const PointwiseShape& s) {
  return s.c_in <= 0x7fffffff - 1024 && s.c_out <= 0x7fffffff - 1024;
}

}  // namespace

cudaError_t pointwise_forward(const PointwiseShape& shape, const PointwiseForward& args,
                              cudaStream_t stream) {
  if (!channels_fit(shape)) return cudaErrorInvalidValue;
  const bool empty = shape.pixel_count() <= 0 || shape.c_out <= 0;
  switch (args.dtype) {
    case DType::f64: return empty ? cudaSuccess : forward<double>(shape, args, stream);
    case DType::f32: return empty ? cudaSuccess : forward<float>(shape, args, stream);
    case DType::bf16: return empty ? cudaSuccess : forward<__nv_bfloat16>(shape, args, stream);
    case DType::f16: return empty ? cudaSuccess : forward<__half>(shape, args, stream);
    case DType::i64:
    case DType::u8: break;
  }
  return cudaErrorInvalidValue;
}

std::size_t pointwise_backward_weight_workspace_bytes(const PointwiseShape& shape, DType dtype) {
  const std::size_t acc = dtype == DType::f64 ? 8 : 4;
  return static_cast<std::size_t>(partial_values(shape, plan_weight(shape, dtype))) * acc;
}

cudaError_t pointwise_backward_weight(const PointwiseShape& shape,
                                      const PointwiseBackwardWeight& args, void* workspace,
                                      cudaStream_t stream) {
  if (!channels_fit(shape)) return cudaErrorInvalidValue;
  const bool empty =
      shape.c_out <= 0 || (args.db == nullptr && (args.dw == nullptr || shape.c_in <= 0));
  switch (args.dtype) {
    case DType::f64:
      return empty ? cudaSuccess
                   : backward_weight<double>(shape, args, args.dtype, workspace, stream);
    case DType::f32:
      return empty ? cudaSuccess
                   : backward_weight<float>(shape, args, args.dtype, workspace, stream);
    case DType::bf16:
      return empty ? cudaSuccess
                   : backward_weight<__nv_bfloat16>(shape, args, args.dtype, workspace, stream);
    case DType::f16:
      return empty ? cudaSuccess
                   : backward_weight<__half>(shape, args, args.dtype, workspace, stream);
    case DType::i64:
    case DType::u8: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace zerone::kernels::cuda
