// Dense direct weight gradient on CUDA cores for small problems.
//
// Maths. dw[k, c, r, s] = sum over n, p, q of dy[n, k, p, q] * x[n, c, i(p, r), j(q, s)] with
// i(p, r) = p*stride_h - pad_top + r*dilation_h and j alike.
//
// Tile. One CTA owns 8 output channels x 4 input channels x 3x3 taps of dw, so that a 64->64 3x3
// layer makes 128 CTAs. Its warps split the pixels into chunks of 32 columns by 2 rows of one image
// (1 row where stride or dilation is not 1):
//   warp  stages its own chunk of x (zeros outside) and dy by 4-byte cp.async and never waits for
//         the others before the end.
//   lane  one (output, input) channel pair with its 9 taps in registers. At stride 1 it slides
//         along the rows: 4 pixels cost 4 LDS.128 of x and 2 of dy for 72 FMAs.
//   smem  x [channel][row][column] and dy [channel][row][column], channel planes 4 banks apart:
//         the lanes of a warp read 4 channels of x and 8 of dy without conflicts.
// At the end the warps' partial sums are added in order through shared memory.
//
// Floor: FMAs / (128 a clock and SM) plus about 2 us of launch, first loads and the final sum;
// 64->64 3x3 32x32 at batch 1 on 132 SMs: 1.3 us + 2 us.

#include <cuda_runtime.h>
#include <zerone/kernels/cuda/direct_conv2d_weight.h>

#include <algorithm>

#include <zerone/kernels/cuda/async_copy.cuh>
#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int tile_out = 8, tile_in = 4, tile_taps = 3;  // taps a side
constexpr int sums = tile_taps * tile_taps;              // of a lane
static_assert(tile_out * tile_in == 32, "a lane owns one channel pair");
constexpr int chunk_columns = 32;
constexpr int max_warps = 16;
constexpr std::int64_t size_limit = std::int64_t{1} << 30;
constexpr std::int64_t portable_shared_bytes = 64 * 1024;  // what every supported device has

/// Output rows of a chunk, and the rows of x that they meet.
template <bool Plain>
struct Chunk {
  static constexpr int rows = Plain ? 2 : 1;
  static constexpr int x_rows = rows + tile_taps - 1;
  static constexpr int dy_plane = rows * chunk_columns + 4;
};

struct Params {
  const float* x;
  const float* dy;
  float* dw;
  std::int64_t x_strides[4], dw_strides[4], dy_strides[4];
  FastDivisor in_blocks, tap_rows, tap_columns, blocks_h, blocks_w;
  int c_in, h, w, c_out, kh, kw, h_out, w_out;
  int stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
  int chunks, warp_chunks;
  int x_columns, x_pitch, x_plane, warp_floats;
};

/// Sums of 4 pixels of `Rows` output rows; x: the rows' current and next 4 columns.
template <int Rows>
__device__ __forceinline__ void add_pixels(const float (&x)[Rows + 2][8],
                                           const float (&dy)[Rows][4], float (&sum)[sums]) {
#pragma unroll
  for (int row = 0; row < Rows; ++row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < tile_taps; ++r) {
#pragma unroll
        for (int s = 0; s < tile_taps; ++s) {
          sum[r * tile_taps + s] = fmaf(x[row + r][j + s], dy[row][j], sum[r * tile_taps + s]);
        }
      }
    }
  }
}

__device__ __forceinline__ void load4(const float* from, float* to) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

/// A chunk at stride 1. Only pixels of the image are multiplied: 0 * Inf outside would be NaN.
__device__ __forceinline__ void add_plain(const float* x, int pitch, const float* dy, int rows,
                                          int columns, float (&sum)[sums]) {
  using Cut = Chunk<true>;
  float window[Cut::x_rows][8];
#pragma unroll
  for (int i = 0; i < Cut::x_rows; ++i) load4(x + i * pitch, window[i]);
  const auto next = [&](int q, float(&d)[Cut::rows][4]) {
#pragma unroll
    for (int i = 0; i < Cut::x_rows; ++i) load4(x + i * pitch + q + 4, window[i] + 4);
#pragma unroll
    for (int row = 0; row < Cut::rows; ++row) load4(dy + row * chunk_columns + q, d[row]);
  };
  const int whole = rows == Cut::rows ? columns / 4 * 4 : 0;
  int q = 0;
#pragma unroll 2
  for (; q < whole; q += 4) {
    float d[Cut::rows][4];
    next(q, d);
    add_pixels<Cut::rows>(window, d, sum);
#pragma unroll
    for (int i = 0; i < Cut::x_rows; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) window[i][j] = window[i][j + 4];
    }
  }
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
#pragma unroll 1
    for (int column = q; column < columns; ++column) {
      const float d = dy[row * chunk_columns + column];
#pragma unroll
      for (int i = 0; i < sums; ++i) {
        sum[i] = fmaf(x[(row + i / tile_taps) * pitch + column + i % tile_taps], d, sum[i]);
      }
    }
  }
}

/// A row of pixels at any stride and dilation.
__device__ __forceinline__ void add_strided(const Params& p, const float* x, const float* dy,
                                            int columns, float (&sum)[sums]) {
#pragma unroll 1
  for (int q = 0; q < columns; ++q) {
    const float d = dy[q];
#pragma unroll
    for (int i = 0; i < sums; ++i) {
      sum[i] = fmaf(x[i / tile_taps * p.x_pitch + q * p.stride_w + i % tile_taps * p.dilation_w], d,
                    sum[i]);
    }
  }
}

template <bool Plain>
__global__ void __launch_bounds__(32 * max_warps, 1)
    direct_conv2d_weight_kernel(const __grid_constant__ Params p) {
  using Cut = Chunk<Plain>;
  extern __shared__ float4 shared_memory[];
  float* const shared = reinterpret_cast<float*>(shared_memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // Tap tiles vary fastest, then input channels: neighbors in time share dy.
  const unsigned tap_line = p.tap_columns.quotient(blockIdx.x);
  const int s0 = static_cast<int>(blockIdx.x - tap_line * p.tap_columns.divisor) * tile_taps;
  const unsigned channels = p.tap_rows.quotient(tap_line);
  const int r0 = static_cast<int>(tap_line - channels * p.tap_rows.divisor) * tile_taps;
  const unsigned out_block = p.in_blocks.quotient(channels);
  const int c0 = static_cast<int>(channels - out_block * p.in_blocks.divisor) * tile_in;
  const int k0 = static_cast<int>(out_block) * tile_out;

  float* const x_tile = shared + warp * p.warp_floats;
  float* const dy_tile = x_tile + tile_in * p.x_plane;
  const int lane_out = lane / tile_in, lane_in = lane % tile_in;
  float sum[sums] = {};

  const int first = warp * p.warp_chunks, last = min(p.chunks, first + p.warp_chunks);
#pragma unroll 1
  for (int chunk = first; chunk < last; ++chunk) {
    const unsigned line = p.blocks_w.quotient(chunk);
    const unsigned image = p.blocks_h.quotient(line);
    const int q0 = static_cast<int>(chunk - line * p.blocks_w.divisor) * chunk_columns;
    const int p0 = static_cast<int>(line - image * p.blocks_h.divisor) * Cut::rows;
    const int rows = min(Cut::rows, p.h_out - p0), columns = min(chunk_columns, p.w_out - q0);

    const int i0 = p0 * p.stride_h - p.pad_top + r0 * p.dilation_h;
    const int j0 = q0 * p.stride_w - p.pad_left + s0 * p.dilation_w;
    __syncwarp();  // all lanes have left the previous chunk
    const auto stage_x = [&](int c, int row, int column) {
      const int i = i0 + row * (Plain ? 1 : p.dilation_h), j = j0 + column;
      const bool valid = c0 + c < p.c_in && static_cast<unsigned>(i) < static_cast<unsigned>(p.h) &&
                         static_cast<unsigned>(j) < static_cast<unsigned>(p.w);
      const float* from = p.x + image * p.x_strides[0] + (c0 + c) * p.x_strides[1] +
                          i * p.x_strides[2] + j * p.x_strides[3];
      copy_async(x_tile + c * p.x_plane + row * p.x_pitch + column, valid ? from : p.x, valid);
    };
#pragma unroll
    for (int c = 0; c < tile_in; ++c) {
#pragma unroll
      for (int row = 0; row < Cut::x_rows; ++row) {
        if constexpr (Plain) {
          stage_x(c, row, lane);
        } else {
          for (int column = lane; column < p.x_columns; column += 32) stage_x(c, row, column);
        }
      }
    }
    if constexpr (Plain) {  // the two columns of each row behind the first 32
      static_assert(2 * tile_in * Cut::x_rows == 32);
      stage_x(lane / 8, lane / 2 % 4, chunk_columns + lane % 2);
    }
#pragma unroll
    for (int k = 0; k < tile_out; ++k) {
#pragma unroll
      for (int row = 0; row < Cut::rows; ++row) {
        const bool valid = k0 + k < p.c_out && row < rows && lane < columns;
        const float* from = p.dy + image * p.dy_strides[0] + (k0 + k) * p.dy_strides[1] +
                            (p0 + row) * p.dy_strides[2] + (q0 + lane) * p.dy_strides[3];
        copy_async(dy_tile + k * Cut::dy_plane + row * chunk_columns + lane, valid ? from : p.dy,
                   valid);
      }
    }
    commit_copies();
    wait_copies<0>();
    __syncwarp();
    const float* x = x_tile + lane_in * p.x_plane;
    const float* dy = dy_tile + lane_out * Cut::dy_plane;
    if constexpr (Plain) {
      add_plain(x, p.x_pitch, dy, rows, columns, sum);
    } else {
      add_strided(p, x, dy, columns, sum);
    }
  }

  // Partial sums of a warp at the start of its tile: [output channel][input channel][tap].
  __syncwarp();
#pragma unroll
  for (int i = 0; i < sums; ++i) x_tile[lane * sums + i] = sum[i];
  __syncthreads();
  const int threads = blockDim.x, warps = threads / 32;
  for (int o = threadIdx.x; o < 32 * sums; o += threads) {
    const int c = c0 + o / sums % tile_in, k = k0 + o / (sums * tile_in);
    const int r = r0 + o % sums / tile_taps, s = s0 + o % tile_taps;
    if (k >= p.c_out || c >= p.c_in || r >= p.kh || s >= p.kw) continue;
    float total = shared[o];
    for (int i = 1; i < warps; ++i) total += shared[i * p.warp_floats + o];
    p.dw[k * p.dw_strides[0] + c * p.dw_strides[1] + r * p.dw_strides[2] + s * p.dw_strides[3]] =
        total;
  }
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

bool is_plain(const Conv2dShape& s) {
  return s.stride_h == 1 && s.stride_w == 1 && s.dilation_h == 1 && s.dilation_w == 1;
}

struct Cut {
  std::int64_t in_blocks = 0, tap_rows = 0, tap_columns = 0, blocks_h = 0, blocks_w = 0;
  std::int64_t ctas = 0, chunks = 0, warps = 0, warp_chunks = 0;
  std::int64_t x_columns = 0, x_pitch = 0, x_plane = 0, warp_floats = 0;
  std::int64_t shared_bytes() const { return 4 * warps * warp_floats; }
};

/// The product of positive factors; -1 from 2^31 - 1 on.
std::int64_t bounded_product(std::initializer_list<std::int64_t> factors) {
  constexpr std::int64_t limit = (std::int64_t{1} << 31) - 1;
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (factor >= limit || product * factor >= limit) return -1;
    product *= factor;
  }
  return product;
}

/// False if the problem does not fit the grid or `shared_limit` bytes.
template <bool Plain>
bool cut(const Conv2dShape& s, std::int64_t shared_limit, Cut& cut) {
  using Rows = Chunk<Plain>;
  cut.in_blocks = ceil_div(s.c_in, tile_in);
  cut.tap_rows = ceil_div(s.kh, tile_taps);
  cut.tap_columns = ceil_div(s.kw, tile_taps);
  cut.blocks_h = ceil_div(s.h_out, Rows::rows);
  cut.blocks_w = ceil_div(s.w_out, chunk_columns);
  cut.ctas =
      bounded_product({ceil_div(s.c_out, tile_out), cut.in_blocks, cut.tap_rows, cut.tap_columns});
  cut.chunks = s.n == 0 ? 0 : bounded_product({s.n, cut.blocks_h, cut.blocks_w});
  if (cut.ctas < 0 || cut.chunks < 0) return false;
  cut.x_columns = (chunk_columns - 1) * s.stride_w + (tile_taps - 1) * s.dilation_w + 1;
  cut.x_pitch = ceil_div(cut.x_columns, 4) * 4;
  if (cut.x_pitch > shared_limit) return false;
  cut.x_plane = ceil_div(Rows::x_rows * cut.x_pitch - 4, 32) * 32 + 4;  // 4 banks beyond the last
  cut.warp_floats =
      std::max<std::int64_t>(tile_in * cut.x_plane + tile_out * Rows::dy_plane, 32 * sums);
  const std::int64_t fitting = shared_limit / (4 * cut.warp_floats);
  if (fitting == 0) return false;
  const std::int64_t wanted = std::clamp<std::int64_t>(cut.chunks, 1, max_warps);
  cut.warp_chunks = ceil_div(cut.chunks, std::min(fitting, wanted));
  cut.warps = cut.chunks == 0 ? 1 : ceil_div(cut.chunks, cut.warp_chunks);
  return true;
}

bool cut(const Conv2dShape& s, std::int64_t shared_limit, Cut& result) {
  return is_plain(s) ? cut<true>(s, shared_limit, result) : cut<false>(s, shared_limit, result);
}

std::string_view check(const Conv2dShape& s, DType dtype) {
  if (dtype != DType::f32) return "takes f32 only";
  if (s.groups != 1) return "takes one group only";
  for (const std::int64_t size : {s.kh, s.kw, s.stride_h, s.stride_w, s.dilation_h, s.dilation_w}) {
    if (size < 1) return "a kernel size, stride or dilation is below 1";
    if (size >= size_limit) return "a size reaches 2^30";
  }
  for (const std::int64_t size :
       {s.n, s.c_in, s.c_out, s.h, s.w, s.h_out, s.w_out, s.pad_top, s.pad_left}) {
    if (size < 0) return "a size is negative";
    if (size >= size_limit) return "a size reaches 2^30";
  }
  // Coordinates are 32-bit, rounded up to whole tiles of taps and pixels.
  const auto reach = [](std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t pad,
                        std::int64_t dilation, std::int64_t taps) {
    return in + (out + chunk_columns) * stride + pad + dilation * (taps + tile_taps);
  };
  if (reach(s.h, s.h_out, s.stride_h, s.pad_top, s.dilation_h, s.kh) >= size_limit ||
      reach(s.w, s.w_out, s.stride_w, s.pad_left, s.dilation_w, s.kw) >= size_limit) {
    return "the padded image reaches 2^30 rows or columns";
  }
  return {};
}

}  // namespace

struct DirectConv2dWeight {
  Params params{};                         // but the pointers
  void (*kernel)(const Params) = nullptr;  // null if there is nothing to write
  unsigned ctas = 0, threads = 0, shared_bytes = 0;
};

std::string_view direct_conv2d_weight_reject(const Conv2dShape& shape, DType dtype) {
  const std::string_view reason = check(shape, dtype);
  if (!reason.empty()) return reason;
  Cut result;
  if (!cut(shape, portable_shared_bytes, result)) {
    return "the input rows do not fit shared memory, or the tiles do not fit the grid";
  }
  return {};
}

cudaError_t direct_conv2d_weight_plan(const Conv2dShape& s,
                                      std::shared_ptr<const DirectConv2dWeight>& result) {
  if (!check(s, DType::f32).empty()) return cudaErrorInvalidValue;
  auto plan = std::make_shared<DirectConv2dWeight>();
  if (s.c_in > 0 && s.c_out > 0) {
    int device = 0, shared_limit = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) {
      status =
          cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    }
    if (status != cudaSuccess) return status;
    Cut c;
    if (!cut(s, shared_limit, c)) return cudaErrorInvalidValue;
    plan->kernel =
        is_plain(s) ? direct_conv2d_weight_kernel<true> : direct_conv2d_weight_kernel<false>;
    // The device's most, as several plans share a kernel.
    status = cudaFuncSetAttribute(plan->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_limit);
    if (status != cudaSuccess) return status;
    plan->ctas = static_cast<unsigned>(c.ctas);
    plan->threads = static_cast<unsigned>(32 * c.warps);
    plan->shared_bytes = static_cast<unsigned>(c.shared_bytes());

    Params& p = plan->params;
    std::ranges::copy(s.x_strides, p.x_strides);
    std::ranges::copy(s.w_strides, p.dw_strides);
    std::ranges::copy(s.y_strides, p.dy_strides);
    const auto divisor = [](std::int64_t d) {
      return FastDivisor(static_cast<std::uint32_t>(std::max<std::int64_t>(d, 1)));
    };
    p.in_blocks = divisor(c.in_blocks);
    p.tap_rows = divisor(c.tap_rows);
    p.tap_columns = divisor(c.tap_columns);
    p.blocks_h = divisor(c.blocks_h);
    p.blocks_w = divisor(c.blocks_w);
    p.c_in = static_cast<int>(s.c_in);
    p.h = static_cast<int>(s.h);
    p.w = static_cast<int>(s.w);
    p.c_out = static_cast<int>(s.c_out);
    p.kh = static_cast<int>(s.kh);
    p.kw = static_cast<int>(s.kw);
    p.h_out = static_cast<int>(s.h_out);
    p.w_out = static_cast<int>(s.w_out);
    p.stride_h = static_cast<int>(s.stride_h);
    p.stride_w = static_cast<int>(s.stride_w);
    p.pad_top = static_cast<int>(s.pad_top);
    p.pad_left = static_cast<int>(s.pad_left);
    p.dilation_h = static_cast<int>(s.dilation_h);
    p.dilation_w = static_cast<int>(s.dilation_w);
    p.chunks = static_cast<int>(c.chunks);
    p.warp_chunks = static_cast<int>(c.warp_chunks);
    p.x_columns = static_cast<int>(c.x_columns);
    p.x_pitch = static_cast<int>(c.x_pitch);
    p.x_plane = static_cast<int>(c.x_plane);
    p.warp_floats = static_cast<int>(c.warp_floats);
  }
  result = std::move(plan);
  return cudaSuccess;
}

cudaError_t direct_conv2d_backward_weight(const DirectConv2dWeight& plan,
                                          const Conv2dBackwardWeight& args, cudaStream_t stream) {
  if (args.dtype != DType::f32) return cudaErrorInvalidValue;
  if (!plan.kernel) return cudaSuccess;
  Params params = plan.params;
  params.x = static_cast<const float*>(args.x);
  params.dy = static_cast<const float*>(args.dy);
  params.dw = static_cast<float*>(args.dw);
  plan.kernel<<<plan.ctas, plan.threads, plan.shared_bytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace zerone::kernels::cuda
