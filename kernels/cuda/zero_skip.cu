// Zero-skip convolution on CUDA cores.
//
// Maths. Every legal convolution, forward or backward-data, with any stride s and dilation d
// (g = gcd(s, d)), splits into stride-1 correlations with windows of at most 3x3 taps:
//   out[n, o, out_step*i + f] = sum of w * in[n, c, in_step*(i + t) + off(f, slot)] over slot, c, t
// on each axis, t in {0, 1, 2}. f is the output phase. Forward: out_step = d/g, in_step = s*d/g and
// tap r = a*(s/g) + m falls into slot (a/3)*(s/g) + m at t = a%3. Backward-data: out_step = s*d/g,
// in_step = d/g; the taps r = r0(f) + j*(s/g) that reach phase f fall into slot j/3, t = 2 - j%3.
// A (slot, c) pair is a plane: one sub-sampled, shifted image of one input channel. Plain 3x3
// layers have one phase and one slot.
//
// Pack. Output channels of a group form blocks of 8, dealt snake-wise by descending nonzero count,
// so that blocks weigh the same (in their own order where channels are contiguous in out, so that
// a pixel's 8 channels are one store). A segment is one (block, plane): its nonzeros as
// {weight, code}, code = 9*channel + 3*t_h + t_w, ascending. Planes that are zero in every block
// are dropped from the live lists, so an all-zero weight reads no input.
//
// Kernel. A load for every FMA would cap at a quarter of the FMA rate (32 words against 128 lanes a
// clock and SM), so activations stay in registers and serve 8 channels x 9 taps: a lane owns 8
// channels x (4 rows x 2 columns) = 64 accumulators, and loads the 6x4 patch of a plane once (12
// LDS.64, free of bank conflicts). A nonzero is then 8 FFMA between registers, named by its code; a
// warp shares the code, so each one is a uniform indirect branch into one of 72 blocks. The branch
// (LDS of the next entry, LDC, BRX, BRA, moves) costs about 8 slots, so half of the FMA peak is the
// ceiling, twice that of a load per FMA.
//   warp  32 lanes = a tile of 32x8, 16x16 or 4 images of 8x8 pixels, one block of 8 channels
//   CTA   up to 8 warps = blocks x shares of the planes (summed at the end) x tiles
//   smem  ring of 3 stages of 16 planes x tile with halo (f32, zeros outside), by cp.async;
//         one segment of entries for each warp
// Floor: max(bytes of in and out over bandwidth, nonzeros*pixels / (0.5 * FMA rate)); for the
// 64->64 3x3 32x32 layer, batch 256, 90 % zeros, 33 us and 65 us on an H200.
// f64 takes a plain kernel: one thread owns one pixel of 8 channels and reads global memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <zerone/kernels/cuda/zero_skip.h>

#include <algorithm>
#include <bit>
#include <numeric>

namespace zerone::kernels::cuda {
namespace {

constexpr int out_block = 8;  // output channels a warp accumulates
constexpr int window = 3;     // taps of a plane on an axis
constexpr int codes = out_block * window * window;
constexpr int patch_rows = 4, patch_cols = 2;  // pixels a lane owns
constexpr int max_warps = 8;
constexpr int entry_slots = codes + 2;  // longest segment, end mark, one read ahead
constexpr std::int64_t size_limit = std::int64_t{1} << 28;
constexpr std::int64_t table_limit = std::int64_t{1} << 28;

/// One axis of the problem; see the header comment.
struct Axis {
  int stride, dilation, pad, taps;
  int in_extent, out_extent;
  int residues;  // s / g
  int slots;
  int out_step, in_step;
  int phases;       // output phases that own a pixel
  int pack_phases;  // phases whose taps differ
  bool backward;

  /// The smallest tap that reaches phase f, or -1.
  __host__ __device__ int first_tap(int f) const {
    if (!backward) return 0;
    for (int r = 0; r < residues; ++r) {
      if ((f + pad - r * dilation) % stride == 0) return r;
    }
    return -1;
  }
  /// The tap at place t of a slot, or -1.
  __host__ __device__ int tap(int first, int slot, int t) const {
    if (first < 0) return -1;
    const int r = backward ? first + residues * (window * slot + window - 1 - t)
                           : (slot / residues * window + t) * residues + slot % residues;
    return r < taps ? r : -1;
  }
  /// off(f, slot).
  __host__ __device__ int offset(int f, int slot) const {
    if (!backward) {
      return stride * f - pad + slot % residues * dilation + slot / residues * window * in_step;
    }
    const int first = first_tap(f);
    if (first < 0) return 0;
    return (f + pad - first * dilation) / stride - in_step * (window * slot + window - 1);
  }
};

struct Problem {
  Axis h, w;
  std::int64_t n, groups;
  std::int64_t outs, ins;  // channels of a group, of out and of in
  std::int64_t blocks;     // of 8 outs
  int slots, pack_phases;
  std::int64_t in_strides[4], out_strides[4];   // N,C,H,W
  std::int64_t w_group, w_out, w_in, w_h, w_w;  // strides of the weight
  std::int64_t segments, lists;                 // sizes of the tables
  std::int64_t order_at, count_at, live_count_at, live_at, segment_at, entry_at;  // bytes in pack
};

/// First bytes of a pack.
struct PackHeader {
  std::int64_t capacity;
  std::int64_t nonzeros;  // of all of w, also of taps that reach no pixel and have no entry
};

struct Entry {
  float weight;
  int code;
};
struct Entry64 {
  double weight;
  std::int64_t code;
};

template <typename T>
struct EntryOf {
  using type = Entry;
  using acc = float;
};
template <>
struct EntryOf<double> {
  using type = Entry64;
  using acc = double;
};

Axis make_axis(std::int64_t in, std::int64_t out, std::int64_t taps, std::int64_t stride,
               std::int64_t dilation, std::int64_t pad, bool backward) {
  if (taps <= 1) dilation = 1;
  if ((backward ? in : out) <= 1) stride = 1;  // y has one row
  const std::int64_t g = std::gcd(stride, dilation), residues = stride / g;
  const std::int64_t windows = (taps + residues * window - 1) / (residues * window);
  Axis a{};
  a.stride = int(stride), a.dilation = int(dilation), a.pad = int(pad), a.taps = int(taps);
  a.in_extent = int(in), a.out_extent = int(out), a.backward = backward;
  a.residues = int(residues);
  a.slots = int(backward ? windows : windows == 1 ? std::min(residues, taps) : windows * residues);
  a.out_step = int(backward ? stride * (dilation / g) : dilation / g);
  a.in_step = int(backward ? dilation / g : stride * (dilation / g));
  a.phases = int(std::min<std::int64_t>(a.out_step, out));
  a.pack_phases = int(std::min<std::int64_t>(backward ? stride : 1, out));
  return a;
}

constexpr std::int64_t align16(std::int64_t bytes) {
  return (bytes + 15) / 16 * 16;
}

Problem make_problem(const Conv2dShape& s, ZeroSkipPass pass) {
  const bool backward = pass == ZeroSkipPass::backward_data;
  Problem p{};
  p.h = make_axis(backward ? s.h_out : s.h, backward ? s.h : s.h_out, s.kh, s.stride_h,
                  s.dilation_h, s.pad_top, backward);
  p.w = make_axis(backward ? s.w_out : s.w, backward ? s.w : s.w_out, s.kw, s.stride_w,
                  s.dilation_w, s.pad_left, backward);
  p.n = s.n, p.groups = s.groups;
  const std::int64_t in_g = s.c_in / s.groups, out_g = s.c_out / s.groups;
  p.outs = backward ? in_g : out_g;
  p.ins = backward ? out_g : in_g;
  p.blocks = (p.outs + out_block - 1) / out_block;
  p.slots = p.h.slots * p.w.slots;
  p.pack_phases = p.h.pack_phases * p.w.pack_phases;
  for (int i = 0; i < 4; ++i) {
    p.in_strides[i] = backward ? s.y_strides[i] : s.x_strides[i];
    p.out_strides[i] = backward ? s.x_strides[i] : s.y_strides[i];
  }
  p.w_group = out_g * s.w_strides[0];
  p.w_out = s.w_strides[backward ? 1 : 0];
  p.w_in = s.w_strides[backward ? 0 : 1];
  p.w_h = s.w_strides[2], p.w_w = s.w_strides[3];
  p.lists = std::int64_t{p.pack_phases} * p.groups * p.slots;
  p.segments = p.lists * p.blocks * p.ins;
  p.order_at = align16(sizeof(PackHeader));
  p.count_at = p.order_at + align16(4 * p.groups * p.blocks * out_block);
  p.live_count_at = p.count_at + align16(4 * p.groups * p.outs);
  p.live_at = p.live_count_at + align16(4 * p.lists);
  p.segment_at = p.live_at + align16(4 * p.lists * p.ins);
  p.entry_at = p.segment_at + align16(4 * (p.segments + 1));
  return p;
}

/// Pointers into a pack. Segments are ordered (pack phase, group, block, slot, in channel), live
/// lists (pack phase, group, slot).
template <typename Byte>
struct PackView {
  Byte* base;
  const Problem& p;

  template <typename U>
  __host__ __device__ auto at(std::int64_t offset) const {
    if constexpr (std::is_const_v<Byte>) {
      return reinterpret_cast<const U*>(base + offset);
    } else {
      return reinterpret_cast<U*>(base + offset);
    }
  }
  __host__ __device__ auto header() const { return at<PackHeader>(0); }
  __host__ __device__ auto order() const { return at<int>(p.order_at); }
  __host__ __device__ auto counts() const { return at<int>(p.count_at); }
  __host__ __device__ auto live_count() const { return at<int>(p.live_count_at); }
  __host__ __device__ auto live() const { return at<int>(p.live_at); }
  __host__ __device__ auto segment() const { return at<unsigned>(p.segment_at); }
  template <typename E>
  __host__ __device__ auto entries() const {
    return at<E>(p.entry_at);
  }
};

__device__ inline float to_acc(float v) {
  return v;
}
__device__ inline double to_acc(double v) {
  return v;
}
__device__ inline float to_acc(__nv_bfloat16 v) {
  return __bfloat162float(v);
}
__device__ inline float to_acc(__half v) {
  return __half2float(v);
}
__device__ inline void store(float* p, float v) {
  *p = v;
}
__device__ inline void store(__nv_bfloat16* p, float v) {
  *p = __float2bfloat16(v);
}
__device__ inline void store(__half* p, float v) {
  *p = __float2half(v);
}
__device__ inline void store2(float* p, float a, float b) {
  *reinterpret_cast<float2*>(p) = make_float2(a, b);
}
__device__ inline void store2(__nv_bfloat16* p, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(p) = __floats2bfloat162_rn(a, b);
}
__device__ inline void store2(__half* p, float a, float b) {
  *reinterpret_cast<__half2*>(p) = __floats2half2_rn(a, b);
}

/// p[0..7] = v, p aligned to 16 bytes.
__device__ inline void store8(float* p, const float (&v)[8]) {
  reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
template <typename T>
__device__ inline void store8(T* p, const float (&v)[8]) {
  alignas(16) T rounded[8];
#pragma unroll
  for (int i = 0; i < 8; i += 2) store2(rounded + i, v[i], v[i + 1]);
  *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(rounded);
}

/// Exact test on the bits: flush-to-zero modes must not turn denormals into zeros.
__device__ inline bool nonzero(float v) {
  return (__float_as_uint(v) << 1) != 0;
}
__device__ inline bool nonzero(double v) {
  return (__double_as_longlong(v) << 1) != 0;
}
__device__ inline bool nonzero(__nv_bfloat16 v) {
  return (__bfloat16_as_ushort(v) & 0x7fff) != 0;
}
__device__ inline bool nonzero(__half v) {
  return (__half_as_ushort(v) & 0x7fff) != 0;
}

template <typename A>
__device__ inline A activate(A v, Activation activation) {
  return activation == Activation::relu && v < A(0) ? A(0) : v;  // keeps NaN
}

// ---------------------------------------------------------------------------------------------
// Census: one warp counts one filter; input channels seen alive are bits, merged with integer
// atomics; the last CTA to finish sums up.

struct CensusWork {
  unsigned long long nonzeros;
  unsigned live_filters;
  unsigned tickets;
};

constexpr int census_bitmap_words = 2048;  // channels beyond 65536 set their bits in global memory

template <typename T>
__global__ void __launch_bounds__(256)
    zero_census_kernel(const T* w, std::int64_t c_out, std::int64_t group_ins,
                       std::int64_t group_outs, std::int64_t groups, std::int64_t kh,
                       std::int64_t kw, std::int64_t sk, std::int64_t sc, std::int64_t sr,
                       std::int64_t ss, CensusWork* work, unsigned* alive, ZeroCensus* result) {
  __shared__ unsigned bitmap[census_bitmap_words];
  __shared__ bool last;
  __shared__ unsigned dead;
  const std::int64_t c_in = group_ins * groups;
  const std::int64_t words = (c_in + 31) / 32;
  const bool local = words <= census_bitmap_words;
  if (local) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) bitmap[i] = 0;
  }
  if (threadIdx.x == 0) dead = 0;
  __syncthreads();
  unsigned* bits = local ? bitmap : alive;
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const std::int64_t area = kh * kw, elements = group_ins * area;
  const bool dense = sr == kw * ss && sc == area * ss;
  unsigned long long total = 0;
  unsigned live = 0;
  for (std::int64_t k = blockIdx.x * std::int64_t{warps} + threadIdx.x / 32; k < c_out;
       k += std::int64_t{warps} * gridDim.x) {
    const T* filter = w + k * sk;
    const std::int64_t first = k / group_outs * group_ins;
    unsigned long long count = 0;
#pragma unroll 4
    for (std::int64_t e = lane; e < elements; e += 32) {
      const std::int64_t c = elements < size_limit ? unsigned(e) / unsigned(area) : e / area;
      const int tap = int(e - c * area);
      const T v =
          dense ? filter[e * ss] : filter[c * sc + (tap / int(kw)) * sr + (tap % int(kw)) * ss];
      if (nonzero(v)) {
        ++count;
        const unsigned bit = 1u << ((first + c) % 32);
        unsigned* word = bits + (first + c) / 32;
        if (!(*static_cast<volatile unsigned*>(word) & bit)) atomicOr(word, bit);
      }
    }
    total += count;
    live += __any_sync(~0u, count != 0);
  }
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  if (lane == 0 && live > 0) {
    atomicAdd(&work->nonzeros, total);
    atomicAdd(&work->live_filters, live);
  }
  __syncthreads();
  if (local) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
      if (bitmap[i]) atomicOr(alive + i, bitmap[i]);
    }
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&work->tickets, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  unsigned seen = 0;
  for (std::int64_t i = threadIdx.x; i < words; i += blockDim.x) seen += __popc(__ldcg(alive + i));
  atomicAdd(&dead, seen);
  __syncthreads();
  if (threadIdx.x == 0) {
    result->elements = c_out * elements;
    result->zeros = c_out * elements - std::int64_t(__ldcg(&work->nonzeros));
    result->dead_filters = c_out - __ldcg(&work->live_filters);
    result->dead_channels = c_in - dead;
  }
}

// ---------------------------------------------------------------------------------------------
// Pack.

/// Whether channels keep their own order: where a pixel's 8 are one store, or one block holds all.
__host__ __device__ inline bool own_order(const Problem& p) {
  return p.out_strides[1] == 1 || p.blocks == 1;
}

/// counts = nonzeros of each out channel; order = the channels' own, or -1 where they will be
/// dealt. One warp a channel.
template <typename T>
__global__ void __launch_bounds__(256)
    zero_skip_count_channels(const __grid_constant__ Problem p, const T* w, char* pack,
                             std::int64_t capacity) {
  const PackView<char> view{pack, p};
  const int lane = threadIdx.x % 32;
  const std::int64_t channel = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) / 32;
  if (channel == 0 && lane == 0) *view.header() = {capacity, 0};
  if (channel >= p.groups * p.blocks * out_block) return;
  if (lane == 0) {
    const std::int64_t group_size = p.blocks * out_block, self = channel % group_size;
    view.order()[channel] = own_order(p) && self < p.outs ? int(self) : -1;
  }
  if (channel >= p.groups * p.outs) return;
  const T* base = w + channel / p.outs * p.w_group + channel % p.outs * p.w_out;
  const int area = p.h.taps * p.w.taps, kw = p.w.taps;
  int count = 0;
#pragma unroll 4
  for (int e = lane; e < p.ins * area; e += 32) {
    const int c = e / area, tap = e % area;
    count += nonzero(base[c * p.w_in + tap / kw * p.w_h + tap % kw * p.w_w]);
  }
  for (int d = 16; d > 0; d /= 2) count += __shfl_xor_sync(~0u, count, d);
  if (lane == 0) view.counts()[channel] = count;
}

/// Deals the channels of a group to its blocks: rank by count, then rows of one channel a block,
/// every other row backward. One thread a channel; not for channels in their own order.
__global__ void __launch_bounds__(256)
    zero_skip_order_channels(const __grid_constant__ Problem p, char* pack) {
  const PackView<char> view{pack, p};
  const std::int64_t channel = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  if (channel >= p.groups * p.outs) return;
  const int group = int(channel / p.outs), self = int(channel % p.outs), outs = int(p.outs);
  const int* counts = view.counts() + group * p.outs;
  const int own = counts[self];
  int rank = 0;
  for (int o = 0; o < outs; ++o) {
    const int other = counts[o];
    rank += other > own || (other == own && o < self);
  }
  const int blocks = int(p.blocks), row = rank / blocks;
  const int block = row % 2 == 0 ? rank % blocks : blocks - 1 - rank % blocks;
  view.order()[(group * p.blocks + block) * out_block + row] = self;
}

/// Walks the 72 candidates of one segment with a warp: visit(rank, code, weight) for each nonzero,
/// rank counting from 0 in code order. Returns the number of nonzeros.
template <typename T, typename Visit>
__device__ int for_each_nonzero(const PackView<char>& view, const T* w, std::int64_t segment,
                                Visit&& visit) {
  const Problem& p = view.p;
  const int lane = threadIdx.x % 32;
  const std::int64_t c = segment % p.ins;
  std::int64_t rest = segment / p.ins;
  const int slot = int(rest % p.slots);
  rest /= p.slots;
  const std::int64_t block = rest % (p.blocks * p.groups);  // (group, block)
  const std::int64_t phase = rest / (p.blocks * p.groups);
  const int first_h = p.h.first_tap(int(phase / p.w.pack_phases));
  const int first_w = p.w.first_tap(int(phase % p.w.pack_phases));
  const T* base = w + block / p.blocks * p.w_group + c * p.w_in;
  int count = 0;
  for (int start = 0; start < codes; start += 32) {
    const int code = start + lane;
    T v{};
    bool take = false;
    if (code < codes) {
      const int out = view.order()[block * out_block + code / 9];
      const int r = p.h.tap(first_h, slot / p.w.slots, code % 9 / 3);
      const int s = p.w.tap(first_w, slot % p.w.slots, code % 3);
      if (out >= 0 && r >= 0 && s >= 0) {
        v = base[out * p.w_out + r * p.w_h + s * p.w_w];
        take = nonzero(v);
      }
    }
    const unsigned ballot = __ballot_sync(~0u, take);
    if (take) visit(count + __popc(ballot & ((1u << lane) - 1)), code, v);
    count += __popc(ballot);
  }
  return count;
}

/// segment[i] = nonzeros of segment i. One warp a segment.
template <typename T>
__global__ void __launch_bounds__(256)
    zero_skip_count_segments(const __grid_constant__ Problem p, const T* w, char* pack) {
  const PackView<char> view{pack, p};
  const std::int64_t segment = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) / 32;
  if (segment >= p.segments) return;
  const int count = for_each_nonzero(view, w, segment, [](int, int, T) {});
  if (threadIdx.x % 32 == 0) view.segment()[segment] = count;
}

/// segment = its exclusive prefix sum, header nonzeros = the sum of counts (not of segments: a tap
/// that reaches no pixel is in none). One CTA of 1024 threads, 8 segments a thread and round.
__global__ void __launch_bounds__(1024)
    zero_skip_scan(const __grid_constant__ Problem p, char* pack) {
  constexpr int each = 8;
  const PackView<char> view{pack, p};
  unsigned* segment = view.segment();
  __shared__ unsigned warp_sums[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned carry = 0;
  for (std::int64_t start = 0; start < p.segments; start += 1024 * each) {
    const std::int64_t first = start + std::int64_t{threadIdx.x} * each;
    unsigned v[each], sum = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      v[i] = first + i < p.segments ? segment[first + i] : 0;
      sum += v[i];
    }
    unsigned inclusive = sum;
    for (int d = 1; d < 32; d *= 2) {
      const unsigned below = __shfl_up_sync(~0u, inclusive, d);
      if (lane >= d) inclusive += below;
    }
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    if (warp == 0) {
      unsigned s = warp_sums[lane];
      for (int d = 1; d < 32; d *= 2) {
        const unsigned below = __shfl_up_sync(~0u, s, d);
        if (lane >= d) s += below;
      }
      warp_sums[lane] = s;
    }
    __syncthreads();
    unsigned at = carry + (warp > 0 ? warp_sums[warp - 1] : 0) + inclusive - sum;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if (first + i < p.segments) segment[first + i] = at;
      at += v[i];
    }
    carry += warp_sums[31];
    __syncthreads();
  }
  unsigned total = 0;
  for (std::int64_t i = threadIdx.x; i < p.groups * p.outs; i += 1024) total += view.counts()[i];
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  if (lane == 0) warp_sums[warp] = total;
  __syncthreads();
  if (warp > 0) return;
  total = warp_sums[lane];
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d);
  if (lane == 0) {
    segment[p.segments] = carry;
    view.header()->nonzeros = total;
  }
}

/// Entries of each segment, one warp a segment; then one warp a live list.
template <typename T>
__global__ void __launch_bounds__(256)
    zero_skip_fill(const __grid_constant__ Problem p, const T* w, char* pack) {
  using E = typename EntryOf<T>::type;
  const PackView<char> view{pack, p};
  const int lane = threadIdx.x % 32;
  const std::int64_t warp = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) / 32;
  if (warp < p.segments) {
    const std::int64_t at = view.segment()[warp], capacity = view.header()->capacity;
    E* entries = view.template entries<E>();
    for_each_nonzero(view, w, warp, [&](int rank, int code, T v) {
      if (at + rank < capacity) entries[at + rank] = {to_acc(v), code};
    });
    return;
  }
  const std::int64_t list = warp - p.segments;  // (phase, group, slot)
  if (list >= p.lists) return;
  const std::int64_t slot = list % p.slots, pair = list / p.slots;
  const unsigned* segment = view.segment();
  int* live = view.live() + list * p.ins;
  int count = 0;
  for (std::int64_t start = 0; start < p.ins; start += 32) {
    const std::int64_t c = start + lane;
    bool any = false;
    for (std::int64_t b = 0; c < p.ins && !any && b < p.blocks; ++b) {
      const std::int64_t i = ((pair * p.blocks + b) * p.slots + slot) * p.ins + c;
      any = segment[i + 1] > segment[i];
    }
    const unsigned ballot = __ballot_sync(~0u, any);
    if (any) live[count + __popc(ballot & ((1u << lane) - 1))] = int(c);
    count += __popc(ballot);
  }
  if (lane == 0) view.live_count()[list] = count;
}

// ---------------------------------------------------------------------------------------------
// Convolution, f32 accumulation.

/// The pixels of a warp: lanes_x * lanes_y * images lanes of 4x2 pixels. In shared memory an image
/// of a plane is (4*lanes_y + 2) rows of `pitch` floats; the pads keep LDS.64 free of conflicts.
template <int lanes_x_, int lanes_y_, int images_, int pitch_, int image_size_>
struct Tile {
  static constexpr int lanes_x = lanes_x_, lanes_y = lanes_y_, images = images_;
  static constexpr int width = lanes_x * patch_cols, height = lanes_y * patch_rows;
  static constexpr int cols = width + window - 1, rows = height + window - 1;
  static constexpr int pitch = pitch_, image_size = image_size_, size = images * image_size;
  static constexpr int positions = images * rows * cols;
  static_assert(lanes_x * lanes_y * images == 32);
  static_assert(pitch >= cols && pitch % 2 == 0 && image_size >= rows * pitch);
  static_assert(image_size % 2 == 0);
};
using WideTile = Tile<16, 2, 1, 34, 340>;
using SquareTile = Tile<8, 4, 1, 20, 360>;
using SmallTile = Tile<4, 2, 4, 10, 112>;

struct Config {
  static constexpr int chunk = 16;  // (plane, tile) pairs of a stage
  int stages;
  int chunk_bits;                          // log2 of the planes of a stage
  int warps_out, warps_plane, warps_tile;  // roles of the warps of a CTA; the product is theirs
  int block_groups, tile_groups;           // CTAs along blocks and tiles
  int tiles_x, tiles_y;
  std::int64_t tiles;  // of one phase
  std::int64_t first_cta, ctas;
};

struct TileOrigin {
  int n, y, x;  // first image, first row and column on the phase's grid
};

/// A chunk of planes in a stage.
struct Chunk {
  int slot, start, planes;  // no planes: the end
};

/// What a CTA works on, in shared memory: registers are for accumulators.
struct Scene {
  TileOrigin origins[max_warps];
  Chunk chunks[3];
  int phase_h, phase_w;
  int group;
  int block_group;
  std::int64_t list_at;     // of the first live list
  std::int64_t segment_at;  // of the group's first segment
};

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// *dst = valid ? *src : 0, complete after the matching wait.
template <typename T>
__device__ inline void copy_async(float* dst, const T* src, bool valid) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, float>) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(dst)),
                 "l"(src), "r"(valid ? 4 : 0)
                 : "memory");
    return;
  }
#endif
  *dst = valid ? to_acc(*src) : 0.0f;
}

__device__ inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

template <int pending>
__device__ inline void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
#endif
}

/// Goes through the live planes in chunks that never cross a slot.
struct Cursor {
  int slot = -1, start = 0, count = 0;

  __device__ bool seek(const int* live_count, int slots) {
    while (start >= count) {
      if (slot + 1 >= slots) return false;
      count = live_count[++slot];
      start = 0;
    }
    return true;
  }
};

// The interpreter of a segment. a<o><i> is pixel i (row i/2, column i%2) of channel o, x<r><c> the
// patch; block <code> adds w times the patch shifted by its tap. One dispatch point, since ptxas
// gives each brx.idx a table of its own and 72 tables overflow the constant cache.
#define ZERONE_FMA(o, i, r, c) "fma.rn.f32 a" #o #i ", w, x" #r #c ", a" #o #i ";\n"
#define ZERONE_TAP(o, t, r0, r1, r2, r3, c0, c1)                                             \
  "T" #o #t ":\n" ZERONE_FMA(o, 0, r0, c0) ZERONE_FMA(o, 1, r0, c1) ZERONE_FMA(o, 2, r1, c0) \
      ZERONE_FMA(o, 3, r1, c1) ZERONE_FMA(o, 4, r2, c0) ZERONE_FMA(o, 5, r2, c1)             \
          ZERONE_FMA(o, 6, r3, c0) ZERONE_FMA(o, 7, r3, c1) "bra NEXT;\n"
#define ZERONE_TAPS(o)               \
  ZERONE_TAP(o, 0, 0, 1, 2, 3, 0, 1) \
  ZERONE_TAP(o, 1, 0, 1, 2, 3, 1, 2) \
  ZERONE_TAP(o, 2, 0, 1, 2, 3, 2, 3) \
  ZERONE_TAP(o, 3, 1, 2, 3, 4, 0, 1) \
  ZERONE_TAP(o, 4, 1, 2, 3, 4, 1, 2) \
  ZERONE_TAP(o, 5, 1, 2, 3, 4, 2, 3) \
  ZERONE_TAP(o, 6, 2, 3, 4, 5, 0, 1) \
  ZERONE_TAP(o, 7, 2, 3, 4, 5, 1, 2) \
  ZERONE_TAP(o, 8, 2, 3, 4, 5, 2, 3)
#define ZERONE_LABELS(o) \
  "T" #o "0, T" #o "1, T" #o "2, T" #o "3, T" #o "4, T" #o "5, T" #o "6, T" #o "7, T" #o "8, "
#define ZERONE_ALIAS8(o, n0, n1, n2, n3, n4, n5, n6, n7)                                 \
  ".reg .f32 a" #o "0, a" #o "1, a" #o "2, a" #o "3, a" #o "4, a" #o "5, a" #o "6, a" #o \
  "7;\n"                                                                                 \
  "mov.b32 a" #o "0, %" #n0 ";\nmov.b32 a" #o "1, %" #n1 ";\nmov.b32 a" #o "2, %" #n2    \
  ";\nmov.b32 a" #o "3, %" #n3 ";\nmov.b32 a" #o "4, %" #n4 ";\nmov.b32 a" #o "5, %" #n5 \
  ";\nmov.b32 a" #o "6, %" #n6 ";\nmov.b32 a" #o "7, %" #n7 ";\n"
#define ZERONE_BACK8(o, n0, n1, n2, n3, n4, n5, n6, n7)                              \
  "mov.b32 %" #n0 ", a" #o "0;\nmov.b32 %" #n1 ", a" #o "1;\nmov.b32 %" #n2 ", a" #o \
  "2;\n"                                                                             \
  "mov.b32 %" #n3 ", a" #o "3;\nmov.b32 %" #n4 ", a" #o "4;\nmov.b32 %" #n5 ", a" #o \
  "5;\n"                                                                             \
  "mov.b32 %" #n6 ", a" #o "6;\nmov.b32 %" #n7 ", a" #o "7;\n"
#define ZERONE_ALL8(F)                 \
  F(0, 0, 1, 2, 3, 4, 5, 6, 7)         \
  F(1, 8, 9, 10, 11, 12, 13, 14, 15)   \
  F(2, 16, 17, 18, 19, 20, 21, 22, 23) \
  F(3, 24, 25, 26, 27, 28, 29, 30, 31) \
  F(4, 32, 33, 34, 35, 36, 37, 38, 39) \
  F(5, 40, 41, 42, 43, 44, 45, 46, 47) \
  F(6, 48, 49, 50, 51, 52, 53, 54, 55) F(7, 56, 57, 58, 59, 60, 61, 62, 63)
#define ZERONE_PATCH_ROW(r, n0, n1, n2, n3)                                           \
  ".reg .f32 x" #r "0, x" #r "1, x" #r "2, x" #r                                      \
  "3;\n"                                                                              \
  "mov.b32 x" #r "0, %" #n0 ";\nmov.b32 x" #r "1, %" #n1 ";\nmov.b32 x" #r "2, %" #n2 \
  ";\nmov.b32 x" #r "3, %" #n3 ";\n"
#define ZERONE_OUT8(o)                                                                 \
  "+f"(acc[o][0]), "+f"(acc[o][1]), "+f"(acc[o][2]), "+f"(acc[o][3]), "+f"(acc[o][4]), \
      "+f"(acc[o][5]), "+f"(acc[o][6]), "+f"(acc[o][7])
#define ZERONE_IN4(r) "f"(x[r][0]), "f"(x[r][1]), "f"(x[r][2]), "f"(x[r][3])

/// acc[o][pixel] += every entry of the list at shared address `list`, which ends in code 72.
__device__ __forceinline__ void walk(float (&acc)[out_block][patch_rows * patch_cols],
                                     const float (&x)[patch_rows + 2][patch_cols + 2],
                                     unsigned list) {
  asm volatile(
      "{\n"
      ".reg .b32 c, cn, p;\n"
      ".reg .f32 w, wn;\n" ZERONE_ALL8(ZERONE_ALIAS8)  //
      ZERONE_PATCH_ROW(0, 64, 65, 66, 67) ZERONE_PATCH_ROW(1, 68, 69, 70, 71)
      ZERONE_PATCH_ROW(2, 72, 73, 74, 75) ZERONE_PATCH_ROW(3, 76, 77, 78, 79)
      ZERONE_PATCH_ROW(4, 80, 81, 82, 83) ZERONE_PATCH_ROW(5, 84, 85, 86, 87)
      "mov.b32 p, %88;\n"
      "taps: .branchtargets " ZERONE_LABELS(0) ZERONE_LABELS(1) ZERONE_LABELS(2)
      ZERONE_LABELS(3) ZERONE_LABELS(4) ZERONE_LABELS(5) ZERONE_LABELS(6) ZERONE_LABELS(7)
      "END;\n"
      "ld.shared.v2.b32 {wn, cn}, [p];\n"
      "NEXT:\n"
      "mov.b32 w, wn;\n"
      "mov.b32 c, cn;\n"
      "add.u32 p, p, 8;\n"
      "ld.shared.v2.b32 {wn, cn}, [p];\n"
      "brx.idx c, taps;\n" ZERONE_TAPS(0) ZERONE_TAPS(1) ZERONE_TAPS(2) ZERONE_TAPS(3)
      ZERONE_TAPS(4) ZERONE_TAPS(5) ZERONE_TAPS(6) ZERONE_TAPS(7)
      "END:\n" ZERONE_ALL8(ZERONE_BACK8) "}\n"
      : ZERONE_OUT8(0), ZERONE_OUT8(1), ZERONE_OUT8(2), ZERONE_OUT8(3), ZERONE_OUT8(4),
        ZERONE_OUT8(5), ZERONE_OUT8(6), ZERONE_OUT8(7)
      : ZERONE_IN4(0), ZERONE_IN4(1), ZERONE_IN4(2), ZERONE_IN4(3), ZERONE_IN4(4),
        ZERONE_IN4(5), "r"(list)
      : "memory");
}

#undef ZERONE_FMA
#undef ZERONE_TAP
#undef ZERONE_TAPS
#undef ZERONE_LABELS
#undef ZERONE_ALIAS8
#undef ZERONE_BACK8
#undef ZERONE_ALL8
#undef ZERONE_PATCH_ROW
#undef ZERONE_OUT8
#undef ZERONE_IN4

template <typename T, typename Tile>
__global__ void __launch_bounds__(max_warps * 32, 2)
    zero_skip_kernel(const __grid_constant__ Problem p, const __grid_constant__ Config cfg,
                     const T* in, const char* pack, const T* bias, T* out, Activation activation) {
  constexpr int pixels = patch_rows * patch_cols;
  constexpr int stage_size = Config::chunk * Tile::size;
  extern __shared__ float4 shared_memory[];
  __shared__ Scene scene;
  float* const ring = reinterpret_cast<float*>(shared_memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const PackView<const char> view{pack, p};
  const int slots = p.slots, ins = int(p.ins);

  {
    std::int64_t cta = cfg.first_cta + blockIdx.x;
    const int block_group = int(cta % cfg.block_groups);
    cta /= cfg.block_groups;
    const int tile_group = int(cta % cfg.tile_groups);
    cta /= cfg.tile_groups;
    if (threadIdx.x < cfg.warps_tile) {
      std::int64_t t = std::int64_t{tile_group} * cfg.warps_tile + threadIdx.x;
      TileOrigin origin;
      origin.x = int(t % cfg.tiles_x) * Tile::width;
      t /= cfg.tiles_x;
      origin.y = int(t % cfg.tiles_y) * Tile::height;
      origin.n = int(t / cfg.tiles_y) * Tile::images;  // past the last image in a tile past the end
      scene.origins[threadIdx.x] = origin;
    }
    if (threadIdx.x == 0) {
      const int group = int(cta % p.groups), phase = int(cta / p.groups);
      scene.group = group;
      scene.block_group = block_group;
      scene.phase_h = phase / p.w.phases;
      scene.phase_w = phase % p.w.phases;
      const std::int64_t pack_phase =
          scene.phase_h % p.h.pack_phases * p.w.pack_phases + scene.phase_w % p.w.pack_phases;
      scene.list_at = (pack_phase * p.groups + group) * slots;
      scene.segment_at = scene.list_at * p.blocks * ins;
    }
    __syncthreads();
  }
  const int warp_out = warp % cfg.warps_out;
  const int warp_plane = warp / cfg.warps_out % cfg.warps_plane;
  const int warp_tile = warp / (cfg.warps_out * cfg.warps_plane);
  const bool working =
      scene.block_group * cfg.warps_out + warp_out < p.blocks && scene.origins[warp_tile].n < p.n;

  // Copies the next chunk of planes of all tiles of the CTA into a stage.
  Cursor loader;
  auto load = [&](int stage) {
    Chunk next{0, 0, 0};
    if (loader.seek(view.live_count() + scene.list_at, slots)) {
      next = {loader.slot, loader.start, min(1 << cfg.chunk_bits, loader.count - loader.start)};
      loader.start += next.planes;
      const int offset_h = p.h.offset(scene.phase_h, next.slot / p.w.slots);
      const int offset_w = p.w.offset(scene.phase_w, next.slot % p.w.slots);
      const int* channels = view.live() + (scene.list_at + next.slot) * ins + next.start;
      // Lanes run along pixels, or along planes where channels lie closer together in memory.
      const int plane_bits = p.in_strides[1] < p.in_strides[3] ? cfg.chunk_bits : 0;
      for (int e = threadIdx.x; e < (cfg.warps_tile * Tile::positions) << plane_bits;
           e += blockDim.x) {
        const int position = e >> plane_bits, step = 1 << plane_bits, first = e & (step - 1);
        const int tile = position / Tile::positions, at = position % Tile::positions;
        const int image = at / (Tile::rows * Tile::cols);
        const int row = at / Tile::cols % Tile::rows, col = at % Tile::cols;
        const TileOrigin origin = scene.origins[tile];
        const std::int64_t n = origin.n + image;
        const std::int64_t y = std::int64_t{p.h.in_step} * (origin.y + row) + offset_h;
        const std::int64_t x = std::int64_t{p.w.in_step} * (origin.x + col) + offset_w;
        const bool valid = n < p.n && y >= 0 && y < p.h.in_extent && x >= 0 && x < p.w.in_extent;
        const T* src = in + scene.group * p.ins * p.in_strides[1];
        if (valid) src += n * p.in_strides[0] + y * p.in_strides[2] + x * p.in_strides[3];
        float* dst = ring + stage * stage_size + tile * Tile::size + image * Tile::image_size +
                     row * Tile::pitch + col;
#pragma unroll 4
        for (int i = first; i < next.planes; i += step) {
          copy_async(dst + i * cfg.warps_tile * Tile::size,
                     src + __ldg(channels + i) * p.in_strides[1], valid);
        }
      }
    }
    if (threadIdx.x == 0) scene.chunks[stage] = next;
    commit_copies();
  };

  float acc[out_block][pixels] = {};
  for (int s = 0; s < cfg.stages - 1; ++s) load(s);
  for (int stage = 0;; stage = stage + 1 == cfg.stages ? 0 : stage + 1) {
    if (cfg.stages == 3) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const int planes = scene.chunks[stage].planes;
    if (planes == 0) break;
    load(stage == 0 ? cfg.stages - 1 : stage - 1);
    if (!working) continue;
    // Lane i holds the bounds of plane i's segment; the first 32 entries of the next segment are in
    // flight while this one is walked.
    unsigned begin = 0, length = 0;
    if (lane < planes) {
      const Chunk here = scene.chunks[stage];
      const std::int64_t at = std::int64_t{here.slot} * ins;
      const unsigned* bounds =
          view.segment() + scene.segment_at +
          (scene.block_group * std::int64_t{cfg.warps_out} + warp_out) * slots * ins + at +
          view.live()[scene.list_at * ins + at + here.start + lane];
      const unsigned capacity = unsigned(min(view.header()->capacity, std::int64_t{0xffffffff}));
      begin = min(bounds[0], capacity);
      length = min(bounds[1], capacity) - begin;
    }
    const unsigned list = shared_address(ring + cfg.stages * stage_size) + warp * (entry_slots * 8);
    const auto put = [list](int at, int2 e) {
      asm volatile("st.shared.v2.b32 [%0], {%1, %2};\n" ::"r"(list + at * 8), "r"(e.x), "r"(e.y)
                   : "memory");
    };
    int2 ahead{};
    const auto fetch = [&](int plane) {
      const unsigned at = __shfl_sync(~0u, begin, plane) + lane;
      if (lane < __shfl_sync(~0u, length, plane)) ahead = __ldg(view.entries<int2>() + at);
    };
    if (warp_plane < planes) fetch(warp_plane);
    for (int plane = warp_plane; plane < planes; plane += cfg.warps_plane) {
      const int count = __shfl_sync(~0u, length, plane);
      if (count > 0) {
        if (lane < count) put(lane, ahead);
        if (count > 32) {
          const unsigned at = __shfl_sync(~0u, begin, plane);
#pragma unroll 1
          for (int i = lane + 32; i < count; i += 32) put(i, __ldg(view.entries<int2>() + at + i));
        }
        if (lane == 0) put(count, make_int2(0, codes));
      }
      if (plane + cfg.warps_plane < planes) fetch(plane + cfg.warps_plane);
      if (count == 0) continue;
      const int image = lane / (Tile::lanes_x * Tile::lanes_y);
      const int lane_y = lane / Tile::lanes_x % Tile::lanes_y, lane_x = lane % Tile::lanes_x;
      const float* patch =
          ring + stage * stage_size + (plane * cfg.warps_tile + warp_tile) * Tile::size +
          image * Tile::image_size + lane_y * patch_rows * Tile::pitch + lane_x * patch_cols;
      float x[patch_rows + 2][patch_cols + 2];
#pragma unroll
      for (int r = 0; r < patch_rows + 2; ++r) {
        const float2 a = *reinterpret_cast<const float2*>(patch + r * Tile::pitch);
        const float2 b = *reinterpret_cast<const float2*>(patch + r * Tile::pitch + 2);
        x[r][0] = a.x, x[r][1] = a.y, x[r][2] = b.x, x[r][3] = b.y;
      }
      __syncwarp();
      walk(acc, x, list);
      __syncwarp();
    }
  }
  wait_copies<0>();

  // A pack that lost entries must not pass for a result.
  const float start =
      view.header()->nonzeros > view.header()->capacity ? __int_as_float(0x7fffffff) : 0.0f;
  const TileOrigin origin = scene.origins[warp_tile];
  const std::int64_t block = scene.block_group * std::int64_t{cfg.warps_out} + warp_out;
  const int image = lane / (Tile::lanes_x * Tile::lanes_y);
  const std::int64_t n = origin.n + image;
  const std::int64_t grid_y = origin.y + lane / Tile::lanes_x % Tile::lanes_y * patch_rows;
  const std::int64_t grid_x = origin.x + lane % Tile::lanes_x * patch_cols;
  const std::int64_t y0 = grid_y * p.h.out_step + scene.phase_h;
  const std::int64_t x0 = grid_x * p.w.out_step + scene.phase_w;
  const auto store_channel = [&](int o, const float(&v)[pixels]) {
    const int channel = view.order()[(scene.group * p.blocks + block) * out_block + o];
    if (channel < 0 || n >= p.n || x0 >= p.w.out_extent) return;
    const std::int64_t full = scene.group * p.outs + channel;
    const float add = start + (bias ? to_acc(bias[full]) : 0.0f);
    T* at = out + n * p.out_strides[0] + full * p.out_strides[1] + y0 * p.out_strides[2] +
            x0 * p.out_strides[3];
    const std::int64_t row_step = p.h.out_step * p.out_strides[2];
    const std::int64_t col_step = p.w.out_step * p.out_strides[3];
    const bool both = x0 + p.w.out_step < p.w.out_extent;
#pragma unroll
    for (int r = 0; r < patch_rows; ++r) {
      if (y0 + std::int64_t{r} * p.h.out_step >= p.h.out_extent) break;
      const float a = activate(v[2 * r] + add, activation);
      const float b = activate(v[2 * r + 1] + add, activation);
      if (both && col_step == 1 && reinterpret_cast<std::uintptr_t>(at) % (2 * sizeof(T)) == 0) {
        store2(at, a, b);
      } else {
        store(at, a);
        if (both) store(at + col_step, b);
      }
      at += row_step;
    }
  };

  if (cfg.warps_plane == 1) {
    if (!working) return;
    if (p.out_strides[1] != 1 || (block + 1) * out_block > p.outs) {
#pragma unroll
      for (int o = 0; o < out_block; ++o) store_channel(o, acc[o]);
      return;
    }
    if (n >= p.n) return;
    const std::int64_t full = scene.group * p.outs + block * out_block;
    float add[out_block];
#pragma unroll
    for (int o = 0; o < out_block; ++o) add[o] = start + (bias ? to_acc(bias[full + o]) : 0.0f);
#pragma unroll
    for (int i = 0; i < pixels; ++i) {
      const std::int64_t y = y0 + std::int64_t{i / patch_cols} * p.h.out_step;
      const std::int64_t x = x0 + std::int64_t{i % patch_cols} * p.w.out_step;
      if (y >= p.h.out_extent || x >= p.w.out_extent) continue;
      float v[out_block];
#pragma unroll
      for (int o = 0; o < out_block; ++o) v[o] = activate(acc[o][i] + add[o], activation);
      T* at = out + n * p.out_strides[0] + full + y * p.out_strides[2] + x * p.out_strides[3];
      if (reinterpret_cast<std::uintptr_t>(at) % 16 == 0) {
        store8(at, v);
      } else {
#pragma unroll
        for (int o = 0; o < out_block; ++o) store(at + o, v[o]);
      }
    }
    return;
  }
  // Shares of the planes are added in order; each warp adds up its channels of the 8.
  __syncthreads();
#pragma unroll
  for (int o = 0; o < out_block; ++o) {
#pragma unroll
    for (int i = 0; i < pixels; ++i) {
      ring[((warp * out_block + o) * pixels + i) * 32 + lane] = acc[o][i];
    }
  }
  __syncthreads();
  if (!working) return;
  const int first_warp = warp_tile * cfg.warps_out * cfg.warps_plane + warp_out;
  for (int o = warp_plane; o < out_block; o += cfg.warps_plane) {
    float v[pixels] = {};
    for (int s = 0; s < cfg.warps_plane; ++s) {
      const float* share = ring + (first_warp + s * cfg.warps_out) * out_block * pixels * 32;
#pragma unroll
      for (int i = 0; i < pixels; ++i) v[i] += share[(o * pixels + i) * 32 + lane];
    }
    store_channel(o, v);
  }
}

// ---------------------------------------------------------------------------------------------
// Convolution, f64. One thread: one pixel of the 8 channels of a block.

__global__ void __launch_bounds__(128)
    zero_skip_kernel_f64(const __grid_constant__ Problem p, std::int64_t first_cta,
                         const double* in, const char* pack, const double* bias, double* out,
                         Activation activation) {
  const PackView<const char> view{pack, p};
  const std::int64_t blocks = p.groups * p.blocks;
  const std::int64_t cta = first_cta + blockIdx.x;
  const std::int64_t group = cta % blocks / p.blocks, block = cta % blocks % p.blocks;
  const std::int64_t pixel = cta / blocks * blockDim.x + threadIdx.x;
  const std::int64_t area = std::int64_t{p.h.out_extent} * p.w.out_extent;
  if (pixel >= p.n * area) return;
  const std::int64_t n = pixel / area;
  const int y = int(pixel % area / p.w.out_extent), x = int(pixel % area % p.w.out_extent);
  const int phase_h = y % p.h.out_step, phase_w = x % p.w.out_step;
  const std::int64_t pack_phase =
      phase_h % p.h.pack_phases * p.w.pack_phases + phase_w % p.w.pack_phases;
  const std::int64_t list_at = (pack_phase * p.groups + group) * p.slots;
  const unsigned* segment =
      view.segment() + ((pack_phase * p.groups + group) * p.blocks + block) * p.slots * p.ins;
  const Entry64* entries = view.template entries<Entry64>();
  const std::int64_t capacity = view.header()->capacity;
  double acc[out_block] = {};
  for (int slot = 0; slot < p.slots; ++slot) {
    const int count = view.live_count()[list_at + slot];
    const int* live = view.live() + (list_at + slot) * p.ins;
    const std::int64_t row =
        std::int64_t{y / p.h.out_step} * p.h.in_step + p.h.offset(phase_h, slot / p.w.slots);
    const std::int64_t col =
        std::int64_t{x / p.w.out_step} * p.w.in_step + p.w.offset(phase_w, slot % p.w.slots);
    for (int i = 0; i < count; ++i) {
      const std::int64_t c = live[i];
      const unsigned* bounds = segment + slot * p.ins + c;
      const double* plane = in + n * p.in_strides[0] + (group * p.ins + c) * p.in_strides[1];
      const std::int64_t end = min(std::int64_t{bounds[1]}, capacity);
      for (std::int64_t e = bounds[0]; e < end; ++e) {
        const Entry64 entry = entries[e];
        const int code = int(entry.code);
        const std::int64_t iy = row + code % 9 / 3 * p.h.in_step;
        const std::int64_t ix = col + code % 3 * p.w.in_step;
        if (iy < 0 || iy >= p.h.in_extent || ix < 0 || ix >= p.w.in_extent) continue;
        const double v = plane[iy * p.in_strides[2] + ix * p.in_strides[3]];
#pragma unroll
        for (int o = 0; o < out_block; ++o) {
          if (code / 9 == o) acc[o] = fma(entry.weight, v, acc[o]);
        }
      }
    }
  }
  const double start = view.header()->nonzeros > capacity ? __longlong_as_double(-1) : 0.0;
#pragma unroll
  for (int o = 0; o < out_block; ++o) {
    const int channel = view.order()[(group * p.blocks + block) * out_block + o];
    if (channel < 0) continue;
    const std::int64_t full = group * p.outs + channel;
    const double v = acc[o] + start + (bias ? bias[full] : 0.0);
    out[n * p.out_strides[0] + full * p.out_strides[1] + y * p.out_strides[2] +
        x * p.out_strides[3]] = activate(v, activation);
  }
}

// ---------------------------------------------------------------------------------------------
// Launchers.

constexpr std::int64_t max_grid = (std::int64_t{1} << 31) - 1;

template <typename F>
cudaError_t dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(__nv_bfloat16{});
    case DType::f16: return f(__half{});
    default: return cudaErrorInvalidValue;
  }
}

struct DeviceLimits {
  int sms = 0;
  int shared_bytes = 0;  // most a CTA can ask for
};

cudaError_t device_limits(DeviceLimits* limits) {
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  if (const cudaError_t e =
          cudaDeviceGetAttribute(&limits->sms, cudaDevAttrMultiProcessorCount, device);
      e != cudaSuccess) {
    return e;
  }
  return cudaDeviceGetAttribute(&limits->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                device);
}

struct PhaseGrid {
  std::int64_t n, rows, cols;  // pixels of the largest phase
};

PhaseGrid phase_grid(const Problem& p) {
  const auto cells = [](const Axis& a) { return (a.out_extent - 1) / a.out_step + 1; };
  return {p.n, cells(p.h), cells(p.w)};
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

template <typename Tile>
std::int64_t tile_count(const PhaseGrid& g) {
  return ceil_div(g.n, Tile::images) * ceil_div(g.rows, Tile::height) *
         ceil_div(g.cols, Tile::width);
}

template <typename T, typename Tile>
cudaError_t run_tiles(const Problem& p, const ZeroSkipArgs& args, cudaStream_t stream) {
  DeviceLimits limits;
  if (const cudaError_t e = device_limits(&limits); e != cudaSuccess) return e;
  const PhaseGrid grid = phase_grid(p);
  Config cfg{};
  cfg.tiles_x = int(ceil_div(grid.cols, Tile::width));
  cfg.tiles_y = int(ceil_div(grid.rows, Tile::height));
  cfg.tiles = tile_count<Tile>(grid);
  // Warps share tiles across blocks of channels first; where that leaves SMs idle, they split the
  // planes of one block instead.
  cfg.warps_out = 1;
  while (cfg.warps_out < max_warps && cfg.warps_out < p.blocks) cfg.warps_out *= 2;
  cfg.warps_tile = max_warps / cfg.warps_out;
  cfg.warps_plane = 1;
  const std::int64_t outer = std::int64_t{p.h.phases} * p.w.phases * p.groups;
  const auto ctas = [&] {
    return outer * ceil_div(p.blocks, cfg.warps_out) * ceil_div(cfg.tiles, cfg.warps_tile);
  };
  while (4 * ctas() < 7 * limits.sms && cfg.warps_tile * cfg.warps_out > 1) {
    (cfg.warps_tile > 1 ? cfg.warps_tile : cfg.warps_out) /= 2;
    if (cfg.warps_plane * 4 <= p.ins * p.slots) cfg.warps_plane *= 2;
  }
  cfg.block_groups = int(ceil_div(p.blocks, cfg.warps_out));
  const std::int64_t tile_groups = ceil_div(cfg.tiles, cfg.warps_tile);
  if (tile_groups > max_grid) return cudaErrorInvalidConfiguration;
  cfg.tile_groups = int(tile_groups);
  cfg.ctas = ctas();
  cfg.chunk_bits = std::countr_zero(unsigned(Config::chunk / cfg.warps_tile));

  const int warps = cfg.warps_out * cfg.warps_plane * cfg.warps_tile;
  const auto bytes = [&](int stages) {
    const int ring = stages * Config::chunk * Tile::size * 4 + warps * entry_slots * 8;
    const int shares =
        cfg.warps_plane > 1 ? warps * out_block * patch_rows * patch_cols * 32 * 4 : 0;
    return std::max(ring, shares);
  };
  // Room for two CTAs on an SM with three stages, else two stages.
  cfg.stages = bytes(3) + 1024 <= limits.shared_bytes / 2 ? 3 : 2;
  const auto kernel = zero_skip_kernel<T, Tile>;
  if (const cudaError_t e = cudaFuncSetAttribute(
          kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes(cfg.stages));
      e != cudaSuccess) {
    return e;
  }
  if (const cudaError_t e = cudaFuncSetAttribute(
          kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
      e != cudaSuccess) {
    return e;
  }
  for (cfg.first_cta = 0; cfg.first_cta < cfg.ctas; cfg.first_cta += max_grid) {
    const unsigned count = unsigned(std::min(max_grid, cfg.ctas - cfg.first_cta));
    kernel<<<count, warps * 32, bytes(cfg.stages), stream>>>(
        p, cfg, static_cast<const T*>(args.in), static_cast<const char*>(args.pack),
        static_cast<const T*>(args.bias), static_cast<T*>(args.out), args.activation);
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t run(const Problem& p, const ZeroSkipArgs& args, cudaStream_t stream) {
  if constexpr (std::is_same_v<T, double>) {
    const std::int64_t ctas =
        ceil_div(p.n * p.h.out_extent * p.w.out_extent, 128) * p.groups * p.blocks;
    for (std::int64_t first = 0; first < ctas; first += max_grid) {
      zero_skip_kernel_f64<<<unsigned(std::min(max_grid, ctas - first)), 128, 0, stream>>>(
          p, first, static_cast<const double*>(args.in), static_cast<const char*>(args.pack),
          static_cast<const double*>(args.bias), static_cast<double*>(args.out), args.activation);
      if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    }
    return cudaSuccess;
  } else {
    const PhaseGrid grid = phase_grid(p);
    const std::int64_t wide = tile_count<WideTile>(grid), square = tile_count<SquareTile>(grid);
    const std::int64_t small = tile_count<SmallTile>(grid);
    if (wide <= square && wide <= small) return run_tiles<T, WideTile>(p, args, stream);
    if (square <= small) return run_tiles<T, SquareTile>(p, args, stream);
    return run_tiles<T, SmallTile>(p, args, stream);
  }
}

}  // namespace

std::size_t zero_census_workspace_bytes(const Conv2dShape& shape) {
  return sizeof(CensusWork) + 4 * std::size_t(ceil_div(shape.c_in, 32));
}

cudaError_t zero_census(const Conv2dShape& shape, const void* w, DType dtype,
                        ZeroCensus* device_result, void* workspace, cudaStream_t stream) {
  if (const cudaError_t e =
          cudaMemsetAsync(workspace, 0, zero_census_workspace_bytes(shape), stream);
      e != cudaSuccess) {
    return e;
  }
  return dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* work = static_cast<CensusWork*>(workspace);
    const int grid = int(std::clamp<std::int64_t>(ceil_div(shape.c_out, 8), 1, 512));
    zero_census_kernel<T><<<grid, 256, 0, stream>>>(
        static_cast<const T*>(w), shape.c_out, shape.c_in / shape.groups,
        std::max<std::int64_t>(1, shape.c_out / shape.groups), shape.groups, shape.kh, shape.kw,
        shape.w_strides[0], shape.w_strides[1], shape.w_strides[2], shape.w_strides[3], work,
        reinterpret_cast<unsigned*>(work + 1), device_result);
    return cudaGetLastError();
  });
}

std::string_view zero_skip_reject(const Conv2dShape& shape, ZeroSkipPass pass, DType dtype) {
  if (!is_floating(dtype)) return "dtype is not a floating point type";
  const std::int64_t sizes[] = {shape.n,     shape.c_in,    shape.h,       shape.w,
                                shape.c_out, shape.kh,      shape.kw,      shape.h_out,
                                shape.w_out, shape.pad_top, shape.pad_left};
  for (const std::int64_t v : sizes) {
    if (v >= size_limit) return "a size or padding reaches 2^28";
  }
  const auto far = [](std::int64_t y, std::int64_t taps, std::int64_t stride,
                      std::int64_t dilation) {
    const std::int64_t limit = std::int64_t{1} << 40;  // keeps the products in range
    const std::int64_t s = y > 1 ? std::min(stride, limit) : 1;
    const std::int64_t d = taps > 1 ? std::min(dilation, limit) : 1;
    return s >= size_limit || d >= size_limit || s * y >= size_limit ||
           d * (taps + 2 * window) >= 2 * size_limit || s * (d / std::gcd(s, d)) >= size_limit;
  };
  if (far(shape.h_out, shape.kh, shape.stride_h, shape.dilation_h) ||
      far(shape.w_out, shape.kw, shape.stride_w, shape.dilation_w)) {
    return "stride or dilation reaches past 2^28";
  }
  const Problem p = make_problem(shape, pass);
  const double lists = double(p.h.pack_phases) * double(p.w.pack_phases) * double(p.groups) *
                       double(p.h.slots) * double(p.w.slots);
  if (lists * double(std::max<std::int64_t>(1, p.blocks)) * double(p.ins + 1) >
          double(table_limit) ||
      double(shape.c_out) * double(p.ins) * double(shape.kh) * double(shape.kw) > 2147483647.0) {
    return "the weight is too large for 32-bit indices";
  }
  return {};
}

std::size_t zero_skip_pack_bytes(const Conv2dShape& shape, ZeroSkipPass pass, std::int64_t nonzeros,
                                 DType dtype) {
  const std::size_t entry = dtype == DType::f64 ? sizeof(Entry64) : sizeof(Entry);
  return std::size_t(make_problem(shape, pass).entry_at) + entry * std::size_t(nonzeros);
}

cudaError_t zero_skip_pack(const Conv2dShape& shape, ZeroSkipPass pass, const void* w, DType dtype,
                           std::int64_t nonzeros, void* pack, cudaStream_t stream) {
  const Problem p = make_problem(shape, pass);
  return dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* weight = static_cast<const T*>(w);
    char* base = static_cast<char*>(pack);
    const auto warps = [](std::int64_t n) {
      return unsigned(ceil_div(std::max<std::int64_t>(n, 1), 8));
    };
    zero_skip_count_channels<<<warps(p.groups * p.blocks * out_block), 256, 0, stream>>>(
        p, weight, base, nonzeros);
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    if (p.groups * p.outs > 0 && !own_order(p)) {
      zero_skip_order_channels<<<unsigned(ceil_div(p.groups * p.outs, 256)), 256, 0, stream>>>(
          p, base);
      if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    }
    if (p.segments > 0) {
      zero_skip_count_segments<<<warps(p.segments), 256, 0, stream>>>(p, weight, base);
      if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    }
    zero_skip_scan<<<1, 1024, 0, stream>>>(p, base);
    if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
    if (p.segments + p.lists > 0) {
      zero_skip_fill<<<warps(p.segments + p.lists), 256, 0, stream>>>(p, weight, base);
    }
    return cudaGetLastError();
  });
}

cudaError_t zero_skip_run(const Conv2dShape& shape, ZeroSkipPass pass, const ZeroSkipArgs& args,
                          cudaStream_t stream) {
  const Problem p = make_problem(shape, pass);
  if (p.n == 0 || p.outs == 0 || p.groups == 0 || p.h.out_extent == 0 || p.w.out_extent == 0) {
    return cudaSuccess;
  }
  return dispatch(args.dtype, [&](auto zero) { return run<decltype(zero)>(p, args, stream); });
}

}  // namespace zerone::kernels::cuda
