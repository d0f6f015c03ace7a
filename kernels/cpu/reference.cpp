#include <zerone/kernels/cpu/reference.h>

#include <zerone/kernels/cpu/number.h>
#include <zerone/kernels/cpu/parallel.h>

namespace zerone::kernels::cpu::reference {
namespace {

using Index = std::int64_t;

template <class T>
double load(const void* data, Index at) {
  return static_cast<double>(static_cast<const T*>(data)[at]);
}

template <class T>
void store(void* data, Index at, double value) {
  static_cast<T*>(data)[at] = static_cast<T>(static_cast<Compute<T>>(value));
}

double activate(double value, Activation activation) {
  return activation == Activation::relu && value < 0 ? 0 : value;
}

Index at(const std::array<Index, 4>& strides, Index a, Index b, Index c, Index d) {
  return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
}

/// Calls f(a, b, c, d) for all indices of a 4-d array of these sizes.
template <class F>
void for_each(Index size_a, Index size_b, Index size_c, Index size_d, int threads, F&& f) {
  parallel_for(threads, size_a * size_b * size_c * size_d, 16, [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      f(i / size_d / size_c / size_b, i / size_d / size_c % size_b, i / size_d % size_c,
        i % size_d);
    }
  });
}

/// Offset of pixel p in a grid of pixels.
Index pixel_offset(const PointwiseShape& s, const std::array<Index, 3>& strides, Index p) {
  return p / s.pixels[2] / s.pixels[1] * strides[0] + p / s.pixels[2] % s.pixels[1] * strides[1] +
         p % s.pixels[2] * strides[2];
}

}  // namespace

void conv2d_forward(const Conv2dShape& s, const Conv2dForward& args, int threads) {
  with_float_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Index c_group = s.c_in / s.groups, k_group = s.c_out / s.groups;
    for_each(s.n, s.c_out, s.h_out, s.w_out, threads, [&](Index n, Index k, Index p, Index q) {
      double sum = args.bias ? load<T>(args.bias, k) : 0.0;
      for (Index c = 0; c < c_group; ++c) {
        for (Index r = 0; r < s.kh; ++r) {
          for (Index t = 0; t < s.kw; ++t) {
            const Index i = p * s.stride_h - s.pad_top + r * s.dilation_h;
            const Index j = q * s.stride_w - s.pad_left + t * s.dilation_w;
            if (i < 0 || i >= s.h || j < 0 || j >= s.w) continue;
            sum += load<T>(args.w, at(s.w_strides, k, c, r, t)) *
                   load<T>(args.x, at(s.x_strides, n, k / k_group * c_group + c, i, j));
          }
        }
      }
      store<T>(args.y, at(s.y_strides, n, k, p, q), activate(sum, args.activation));
    });
  });
}

void conv2d_backward_data(const Conv2dShape& s, const Conv2dBackwardData& args, int threads) {
  with_float_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Index c_group = s.c_in / s.groups, k_group = s.c_out / s.groups;
    for_each(s.n, s.c_in, s.h, s.w, threads, [&](Index n, Index c, Index i, Index j) {
      const Index first_k = c / c_group * k_group;
      double sum = 0;
      for (Index k = first_k; k < first_k + k_group; ++k) {
        for (Index r = 0; r < s.kh; ++r) {
          for (Index t = 0; t < s.kw; ++t) {
            // i = p*stride_h - pad_top + r*dilation_h, and the same for j.
            const Index p = (i + s.pad_top - r * s.dilation_h) / s.stride_h;
            const Index q = (j + s.pad_left - t * s.dilation_w) / s.stride_w;
            if (p < 0 || p >= s.h_out || q < 0 || q >= s.w_out) continue;
            if (p * s.stride_h - s.pad_top + r * s.dilation_h != i) continue;
            if (q * s.stride_w - s.pad_left + t * s.dilation_w != j) continue;
            sum += load<T>(args.w, at(s.w_strides, k, c % c_group, r, t)) *
                   load<T>(args.dy, at(s.y_strides, n, k, p, q));
          }
        }
      }
      store<T>(args.dx, at(s.x_strides, n, c, i, j), sum);
    });
  });
}

void conv2d_backward_weight(const Conv2dShape& s, const Conv2dBackwardWeight& args, int threads) {
  with_float_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Index c_group = s.c_in / s.groups, k_group = s.c_out / s.groups;
    for_each(s.c_out, c_group, s.kh, s.kw, threads, [&](Index k, Index c, Index r, Index t) {
      double sum = 0;
      for (Index n = 0; n < s.n; ++n) {
        for (Index p = 0; p < s.h_out; ++p) {
          for (Index q = 0; q < s.w_out; ++q) {
            const Index i = p * s.stride_h - s.pad_top + r * s.dilation_h;
            const Index j = q * s.stride_w - s.pad_left + t * s.dilation_w;
            if (i < 0 || i >= s.h || j < 0 || j >= s.w) continue;
            sum += load<T>(args.dy, at(s.y_strides, n, k, p, q)) *
                   load<T>(args.x, at(s.x_strides, n, k / k_group * c_group + c, i, j));
          }
        }
      }
      store<T>(args.dw, at(s.w_strides, k, c, r, t), sum);
    });
  });
}

void pointwise_forward(const PointwiseShape& s, const PointwiseForward& args, int threads) {
  with_float_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each(1, 1, s.pixel_count(), s.c_out, threads, [&](Index, Index, Index p, Index k) {
      const Index x = pixel_offset(s, s.x_strides, p), y = pixel_offset(s, s.y_strides, p);
      double sum = args.bias ? load<T>(args.bias, k) : 0.0;
      for (Index c = 0; c < s.c_in; ++c) {
        sum += load<T>(args.w, k * s.w_stride_out + c * s.w_stride_in) *
               load<T>(args.x, x + c * s.x_channel_stride);
      }
      store<T>(args.y, y + k * s.y_channel_stride, activate(sum, args.activation));
    });
  });
}

void pointwise_backward_weight(const PointwiseShape& s, const PointwiseBackwardWeight& args,
                               int threads) {
  with_float_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto dy = [&](Index p, Index k) {
      return load<T>(args.dy, pixel_offset(s, s.y_strides, p) + k * s.y_channel_stride);
    };
    for_each(1, 1, s.c_out, s.c_in, threads, [&](Index, Index, Index k, Index c) {
      double sum = 0;
      for (Index p = 0; p < s.pixel_count(); ++p) {
        sum += dy(p, k) * load<T>(args.x, pixel_offset(s, s.x_strides, p) + c * s.x_channel_stride);
      }
      store<T>(args.dw, k * s.w_stride_out + c * s.w_stride_in, sum);
    });
    if (args.db == nullptr) return;
    for_each(1, 1, 1, s.c_out, threads, [&](Index, Index, Index, Index k) {
      double sum = 0;
      for (Index p = 0; p < s.pixel_count(); ++p) sum += dy(p, k);
      store<T>(args.db, k, sum);
    });
  });
}

}  // namespace zerone::kernels::cpu::reference
