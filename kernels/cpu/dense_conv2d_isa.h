// The entry points that dense_conv2d_isa.cpp defines once for each instruction set; private to
// dense_conv2d.cpp.
#pragma once

#include <zerone/kernels/cpu/dense_conv2d.h>

#define ZERONE_DECLARE_DENSE_CONV2D(isa)                                                       \
  namespace zerone::kernels::cpu::dense::isa {                                                 \
  std::size_t conv2d_forward_workspace(const Conv2dShape&, DType, int);                        \
  std::size_t conv2d_backward_data_workspace(const Conv2dShape&, DType, int);                  \
  std::size_t conv2d_backward_weight_workspace(const Conv2dShape&, DType, int);                \
  std::size_t pointwise_forward_workspace(const PointwiseShape&, DType, int);                  \
  std::size_t pointwise_backward_weight_workspace(const PointwiseShape&, DType, int);          \
  void conv2d_forward(const Conv2dShape&, const Conv2dForward&, void*, int);                   \
  void conv2d_backward_data(const Conv2dShape&, const Conv2dBackwardData&, void*, int);        \
  void conv2d_backward_weight(const Conv2dShape&, const Conv2dBackwardWeight&, void*, int);    \
  void pointwise_forward(const PointwiseShape&, const PointwiseForward&, void*, int);          \
  void pointwise_backward_weight(const PointwiseShape&, const PointwiseBackwardWeight&, void*, \
                                 int);                                                         \
  }
