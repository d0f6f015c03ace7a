// Convolution that walks only the nonzeros of an unstructured sparse weight: forward and
// backward-data, f32, bf16, f16 (f32 accumulation) and f64, any kernel, stride, padding, dilation,
// groups and strides. The weight stays the user's dense tensor; a pack is derived from it.
#pragma once

#include <cuda_runtime_api.h>
#include <zerone/kernels/zero_skip.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zerone::kernels::cuda {

/// Scratch of zero_census, in bytes. Its contents need no initialization.
[[nodiscard]] std::size_t zero_census_workspace_bytes(const Conv2dShape& shape);

/// *device_result = the census of w (K,C,R,S at w_strides). One memset of the workspace and one
/// kernel; asynchronous. device_result: device memory (or mapped host memory), 8-byte aligned;
/// workspace: device memory, 8-byte aligned, not shared with a census in flight.
[[nodiscard]] cudaError_t zero_census(const Conv2dShape& shape, const void* w, DType dtype,
                                      ZeroCensus* device_result, void* workspace,
                                      cudaStream_t stream);

/// Empty if the pass can run, else the reason. Rejects only types that are not floating point,
/// sizes, strides, paddings or dilations that reach 2^28, weights of 2^31 elements and index tables
/// of 2^28 entries (backward-data with strides in the thousands on both axes).
[[nodiscard]] std::string_view zero_skip_reject(const Conv2dShape& shape, ZeroSkipPass pass,
                                                DType dtype = DType::f32);

/// Bytes of a pack with room for `nonzeros` weights. Without a dtype: enough for every dtype.
[[nodiscard]] std::size_t zero_skip_pack_bytes(const Conv2dShape& shape, ZeroSkipPass pass,
                                               std::int64_t nonzeros, DType dtype = DType::f64);

/// pack = the nonzeros of w in the order that zero_skip_run walks them, for the layouts of shape.
/// At most five launches, no host sync, the same bytes every time. pack:
/// zero_skip_pack_bytes(shape, pass, nonzeros, dtype) bytes, 16-byte aligned. If w holds more than
/// `nonzeros` nonzeros (a stale census), nothing is written out of bounds, the pack is marked and
/// every zero_skip_run with it yields NaN, never a plausible wrong result.
[[nodiscard]] cudaError_t zero_skip_pack(const Conv2dShape& shape, ZeroSkipPass pass, const void* w,
                                         DType dtype, std::int64_t nonzeros, void* pack,
                                         cudaStream_t stream);

/// out = the pass's result (every element is written). in, pack, bias and out must not overlap.
/// Bitwise repeatable for one shape on one device model; batch size and device may change the
/// order of summation. 0 * NaN and 0 * Inf products of the skipped weights are left out.
[[nodiscard]] cudaError_t zero_skip_run(const Conv2dShape& shape, ZeroSkipPass pass,
                                        const ZeroSkipArgs& args, cudaStream_t stream);

}  // namespace zerone::kernels::cuda
