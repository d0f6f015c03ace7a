// Dropout on the CPU, the same flags as kernels/cuda/dropout.h. See kernels/dropout.h.
#pragma once

#include <cstdint>

#include <zerone/kernels/dropout.h>

namespace zerone::kernels::cpu {

/// Draws, writes the flags unless `flags` is null, and applies them. Independent of `threads`.
void dropout(const Dropout& args, const DropoutDraw& draw, std::uint64_t position,
             std::uint8_t* flags, int threads);

/// Applies flags that are there: the gradient.
void dropout_backward(const Dropout& args, const std::uint8_t* flags, int threads);

}  // namespace zerone::kernels::cpu
