// Definitions as kernels: correctness before speed. Forward and backward-data give a thread an
// output (grid-stride); backward-weight gives a block an output, whose threads stride over images
// and pixels and add by a fixed tree. Products and sums are in double. No floor is aimed at.
#include <zerone/kernels/cuda/reference.h>

#include <algorithm>
#include <cstdint>

#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda::reference {
namespace {

using Index = std::int64_t;

constexpr int block_threads = 256;
constexpr Index most_blocks = Index{1} << 30;

template <class T>
__device__ double load(const T* data, Index at) {
  return static_cast<double>(widen(data[at]));
}

template <class T>
__device__ T round_to(double value) {
  return narrow<T>(value);
}

__device__ double activate(double value, Activation activation) {
  return activation == Activation::relu && value < 0 ? 0.0 : value;
}

/// The remainder of i / size; i becomes the quotient.
__device__ Index take(Index& i, Index size) {
  const Index quotient = i / size;
  const Index rest = i - quotient * size;
  i = quotient;
  return rest;
}

__device__ Index at(const std::array<Index, 4>& strides, Index a, Index b, Index c, Index d) {
  return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
}

__device__ Index pixel_offset(const PointwiseShape& s, const std::array<Index, 3>& strides,
                              Index pixel) {
  const Index inner = take(pixel, s.pixels[2]), middle = take(pixel, s.pixels[1]);
  return pixel * strides[0] + middle * strides[1] + inner * strides[2];
}

__device__ Index first_index() {
  return Index{blockIdx.x} * blockDim.x + threadIdx.x;
}

__device__ Index index_step() {
  return Index{gridDim.x} * blockDim.x;
}

/// The sum over the block, in thread 0. blockDim.x is a power of two.
__device__ double block_sum(double value) {
  __shared__ double shared[block_threads];
  __syncthreads();
  shared[threadIdx.x] = value;
  for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
  }
  return shared[0];
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    forward(const __grid_constant__ Conv2dShape s, const T* x, const T* w, const T* bias, T* y,
            Activation activation) {
  const Index c_group = s.c_in / s.groups, k_group = s.c_out / s.groups;
  const Index outputs = s.n * s.c_out * s.h_out * s.w_out;
  for (Index i = first_index(); i < outputs; i += index_step()) {
    Index n = i;
    const Index q = take(n, s.w_out), p = take(n, s.h_out), k = take(n, s.c_out);
    const Index c_begin = k / k_group * c_group;
    double sum = bias != nullptr ? load(bias, k) : 0.0;
    for (Index c = 0; c < c_group; ++c) {
      for (Index r = 0; r < s.kh; ++r) {
        const Index row = p * s.stride_h - s.pad_top + r * s.dilation_h;
        if (row < 0 || row >= s.h) continue;
        for (Index t = 0; t < s.kw; ++t) {
          const Index column = q * s.stride_w - s.pad_left + t * s.dilation_w;
          if (column < 0 || column >= s.w) continue;
          sum = fma(load(w, at(s.w_strides, k, c, r, t)),
                    load(x, at(s.x_strides, n, c_begin + c, row, column)), sum);
        }
      }
    }
    y[at(s.y_strides, n, k, p, q)] = round_to<T>(activate(sum, activation));
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    backward_data(const __grid_constant__ Conv2dShape s, const T* dy, const T* w, T* dx) {
  const Index c_group = s.c_in / s.groups, k_group = s.c_out / s.groups;
  const Index outputs = s.n * s.c_in * s.h * s.w;
  for (Index i = first_index(); i < outputs; i += index_step()) {
    Index n = i;
    const Index column = take(n, s.w), row = take(n, s.h), c = take(n, s.c_in);
    const Index k_begin = c / c_group * k_group;
    double sum = 0;
    for (Index r = 0; r < s.kh; ++r) {
      const Index scaled_p = row + s.pad_top - r * s.dilation_h;
      if (scaled_p < 0 || scaled_p % s.stride_h != 0) continue;
      const Index p = scaled_p / s.stride_h;
      if (p >= s.h_out) continue;
      for (Index t = 0; t < s.kw; ++t) {
        const Index scaled_q = column + s.pad_left - t * s.dilation_w;
        if (scaled_q < 0 || scaled_q % s.stride_w != 0) continue;
        const Index q = scaled_q / s.stride_w;
        if (q >= s.w_out) continue;
        for (Index k = k_begin; k < k_begin + k_group; ++k) {
          sum = fma(load(w, at(s.w_strides, k, c % c_group, r, t)),
                    load(dy, at(s.y_strides, n, k, p, q)), sum);
        }
      }
    }
    dx[at(s.x_strides, n, c, row, column)] = round_to<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    backward_weight(const __grid_constant__ Conv2dShape s, const T* x, const T* dy, T* dw) {
  const Index c_group = s.c_in / s.groups, k_group = s.c_out / s.groups;
  const Index outputs = s.c_out * c_group * s.kh * s.kw;
  const Index length = s.n * s.h_out * s.w_out;
  for (Index i = blockIdx.x; i < outputs; i += gridDim.x) {
    Index k = i;
    const Index t = take(k, s.kw), r = take(k, s.kh), c = take(k, c_group);
    const Index x_channel = k / k_group * c_group + c;
    double sum = 0;
    for (Index j = threadIdx.x; j < length; j += blockDim.x) {
      Index n = j;
      const Index q = take(n, s.w_out), p = take(n, s.h_out);
      const Index row = p * s.stride_h - s.pad_top + r * s.dilation_h;
      const Index column = q * s.stride_w - s.pad_left + t * s.dilation_w;
      if (row < 0 || row >= s.h || column < 0 || column >= s.w) continue;
      sum = fma(load(dy, at(s.y_strides, n, k, p, q)),
                load(x, at(s.x_strides, n, x_channel, row, column)), sum);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dw[at(s.w_strides, k, c, r, t)] = round_to<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(block_threads)
    forward(const __grid_constant__ PointwiseShape s, const T* x, const T* w, const T* bias, T* y,
            Activation activation) {
  const Index pixels = s.pixels[0] * s.pixels[1] * s.pixels[2];
  for (Index i = first_index(); i < pixels * s.c_out; i += index_step()) {
    Index k = i;
    const Index pixel = take(k, pixels);
    const Index x_pixel = pixel_offset(s, s.x_strides, pixel);
    double sum = bias != nullptr ? load(bias, k) : 0.0;
    for (Index c = 0; c < s.c_in; ++c) {
      sum = fma(load(w, k * s.w_stride_out + c * s.w_stride_in),
                load(x, x_pixel + c * s.x_channel_stride), sum);
    }
    y[pixel_offset(s, s.y_strides, pixel) + k * s.y_channel_stride] =
        round_to<T>(activate(sum, activation));
  }
}

/// Outputs (k, c) are weights; c == c_in stands for the bias of k, where db is wanted.
template <class T>
__global__ void __launch_bounds__(block_threads)
    backward_weight(const __grid_constant__ PointwiseShape s, const T* x, const T* dy, T* dw,
                    T* db) {
  const Index pixels = s.pixels[0] * s.pixels[1] * s.pixels[2];
  const Index first_c = dw != nullptr ? 0 : s.c_in;
  const Index count_c = s.c_in + (db != nullptr ? 1 : 0) - first_c;
  for (Index i = blockIdx.x; i < s.c_out * count_c; i += gridDim.x) {
    Index k = i;
    const Index c = first_c + take(k, count_c);
    const bool is_bias = c == s.c_in;
    double sum = 0;
    for (Index pixel = threadIdx.x; pixel < pixels; pixel += blockDim.x) {
      const double gradient =
          load(dy, pixel_offset(s, s.y_strides, pixel) + k * s.y_channel_stride);
      const double input =
          is_bias ? 1.0 : load(x, pixel_offset(s, s.x_strides, pixel) + c * s.x_channel_stride);
      sum = fma(gradient, input, sum);
    }
    sum = block_sum(sum);
    if (threadIdx.x != 0) continue;
    if (is_bias) {
      db[k] = round_to<T>(sum);
    } else {
      dw[k * s.w_stride_out + c * s.w_stride_in] = round_to<T>(sum);
    }
  }
}

unsigned blocks_for(Index outputs) {
  return static_cast<unsigned>(
      std::min((outputs + block_threads - 1) / block_threads, most_blocks));
}

/// Threads of a block that adds `length` products.
int threads_for(Index length) {
  int threads = 32;
  while (threads < block_threads && threads * 4 < length) threads *= 2;
  return threads;
}

/// Calls f(T{}) with the element type and returns the status of what it launched.
template <class F>
cudaError_t with_float_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64: f(double{}); break;
    case DType::f32: f(float{}); break;
    case DType::bf16: f(__nv_bfloat16{}); break;
    case DType::f16: f(__half{}); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t conv2d_forward(const Conv2dShape& s, const Conv2dForward& args, cudaStream_t stream) {
  const Index outputs = s.n * s.c_out * s.h_out * s.w_out;
  if (outputs == 0) return cudaSuccess;
  return with_float_type(args.dtype, [&]<class T>(T) {
    forward<T><<<blocks_for(outputs), block_threads, 0, stream>>>(
        s, static_cast<const T*>(args.x), static_cast<const T*>(args.w),
        static_cast<const T*>(args.bias), static_cast<T*>(args.y), args.activation);
  });
}

cudaError_t conv2d_backward_data(const Conv2dShape& s, const Conv2dBackwardData& args,
                                 cudaStream_t stream) {
  const Index outputs = s.n * s.c_in * s.h * s.w;
  if (outputs == 0) return cudaSuccess;
  return with_float_type(args.dtype, [&]<class T>(T) {
    backward_data<T><<<blocks_for(outputs), block_threads, 0, stream>>>(
        s, static_cast<const T*>(args.dy), static_cast<const T*>(args.w), static_cast<T*>(args.dx));
  });
}

cudaError_t conv2d_backward_weight(const Conv2dShape& s, const Conv2dBackwardWeight& args,
                                   cudaStream_t stream) {
  const Index outputs = s.c_out * (s.c_in / s.groups) * s.kh * s.kw;
  if (outputs == 0) return cudaSuccess;
  return with_float_type(args.dtype, [&]<class T>(T) {
    backward_weight<T><<<static_cast<unsigned>(std::min(outputs, most_blocks)),
                         threads_for(s.n * s.h_out * s.w_out), 0, stream>>>(
        s, static_cast<const T*>(args.x), static_cast<const T*>(args.dy), static_cast<T*>(args.dw));
  });
}

cudaError_t pointwise_forward(const PointwiseShape& s, const PointwiseForward& args,
                              cudaStream_t stream) {
  const Index outputs = s.pixel_count() * s.c_out;
  if (outputs == 0) return cudaSuccess;
  return with_float_type(args.dtype, [&]<class T>(T) {
    forward<T><<<blocks_for(outputs), block_threads, 0, stream>>>(
        s, static_cast<const T*>(args.x), static_cast<const T*>(args.w),
        static_cast<const T*>(args.bias), static_cast<T*>(args.y), args.activation);
  });
}

cudaError_t pointwise_backward_weight(const PointwiseShape& s, const PointwiseBackwardWeight& args,
                                      cudaStream_t stream) {
  const Index outputs =
      s.c_out * ((args.dw != nullptr ? s.c_in : 0) + (args.db != nullptr ? 1 : 0));
  if (outputs == 0) return cudaSuccess;
  return with_float_type(args.dtype, [&]<class T>(T) {
    backward_weight<T>
        <<<static_cast<unsigned>(std::min(outputs, most_blocks)), threads_for(s.pixel_count()), 0,
           stream>>>(s, static_cast<const T*>(args.x), static_cast<const T*>(args.dy),
                     static_cast<T*>(args.dw), static_cast<T*>(args.db));
  });
}

}  // namespace zerone::kernels::cuda::reference
