// One thread an element; a weight is small, so this is bound by the launch (about 2 us).
#include <zerone/kernels/cuda/flip_weight.h>

namespace zerone::kernels::cuda {
namespace {

template <class T>
__global__ void flip_weight_kernel(Conv2dShape shape, const T* w, T* out,
                                   std::array<std::int64_t, 4> out_strides) {
  const std::int64_t count = shape.c_in * shape.c_out * shape.kh * shape.kw;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::int64_t s = i % shape.kw, r = i / shape.kw % shape.kh;
    const std::int64_t k = i / (shape.kw * shape.kh) % shape.c_out;
    const std::int64_t c = i / (shape.kw * shape.kh * shape.c_out);
    out[c * out_strides[0] + k * out_strides[1] + r * out_strides[2] + s * out_strides[3]] =
        w[k * shape.w_strides[0] + c * shape.w_strides[1] +
          (shape.kh - 1 - r) * shape.w_strides[2] + (shape.kw - 1 - s) * shape.w_strides[3]];
  }
}

template <class T>
cudaError_t launch(const Conv2dShape& shape, const void* w, void* out,
                   const std::array<std::int64_t, 4>& out_strides, cudaStream_t stream) {
  const std::int64_t count = shape.c_in * shape.c_out * shape.kh * shape.kw;
  if (count == 0) return cudaSuccess;
  constexpr std::int64_t threads = 256, most_blocks = 4096;
  const std::int64_t blocks = (count + threads - 1) / threads;
  flip_weight_kernel<<<static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks), threads,
                       0, stream>>>(shape, static_cast<const T*>(w), static_cast<T*>(out),
                                    out_strides);
  return cudaGetLastError();
}

}  // namespace

cudaError_t flip_weight(const Conv2dShape& shape, const void* w, void* out,
                        const std::array<std::int64_t, 4>& out_strides, DType dtype,
                        cudaStream_t stream) {
  switch (size_of(dtype)) {  // bits move as they are
    case 8: return launch<std::uint64_t>(shape, w, out, out_strides, stream);
    case 4: return launch<std::uint32_t>(shape, w, out, out_strides, stream);
    case 2: return launch<std::uint16_t>(shape, w, out, out_strides, stream);
    default: return launch<std::uint8_t>(shape, w, out, out_strides, stream);
  }
}

}  // namespace zerone::kernels::cuda
