// Tensors as kernels see them. Internal.
#pragma once

#include <zerone/core/tensor.h>

namespace zerone {

inline kernels::ConstView view(const Tensor& x) {
  return {x.data(), x.layout(), x.dtype()};
}
inline kernels::View mutable_view(Tensor& x) {
  return {x.mutable_data(), x.layout(), x.dtype()};
}

}  // namespace zerone
