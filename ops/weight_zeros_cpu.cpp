#include <zerone/core/error.h>
#include <zerone/kernels/cpu/zero_skip.h>
#include <zerone/ops/weight_zeros.h>

namespace zerone {

const WeightZerosBackend& weight_zeros_cpu() {
  static constexpr WeightZerosBackend backend{
      .count =
          [](const Tensor& w, const kernels::Conv2dShape& shape) {
            if (w.dtype() == DType::f32 || w.dtype() == DType::f64)
              return kernels::cpu::zero_census(shape, w.data(), w.dtype());
            const Tensor wide = w.to(DType::f32);  // the kernel knows no other type
            kernels::Conv2dShape dense = shape;    // `wide` may be denser than w
            for (int i = 0; i < 4; ++i) dense.w_strides[i] = wide.layout().strides[i];
            return kernels::cpu::zero_census(dense, wide.data(), wide.dtype());
          },
      .start_count = nullptr,  // counting is immediate
      .poll = nullptr,
      .pack_bytes = [](const kernels::Conv2dShape& shape, kernels::ZeroSkipPass pass,
                       std::int64_t nonzeros,
                       DType) { return kernels::cpu::zero_skip_pack_bytes(shape, pass, nonzeros); },
      .pack =
          [](const kernels::Conv2dShape& shape, kernels::ZeroSkipPass pass, const Tensor& w,
             std::int64_t nonzeros, void* pack) {
            kernels::cpu::zero_skip_pack(shape, pass, w.data(), w.dtype(), nonzeros, pack);
          }};
  return backend;
}

}  // namespace zerone
