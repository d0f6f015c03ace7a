// Dropout. A thread takes 4 groups of 16 bytes (f64: 32), 256 threads apart: the loads of all of
// them, then for each its flags - a Philox block for four elements, or the bytes that the forward
// pass wrote -, the products and the store. Without 16-byte alignment, and in the last group, it
// goes element by element. Floor: x and out, and a byte of flags for four elements, at copy
// bandwidth; a Philox block costs about 70 integer instructions, which bound 16-bit types.
#include <zerone/kernels/cuda/dropout.h>

#include <algorithm>

#include <zerone/kernels/philox.h>
#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int block_threads = 256;
constexpr int unroll = 4;

template <class T>
constexpr int group_size = sizeof(T) == 2 ? 8 : 4;  // elements

/// Flags of `Blocks` (1 or 2) times four elements of a group, four bits each, from the generator.
struct Draw {
  std::uint64_t seed;
  std::uint32_t highest_kept;
  const std::uint64_t* device_position;
  std::uint64_t position;
  std::uint8_t* flags;  // or null

  template <int Blocks>
  __device__ __forceinline__ unsigned kept(std::int64_t group) const {
    const std::uint64_t first = position + (device_position != nullptr ? *device_position : 0) +
                                static_cast<std::uint64_t>(group) * Blocks;
    const unsigned low = philox::kept_of_four(seed, first, highest_kept);
    if constexpr (Blocks == 1) {
      if (flags != nullptr) flags[group] = static_cast<std::uint8_t>(low);
      return low;
    } else {
      const unsigned high = philox::kept_of_four(seed, first + 1, highest_kept);
      if (flags != nullptr)
        reinterpret_cast<std::uint16_t*>(flags)[group] =
            static_cast<std::uint16_t>(low | high << 8);
      return low | high << 4;
    }
  }
};

/// The same from memory.
struct Read {
  const std::uint8_t* flags;

  template <int Blocks>
  __device__ __forceinline__ unsigned kept(std::int64_t group) const {
    if constexpr (Blocks == 1) {
      return flags[group];
    } else {
      const unsigned both = reinterpret_cast<const std::uint16_t*>(flags)[group];
      return (both & 0xFu) | (both >> 4 & 0xF0u);
    }
  }
};

template <class T, bool Aligned, class Source>
__global__ void __launch_bounds__(block_threads)
    dropout_kernel(Source source, T* out, const T* x, std::int64_t n, Compute<T> scale) {
  constexpr int V = group_size<T>;
  using Group = Vector<T, V>;
  const std::int64_t groups = (n + V - 1) / V;
  const std::int64_t first = std::int64_t{blockIdx.x} * (block_threads * unroll) + threadIdx.x;
  Group values[unroll];
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t group = first + u * block_threads;
    if (group >= groups) break;
    if (Aligned && (group + 1) * V <= n) {
      values[u] = reinterpret_cast<const Group*>(x)[group];
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i)
        values[u].values[i] = group * V + i < n ? x[group * V + i] : narrow<T>(Compute<T>{0});
    }
  }
#pragma unroll
  for (int u = 0; u < unroll; ++u) {
    const std::int64_t group = first + u * block_threads;
    if (group >= groups) break;
    const unsigned kept = source.template kept<V / 4>(group);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Compute<T> factor = (kept >> i & 1u) != 0 ? scale : Compute<T>{0};
      values[u].values[i] = narrow<T>(widen(values[u].values[i]) * factor);
    }
    if (Aligned && (group + 1) * V <= n) {
      reinterpret_cast<Group*>(out)[group] = values[u];
    } else {
#pragma unroll
      for (int i = 0; i < V; ++i)
        if (group * V + i < n) out[group * V + i] = values[u].values[i];
    }
  }
}

template <class T, class Source>
cudaError_t launch(const Dropout& args, const Source& source, cudaStream_t stream) {
  constexpr std::int64_t per_block = std::int64_t{block_threads} * unroll * group_size<T>;
  const auto blocks = static_cast<unsigned>((args.n + per_block - 1) / per_block);
  T* const out = static_cast<T*>(args.out);
  const T* const x = static_cast<const T*>(args.x);
  const auto scale = static_cast<Compute<T>>(args.scale);
  if (is_aligned(out, 16) && is_aligned(x, 16)) {
    dropout_kernel<T, true><<<blocks, block_threads, 0, stream>>>(source, out, x, args.n, scale);
  } else {
    dropout_kernel<T, false><<<blocks, block_threads, 0, stream>>>(source, out, x, args.n, scale);
  }
  return cudaGetLastError();
}

template <class Source>
cudaError_t run(const Dropout& args, const Source& source, cudaStream_t stream) {
  if (!is_floating(args.dtype)) return cudaErrorInvalidValue;
  if (args.n <= 0) return cudaSuccess;
  switch (args.dtype) {
    case DType::f64: return launch<double>(args, source, stream);
    case DType::f32: return launch<float>(args, source, stream);
    case DType::bf16: return launch<__nv_bfloat16>(args, source, stream);
    case DType::f16: return launch<__half>(args, source, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t dropout(const Dropout& args, const DropoutDraw& draw,
                    const std::uint64_t* device_position, std::uint64_t position,
                    std::uint8_t* flags, cudaStream_t stream) {
  return run(args, Draw{draw.seed, draw.highest_kept, device_position, position, flags}, stream);
}

cudaError_t dropout_backward(const Dropout& args, const std::uint8_t* flags, cudaStream_t stream) {
  return run(args, Read{flags}, stream);
}

}  // namespace zerone::kernels::cuda
