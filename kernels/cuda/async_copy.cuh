// Asynchronous copies from global to shared memory (cp.async), plain ones before sm_80.
#pragma once

namespace zerone::kernels::cuda {

/// *to = valid ? *from : 0, asynchronously where the device can. `from` is not read if not valid.
__device__ __forceinline__ void copy_async(float* to, const float* from, bool valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(valid ? 4 : 0)
               : "memory");
#else
  *to = valid ? *from : 0.0f;
#endif
}

__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

/// Waits until all but the last `Pending` groups of this thread have arrived.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Pending) : "memory");
#endif
}

}  // namespace zerone::kernels::cuda
