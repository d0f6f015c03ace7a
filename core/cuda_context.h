// The CUDA side of a context, for code that launches kernels or calls libraries. Internal.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <limits>
#include <string>

#include <zerone/core/context_state.h>

namespace zerone {

/// Throws CudaError (OutOfMemoryError for an allocation failure) naming `where` unless cudaSuccess.
void check_cuda(cudaError_t status, const char* where);

/// The stream of a CUDA context.
cudaStream_t cuda_stream(const ContextState&);

/// Where the next draw begins in the context's random stream: `offset` + *counter. The counter is
/// device memory that each replay of a graph sets first; null outside a capture.
struct RandomPosition {
  const std::uint64_t* counter = nullptr;
  std::uint64_t offset = 0;
};
RandomPosition random_position(const ContextState&);

/// Microseconds that one call of `work`, which returns false on an error, takes the device when it
/// need not wait for the host: after a call to warm up, the least of several replays of a graph of
/// calls. A first call that takes longer than `hopeless_us` is the answer. Negative on an error.
double device_us(cudaStream_t stream, const std::function<bool()>& work,
                 double hopeless_us = std::numeric_limits<double>::infinity());

/// Fixed facts of a CUDA device, read once.
struct CudaDeviceInfo {
  std::string name;
  int compute_capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
};
const CudaDeviceInfo& cuda_device_info(const ContextState&);

}  // namespace zerone
