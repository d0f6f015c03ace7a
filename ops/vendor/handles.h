// The vendor libraries' handles of a CUDA context, made at first use. Internal.
#pragma once

#include <memory>
#include <string>

#include <zerone/core/context_state.h>
#include <zerone/ops/vendor/cublas.h>
#include <zerone/ops/vendor/cudnn.h>

namespace zerone::vendor {

/// The context's cuDNN handle, or null with the reason why there is none.
CudnnHandle* cudnn_handle(ContextState& state, std::string& reason);
/// The context's cuBLAS handles, or null with the reason why there are none.
CublasHandles* cublas_handles(ContextState& state, std::string& reason);

/// "CUDA runtime 13.0, driver 13.0, cuDNN 9.19.0, cuBLAS 13.1.0"
std::string cuda_library_versions();

}  // namespace zerone::vendor
