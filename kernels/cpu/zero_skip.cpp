// Zero-skip convolution. Both passes are one "gather": on an output grid of stride 1,
//
//   out[n, o, a, b] = act(bias[o] + sum over nonzeros (i, plane kind, u, v) of o:
//                                     weight * plane[n, i, kind][a + u][b + v])
//
// A plane is a zero-bordered copy of one input channel. Stride s makes s*s planes of each channel
// in the forward pass (rows and columns of equal remainder, so that taps are contiguous), and s*s
// output grids, each with its own taps, in backward-data. Padding, dilation and flips are offsets.
//
// The output grid is cut into tiles. A tile's planes are copied into scratch, rows `pitch` apart,
// where the whole tile is one run of contiguous outputs: a nonzero is {weight, offset} and costs
// one broadcast and one multiply-add with a memory operand for each vector of the run, sums in
// registers. The elements between the rows of the run are computed and dropped.
//   shifted    one plane for each tap column, moved so that every load is aligned (an unaligned
//              vector load touches two lines and takes twice as long); pitch a multiple of 64 bytes
//   unshifted  one plane for all taps, for few nonzeros, where the copies would cost more
// Nonzeros are sorted by (block of planes, output channel, plane, tap); a block fits L1 if the
// weight is dense enough to amortize reloading the sums, else L2. Planes without nonzeros are
// neither stored nor copied, output channels without nonzeros only filled.
// Floor: nonzeros * pixels at one vector load a cycle.
#include <zerone/kernels/cpu/zero_skip.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "zerone/kernels/cpu/zero_skip.cpp"
#ifndef HWY_DISABLED_TARGETS  // not worth their build time; vectors here have a fixed size
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
// clang-format off
#include <hwy/foreach_target.h>
// clang-format on
#include <hwy/highway.h>
#if HWY_ARCH_X86
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <zerone/kernels/cpu/parallel.h>

#ifndef ZERONE_KERNELS_CPU_ZERO_SKIP_JOB
#define ZERONE_KERNELS_CPU_ZERO_SKIP_JOB

namespace zerone::kernels::cpu {
namespace {

using Index = std::int64_t;

constexpr Index line = 64;                 // bytes; the widest vector
constexpr Index l1_bytes = 24 << 10;       // planes of a block when the weight is dense
constexpr Index l2_bytes = 256 << 10;      // planes of a block at most
constexpr Index sums_bytes = 128 << 10;    // sums of a tile that wait for their next block
constexpr Index shifted_run_bytes = 1536;  // outputs of a tile
constexpr Index plain_run_bytes = 1600;

constexpr Index ceil_div(Index a, Index b) {
  return (a + b - 1) / b;
}
constexpr Index round_up(Index a, Index b) {
  return ceil_div(a, b) * b;
}

template <class T>
struct Entry;
template <>
struct Entry<float> {
  float weight;
  std::int32_t offset;  // elements from the block's first plane to the run's first operand
};
template <>
struct Entry<double> {
  double weight;
  std::int64_t offset;
};

/// The nonzeros of one output channel in one block; they end where the next segment's begin.
struct Segment {
  std::int32_t channel;
  std::uint32_t flags;
  Index begin;
};
constexpr std::uint32_t first_of_channel = 1, last_of_channel = 2;

struct Plane {
  std::int32_t channel, row_phase, column_phase, shift;
};

/// Planes and segments [first, next block's first).
struct Block {
  Index first_plane, first_segment;
};

/// How an output grid is cut, and a tile laid out in scratch. Units: elements.
struct Tiling {
  Index images, rows, columns;  // of the grid, in one tile
  Index pitch, image, plane;    // distances of rows, images and planes in scratch
  bool shifted;
  Index run() const { return (images - 1) * image + (rows - 1) * pitch + columns; }
};

/// One output grid of a problem.
struct Gather {
  Index n, in_channels, out_channels;
  Index in_h, in_w, step_h, step_w;  // plane (p, q) holds in rows p + step_h * i, columns alike
  std::array<Index, 4> in_strides;
  Index rows, columns;                                       // the output grid
  Index out_n, out_channel, out_row, out_column, out_first;  // strides and offset of out
  Index low_h, low_w, span_h, span_w;  // least tap, distance to the greatest, in plane rows/columns
};

/// Where a pack keeps what belongs to one output grid; offsets in bytes from the pack's begin.
struct PhaseHeader {
  Gather gather;
  Tiling tiling;
  Index blocks, segments, planes, entries;
  Index block_at, segment_at, plane_at, entry_at, prefix_at;  // prefix: nonzeros before channel o
};

struct PackHeader {
  Index phases;
  Index nonzeros;
  Index fill;   // 1: some output belongs to no phase, so all of it is zeroed first
  Index bytes;  // of the whole pack
};

struct ZeroSkipJob {
  const PhaseHeader* phase;
  const char* pack;
  const void* in;
  const void* bias;
  void* out;
  bool relu;
  Index tiles_n, tiles_h, tiles_w, parts;
  char* scratch;
  Index scratch_bytes, block_bytes, sum_rows;
};

}  // namespace
}  // namespace zerone::kernels::cpu

#endif  // ZERONE_KERNELS_CPU_ZERO_SKIP_JOB

HWY_BEFORE_NAMESPACE();
namespace zerone::kernels::cpu {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Register arrays need every loop over them unrolled, also beyond the compiler's usual limit.
#undef ZERONE_UNROLL
#if HWY_COMPILER_CLANG
#define ZERONE_UNROLL HWY_PRAGMA(clang loop unroll(full))
#else
#define ZERONE_UNROLL HWY_PRAGMA(GCC unroll 32)
#endif

template <class T>
struct Simd {
  using D = hn::ScalableTag<T>;
#if HWY_TARGET == HWY_SCALAR
  static constexpr int lanes = 1, most = 8;
#else
  static constexpr int lanes = HWY_MAX_BYTES / sizeof(T);
  // Vectors of a run whose sums stay in registers, beside the weight.
  static constexpr int most = HWY_MAX_BYTES == 32 ? 14 : 24;
#endif
};

/// sums[0, M vectors) (+)= the segment's nonzeros.
template <class T, int M>
void accumulate(const Entry<T>* HWY_RESTRICT entry, const Entry<T>* end, const T* in, T* sums,
                bool first) {
  constexpr int lanes = Simd<T>::lanes;
  const typename Simd<T>::D d;
  hn::Vec<typename Simd<T>::D> sum[M];
  if (first) {
    ZERONE_UNROLL
    for (int j = 0; j < M; ++j) sum[j] = hn::Zero(d);
  } else {
    ZERONE_UNROLL
    for (int j = 0; j < M; ++j) sum[j] = hn::Load(d, sums + j * lanes);
  }
  for (; entry != end; ++entry) {
    const auto weight = hn::Set(d, entry->weight);
    const T* HWY_RESTRICT from = in + entry->offset;
    ZERONE_UNROLL
    for (int j = 0; j < M; ++j) {
      sum[j] = hn::MulAdd(weight, hn::LoadU(d, from + j * lanes), sum[j]);
    }
  }
  ZERONE_UNROLL
  for (int j = 0; j < M; ++j) hn::Store(sum[j], d, sums + j * lanes);
}

template <class T, int M = Simd<T>::most>
void accumulate_any(int vectors, const Entry<T>* entry, const Entry<T>* end, const T* in, T* sums,
                    bool first) {
  if constexpr (M > 0) {
    static constexpr auto table = []<std::size_t... J>(std::index_sequence<J...>) {
      return std::array{&accumulate<T, static_cast<int>(J) + 1>...};
    }
    (std::make_index_sequence<M>());
    table[static_cast<std::size_t>(vectors - 1)](entry, end, in, sums, first);
  }
}

// Targets whose masked loads and stores leave masked elements alone.
#undef ZERONE_MASKED_ROWS
#define ZERONE_MASKED_ROWS (HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR)

/// to[0, count) = from. Rows shorter than a vector end in a masked one, others in one that
/// overlaps.
template <class T>
HWY_INLINE void copy_row(const T* HWY_RESTRICT from, Index count, T* HWY_RESTRICT to) {
  constexpr Index lanes = Simd<T>::lanes;
  const typename Simd<T>::D d;
  if (count >= lanes) {
    for (Index i = 0; i < count - lanes; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, to + i);
    hn::StoreU(hn::LoadU(d, from + count - lanes), d, to + count - lanes);
    return;
  }
#if ZERONE_MASKED_ROWS
  const auto mask = hn::FirstN(d, static_cast<std::size_t>(count));
  hn::BlendedStore(hn::MaskedLoad(mask, d, from), mask, d, to);
#else
  for (Index i = 0; i < count; ++i) to[i] = from[i];
#endif
}

/// Zeros [0, count) of scratch, count > 0, and up to a vector more.
template <class T>
HWY_INLINE void zero_row(Index count, T* to) {
  if (count <= 2) {  // the border of most kernels
    to[0] = T{0};
    to[count - 1] = T{0};
    return;
  }
  const typename Simd<T>::D d;
  for (Index i = 0; i < count; i += Simd<T>::lanes) {
    hn::StoreU(hn::Zero(d), d, to + i);
    HWY_FENCE;  // else compilers call memset, which costs more than these rows
  }
}

/// The part of a tile inside the grid.
struct Window {
  Index n, row, column;         // first
  Index images, rows, columns;  // how many
};

/// Copies a plane's part under the tile, with zeros where it leaves the image.
template <class T>
void copy_plane(const Gather& gather, const Tiling& tiling, const Plane& plane,
                const Window& window, const T* in, T* to) {
  const Index column = window.column + gather.low_w + plane.shift;  // of the plane
  const Index width = tiling.shifted ? window.columns : window.columns + gather.span_w;
  const Index height = window.rows + gather.span_h;
  // First and last column of the copy that lie in the image.
  const Index in_image = gather.in_w > plane.column_phase
                             ? ceil_div(gather.in_w - plane.column_phase, gather.step_w)
                             : 0;
  const Index begin = std::clamp<Index>(-column, 0, width);
  const Index end = std::clamp<Index>(in_image - column, begin, width);
  const Index stride = gather.in_strides[3] * gather.step_w;
  const Index in_row = gather.in_strides[2] * gather.step_h;
  const Index h0 = (window.row + gather.low_h) * gather.step_h + plane.row_phase;
#if ZERONE_MASKED_ROWS
  // Whole vectors whose masked lanes read nothing and become the border.
  constexpr Index lanes = Simd<T>::lanes;
  const Index last = (width - 1) / lanes * lanes;
  const bool whole_rows = stride == 1 && begin < end && begin < lanes && end > last;
  const typename Simd<T>::D d;
  const auto first_mask = hn::AndNot(hn::FirstN(d, static_cast<std::size_t>(begin)),
                                     hn::FirstN(d, static_cast<std::size_t>(std::min(end, lanes))));
  const auto last_mask =
      hn::FirstN(d, static_cast<std::size_t>(std::clamp<Index>(end - last, 0, lanes)));
#endif
  for (Index image = 0; image < window.images; ++image) {
    const T* from = in + (window.n + image) * gather.in_strides[0] +
                    plane.channel * gather.in_strides[1] + h0 * gather.in_strides[2] +
                    ((column + begin) * gather.step_w + plane.column_phase) * gather.in_strides[3];
    T* row = to + image * tiling.image;
    Index h = h0;
    for (Index i = 0; i < height; ++i, h += gather.step_h, from += in_row, row += tiling.pitch) {
      if (h < 0 || h >= gather.in_h || begin == end) {
        zero_row(width, row);
        continue;
      }
#if ZERONE_MASKED_ROWS
      if (whole_rows) {
        const T* source = from - begin;
        hn::StoreU(hn::MaskedLoad(first_mask, d, source), d, row);
        for (Index j = lanes; j < last; j += lanes) {
          hn::StoreU(hn::LoadU(d, source + j), d, row + j);
        }
        if (last > 0) hn::StoreU(hn::MaskedLoad(last_mask, d, source + last), d, row + last);
        continue;
      }
#endif
      // In rising order: what a row writes beyond its end, the next one overwrites.
      if (begin > 0) zero_row(begin, row);
      if (stride == 1) {
        copy_row(from, end - begin, row + begin);
      } else {
        for (Index j = begin; j < end; ++j) row[j] = from[(j - begin) * stride];
      }
      if (end < width) zero_row(width - end, row + end);
    }
  }
}

template <class T>
HWY_INLINE void finish_row(const T* HWY_RESTRICT from, Index count, T bias, bool relu,
                           T* HWY_RESTRICT to) {
  const typename Simd<T>::D d;
  const auto add = hn::Set(d, bias), zero = hn::Zero(d);
  const auto low = relu ? zero : hn::Set(d, -std::numeric_limits<T>::infinity());
  constexpr Index lanes = Simd<T>::lanes;
  const auto at = [&](Index i) HWY_ATTR {
    const auto sum = hn::Add(hn::LoadU(d, from + i), add);
    return hn::IfThenElse(hn::Lt(sum, low), zero, sum);  // NaN stays NaN
  };
  if (count >= lanes) {
    for (Index i = 0; i < count - lanes; i += lanes) hn::StoreU(at(i), d, to + i);
    hn::StoreU(at(count - lanes), d, to + count - lanes);
    return;
  }
#if ZERONE_MASKED_ROWS
  hn::BlendedStore(at(0), hn::FirstN(d, static_cast<std::size_t>(count)), d, to);
#else
  for (Index i = 0; i < count; ++i) {
    const T sum = from[i] + bias;
    to[i] = relu && sum < T{0} ? T{0} : sum;
  }
#endif
}

template <class T>
HWY_INLINE void fill_row(Index count, T value, T* to) {
  constexpr Index lanes = Simd<T>::lanes;
  const typename Simd<T>::D d;
  const auto values = hn::Set(d, value);
  if (count >= lanes) {
    for (Index i = 0; i < count - lanes; i += lanes) hn::StoreU(values, d, to + i);
    hn::StoreU(values, d, to + count - lanes);
    return;
  }
#if ZERONE_MASKED_ROWS
  hn::BlendedStore(values, hn::FirstN(d, static_cast<std::size_t>(count)), d, to);
#else
  for (Index i = 0; i < count; ++i) to[i] = value;
#endif
}

/// Rows of one output channel under the window as (rows, length): merged where out is contiguous.
struct Rows {
  Index images, rows, length;
};
template <class T>
Rows output_rows(const Gather& gather, const Window& window, Index pitch) {
  if (gather.out_row == window.columns && (pitch == 0 || pitch == window.columns)) {
    return {window.images, 1, window.rows * window.columns};
  }
  return {window.images, window.rows, window.columns};
}

/// Items [begin, end) of (tile, part of the output channels).
template <class T>
void run_items(const ZeroSkipJob& job, Index begin_item, Index end_item, int worker) {
  constexpr int lanes = Simd<T>::lanes, most = Simd<T>::most;
  const PhaseHeader& phase = *job.phase;
  const Gather& gather = phase.gather;
  const Tiling& tiling = phase.tiling;
  const Block* blocks = reinterpret_cast<const Block*>(job.pack + phase.block_at);
  const Segment* segments = reinterpret_cast<const Segment*>(job.pack + phase.segment_at);
  const Plane* planes = reinterpret_cast<const Plane*>(job.pack + phase.plane_at);
  const Entry<T>* entries = reinterpret_cast<const Entry<T>*>(job.pack + phase.entry_at);
  const Index* prefix = reinterpret_cast<const Index*>(job.pack + phase.prefix_at);
  const T* in = static_cast<const T*>(job.in);
  const T* bias = static_cast<const T*>(job.bias);
  T* out = static_cast<T*>(job.out);
  char* scratch = job.scratch + worker * job.scratch_bytes;
  T* block_planes = reinterpret_cast<T*>(scratch);
  T* sums = reinterpret_cast<T*>(scratch + job.block_bytes);
  const Index sum_row =
      round_up(tiling.run() * static_cast<Index>(sizeof(T)), line) / static_cast<Index>(sizeof(T));
  T* spare = sums + job.sum_rows * sum_row;  // sums of a channel that one block completes
  // Outputs whose columns are apart are stored channel by channel within a pixel, at the end.
  const bool at_once = gather.out_column == 1;
  // The cost of a channel is its nonzeros and about two more for the stores.
  const Index total = prefix[gather.out_channels] + 2 * gather.out_channels;
  const auto boundary = [&](Index part) HWY_ATTR {
    const Index target = total * part / job.parts;
    Index low = 0, high = gather.out_channels;
    while (low < high) {
      const Index middle = (low + high) / 2;
      prefix[middle] + 2 * middle < target ? low = middle + 1 : high = middle;
    }
    return low;
  };

  for (Index item = begin_item; item < end_item; ++item) {
    Index tile = item / job.parts;
    const Index part = item - tile * job.parts;
    Window window;
    window.column = tile % job.tiles_w * tiling.columns;
    tile /= job.tiles_w;
    window.row = tile % job.tiles_h * tiling.rows;
    window.n = tile / job.tiles_h * tiling.images;
    window.images = std::min(tiling.images, gather.n - window.n);
    window.rows = std::min(tiling.rows, gather.rows - window.row);
    window.columns = std::min(tiling.columns, gather.columns - window.column);
    const Index run =
        (window.images - 1) * tiling.image + (window.rows - 1) * tiling.pitch + window.columns;
    const int vectors = static_cast<int>(ceil_div(run, lanes));
    const int chunks = (vectors + most - 1) / most;
    T* const corner = out + gather.out_first + window.n * gather.out_n +
                      window.row * gather.out_row + window.column * gather.out_column;
    const Rows sum_rows = output_rows<T>(gather, window, tiling.pitch);
    const Rows fill_rows = output_rows<T>(gather, window, 0);

    const Index channels_end = boundary(part + 1);
    for (Index o0 = boundary(part); o0 < channels_end; o0 += job.sum_rows) {
      const Index o1 = std::min(channels_end, o0 + job.sum_rows);
      for (Index o = o0; o < o1; ++o) {
        if (prefix[o + 1] != prefix[o]) continue;
        if (at_once) {
          T value = bias != nullptr ? bias[o] : T{0};
          if (job.relu && value < T{0}) value = T{0};
          for (Index image = 0; image < fill_rows.images; ++image) {
            for (Index row = 0; row < fill_rows.rows; ++row) {
              fill_row(
                  fill_rows.length, value,
                  corner + image * gather.out_n + o * gather.out_channel + row * gather.out_row);
            }
          }
        } else {
          zero_row(sum_row, sums + (o - o0) * sum_row);
        }
      }
      for (Index b = 0; b < phase.blocks; ++b) {
        const Segment* last = segments + blocks[b + 1].first_segment;
        const Segment* segment =
            std::lower_bound(segments + blocks[b].first_segment, last, o0,
                             [](const Segment& s, Index o) HWY_ATTR { return s.channel < o; });
        if (segment == last || segment->channel >= o1) continue;
        const Index first_plane = blocks[b].first_plane;
        const Index plane_count = blocks[b + 1].first_plane - first_plane;
        for (Index p = 0; p < plane_count; ++p) {
          copy_plane(gather, tiling, planes[first_plane + p], window, in,
                     block_planes + p * tiling.plane);
        }
        for (; segment != last && segment->channel < o1; ++segment) {
          const Index o = segment->channel;
          const bool first = (segment->flags & first_of_channel) != 0;
          const bool complete = (segment->flags & last_of_channel) != 0;
          T* to = at_once && first && complete ? spare : sums + (o - o0) * sum_row;
          const Entry<T>* entry = entries + segment->begin;
          const Entry<T>* entry_end = entries + segment[1].begin;
          int at = 0;
          for (int chunk = 0; chunk < chunks; ++chunk) {
            const int count = (vectors - at) / (chunks - chunk);
            accumulate_any<T>(count, entry, entry_end, block_planes + at * lanes, to + at * lanes,
                              first);
            at += count;
          }
          if (!at_once || !complete) continue;
          for (Index image = 0; image < sum_rows.images; ++image) {
            for (Index row = 0; row < sum_rows.rows; ++row) {
              finish_row(
                  to + image * tiling.image + row * tiling.pitch, sum_rows.length,
                  bias != nullptr ? bias[o] : T{0}, job.relu,
                  corner + image * gather.out_n + o * gather.out_channel + row * gather.out_row);
            }
          }
        }
      }
      if (at_once) continue;
      for (Index image = 0; image < window.images; ++image) {
        for (Index row = 0; row < window.rows; ++row) {
          for (Index column = 0; column < window.columns; ++column) {
            const T* from = sums + image * tiling.image + row * tiling.pitch + column;
            T* to =
                corner + image * gather.out_n + row * gather.out_row + column * gather.out_column;
            for (Index o = o0; o < o1; ++o) {
              const T sum = from[(o - o0) * sum_row] + (bias != nullptr ? bias[o] : T{0});
              to[o * gather.out_channel] = job.relu && sum < T{0} ? T{0} : sum;
            }
          }
        }
      }
    }
  }
}

/// Bit i of bits (64 to a word): w[i * stride] is not +-0.
template <class T>
void nonzero_bits(const T* w, Index stride, Index count, std::uint64_t* bits) {
  using U = hwy::MakeUnsigned<T>;
  std::memset(bits, 0, static_cast<std::size_t>(ceil_div(count, 64)) * 8);
  Index i = 0;
#if HWY_TARGET != HWY_SCALAR
  if (stride == 1) {
    const hn::ScalableTag<U> d;
    constexpr Index lanes = Simd<T>::lanes;
    for (; i + lanes <= count; i += lanes) {
      const auto v = hn::LoadU(d, reinterpret_cast<const U*>(w + i));
      const auto mask = hn::Ne(hn::ShiftLeft<1>(v), hn::Zero(d));
      std::uint8_t bytes[8] = {};
      hn::StoreMaskBits(d, mask, bytes);
      std::uint64_t word = 0;
      for (int j = 0; j < (lanes + 7) / 8; ++j) word |= std::uint64_t{bytes[j]} << (8 * j);
      bits[i / 64] |= word << (i % 64);
    }
  }
#endif
  for (; i < count; ++i) {
    const bool nonzero = static_cast<U>(std::bit_cast<U>(w[i * stride]) << 1) != 0;
    bits[i / 64] |= std::uint64_t{nonzero} << (i % 64);
  }
}

void run_f32(const ZeroSkipJob& job, Index begin, Index end, int worker) {
  run_items<float>(job, begin, end, worker);
}
void run_f64(const ZeroSkipJob& job, Index begin, Index end, int worker) {
  run_items<double>(job, begin, end, worker);
}
void bits_f32(const float* w, Index stride, Index count, std::uint64_t* bits) {
  nonzero_bits(w, stride, count, bits);
}
void bits_f64(const double* w, Index stride, Index count, std::uint64_t* bits) {
  nonzero_bits(w, stride, count, bits);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace zerone::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace zerone::kernels::cpu {
namespace {

HWY_EXPORT(run_f32);
HWY_EXPORT(run_f64);
HWY_EXPORT(bits_f32);
HWY_EXPORT(bits_f64);

void find_nonzeros(const float* w, Index stride, Index count, std::uint64_t* bits) {
  HWY_DYNAMIC_DISPATCH(bits_f32)(w, stride, count, bits);
}
void find_nonzeros(const double* w, Index stride, Index count, std::uint64_t* bits) {
  HWY_DYNAMIC_DISPATCH(bits_f64)(w, stride, count, bits);
}

/// Reads and flushes denormals as zero while it lives, on this thread.
class DenormalsAreZero {
 public:
#if HWY_ARCH_X86
  DenormalsAreZero() : saved_(_mm_getcsr()) {
    _mm_setcsr(saved_ | 0x8040);
  }  // FTZ, DAZ
  ~DenormalsAreZero() {
    _mm_setcsr(saved_);
  }
#elif HWY_ARCH_ARM_A64
  DenormalsAreZero() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | (std::uint64_t{1} << 24)));
  }
  ~DenormalsAreZero() {
    asm volatile("msr fpcr, %0" : : "r"(saved_));
  }
#else
  DenormalsAreZero() {}
  ~DenormalsAreZero() {}
#endif
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
#if HWY_ARCH_X86
  unsigned saved_;
#elif HWY_ARCH_ARM_A64
  std::uint64_t saved_ = 0;
#endif
};

char* align_pointer(void* p) {
  return reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(p) + line - 1) / line * line);
}
constexpr Index floor_mod(Index a, Index b) {
  return (a % b + b) % b;
}

/// One axis of a pass: tap t of `kernel` reads plane `phase` at output position + `at`.
struct Axis {
  Index kernel, stride, pad, dilation;
  Index in, out;  // sizes of the pass's operand and result
  bool backward;

  Index step() const { return backward ? 1 : stride; }
  Index grids() const { return backward ? stride : 1; }
  /// Output grid g holds positions g, g + stride, ... of a backward result.
  Index grid_size(Index g) const {
    return backward ? (out > g ? ceil_div(out - g, stride) : 0) : out;
  }
  bool reads(Index grid, Index tap) const {
    return !backward || floor_mod(grid + pad - tap * dilation, stride) == 0;
  }
  Index phase(Index tap) const { return backward ? 0 : floor_mod(tap * dilation - pad, stride); }
  Index at(Index grid, Index tap) const {
    return backward ? (grid + pad - tap * dilation) / stride
                    : (tap * dilation - pad - phase(tap)) / stride;
  }
  /// Grids with elements that some tap reads, in order.
  std::vector<Index> live_grids() const {
    std::vector<Index> live;
    for (Index tap = 0; tap < kernel; ++tap) {
      const Index grid = backward ? floor_mod(tap * dilation - pad, stride) : 0;
      if (grid_size(grid) > 0) live.push_back(grid);
    }
    std::sort(live.begin(), live.end());
    live.erase(std::unique(live.begin(), live.end()), live.end());
    return live;
  }
  /// Least `at` of a grid's taps and the distance to the greatest.
  void span(Index grid, Index& low, Index& distance) const {
    Index high = low = distance = 0;
    bool any = false;
    for (Index tap = 0; tap < kernel; ++tap) {
      if (!reads(grid, tap)) continue;
      const Index a = at(grid, tap);
      low = any ? std::min(low, a) : a;
      high = any ? std::max(high, a) : a;
      any = true;
    }
    distance = high - low;
  }
};

/// A pass on a shape, without grids.
struct Problem {
  Axis h, w;
  Index n, in_channels, out_channels;
  std::array<Index, 4> in_strides, out_strides;
  bool backward;

  Problem(const Conv2dShape& s, ZeroSkipPass pass) {
    backward = pass == ZeroSkipPass::backward_data;
    h = {s.kh,
         s.stride_h,
         s.pad_top,
         s.dilation_h,
         backward ? s.h_out : s.h,
         backward ? s.h : s.h_out,
         backward};
    w = {s.kw,
         s.stride_w,
         s.pad_left,
         s.dilation_w,
         backward ? s.w_out : s.w,
         backward ? s.w : s.w_out,
         backward};
    n = s.n;
    in_channels = backward ? s.c_out : s.c_in;
    out_channels = backward ? s.c_in : s.c_out;
    in_strides = backward ? s.y_strides : s.x_strides;
    out_strides = backward ? s.x_strides : s.y_strides;
  }
  bool empty() const { return n == 0 || out_channels == 0 || h.out == 0 || w.out == 0; }

  Gather gather(Index grid_h, Index grid_w) const {
    Gather g{};
    g.n = n;
    g.in_channels = in_channels;
    g.out_channels = out_channels;
    g.in_h = h.in;
    g.in_w = w.in;
    g.step_h = h.step();
    g.step_w = w.step();
    g.in_strides = in_strides;
    g.rows = h.grid_size(grid_h);
    g.columns = w.grid_size(grid_w);
    g.out_n = out_strides[0];
    g.out_channel = out_strides[1];
    g.out_row = out_strides[2] * h.grids();
    g.out_column = out_strides[3] * w.grids();
    g.out_first = grid_h * out_strides[2] + grid_w * out_strides[3];
    if (g.columns == 1) g.out_column = 1;  // never used; allows whole rows
    h.span(grid_h, g.low_h, g.span_h);
    w.span(grid_w, g.low_w, g.span_w);
    return g;
  }
};

/// The cut that copies least, of tiles whose runs have at most the bytes given above.
Tiling make_tiling(const Gather& g, bool shifted, Index size) {
  const Index lanes = line / size;
  const Index most = (shifted ? shifted_run_bytes : plain_run_bytes) / size;
  const auto pitch_of = [&](Index columns) {
    return shifted ? round_up(columns, lanes) : columns + g.span_w;
  };
  Tiling best{};
  double best_cost = 0;
  for (Index cuts = 1; cuts <= g.columns; cuts *= 2) {
    Tiling t{};
    t.shifted = shifted;
    t.images = 1;
    t.columns = ceil_div(g.columns, cuts);
    if (cuts > 1) t.columns = std::min(g.columns, round_up(t.columns, lanes));
    t.pitch = pitch_of(t.columns);
    t.rows = std::clamp<Index>(most / t.pitch, 1, g.rows);
    t.rows = ceil_div(g.rows, ceil_div(g.rows, t.rows));  // equal tiles
    t.image = (t.rows + g.span_h) * t.pitch;
    const double tiles = static_cast<double>(ceil_div(g.rows, t.rows)) *
                         static_cast<double>(ceil_div(g.columns, t.columns));
    // Copied elements weigh as much as computed ones, whole vectors and one more a row counted.
    const Index copied = (t.rows + g.span_h) * (t.pitch + lanes);
    const Index computed = round_up((t.rows - 1) * t.pitch + t.columns, lanes);
    const double cost = tiles * static_cast<double>(copied + computed);
    const bool fits = t.rows * t.pitch <= most;
    if (cuts == 1 || cost < best_cost || best.rows * best.pitch > 2 * most) {
      best = t;
      best_cost = cost;
    }
    if (fits && t.columns <= lanes) break;
  }
  if (best.rows == g.rows && best.columns == g.columns && 2 * best.image <= most) {
    best.images = std::min(g.n, most / best.image);  // small maps: several images in a run
  }
  best.plane = round_up(best.images * best.image, lanes);
  return best;
}

Index block_bytes_of(const Tiling& t, Index size) {
  return round_up(std::max(l2_bytes, t.plane * size) + 2 * line, line);
}
Index sum_row_bytes(const Tiling& t, Index size) {
  return round_up(t.run() * size, line);
}
Index sum_rows_of(const Gather& g, const Tiling& t, Index size) {
  return std::clamp<Index>(sums_bytes / sum_row_bytes(t, size), 1,
                           std::max<Index>(1, g.out_channels));
}

struct Scratch {
  Index block, sums;  // bytes
  Index total() const { return block + sums; }
};
Scratch scratch_of(const Gather& g, const Tiling& t, Index size) {
  return {block_bytes_of(t, size), (sum_rows_of(g, t, size) + 1) * sum_row_bytes(t, size)};
}

template <class F>
void for_phases(const Problem& problem, F&& f) {
  const std::vector<Index> grids_w = problem.w.live_grids();
  for (const Index gh : problem.h.live_grids()) {
    for (const Index gw : grids_w) f(gh, gw);
  }
}

/// Whether some output belongs to no phase.
bool needs_fill(const Problem& problem) {
  Index covered = 0;
  for_phases(problem, [&](Index gh, Index gw) {
    covered += problem.h.grid_size(gh) * problem.w.grid_size(gw);
  });
  return covered < problem.h.out * problem.w.out;
}

template <class T>
struct Nonzero {
  std::int32_t in, out, tap;
  T weight;
};

/// The nonzeros in the order of w's axes.
template <class T>
std::vector<Nonzero<T>> list_nonzeros(const Conv2dShape& s, bool backward, const T* w,
                                      Index nonzeros) {
  std::vector<Nonzero<T>> list;
  list.reserve(static_cast<std::size_t>(nonzeros));
  const Index channels = s.c_in / s.groups, filters = s.c_out / s.groups, taps = s.kh * s.kw;
  const bool taps_dense = s.w_strides[3] == 1 && s.w_strides[2] == s.kw;
  const bool dense = taps_dense && s.w_strides[1] == taps;
  // Runs of elements at one stride: a filter, a channel's taps, or a tap row.
  const Index run = dense ? channels * taps : taps_dense ? taps : s.kw;
  const Index stride = dense || taps_dense ? 1 : s.w_strides[3];
  if (run == 0) return list;
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(ceil_div(run, 64)));
  const std::uint32_t divisor = static_cast<std::uint32_t>(taps);
  for (Index k = 0; k < s.c_out; ++k) {
    const Index group = k / filters;
    for (Index first = 0; first < channels * taps; first += run) {
      const Index c0 = first / taps, tap0 = first - c0 * taps;
      const T* from = w + k * s.w_strides[0] + c0 * s.w_strides[1] + tap0 / s.kw * s.w_strides[2];
      find_nonzeros(from, stride, run, bits.data());
      for (Index word = 0; word < ceil_div(run, 64); ++word) {
        for (std::uint64_t rest = bits[static_cast<std::size_t>(word)]; rest != 0;
             rest &= rest - 1) {
          const Index i = word * 64 + std::countr_zero(rest);
          const std::uint32_t at = static_cast<std::uint32_t>(tap0 + i);
          const Index c = c0 + at / divisor;
          const std::int32_t filter = static_cast<std::int32_t>(k);
          const std::int32_t channel = static_cast<std::int32_t>(group * channels + c);
          list.push_back({backward ? filter : channel, backward ? channel : filter,
                          static_cast<std::int32_t>(at % divisor), from[i * stride]});
        }
      }
    }
  }
  return list;
}

/// What an output grid makes of a tap.
struct Tap {
  Index kind = -1;  // plane of the channel; -1: the grid does not read it
  Index at = 0;     // offset in the plane
};

template <class T>
void pack_phase(const Problem& problem, Index grid_h, Index grid_w,
                const std::vector<Nonzero<T>>& nonzeros, char* pack, Index& bytes,
                PhaseHeader& phase) {
  const Gather gather = problem.gather(grid_h, grid_w);
  const Index size = sizeof(T), kw = problem.w.kernel, taps = problem.h.kernel * kw;
  std::vector<char> reads(static_cast<std::size_t>(taps));
  Index columns_read = 0, rows_read = 0;
  for (Index s = 0; s < kw; ++s) columns_read += problem.w.reads(grid_w, s);
  for (Index r = 0; r < problem.h.kernel; ++r) rows_read += problem.h.reads(grid_h, r);
  Index count = 0;
  for (Index tap = 0; tap < taps; ++tap) {
    reads[static_cast<std::size_t>(tap)] =
        problem.h.reads(grid_h, tap / kw) && problem.w.reads(grid_w, tap % kw);
  }
  for (const auto& nonzero : nonzeros) count += reads[static_cast<std::size_t>(nonzero.tap)];

  // Shifted planes pay from about six nonzeros each, unless rounding rows to vectors wastes more.
  Tiling tiling = make_tiling(gather, true, size);
  const Index planes_shifted =
      gather.in_channels * columns_read * std::min(rows_read, problem.h.step());
  if (gather.span_w == 0 || columns_read > 16 || count < 6 * planes_shifted ||
      5 * tiling.pitch > 6 * (tiling.columns + gather.span_w)) {
    tiling = make_tiling(gather, false, size);
  }
  const Index column_kinds = tiling.shifted ? kw : problem.w.step();
  const Index kinds = problem.h.step() * column_kinds;
  std::vector<Tap> table(static_cast<std::size_t>(taps));
  for (Index tap = 0; tap < taps; ++tap) {
    if (!reads[static_cast<std::size_t>(tap)]) continue;
    const Index r = tap / kw, s = tap % kw;
    Tap& t = table[static_cast<std::size_t>(tap)];
    t.kind = problem.h.phase(r) * column_kinds + (tiling.shifted ? s : problem.w.phase(s));
    t.at = (problem.h.at(grid_h, r) - gather.low_h) * tiling.pitch +
           (tiling.shifted ? 0 : problem.w.at(grid_w, s) - gather.low_w);
  }

  // Planes with nonzeros, in order; blocks of equal numbers of them.
  std::vector<std::int32_t> slot(static_cast<std::size_t>(gather.in_channels * kinds), -1);
  for (const auto& nonzero : nonzeros) {
    const Tap& tap = table[static_cast<std::size_t>(nonzero.tap)];
    if (tap.kind >= 0) slot[static_cast<std::size_t>(nonzero.in * kinds + tap.kind)] = 0;
  }
  const auto aligned = [&] { return bytes = round_up(bytes, 16); };
  phase.gather = gather;
  phase.tiling = tiling;
  phase.plane_at = aligned();
  Plane* planes = reinterpret_cast<Plane*>(pack + phase.plane_at);
  phase.planes = 0;
  for (std::size_t i = 0; i < slot.size(); ++i) {
    if (slot[i] < 0) continue;
    const Index channel = static_cast<Index>(i) / kinds, kind = static_cast<Index>(i) % kinds;
    const Index column_kind = kind % column_kinds;
    slot[i] = static_cast<std::int32_t>(phase.planes);
    planes[phase.planes++] = {
        static_cast<std::int32_t>(channel), static_cast<std::int32_t>(kind / column_kinds),
        static_cast<std::int32_t>(tiling.shifted ? problem.w.phase(column_kind) : column_kind),
        static_cast<std::int32_t>(tiling.shifted ? problem.w.at(grid_w, column_kind) - gather.low_w
                                                 : 0)};
  }
  bytes += phase.planes * static_cast<Index>(sizeof(Plane));

  // About 8 nonzeros a segment pay for loading and storing the sums.
  const Index plane_bytes = tiling.plane * size;
  const Index live = std::max<Index>(1, phase.planes);
  const Index group_outputs = std::max<Index>(1, gather.out_channels);
  const Index wanted = ceil_div(8 * live * group_outputs, std::max<Index>(1, count));
  const Index least = std::max<Index>(1, l1_bytes / plane_bytes);
  const Index block_planes = std::clamp(wanted, least, std::max(least, l2_bytes / plane_bytes));
  phase.blocks = ceil_div(phase.planes, block_planes);
  phase.block_at = aligned();
  Block* blocks = reinterpret_cast<Block*>(pack + phase.block_at);
  bytes += (phase.blocks + 1) * static_cast<Index>(sizeof(Block));

  // Counting sort by (block, output channel).
  const Index outputs = gather.out_channels;
  std::vector<Index> begin(static_cast<std::size_t>(phase.blocks * outputs + 1), 0);
  phase.prefix_at = aligned();
  Index* prefix = reinterpret_cast<Index*>(pack + phase.prefix_at);
  bytes += (outputs + 1) * static_cast<Index>(sizeof(Index));
  std::fill_n(prefix, outputs + 1, Index{0});
  const auto bucket = [&](const Nonzero<T>& nonzero, std::int32_t place) {
    return static_cast<std::size_t>(place / block_planes * outputs + nonzero.out);
  };
  for (const auto& nonzero : nonzeros) {
    const Tap& tap = table[static_cast<std::size_t>(nonzero.tap)];
    if (tap.kind < 0) continue;
    const std::int32_t place = slot[static_cast<std::size_t>(nonzero.in * kinds + tap.kind)];
    ++begin[bucket(nonzero, place) + 1];
    ++prefix[nonzero.out + 1];
  }
  for (Index o = 0; o < outputs; ++o) prefix[o + 1] += prefix[o];
  for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];

  phase.segment_at = aligned();
  Segment* segments = reinterpret_cast<Segment*>(pack + phase.segment_at);
  phase.segments = 0;
  std::vector<Index> last_segment(static_cast<std::size_t>(outputs), -1);
  for (Index b = 0; b < phase.blocks; ++b) {
    blocks[b] = {b * block_planes, phase.segments};
    for (Index o = 0; o < outputs; ++o) {
      const std::size_t at = static_cast<std::size_t>(b * outputs + o);
      if (begin[at] == begin[at + 1]) continue;
      Index& previous = last_segment[static_cast<std::size_t>(o)];
      segments[phase.segments] = {static_cast<std::int32_t>(o), previous < 0 ? first_of_channel : 0,
                                  begin[at]};
      previous = phase.segments++;
    }
  }
  blocks[phase.blocks] = {phase.planes, phase.segments};
  segments[phase.segments] = {-1, 0, count};
  for (const Index s : last_segment) {
    if (s >= 0) segments[s].flags |= last_of_channel;
  }
  bytes += (phase.segments + 1) * static_cast<Index>(sizeof(Segment));

  phase.entries = count;
  phase.entry_at = aligned();
  Entry<T>* entries = reinterpret_cast<Entry<T>*>(pack + phase.entry_at);
  for (const auto& nonzero : nonzeros) {
    const Tap& tap = table[static_cast<std::size_t>(nonzero.tap)];
    if (tap.kind < 0) continue;
    const std::int32_t place = slot[static_cast<std::size_t>(nonzero.in * kinds + tap.kind)];
    entries[begin[bucket(nonzero, place)]++] = {
        nonzero.weight,
        static_cast<decltype(Entry<T>::offset)>(place % block_planes * tiling.plane + tap.at)};
  }
  bytes += count * static_cast<Index>(sizeof(Entry<T>));
}

template <class T>
void pack_all(const Conv2dShape& shape, ZeroSkipPass pass, const T* w, Index nonzeros, char* pack) {
  const Problem problem(shape, pass);
  PackHeader header{};
  std::vector<PhaseHeader> phases;
  if (!problem.empty()) {
    const std::vector<Nonzero<T>> list = list_nonzeros(shape, problem.backward, w, nonzeros);
    header.nonzeros = static_cast<Index>(list.size());
    header.fill = needs_fill(problem);
    for_phases(problem, [&](Index, Index) { ++header.phases; });
    header.bytes = static_cast<Index>(sizeof(PackHeader)) +
                   header.phases * static_cast<Index>(sizeof(PhaseHeader));
    for_phases(problem, [&](Index gh, Index gw) {
      phases.emplace_back();
      pack_phase(problem, gh, gw, list, pack, header.bytes, phases.back());
    });
  }
  std::memcpy(pack, &header, sizeof(header));
  if (!phases.empty()) {
    std::memcpy(pack + sizeof(header), phases.data(), phases.size() * sizeof(PhaseHeader));
  }
}

/// out = act(bias) or 0 everywhere.
template <class T>
void fill_output(const Problem& problem, const T* bias, bool relu, T* out, int threads) {
  struct Dim {
    Index size, stride;
    bool channel;
  };
  std::array<Dim, 4> dims{{{problem.n, problem.out_strides[0], false},
                           {problem.out_channels, problem.out_strides[1], true},
                           {problem.h.out, problem.out_strides[2], false},
                           {problem.w.out, problem.out_strides[3], false}}};
  std::stable_sort(dims.begin(), dims.end(),
                   [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  // Merge the inner axes that hold one value and lie densely.
  std::vector<Dim> axes;
  for (const Dim& dim : dims) {
    if (dim.size == 1 && !(dim.channel && bias != nullptr)) continue;
    const bool joins = !axes.empty() && axes.back().stride == dim.size * dim.stride &&
                       (bias == nullptr || (!axes.back().channel && !dim.channel));
    if (joins) {
      axes.back() = {axes.back().size * dim.size, dim.stride, false};
    } else {
      axes.push_back(dim);
    }
  }
  while (axes.size() < 4) axes.insert(axes.begin(), Dim{1, 0, false});
  const auto value_at = [&](Index o) {
    const T value = bias != nullptr ? bias[o] : T{0};
    return relu && value < T{0} ? T{0} : value;
  };
  const Dim a = axes[0], b = axes[1], c = axes[2], d = axes[3];
  // One long run is cut too.
  const Index outer = a.size * b.size * c.size, piece = std::min<Index>(d.size, 1 << 14);
  const Index pieces = ceil_div(d.size, piece);
  parallel_for(threads, outer * pieces, 1 + (1 << 14) / piece, [&](Index begin, Index end) {
    for (Index item = begin; item < end; ++item) {
      const Index p = item % pieces, i = item / pieces;
      const Index ic = i % c.size, ib = i / c.size % b.size, ia = i / c.size / b.size;
      T* row = out + ia * a.stride + ib * b.stride + ic * c.stride;
      const Index first = p * piece, last = std::min(d.size, first + piece);
      if (d.channel && bias != nullptr) {
        for (Index j = first; j < last; ++j) row[j * d.stride] = value_at(j);
        continue;
      }
      const T value = value_at(a.channel ? ia : b.channel ? ib : c.channel ? ic : 0);
      if (d.stride == 1) {
        std::fill(row + first, row + last, value);
      } else {
        for (Index j = first; j < last; ++j) row[j * d.stride] = value;
      }
    }
  });
}

template <class T>
void run_all(const Conv2dShape& shape, ZeroSkipPass pass, const ZeroSkipArgs& args, void* workspace,
             int threads) {
  const Problem problem(shape, pass);
  if (problem.empty()) return;
  threads = std::max(1, threads);
  const char* pack = static_cast<const char*>(args.pack);
  PackHeader header;
  std::memcpy(&header, pack, sizeof(header));
  const bool backward = problem.backward;
  const T* bias = backward ? nullptr : static_cast<const T*>(args.bias);
  const bool relu = !backward && args.activation == Activation::relu;
  if (header.fill != 0 || header.nonzeros == 0) {
    fill_output(problem, bias, relu, static_cast<T*>(args.out), threads);
  }
  if (header.nonzeros == 0) return;

  const PhaseHeader* phases = reinterpret_cast<const PhaseHeader*>(pack + sizeof(PackHeader));
  for (Index i = 0; i < header.phases; ++i) {
    const PhaseHeader& phase = phases[i];
    const Gather& gather = phase.gather;
    const Tiling& tiling = phase.tiling;
    const Scratch scratch = scratch_of(gather, tiling, sizeof(T));
    ZeroSkipJob job{};
    job.phase = &phase;
    job.pack = pack;
    job.in = args.in;
    job.bias = bias;
    job.out = args.out;
    job.relu = relu;
    job.tiles_n = ceil_div(gather.n, tiling.images);
    job.tiles_h = ceil_div(gather.rows, tiling.rows);
    job.tiles_w = ceil_div(gather.columns, tiling.columns);
    const Index tiles = job.tiles_n * job.tiles_h * job.tiles_w;
    job.parts = threads == 1 || tiles >= 4 * threads
                    ? 1
                    : std::min(gather.out_channels, ceil_div(2 * threads, tiles));
    job.scratch = align_pointer(workspace);
    job.scratch_bytes = scratch.total();
    job.block_bytes = scratch.block;
    job.sum_rows = sum_rows_of(gather, tiling, sizeof(T));
    const Index items = tiles * job.parts;
    // At least some 10 microseconds of arithmetic for each further thread.
    const Index work = std::max<Index>(
        1, (phase.entries + 2 * gather.out_channels + phase.planes) / job.parts * tiling.run());
    parallel_for(threads, items, 1 + (Index{1} << 18) / work,
                 [&](Index begin, Index end, int worker) {
                   const DenormalsAreZero mode;
                   if constexpr (sizeof(T) == 4) {
                     HWY_DYNAMIC_DISPATCH(run_f32)(job, begin, end, worker);
                   } else {
                     HWY_DYNAMIC_DISPATCH(run_f64)(job, begin, end, worker);
                   }
                 });
  }
}

template <class T>
ZeroCensus census_of(const Conv2dShape& s, const T* w) {
  ZeroCensus census;
  const Index channels = s.groups > 0 ? s.c_in / s.groups : 0, taps = s.kh * s.kw;
  const Index filters = s.groups > 0 ? s.c_out / s.groups : 0;
  census.elements = s.c_out * channels * taps;
  const bool taps_dense = s.w_strides[3] == 1 && s.w_strides[2] == s.kw;
  const bool dense = taps_dense && s.w_strides[1] == taps;
  std::vector<std::uint64_t> bits(static_cast<std::size_t>(ceil_div(channels * taps, 64) + 1));
  std::vector<Index> unseen;  // channels of the group that are zero so far
  Index nonzeros = 0;
  for (Index k = 0; k < s.c_out; ++k) {
    if (k % filters == 0) {
      census.dead_channels += static_cast<Index>(unseen.size());
      unseen.resize(static_cast<std::size_t>(channels));
      for (Index c = 0; c < channels; ++c) unseen[static_cast<std::size_t>(c)] = c;
    }
    Index in_filter = 0;
    const auto any = [&](Index from, Index to) {
      for (Index i = from; i < to; ++i) {
        if ((bits[static_cast<std::size_t>(i / 64)] >> (i % 64) & 1) != 0) return true;
      }
      return false;
    };
    const T* filter = w + k * s.w_strides[0];
    if (dense) {
      find_nonzeros(filter, 1, channels * taps, bits.data());
      for (Index i = 0; i < ceil_div(channels * taps, 64); ++i) {
        in_filter += std::popcount(bits[static_cast<std::size_t>(i)]);
      }
      if (in_filter > 0) {
        std::erase_if(unseen, [&](Index c) { return any(c * taps, (c + 1) * taps); });
      }
    } else {
      std::vector<char> live(static_cast<std::size_t>(channels), 0);
      for (Index c = 0; c < channels; ++c) {
        for (Index r = 0; r < s.kh; ++r) {
          Index in_row = 0;
          for (Index first = 0; first < s.kw; first += 64) {
            std::uint64_t word = 0;
            find_nonzeros(filter + c * s.w_strides[1] + r * s.w_strides[2] + first * s.w_strides[3],
                          s.w_strides[3], std::min<Index>(64, s.kw - first), &word);
            in_row += std::popcount(word);
          }
          in_filter += in_row;
          if (in_row > 0) live[static_cast<std::size_t>(c)] = 1;
        }
      }
      std::erase_if(unseen, [&](Index c) { return live[static_cast<std::size_t>(c)] != 0; });
    }
    census.dead_filters += in_filter == 0;
    nonzeros += in_filter;
  }
  census.dead_channels += static_cast<Index>(unseen.size());
  if (s.c_out == 0) census.dead_channels = s.c_in;
  census.zeros = census.elements - nonzeros;
  return census;
}

}  // namespace

ZeroCensus zero_census(const Conv2dShape& shape, const void* w, DType dtype) {
  return dtype == DType::f64 ? census_of(shape, static_cast<const double*>(w))
                             : census_of(shape, static_cast<const float*>(w));
}

std::string_view zero_skip_reject(const Conv2dShape& shape, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::f64) return "element type is not f32 or f64";
  constexpr Index most = Index{1} << 26;
  if (shape.c_in >= most || shape.c_out >= most || shape.kh * shape.kw >= most ||
      shape.c_in / std::max<Index>(1, shape.groups) * shape.kh * shape.kw >= Index{1} << 31) {
    return "too many channels or taps";
  }
  // A tile and its border must be addressable with 32-bit offsets.
  for (const ZeroSkipPass pass : {ZeroSkipPass::forward, ZeroSkipPass::backward_data}) {
    const Problem problem(shape, pass);
    if (problem.empty()) continue;
    bool large = false;
    for_phases(problem, [&](Index gh, Index gw) {
      const Gather gather = problem.gather(gh, gw);
      if (gather.span_h >= most || gather.span_w >= most) {
        large = true;
        return;
      }
      for (const bool shifted : {false, true}) {
        large =
            large || make_tiling(gather, shifted, static_cast<Index>(size_of(dtype))).plane > most;
      }
    });
    if (large) return "the dilated kernel spans too many pixels";
  }
  return {};
}

std::size_t zero_skip_pack_bytes(const Conv2dShape& shape, ZeroSkipPass pass,
                                 std::int64_t nonzeros) {
  const Problem problem(shape, pass);
  Index bytes = sizeof(PackHeader);
  const Index planes = std::min(nonzeros, problem.in_channels * shape.kh * shape.kw);
  for_phases(problem, [&](Index, Index) {
    bytes += static_cast<Index>(sizeof(PhaseHeader) + sizeof(Block) + sizeof(Segment)) +
             (problem.out_channels + 1) * static_cast<Index>(sizeof(Index)) + 5 * 16;
  });
  bytes += nonzeros * static_cast<Index>(sizeof(Entry<double>) + sizeof(Segment)) +
           planes * static_cast<Index>(sizeof(Plane) + sizeof(Block));
  return static_cast<std::size_t>(bytes);
}

void zero_skip_pack(const Conv2dShape& shape, ZeroSkipPass pass, const void* w, DType dtype,
                    std::int64_t nonzeros, void* pack) {
  char* to = static_cast<char*>(pack);
  dtype == DType::f64 ? pack_all(shape, pass, static_cast<const double*>(w), nonzeros, to)
                      : pack_all(shape, pass, static_cast<const float*>(w), nonzeros, to);
}

std::size_t zero_skip_workspace_bytes(const Conv2dShape& shape, ZeroSkipPass pass, DType dtype,
                                      int threads) {
  const Problem problem(shape, pass);
  if (problem.empty()) return 0;
  Index most = 0;
  for_phases(problem, [&](Index gh, Index gw) {
    const Gather gather = problem.gather(gh, gw);
    for (const bool shifted : {false, true}) {
      const Index size = static_cast<Index>(size_of(dtype));
      most = std::max(most, scratch_of(gather, make_tiling(gather, shifted, size), size).total());
    }
  });
  return static_cast<std::size_t>(line + std::max(1, threads) * most);
}

void zero_skip_run(const Conv2dShape& shape, ZeroSkipPass pass, const ZeroSkipArgs& args,
                   void* workspace, int threads) {
  args.dtype == DType::f64 ? run_all<double>(shape, pass, args, workspace, threads)
                           : run_all<float>(shape, pass, args, workspace, threads);
}

}  // namespace zerone::kernels::cpu
#endif  // HWY_ONCE
