#include <zerone/kernels/cpu/dense_conv2d.h>

#include <zerone/kernels/cpu/dense_conv2d_isa.h>
#include <zerone/kernels/cpu/isa.h>

ZERONE_DECLARE_DENSE_CONV2D(baseline)
#if defined(ZERONE_CPU_ISA_LEVELS)
ZERONE_DECLARE_DENSE_CONV2D(x86_64_v3)
ZERONE_DECLARE_DENSE_CONV2D(x86_64_v4)
#endif

namespace zerone::kernels::cpu::dense {

std::size_t conv2d_forward_workspace(const Conv2dShape& shape, DType dtype, int threads) {
  ZERONE_CPU_DISPATCH(conv2d_forward_workspace(shape, dtype, threads));
}

std::size_t conv2d_backward_data_workspace(const Conv2dShape& shape, DType dtype, int threads) {
  ZERONE_CPU_DISPATCH(conv2d_backward_data_workspace(shape, dtype, threads));
}

std::size_t conv2d_backward_weight_workspace(const Conv2dShape& shape, DType dtype, int threads) {
  ZERONE_CPU_DISPATCH(conv2d_backward_weight_workspace(shape, dtype, threads));
}

std::size_t pointwise_forward_workspace(const PointwiseShape& shape, DType dtype, int threads) {
  ZERONE_CPU_DISPATCH(pointwise_forward_workspace(shape, dtype, threads));
}

std::size_t pointwise_backward_weight_workspace(const PointwiseShape& shape, DType dtype,
                                                int threads) {
  ZERONE_CPU_DISPATCH(pointwise_backward_weight_workspace(shape, dtype, threads));
}

void conv2d_forward(const Conv2dShape& shape, const Conv2dForward& args, void* workspace,
                    int threads) {
  ZERONE_CPU_DISPATCH(conv2d_forward(shape, args, workspace, threads));
}

void conv2d_backward_data(const Conv2dShape& shape, const Conv2dBackwardData& args, void* workspace,
                          int threads) {
  ZERONE_CPU_DISPATCH(conv2d_backward_data(shape, args, workspace, threads));
}

void conv2d_backward_weight(const Conv2dShape& shape, const Conv2dBackwardWeight& args,
                            void* workspace, int threads) {
  ZERONE_CPU_DISPATCH(conv2d_backward_weight(shape, args, workspace, threads));
}

void pointwise_forward(const PointwiseShape& shape, const PointwiseForward& args, void* workspace,
                       int threads) {
  ZERONE_CPU_DISPATCH(pointwise_forward(shape, args, workspace, threads));
}

void pointwise_backward_weight(const PointwiseShape& shape, const PointwiseBackwardWeight& args,
                               void* workspace, int threads) {
  ZERONE_CPU_DISPATCH(pointwise_backward_weight(shape, args, workspace, threads));
}

}  // namespace zerone::kernels::cpu::dense
