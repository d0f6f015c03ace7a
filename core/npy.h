// NumPy .npy files.
#pragma once

#include <string>

#include <zerone/core/tensor.h>

namespace zerone {

/// Reads versions 1-3 of the format: little- and big-endian f8, f4, f2, i8, u1 (also i4 and i2,
/// widened to i64), C and Fortran order (Fortran order becomes a permuted view). Throws FileError
/// naming the path and the fault; nothing large is allocated before header and file size agree.
Tensor load_npy(const Context&, const std::string& path);

/// Writes version 1, little-endian, row-major. bf16 has no NumPy type: DTypeError. The file
/// appears under its name only when it is complete.
/// @code
/// save_npy(Tensor::uniform(context, {2, 3}), "example.npy");
/// const Tensor x = load_npy(context, "example.npy");
/// @endcode
void save_npy(const Tensor&, const std::string& path);

}  // namespace zerone
