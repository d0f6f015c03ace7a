// Convolution that skips the zeros of its weight, on the CPU: any kernel, stride, padding, dilation
// and groups, any strides in memory, f32 and f64, forward and backward-data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <zerone/kernels/zero_skip.h>

namespace zerone::kernels::cpu {

/// Counts the zeros of `w` (w_strides of the shape).
[[nodiscard]] ZeroCensus zero_census(const Conv2dShape& shape, const void* w, DType dtype);

/// Why these kernels do not take the problem; empty when they do.
[[nodiscard]] std::string_view zero_skip_reject(const Conv2dShape& shape, DType dtype);

/// Bytes that hold the pack of any weight with at most `nonzeros` nonzero elements, f32 or f64.
[[nodiscard]] std::size_t zero_skip_pack_bytes(const Conv2dShape& shape, ZeroSkipPass pass,
                                               std::int64_t nonzeros);

/// Writes the nonzeros of `w` in the order and with the offsets that zero_skip_run walks. `w` must
/// hold at most `nonzeros` of them (elements - zeros of its census). `pack` is aligned to 16 bytes
/// and may be copied elsewhere afterwards. Uses temporary memory in proportion to the nonzeros.
void zero_skip_pack(const Conv2dShape& shape, ZeroSkipPass pass, const void* w, DType dtype,
                    std::int64_t nonzeros, void* pack);

[[nodiscard]] std::size_t zero_skip_workspace_bytes(const Conv2dShape& shape, ZeroSkipPass pass,
                                                    DType dtype, int threads);

/// out = act(conv + bias) or dx, every element written (=) whatever the weight holds; out must not
/// overlap an operand. `workspace` needs no alignment. Results do not depend on `threads`.
/// Skipping differs from a dense product in three ways: 0 * NaN and 0 * Inf add nothing; an
/// infinite or NaN weight meets the zero padding as 0 * w; and workers run with denormals read and
/// flushed as zero (the caller's floating-point mode is restored), so denormal weights, inputs and
/// results count as zero and cost no time.
void zero_skip_run(const Conv2dShape& shape, ZeroSkipPass pass, const ZeroSkipArgs& args,
                   void* workspace, int threads);

}  // namespace zerone::kernels::cpu
