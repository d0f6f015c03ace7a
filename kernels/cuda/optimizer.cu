// Optimizer steps and gradient passes over lists of tensors. A Batch goes to the kernel by value:
// each tensor takes as many blocks as its elements need, and a block finds its tensor by bisection
// in constant memory. A thread holds groups of 4 neighboring elements in registers, loaded and
// stored by accesses of up to 16 bytes where all operands of the tensor are aligned for them, else
// one by one. Floor: the bytes of the operands at copy bandwidth; Adam on f32 moves 28 an element.
#include <zerone/kernels/cuda/optimizer.h>

#include <algorithm>
#include <cstdint>

#include <zerone/kernels/optimizer_formulas.h>
#include <zerone/kernels/cuda/strided.cuh>

namespace zerone::kernels::cuda {
namespace {

constexpr int block_threads = 256;
constexpr int group = 4;                       // elements of a thread at a time
constexpr int stride = block_threads * group;  // of a thread's groups
constexpr int step_elements = 4 * stride;      // of a block
constexpr int norm_elements = 16 * stride;
constexpr int finish_threads = 1024;
constexpr std::size_t parameter_bytes = 4096;  // what a launch takes on every generation

template <class Item>
struct Batch {
  static constexpr int capacity = static_cast<int>((parameter_bytes - sizeof(OptimizerStep) - 32) /
                                                   (sizeof(Item) + sizeof(std::uint32_t)));
  Item items[capacity];
  std::uint32_t first_block[capacity + 1];
  int count;

  /// The item that a block belongs to.
  __device__ __forceinline__ int find(std::uint32_t index) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= index ? low : high) = middle;
    }
    return low;
  }
};
static_assert(sizeof(Batch<OptimizerTensor>) + sizeof(OptimizerStep) <= parameter_bytes);
static_assert(sizeof(Batch<GradientTensor>) + sizeof(OptimizerStep) <= parameter_bytes);

/// launch(batch, blocks) for as many batches as it takes, where a block takes `per_block` elements.
template <class Item, class F>
cudaError_t for_each_batch(std::span<const Item> items, std::int64_t per_block, const F& launch) {
  Batch<Item> batch;
  batch.count = 0;
  std::uint32_t blocks = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].count > 0) {
      batch.items[batch.count] = items[i];
      batch.first_block[batch.count++] = blocks;
      blocks += static_cast<std::uint32_t>((items[i].count + per_block - 1) / per_block);
    }
    if (batch.count < batch.capacity && i + 1 < items.size()) continue;
    if (batch.count == 0) continue;
    batch.first_block[batch.count] = blocks;
    if (const cudaError_t status = launch(batch, blocks); status != cudaSuccess) return status;
    batch.count = 0;
    blocks = 0;
  }
  return cudaSuccess;
}

template <class T>
using Group = Vector<T, group>;

template <class T>
__device__ __forceinline__ bool takes_groups(const T* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignof(Group<T>) == 0;
}

/// Elements i to i + live of data; the rest is 0.
template <class T>
__device__ __forceinline__ Group<T> load(const T* data, std::int64_t i, int live, bool whole) {
  if (whole) return *reinterpret_cast<const Group<T>*>(data + i);
  Group<T> result;
#pragma unroll
  for (int j = 0; j < group; ++j) result.values[j] = j < live ? data[i + j] : T(0);
  return result;
}

template <class T>
__device__ __forceinline__ void store(T* data, std::int64_t i, int live, bool whole,
                                      const Group<T>& values) {
  if (whole) {
    *reinterpret_cast<Group<T>*>(data + i) = values;
  } else {
#pragma unroll
    for (int j = 0; j < group; ++j) {
      if (j < live) data[i + j] = values.values[j];
    }
  }
}

/// f(first element, live elements) for the groups of this thread in block `chunk` of a tensor.
template <int elements, class F>
__device__ __forceinline__ void for_each_group(std::uint32_t chunk, std::int64_t count,
                                               const F& f) {
  const std::int64_t begin = std::int64_t{chunk} * elements + threadIdx.x * group;
#pragma unroll 1
  for (int at = 0; at < elements; at += stride) {
    const std::int64_t i = begin + at;
    if (i >= count) return;
    f(i, static_cast<int>(min(count - i, std::int64_t{group})));
  }
}

__global__ void advance_clocks(const __grid_constant__ Batch<OptimizerTensor> batch, double beta1,
                               double beta2, const double* skip) {
  if (threadIdx.x >= batch.count || (skip != nullptr && *skip != 0)) return;
  advance(*batch.items[threadIdx.x].clock, beta1, beta2);
}

template <class T, OptimizerRule rule>
__global__ void __launch_bounds__(block_threads)
    step_tensors(const __grid_constant__ OptimizerStep step,
                 const __grid_constant__ Batch<OptimizerTensor> batch) {
  using C = Compute<T>;
  constexpr bool may_have_master = sizeof(T) == 2;
  if (step.skip != nullptr && *step.skip != 0) return;
  const int index = batch.find(blockIdx.x);
  const OptimizerTensor& tensor = batch.items[index];
  const OptimizerNumbers<C> numbers(step, tensor.clock);
  T* const value = static_cast<T*>(tensor.value);
  const T* const gradient = static_cast<const T*>(tensor.gradient);
  C* const first = static_cast<C*>(tensor.first);
  C* const second = static_cast<C*>(tensor.second);
  const bool aligned = takes_groups(value) && takes_groups(gradient) && takes_groups(first) &&
                       takes_groups(second) && takes_groups(tensor.master) &&
                       takes_groups(tensor.mask);
  for_each_group<step_elements>(
      blockIdx.x - batch.first_block[index], tensor.count, [&](std::int64_t i, int live) {
        const bool whole = aligned && live == group;
        Group<T> values = load(value, i, live, whole);
        const Group<T> gradients = load(gradient, i, live, whole);
        Group<C> firsts = {}, seconds = {};
        if (first != nullptr) firsts = load(first, i, live, whole);
        if (second != nullptr) seconds = load(second, i, live, whole);
        Group<float> masters;
        if constexpr (may_have_master) {
          if (tensor.master != nullptr) masters = load(tensor.master, i, live, whole);
        }
        Group<std::uint8_t> mask;
        if (tensor.mask != nullptr) mask = load(tensor.mask, i, live, whole);
#pragma unroll
        for (int j = 0; j < group; ++j) {
          C x = widen(values.values[j]);
          if constexpr (may_have_master) {
            if (tensor.master != nullptr && widen(narrow<T>(masters.values[j])) == x) {
              x = masters.values[j];
            }
          }
          x = stepped<rule>(numbers, x, widen(gradients.values[j]), firsts.values[j],
                            seconds.values[j]);
          if (tensor.mask != nullptr && mask.values[j] == 0) {
            x = firsts.values[j] = seconds.values[j] = C{0};
          }
          values.values[j] = narrow<T>(x);
          if constexpr (may_have_master) masters.values[j] = x;
        }
        store(value, i, live, whole, values);
        if (first != nullptr) store(first, i, live, whole, firsts);
        if (second != nullptr) store(second, i, live, whole, seconds);
        if constexpr (may_have_master) {
          if (tensor.master != nullptr) store(tensor.master, i, live, whole, masters);
        }
      });
}

/// Calls f(T{}) with the element type of a float dtype.
template <class F>
__host__ __device__ __forceinline__ auto with_float_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::bf16: return f(__nv_bfloat16{});
    case DType::f16: return f(__half{});
    default: return f(float{});
  }
}

__device__ __forceinline__ double warp_sum(double value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(~0u, value, step);
  return value;
}

/// The sum over all threads of a block of `threads`, on thread 0.
template <int threads>
__device__ __forceinline__ double block_sum(double value) {
  __shared__ double of_warps[32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  return warp_sum(threadIdx.x < threads / 32 ? of_warps[threadIdx.x] : 0.0);
}

/// partials[block] = its sum of squares.
__global__ void __launch_bounds__(block_threads)
    sum_squares(const __grid_constant__ Batch<GradientTensor> batch, double* partials) {
  const int index = batch.find(blockIdx.x);
  const GradientTensor& tensor = batch.items[index];
  double sum = 0;
  with_float_type(tensor.dtype, [&]<class T>(T) {
    const T* const data = static_cast<const T*>(tensor.data);
    const bool aligned = takes_groups(data);
    for_each_group<norm_elements>(
        blockIdx.x - batch.first_block[index], tensor.count, [&](std::int64_t i, int live) {
          const Group<T> x = load(data, i, live, aligned && live == group);
#pragma unroll
          for (int j = 0; j < group; ++j) {
            const double wide = widen(x.values[j]);
            sum = fma(wide, wide, sum);
          }
        });
  });
  sum = block_sum<block_threads>(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(finish_threads)
    finish_norm(const double* partials, std::int64_t count, double max_norm, GradientNorm* out) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += finish_threads) sum += partials[i];
  sum = block_sum<finish_threads>(sum);
  if (threadIdx.x == 0) *out = gradient_norm_of(sum, max_norm);
}

struct Scale {
  const double* factor;
  __device__ bool idle() const { return *factor == 1; }
  template <class C>
  __device__ C operator()(C x) const {
    return x * static_cast<C>(*factor);
  }
};

struct Clamp {
  double limit;
  __device__ bool idle() const { return false; }
  template <class C>
  __device__ C operator()(C x) const {
    const C most = static_cast<C>(limit);
    return x < -most ? -most : x > most ? most : x;
  }
};

/// data = op(data) in the compute type.
template <class Op>
__global__ void __launch_bounds__(block_threads)
    update_gradients(Op op, const __grid_constant__ Batch<GradientTensor> batch) {
  if (op.idle()) return;
  const int index = batch.find(blockIdx.x);
  const GradientTensor& tensor = batch.items[index];
  with_float_type(tensor.dtype, [&]<class T>(T) {
    T* const data = static_cast<T*>(tensor.data);
    const bool aligned = takes_groups(data);
    for_each_group<step_elements>(blockIdx.x - batch.first_block[index], tensor.count,
                                  [&](std::int64_t i, int live) {
                                    const bool whole = aligned && live == group;
                                    Group<T> x = load(data, i, live, whole);
#pragma unroll
                                    for (int j = 0; j < group; ++j) {
                                      x.values[j] = narrow<T>(op(widen(x.values[j])));
                                    }
                                    store(data, i, live, whole, x);
                                  });
  });
}

template <class Op>
cudaError_t update(Op op, std::span<const GradientTensor> tensors, cudaStream_t stream) {
  return for_each_batch(tensors, step_elements, [&](const auto& batch, std::uint32_t blocks) {
    update_gradients<<<blocks, block_threads, 0, stream>>>(op, batch);
    return cudaGetLastError();
  });
}

__global__ void advance_loss_scale_kernel(LossScale* state, LossScaleRule rule,
                                          const double* overflow) {
  advance(*state, rule, *overflow != 0);
}

}  // namespace

cudaError_t optimizer_step(const OptimizerStep& step, std::span<const OptimizerTensor> tensors,
                           cudaStream_t stream) {
  if (!is_floating(step.dtype)) return cudaErrorInvalidValue;
  return for_each_batch(tensors, step_elements, [&](const auto& batch, std::uint32_t blocks) {
    if (step.rule == OptimizerRule::adam) {
      advance_clocks<<<1, batch.capacity, 0, stream>>>(batch, step.beta1, step.beta2, step.skip);
      if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
    }
    with_float_type(step.dtype, [&]<class T>(T) {
      if (step.rule == OptimizerRule::adam) {
        step_tensors<T, OptimizerRule::adam><<<blocks, block_threads, 0, stream>>>(step, batch);
      } else {
        step_tensors<T, OptimizerRule::sgd><<<blocks, block_threads, 0, stream>>>(step, batch);
      }
    });
    return cudaGetLastError();
  });
}

std::size_t gradient_norm_workspace_bytes(std::span<const GradientTensor> tensors) {
  std::size_t blocks = 0;
  for (const GradientTensor& tensor : tensors)
    blocks += static_cast<std::size_t>((tensor.count + norm_elements - 1) / norm_elements);
  return blocks * sizeof(double);
}

cudaError_t gradient_norm(std::span<const GradientTensor> tensors, double max_norm,
                          GradientNorm* out, void* workspace, cudaStream_t stream) {
  double* const partials = static_cast<double*>(workspace);
  std::int64_t count = 0;
  const cudaError_t status =
      for_each_batch(tensors, norm_elements, [&](const auto& batch, std::uint32_t blocks) {
        sum_squares<<<blocks, block_threads, 0, stream>>>(batch, partials + count);
        count += blocks;
        return cudaGetLastError();
      });
  if (status != cudaSuccess) return status;
  finish_norm<<<1, finish_threads, 0, stream>>>(partials, count, max_norm, out);
  return cudaGetLastError();
}

cudaError_t scale_gradients(std::span<const GradientTensor> tensors, const double* factor,
                            cudaStream_t stream) {
  return update(Scale{factor}, tensors, stream);
}

cudaError_t clamp_gradients(std::span<const GradientTensor> tensors, double limit,
                            cudaStream_t stream) {
  return update(Clamp{limit}, tensors, stream);
}

cudaError_t advance_loss_scale(LossScale* state, const LossScaleRule& rule, const double* overflow,
                               cudaStream_t stream) {
  advance_loss_scale_kernel<<<1, 1, 0, stream>>>(state, rule, overflow);
  return cudaGetLastError();
}

}  // namespace zerone::kernels::cuda
