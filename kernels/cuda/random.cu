// Philox fills. A thread makes one Philox block: four f32 or 16-bit values, two f64 values, stored
// as one vector where the position and the address allow. Threads cover the blocks that overlap
// [position, position + n). Floor: the write bandwidth; f64 normals are bound by double arithmetic.
#include <zerone/kernels/cuda/random.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <zerone/kernels/philox.h>

namespace zerone::kernels::cuda {
namespace {

constexpr int block_threads = 256;

template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
};

__device__ inline void round_to(double& out, double value) {
  out = value;
}
__device__ inline void round_to(float& out, float value) {
  out = value;
}
__device__ inline void round_to(__nv_bfloat16& out, float value) {
  out = __float2bfloat16_rn(value);
}
__device__ inline void round_to(__half& out, float value) {
  out = __float2half_rn(value);
}

/// T the element type, C the type it is computed in.
template <class T, class C, bool Normal>
__global__ void __launch_bounds__(block_threads)
    random_fill(T* out, std::int64_t n, C a, C b, std::uint64_t seed,
                const std::uint64_t* device_offset, std::uint64_t offset) {
  constexpr int width = sizeof(C) == 8 ? 2 : 4;
  const std::uint64_t position = offset + (device_offset != nullptr ? *device_offset : 0);
  const std::int64_t thread = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  const std::int64_t first = thread * width - static_cast<std::int64_t>(position % width);
  if (first >= n) return;
  C values[width];
  philox::values<Normal>(seed, position / width + static_cast<std::uint64_t>(thread), a, b, values);
  Vector<T, width> rounded;
#pragma unroll
  for (int i = 0; i < width; ++i) round_to(rounded.values[i], values[i]);
  T* const target = out + first;
  if (first >= 0 && first + width <= n &&
      reinterpret_cast<std::uintptr_t>(target) % sizeof(rounded) == 0) {
    *reinterpret_cast<Vector<T, width>*>(target) = rounded;
    return;
  }
#pragma unroll
  for (int i = 0; i < width; ++i) {
    if (first + i >= 0 && first + i < n) target[i] = rounded.values[i];
  }
}

template <class T, class C, bool Normal>
cudaError_t launch(void* out, std::int64_t n, double a, double b, std::uint64_t seed,
                   const std::uint64_t* device_offset, std::uint64_t offset, cudaStream_t stream) {
  constexpr int width = sizeof(C) == 8 ? 2 : 4;
  const std::int64_t threads = n / width + 2;  // the position may split a block at either end
  const std::int64_t blocks = (threads + block_threads - 1) / block_threads;
  random_fill<T, C, Normal><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(
      static_cast<T*>(out), n, static_cast<C>(a), static_cast<C>(b), seed, device_offset, offset);
  return cudaGetLastError();
}

template <bool Normal>
cudaError_t fill(void* out, std::int64_t n, DType dtype, double a, double b, std::uint64_t seed,
                 const std::uint64_t* device_offset, std::uint64_t offset, cudaStream_t stream) {
  if (!is_floating(dtype)) return cudaErrorInvalidValue;
  if (n <= 0) return cudaSuccess;
  switch (dtype) {
    case DType::f64:
      return launch<double, double, Normal>(out, n, a, b, seed, device_offset, offset, stream);
    case DType::f32:
      return launch<float, float, Normal>(out, n, a, b, seed, device_offset, offset, stream);
    case DType::bf16:
      return launch<__nv_bfloat16, float, Normal>(out, n, a, b, seed, device_offset, offset,
                                                  stream);
    case DType::f16:
      return launch<__half, float, Normal>(out, n, a, b, seed, device_offset, offset, stream);
    default: return cudaErrorInvalidValue;
  }
}

__global__ void store_u64(std::uint64_t* target, std::uint64_t value) {
  *target = value;
}

}  // namespace

cudaError_t uniform(void* out, std::int64_t n, DType dtype, double low, double high,
                    std::uint64_t seed, const std::uint64_t* device_offset, std::uint64_t offset,
                    cudaStream_t stream) {
  return fill<false>(out, n, dtype, low, high - low, seed, device_offset, offset, stream);
}

cudaError_t normal(void* out, std::int64_t n, DType dtype, double mean, double stddev,
                   std::uint64_t seed, const std::uint64_t* device_offset, std::uint64_t offset,
                   cudaStream_t stream) {
  return fill<true>(out, n, dtype, mean, stddev, seed, device_offset, offset, stream);
}

cudaError_t set_u64(std::uint64_t* device_ptr, std::uint64_t value, cudaStream_t stream) {
  store_u64<<<1, 1, 0, stream>>>(device_ptr, value);
  return cudaGetLastError();
}

}  // namespace zerone::kernels::cuda
