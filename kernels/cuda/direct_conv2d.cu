// Dense direct convolution on CUDA cores for small problems.
//
// Maths. out[n, k, p, q] = sum over c, r, s of w[k, c, r, s] * in[n, c, i(p, r), j(q, s)] with
// i(p, r) = p*stride_h - pad_top + r*dilation_h and j alike. Backward-data with stride 1 is the
// same sum with the channel roles swapped, the taps reversed (negative weight strides) and
// pad' = dilation*(taps - 1) - pad, which may be negative.
//
// Tile. One CTA owns one image, a tile of 64 or 128 output pixels and 4, 8 or 16 output channels,
// small enough that one 64->64 3x3 32x32 image makes 128 CTAs. Its warps split the input channels:
//   warp  the whole tile over its share of the input channels. It stages its own input (zeros
//         outside) and weights by 4-byte cp.async into a private ring of 3 stages of 1 to 4
//         channels, so warps never wait for each other before the end.
//   lane  1 or 2 rows of 4 pixels by 2, 4 or 8 channels in registers; lane%16 names the pixels,
//         lane/16 the half of the channels. 3x3 taps at stride 1 load each input row once
//         (LDS.128 + LDS.64) for three taps; every other window loads the pixels of each tap.
//   smem  input [channel][row][column], rows padded against bank conflicts; weights
//         [channel][tap][output channel], padded to be written conflict-free and read by broadcast.
// At the end the warps' partial sums are added in order through shared memory, and the sums are
// stored with bias and activation.
//
// The host weighs the issue slots of each tile against the number of waves and takes the cheapest:
// few pixels get small tiles, many get 128x16, which loads 2.5 times fewer bytes per output.
// Floor: FMAs / (128 a clock and SM) plus about 2 us of launch, first loads and the final sum;
// 64->64 3x3 32x32 at batch 1 on 132 SMs: 1.3 us + 2 us.

#include <cuda_runtime.h>
#include <zerone/kernels/cuda/direct_conv2d.h>

#include <algorithm>
#include <iterator>

#include <zerone/kernels/cuda/async_copy.cuh>
#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int groups_of_pixels = 16;  // of a warp; each is Rows x group_columns pixels
constexpr int group_columns = 4;
constexpr int stages = 3;
constexpr int max_warps = 16;
constexpr std::int64_t size_limit = std::int64_t{1} << 30;
constexpr std::int64_t portable_shared_bytes = 64 * 1024;  // what every supported device has

/// What one lane holds, and what follows for the CTA.
struct TileShape {
  int rows, lane_channels;

  constexpr int channels() const { return 2 * lane_channels; }
  constexpr int pixels() const { return groups_of_pixels * group_columns * rows; }
  // Floats; 12 and 20 spread 8 taps x 4 channels over all banks.
  constexpr int weight_pitch() const { return channels() == 4 ? 4 : channels() + 4; }
  constexpr int sum_pitch() const { return pixels() + 4; }
};

template <int Rows, int LaneChannels>
struct Config {
  static constexpr TileShape shape{Rows, LaneChannels};
  static constexpr int rows = Rows, lane_channels = LaneChannels;
  static constexpr int channels = shape.channels(), pixels = shape.pixels();
  static constexpr int weight_pitch = shape.weight_pitch(), sum_pitch = shape.sum_pitch();
  static_assert(lane_channels == 2 || lane_channels % 4 == 0, "weights are read as vectors");
};

constexpr TileShape tile_shapes[] = {{1, 2}, {1, 4}, {2, 4}, {2, 8}};

/// The convolution that the kernel runs: out = conv(in, w), whichever pass it came from.
struct Problem {
  std::int64_t n = 0;
  std::int64_t in_channels = 0, in_h = 0, in_w = 0;
  std::int64_t out_channels = 0, out_h = 0, out_w = 0;
  std::int64_t kh = 0, kw = 0, stride_h = 1, stride_w = 1, pad_top = 0, pad_left = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t in_strides[4]{}, w_strides[4]{},
      out_strides[4]{};  // w: out channel, in channel, r, s

  bool is_plain_3x3() const {
    return kh == 3 && kw == 3 && stride_h == 1 && stride_w == 1 && dilation_h == 1 &&
           dilation_w == 1;
  }
};

/// How a Problem is cut.
struct Plan {
  int shape = 0;        // of tile_shapes
  int log_columns = 0;  // the tile has 2^log_columns columns
  int tile_rows = 0;
  int in_rows = 0, in_columns = 0;
  int in_pitch = 0, plane = 0;  // floats of a row and a channel of the staged input
  int log_stage_channels = 0;
  int warps = 0;
  int warp_channels = 0;  // input channels of a warp
  int stage_floats = 0, warp_floats = 0;
  std::int64_t tiles_h = 0, tiles_w = 0, channel_blocks = 0, ctas = 0;

  std::int64_t shared_bytes() const { return std::int64_t{4} * warps * warp_floats; }
};

struct Params {
  const float* in;
  const float* w;
  const float* bias;
  const float* gate;
  float* out;
  std::int64_t in_strides[4], w_strides[4], out_strides[4];
  FastDivisor channel_blocks, tiles_w, tiles_h, in_columns, taps, kw;
  int in_channels, in_h, in_w, out_channels, out_h, out_w;
  int kh, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
  int log_columns, tile_rows, in_positions, in_pitch, plane;
  int log_stage_channels, warp_channels, stage_floats, warp_floats;
  bool relu, in_channels_last, w_channels_last, out_channels_last;
};

/// Stages input channels [first, first + count) of the tile at (row, column) of one image.
__device__ __forceinline__ void stage_input(const Params& p, const float* image, int row,
                                            int column, int first, int count, float* to) {
  const int lane = threadIdx.x % 32;
  image += first * p.in_strides[1];
  if (p.in_channels_last) {
    const int positions = p.in_positions << p.log_stage_channels;
#pragma unroll 2
    for (int e = lane; e < positions; e += 32) {
      const int c = e & ((1 << p.log_stage_channels) - 1);
      const int at = e >> p.log_stage_channels;
      const int i = static_cast<int>(p.in_columns.quotient(at));
      const int j = at - i * static_cast<int>(p.in_columns.divisor);
      if (c >= count) continue;
      const bool valid = static_cast<unsigned>(row + i) < static_cast<unsigned>(p.in_h) &&
                         static_cast<unsigned>(column + j) < static_cast<unsigned>(p.in_w);
      const float* from = valid ? image + (row + i) * p.in_strides[2] +
                                      (column + j) * p.in_strides[3] + c * p.in_strides[1]
                                : p.in;
      copy_async(to + c * p.plane + i * p.in_pitch + j, from, valid);
    }
    return;
  }
#pragma unroll 2
  for (int e = lane; e < p.in_positions; e += 32) {
    const int i = static_cast<int>(p.in_columns.quotient(e));
    const int j = e - i * static_cast<int>(p.in_columns.divisor);
    const bool valid = static_cast<unsigned>(row + i) < static_cast<unsigned>(p.in_h) &&
                       static_cast<unsigned>(column + j) < static_cast<unsigned>(p.in_w);
    const float* from =
        valid ? image + (row + i) * p.in_strides[2] + (column + j) * p.in_strides[3] : p.in;
    const std::int64_t step = valid ? p.in_strides[1] : 0;
    float* at = to + i * p.in_pitch + j;
    for (int c = 0; c < count; ++c) {
      copy_async(at, from, valid);
      at += p.plane;
      from += step;
    }
  }
}

/// Stages the weights of output channels [block, block + Cfg::channels) for input channels
/// [first, first + count). A warp copies 8 (channel, tap) pairs x 4 output channels at a time.
template <class Cfg>
__device__ __forceinline__ void stage_weights(const Params& p, int block, int first, int count,
                                              float* to) {
  const int lane = threadIdx.x % 32;
  const int taps = static_cast<int>(p.taps.divisor), kw = static_cast<int>(p.kw.divisor);
  const int pairs = p.w_channels_last ? taps << p.log_stage_channels : taps * count;
  const int mask = (1 << p.log_stage_channels) - 1;
#pragma unroll 2
  for (int e = lane % 8; e < pairs; e += 8) {
    const int c = p.w_channels_last ? e & mask : static_cast<int>(p.taps.quotient(e));
    const int tap = p.w_channels_last ? e >> p.log_stage_channels : e - c * taps;
    if (c >= count) continue;
    const int r = static_cast<int>(p.kw.quotient(tap)), s = tap - r * kw;
    int k = lane / 8;
    const float* from = p.w + (block + k) * p.w_strides[0] + (first + c) * p.w_strides[1] +
                        r * p.w_strides[2] + s * p.w_strides[3];
    float* at = to + (c * taps + tap) * Cfg::weight_pitch;
#pragma unroll
    for (int i = 0; i < Cfg::channels / 4; ++i) {
      const bool valid = block + k < p.out_channels;
      copy_async(at + k, valid ? from : p.w, valid);
      k += 4;
      from += 4 * p.w_strides[0];
    }
  }
}

template <int N>
__device__ __forceinline__ void load_shared(const float* from, float (&to)[N]) {
  if constexpr (N == 2) {
    const float2 v = *reinterpret_cast<const float2*>(from);
    to[0] = v.x;
    to[1] = v.y;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      to[i] = v.x;
      to[i + 1] = v.y;
      to[i + 2] = v.z;
      to[i + 3] = v.w;
    }
  }
}

template <class Cfg>
using Sums = float[Cfg::rows][group_columns][Cfg::lane_channels];

/// One input channel with 3x3 taps, stride and dilation 1. in: the lane's first pixel (tap 0, 0);
/// w: the lane's first output channel of tap (0, 0).
template <class Cfg>
__device__ __forceinline__ void add_3x3(const float* in, int pitch, const float* w,
                                        Sums<Cfg>& sums) {
  float x[Cfg::rows + 2][group_columns + 2];
#pragma unroll
  for (int r = 0; r < 3; ++r) {
#pragma unroll
    for (int i = r == 0 ? 0 : r + Cfg::rows - 1; i < r + Cfg::rows; ++i) {
      const float4 a = *reinterpret_cast<const float4*>(in + i * pitch);
      const float2 b = *reinterpret_cast<const float2*>(in + i * pitch + 4);
      x[i][0] = a.x;
      x[i][1] = a.y;
      x[i][2] = a.z;
      x[i][3] = a.w;
      x[i][4] = b.x;
      x[i][5] = b.y;
    }
#pragma unroll
    for (int s = 0; s < 3; ++s) {
      float weights[Cfg::lane_channels];
      load_shared(w + (r * 3 + s) * Cfg::weight_pitch, weights);
#pragma unroll
      for (int i = 0; i < Cfg::rows; ++i) {
#pragma unroll
        for (int j = 0; j < group_columns; ++j) {
#pragma unroll
          for (int k = 0; k < Cfg::lane_channels; ++k) {
            sums[i][j][k] = fmaf(x[i + r][j + s], weights[k], sums[i][j][k]);
          }
        }
      }
    }
  }
}

/// One input channel with any window.
template <class Cfg>
__device__ __forceinline__ void add_window(const Params& p, const float* in, const float* w,
                                           Sums<Cfg>& sums) {
  const int row_step = p.stride_h * p.in_pitch;
  for (int r = 0; r < p.kh; ++r) {
    const float* at = in + r * p.dilation_h * p.in_pitch;
    for (int s = 0; s < static_cast<int>(p.kw.divisor); ++s) {
      float weights[Cfg::lane_channels];
      load_shared(w, weights);
#pragma unroll
      for (int i = 0; i < Cfg::rows; ++i) {
#pragma unroll
        for (int j = 0; j < group_columns; ++j) {
          const float x = at[i * row_step + j * p.stride_w];
#pragma unroll
          for (int k = 0; k < Cfg::lane_channels; ++k) {
            sums[i][j][k] = fmaf(x, weights[k], sums[i][j][k]);
          }
        }
      }
      w += Cfg::weight_pitch;
      at += p.dilation_w;
    }
  }
}

template <class Cfg, bool Plain3x3>
__global__ void __launch_bounds__(32 * max_warps, 1)
    direct_conv2d_kernel(const __grid_constant__ Params p) {
  extern __shared__ float4 shared_memory[];
  float* const shared = reinterpret_cast<float*>(shared_memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // Channel blocks vary fastest: neighbors in time share their input.
  const unsigned tile = p.channel_blocks.quotient(blockIdx.x);
  const int block = static_cast<int>(blockIdx.x - tile * p.channel_blocks.divisor) * Cfg::channels;
  const unsigned tile_line = p.tiles_w.quotient(tile);
  const unsigned image = p.tiles_h.quotient(tile_line);
  const int column0 = static_cast<int>(tile - tile_line * p.tiles_w.divisor) << p.log_columns;
  const int row0 = static_cast<int>(tile_line - image * p.tiles_h.divisor) * p.tile_rows;
  const int in_row0 = row0 * p.stride_h - p.pad_top;
  const int in_column0 = column0 * p.stride_w - p.pad_left;
  const float* const in = p.in + image * p.in_strides[0];

  const int log_group_columns = p.log_columns - 2;
  const int group = lane % groups_of_pixels;
  const int lane_row = (group >> log_group_columns) * Cfg::rows;
  const int lane_column = (group & ((1 << log_group_columns) - 1)) * group_columns;
  const int lane_channel = lane / groups_of_pixels * Cfg::lane_channels;

  const int first = warp * p.warp_channels;
  const int last = min(p.in_channels, first + p.warp_channels);
  const int stage_channels = 1 << p.log_stage_channels;
  const int steps = last > first ? (last - first + stage_channels - 1) >> p.log_stage_channels : 0;
  float* const ring = shared + warp * p.warp_floats;
  const auto stage = [&](int step, int slot) {
    if (step < steps) {
      const int c = first + (step << p.log_stage_channels);
      const int count = min(stage_channels, last - c);
      float* const to = ring + slot * p.stage_floats;
      stage_input(p, in, in_row0, in_column0, c, count, to);
      stage_weights<Cfg>(p, block, c, count, to + (p.plane << p.log_stage_channels));
    }
    commit_copies();
  };

  Sums<Cfg> sums = {};
  const int in_offset = lane_row * p.stride_h * p.in_pitch + lane_column * p.stride_w;
  const int taps = Plain3x3 ? 9 : static_cast<int>(p.taps.divisor);
  int slot = 0, next_slot = 0;
#pragma unroll 1
  for (int step = 1 - stages; step < steps; ++step) {  // negative steps only fill the ring
    if (step >= 0) {
      wait_copies<stages - 2>();
      __syncwarp();  // all lanes' copies have arrived, and all have left next_slot
    }
    stage(step + stages - 1, next_slot);
    next_slot = next_slot == stages - 1 ? 0 : next_slot + 1;
    if (step < 0) continue;
    const float* x = ring + slot * p.stage_floats;
    const float* w = x + (p.plane << p.log_stage_channels) + lane_channel;
    x += in_offset;
    const int count = min(stage_channels, last - first - (step << p.log_stage_channels));
#pragma unroll 1
    for (int c = 0; c < count; ++c) {
      if constexpr (Plain3x3) {
        add_3x3<Cfg>(x, p.in_pitch, w, sums);
      } else {
        add_window<Cfg>(p, x, w, sums);
      }
      x += p.plane;
      w += taps * Cfg::weight_pitch;
    }
    slot = slot == stages - 1 ? 0 : slot + 1;
  }

  // Partial sums of a warp: [channel][pixel] at the start of its ring.
  wait_copies<0>();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Cfg::rows; ++i) {
    const int pixel = ((lane_row + i) << p.log_columns) + lane_column;
#pragma unroll
    for (int k = 0; k < Cfg::lane_channels; ++k) {
      *reinterpret_cast<float4*>(ring + (lane_channel + k) * Cfg::sum_pitch + pixel) =
          make_float4(sums[i][0][k], sums[i][1][k], sums[i][2][k], sums[i][3][k]);
    }
  }
  __syncthreads();
  const int threads = blockDim.x, warps = threads / 32;
#pragma unroll 1
  for (int o = threadIdx.x; o < Cfg::channels * Cfg::pixels; o += threads) {
    const int k = p.out_channels_last ? o % Cfg::channels : o / Cfg::pixels;
    const int pixel = p.out_channels_last ? o / Cfg::channels : o % Cfg::pixels;
    const int row = row0 + (pixel >> p.log_columns);
    const int column = column0 + (pixel & ((1 << p.log_columns) - 1));
    const int channel = block + k;
    if (row >= p.out_h || column >= p.out_w || channel >= p.out_channels) continue;
    const float* part = shared + k * Cfg::sum_pitch + pixel;
    float sum = part[0];
#pragma unroll 4
    for (int i = 1; i < warps; ++i) sum += part[i * p.warp_floats];
    if (p.bias != nullptr) sum += p.bias[channel];
    if (p.relu && sum < 0.0f) sum = 0.0f;  // NaN stays
    const std::int64_t at = image * p.out_strides[0] + channel * p.out_strides[1] +
                            row * p.out_strides[2] + column * p.out_strides[3];
    if (p.gate != nullptr && p.gate[at] <= 0.0f) sum = 0.0f;
    p.out[at] = sum;
  }
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Sets the split over input channels and the sizes in shared memory.
void split_channels(const Problem& problem, int warps, int log_stage_channels, Plan& plan) {
  const TileShape shape = tile_shapes[plan.shape];
  const auto channels = static_cast<int>(std::max<std::int64_t>(problem.in_channels, 1));
  plan.warp_channels = static_cast<int>(ceil_div(channels, warps));
  plan.warps = static_cast<int>(ceil_div(channels, plan.warp_channels));
  plan.log_stage_channels = log_stage_channels;
  const auto taps = static_cast<int>(problem.kh * problem.kw);
  plan.stage_floats = (plan.plane + taps * shape.weight_pitch()) << log_stage_channels;
  plan.warp_floats = std::max(stages * plan.stage_floats, shape.channels() * shape.sum_pitch());
}

/// Cuts the problem with this tile; false if it does not fit the grid or `shared_limit` bytes.
bool cut(const Problem& problem, int shape_index, int log_columns, int sms,
         std::int64_t shared_limit, Plan& plan) {
  const TileShape shape = tile_shapes[shape_index];
  plan.shape = shape_index;
  plan.log_columns = log_columns;
  plan.tile_rows = shape.pixels() >> log_columns;
  const std::int64_t columns = std::int64_t{1} << log_columns;
  const std::int64_t in_rows =
      (plan.tile_rows - 1) * problem.stride_h + (problem.kh - 1) * problem.dilation_h + 1;
  const std::int64_t in_columns =
      (columns - 1) * problem.stride_w + (problem.kw - 1) * problem.dilation_w + 1;
  const std::int64_t floats_limit = shared_limit / 4;
  if (in_rows > floats_limit || in_columns > floats_limit || in_rows * in_columns > floats_limit ||
      problem.kh > floats_limit || problem.kw > floats_limit ||
      problem.kh * problem.kw > floats_limit) {
    return false;
  }
  plan.in_rows = static_cast<int>(in_rows);
  plan.in_columns = static_cast<int>(in_columns);
  // 8 lanes read 16 bytes each; their rows of pixels start in different quarters of the banks.
  std::int64_t pitch = ceil_div(in_columns, 4) * 4;
  if (problem.is_plain_3x3() && columns < 32) {
    for (int tries = 0; tries < 16; ++tries) {
      if (shape.rows * (pitch + 4 * tries) % (2 * columns) == columns) {
        pitch += 4 * tries;
        break;
      }
    }
  }
  plan.in_pitch = static_cast<int>(pitch);
  if (in_rows * pitch > floats_limit) return false;
  plan.plane = static_cast<int>(in_rows * pitch);

  plan.tiles_h = ceil_div(problem.out_h, plan.tile_rows);
  plan.tiles_w = ceil_div(problem.out_w, columns);
  plan.channel_blocks = ceil_div(problem.out_channels, shape.channels());
  constexpr std::int64_t grid_limit = (std::int64_t{1} << 31) - 1;
  plan.ctas = 1;
  for (const std::int64_t factor : {plan.tiles_h, plan.tiles_w, plan.channel_blocks, problem.n}) {
    if (factor > grid_limit) return false;
    plan.ctas *= factor;
    if (plan.ctas > grid_limit) return false;
  }

  // Two CTAs of an SM hide each other's waits; a lone one takes all the warps instead.
  const bool lone = plan.ctas <= sms;
  const std::int64_t channels = std::max<std::int64_t>(problem.in_channels, 1);
  int warps = static_cast<int>(std::min<std::int64_t>(channels, lone ? max_warps : max_warps / 2));
  const std::int64_t share = ceil_div(channels, warps);
  int log_stage_channels = share >= 8 ? 2 : share >= 4 ? 1 : 0;
  split_channels(problem, warps, log_stage_channels, plan);
  while (log_stage_channels > 0 && plan.shared_bytes() > (lone ? shared_limit : shared_limit / 2)) {
    split_channels(problem, warps, --log_stage_channels, plan);
  }
  while (warps > 1 && plan.shared_bytes() > shared_limit) {
    split_channels(problem, --warps, log_stage_channels, plan);
  }
  return plan.shared_bytes() <= shared_limit;
}

/// Clocks of the busiest SM, from issue slots (four a clock) and shared memory reads.
double cost(const Problem& problem, const Plan& plan, int sms) {
  const TileShape shape = tile_shapes[plan.shape];
  const double taps = static_cast<double>(problem.kh * problem.kw);
  const double stage_channels = 1 << plan.log_stage_channels;
  const double lane_pixels = shape.rows * group_columns;
  const double weight_loads = taps * std::max(1, shape.lane_channels / 4);
  const double input_loads = problem.is_plain_3x3() ? 2.0 * (shape.rows + 2) : taps * lane_pixels;
  const double copies = ceil_div(plan.in_rows * plan.in_columns, 32) * (16 / stage_channels + 4) +
                        2.0 * plan.in_rows +  // a cache line or more each
                        taps / 8 * (16 + shape.channels());
  const double issue =
      (taps * lane_pixels * shape.lane_channels + weight_loads + input_loads + copies) / 4;
  const double reads = weight_loads + (problem.is_plain_3x3() ? 2.5 : 1.5) * input_loads;
  const double end = 200 + shape.channels() * shape.pixels() * (plan.warps + 8) / 64.0;
  const double cta = static_cast<double>(problem.in_channels) * std::max(issue, reads) + end;
  return cta * static_cast<double>(ceil_div(plan.ctas, sms));
}

/// The cheapest cut; false if none fits.
bool choose(const Problem& problem, int sms, std::int64_t shared_limit, Plan& best) {
  double best_cost = 0;
  bool found = false;
  for (int shape = 0; shape < static_cast<int>(std::size(tile_shapes)); ++shape) {
    for (int log_columns = 2; log_columns <= 6; ++log_columns) {
      Plan plan;
      if (!cut(problem, shape, log_columns, sms, shared_limit, plan)) continue;
      const double c = cost(problem, plan, sms);
      if (found && c >= best_cost) continue;
      found = true;
      best = plan;
      best_cost = c;
    }
  }
  return found;
}

/// Kernel of a tile shape.
using Kernel = void (*)(Params);

template <class Cfg>
Kernel kernel_of(bool plain_3x3) {
  return plain_3x3 ? direct_conv2d_kernel<Cfg, true> : direct_conv2d_kernel<Cfg, false>;
}

Kernel kernel_of(int shape, bool plain_3x3) {
  switch (shape) {
    case 0: return kernel_of<Config<1, 2>>(plain_3x3);
    case 1: return kernel_of<Config<1, 4>>(plain_3x3);
    case 2: return kernel_of<Config<2, 4>>(plain_3x3);
    default: return kernel_of<Config<2, 8>>(plain_3x3);
  }
}

/// Everything but the pointers.
Params params_of(const Problem& problem, const Plan& plan) {
  Params p{};
  for (int i = 0; i < 4; ++i) {
    p.in_strides[i] = problem.in_strides[i];
    p.w_strides[i] = problem.w_strides[i];
    p.out_strides[i] = problem.out_strides[i];
  }
  const auto divisor = [](std::int64_t d) { return FastDivisor(static_cast<std::uint32_t>(d)); };
  p.channel_blocks = divisor(plan.channel_blocks);
  p.tiles_w = divisor(plan.tiles_w);
  p.tiles_h = divisor(plan.tiles_h);
  p.in_columns = divisor(plan.in_columns);
  p.taps = divisor(problem.kh * problem.kw);
  p.kw = divisor(problem.kw);
  p.in_channels = static_cast<int>(problem.in_channels);
  p.in_h = static_cast<int>(problem.in_h);
  p.in_w = static_cast<int>(problem.in_w);
  p.out_channels = static_cast<int>(problem.out_channels);
  p.out_h = static_cast<int>(problem.out_h);
  p.out_w = static_cast<int>(problem.out_w);
  p.kh = static_cast<int>(problem.kh);
  p.stride_h = static_cast<int>(problem.stride_h);
  p.stride_w = static_cast<int>(problem.stride_w);
  p.pad_top = static_cast<int>(problem.pad_top);
  p.pad_left = static_cast<int>(problem.pad_left);
  p.dilation_h = static_cast<int>(problem.dilation_h);
  p.dilation_w = static_cast<int>(problem.dilation_w);
  p.log_columns = plan.log_columns;
  p.tile_rows = plan.tile_rows;
  p.in_positions = plan.in_rows * plan.in_columns;
  p.in_pitch = plan.in_pitch;
  p.plane = plan.plane;
  p.log_stage_channels = plan.log_stage_channels;
  p.warp_channels = plan.warp_channels;
  p.stage_floats = plan.stage_floats;
  p.warp_floats = plan.warp_floats;
  p.in_channels_last = problem.in_strides[1] == 1 && problem.in_strides[3] != 1;
  p.w_channels_last = problem.w_strides[1] == 1;
  p.out_channels_last = problem.out_strides[1] == 1 && problem.out_strides[3] != 1;
  return p;
}

Problem problem_of(const Conv2dShape& s, DirectPass pass) {
  Problem p;
  p.n = s.n;
  p.kh = s.kh;
  p.kw = s.kw;
  p.dilation_h = s.dilation_h;
  p.dilation_w = s.dilation_w;
  const bool forward = pass == DirectPass::forward;
  p.in_channels = forward ? s.c_in : s.c_out;
  p.in_h = forward ? s.h : s.h_out;
  p.in_w = forward ? s.w : s.w_out;
  p.out_channels = forward ? s.c_out : s.c_in;
  p.out_h = forward ? s.h_out : s.h;
  p.out_w = forward ? s.w_out : s.w;
  if (forward) {
    p.stride_h = s.stride_h;
    p.stride_w = s.stride_w;
  }
  p.pad_top = forward ? s.pad_top : s.dilation_h * (s.kh - 1) - s.pad_top;
  p.pad_left = forward ? s.pad_left : s.dilation_w * (s.kw - 1) - s.pad_left;
  const int sign = forward ? 1 : -1;
  std::ranges::copy(forward ? s.x_strides : s.y_strides, p.in_strides);
  std::ranges::copy(forward ? s.y_strides : s.x_strides, p.out_strides);
  p.w_strides[0] = s.w_strides[forward ? 0 : 1];
  p.w_strides[1] = s.w_strides[forward ? 1 : 0];
  p.w_strides[2] = sign * s.w_strides[2];
  p.w_strides[3] = sign * s.w_strides[3];
  return p;
}

/// Empty if the kernel can index the problem, else the reason.
std::string_view check(const Conv2dShape& s, DirectPass pass, DType dtype) {
  if (dtype != DType::f32) return "takes f32 only";
  if (s.groups != 1) return "takes one group only";
  if (pass == DirectPass::backward_data && (s.stride_h != 1 || s.stride_w != 1)) {
    return "backward-data takes stride 1 only";
  }
  for (const std::int64_t size : {s.kh, s.kw, s.stride_h, s.stride_w, s.dilation_h, s.dilation_w}) {
    if (size < 1) return "a kernel size, stride or dilation is below 1";
    if (size >= size_limit) return "a size reaches 2^30";
  }
  for (const std::int64_t size :
       {s.n, s.c_in, s.c_out, s.h, s.w, s.h_out, s.w_out, s.pad_top, s.pad_left}) {
    if (size < 0) return "a size is negative";
    if (size >= size_limit) return "a size reaches 2^30";
  }
  const auto reach = [](std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t pad,
                        std::int64_t dilation, std::int64_t taps) {
    return in + out * stride + pad + dilation * (taps - 1);
  };
  if (reach(s.h, s.h_out, s.stride_h, s.pad_top, s.dilation_h, s.kh) >= size_limit ||
      reach(s.w, s.w_out, s.stride_w, s.pad_left, s.dilation_w, s.kw) >= size_limit) {
    return "the padded image reaches 2^30 rows or columns";
  }
  return {};
}

}  // namespace

struct DirectConv2d {
  DirectPass pass{};
  Params params{};           // but the pointers
  std::int64_t first_tap{};  // offset of the weight that the pass reads first
  Kernel kernel = nullptr;   // null if there is nothing to write
  unsigned ctas = 0, threads = 0, shared_bytes = 0;
};

std::string_view direct_conv2d_reject(const Conv2dShape& shape, DirectPass pass, DType dtype) {
  const std::string_view reason = check(shape, pass, dtype);
  if (!reason.empty()) return reason;
  Plan plan;
  if (!choose(problem_of(shape, pass), 1, portable_shared_bytes, plan)) {
    return "the input tile does not fit shared memory, or the tiles do not fit the grid";
  }
  return {};
}

cudaError_t direct_conv2d_plan(const Conv2dShape& shape, DirectPass pass,
                               std::shared_ptr<const DirectConv2d>& result) {
  if (!check(shape, pass, DType::f32).empty()) return cudaErrorInvalidValue;
  auto made = std::make_shared<DirectConv2d>();
  made->pass = pass;
  const Problem problem = problem_of(shape, pass);
  if (problem.n > 0 && problem.out_channels > 0 && problem.out_h > 0 && problem.out_w > 0) {
    int device = 0, sms = 0, shared_limit = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) {
      status = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    }
    if (status == cudaSuccess) {
      status =
          cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    if (status != cudaSuccess) return status;
    Plan plan;
    if (!choose(problem, sms, shared_limit, plan)) return cudaErrorInvalidValue;
    made->params = params_of(problem, plan);
    made->kernel = kernel_of(plan.shape, problem.is_plain_3x3());
    made->ctas = static_cast<unsigned>(plan.ctas);
    made->threads = static_cast<unsigned>(32 * plan.warps);
    made->shared_bytes = static_cast<unsigned>(plan.shared_bytes());
    // The device's most, as several plans share a kernel.
    status = cudaFuncSetAttribute(made->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_limit);
    if (status != cudaSuccess) return status;
    if (pass == DirectPass::backward_data) {
      made->first_tap = (shape.kh - 1) * shape.w_strides[2] + (shape.kw - 1) * shape.w_strides[3];
    }
  }
  result = std::move(made);
  return cudaSuccess;
}

namespace {

cudaError_t launch(const DirectConv2d& plan, const void* in, const void* w, const void* bias,
                   const void* gate, void* out, bool relu, cudaStream_t stream) {
  if (!plan.kernel) return cudaSuccess;
  Params params = plan.params;
  params.in = static_cast<const float*>(in);
  params.w = static_cast<const float*>(w) + plan.first_tap;
  params.bias = static_cast<const float*>(bias);
  params.gate = static_cast<const float*>(gate);
  params.out = static_cast<float*>(out);
  params.relu = relu;
  plan.kernel<<<plan.ctas, plan.threads, plan.shared_bytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t direct_conv2d_forward(const DirectConv2d& plan, const Conv2dForward& args,
                                  cudaStream_t stream) {
  if (plan.pass != DirectPass::forward || args.dtype != DType::f32) return cudaErrorInvalidValue;
  return launch(plan, args.x, args.w, args.bias, nullptr, args.y,
                args.activation == Activation::relu, stream);
}

cudaError_t direct_conv2d_backward_data(const DirectConv2d& plan, const Conv2dBackwardData& args,
                                        cudaStream_t stream) {
  if (plan.pass != DirectPass::backward_data || args.dtype != DType::f32) {
    return cudaErrorInvalidValue;
  }
  return launch(plan, args.dy, args.w, nullptr, args.gate, args.dx, false, stream);
}

}  // namespace zerone::kernels::cuda
