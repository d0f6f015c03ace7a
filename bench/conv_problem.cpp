#include "bench/conv_problem.h"

#include <fmt/format.h>

namespace zerone::bench {
namespace {

std::array<std::int64_t, 4> strides_of(std::int64_t c, std::int64_t h, std::int64_t w, bool nhwc) {
  if (nhwc) return {h * w * c, 1, w * c, c};
  return {c * h * w, h * w, w, 1};
}

Tensor as_matrix(const Tensor& w) {
  return w.reshape({w.size(0), w.size(1)});
}

}  // namespace

kernels::Conv2dShape ConvProblem::shape() const {
  const Padding& padding = params.padding;
  kernels::Conv2dShape s;
  s.n = n, s.c_in = c_in, s.h = h, s.w = w;
  s.c_out = c_out, s.kh = kernel.h, s.kw = kernel.w;
  s.stride_h = params.stride.h, s.stride_w = params.stride.w;
  s.pad_top = padding.top, s.pad_left = padding.left;
  s.dilation_h = params.dilation.h, s.dilation_w = params.dilation.w;
  s.groups = params.groups;
  s.h_out = (h + padding.top + padding.bottom - s.dilation_h * (s.kh - 1) - 1) / s.stride_h + 1;
  s.w_out = (w + padding.left + padding.right - s.dilation_w * (s.kw - 1) - 1) / s.stride_w + 1;
  s.x_strides = strides_of(c_in, h, w, nhwc);
  s.w_strides = strides_of(c_in / s.groups, s.kh, s.kw, nhwc);
  s.y_strides = strides_of(c_out, s.h_out, s.w_out, nhwc);
  return s;
}

Cost ConvProblem::cost(const std::string& pass, Mode mode) const {
  const kernels::Conv2dShape s = shape();
  const auto per_output = static_cast<double>(s.c_in / s.groups * s.kh * s.kw);
  const auto y = static_cast<double>(n * c_out * s.h_out * s.w_out);
  return contraction_cost(static_cast<double>(n * c_in * h * w),
                          static_cast<double>(c_out) * per_output, y, y * per_output, pass, mode);
}

Workload ConvProblem::workload(const Context& context, const std::string& name,
                               const std::string& pass, Mode mode, const std::string& pattern,
                               double fraction, bool lower) const {
  const auto laid_out = [&](const Tensor& x) { return nhwc ? x.contiguous_nhwc() : x; };
  const kernels::Conv2dShape s = shape();
  const Math math = mode.math;
  const bool pointwise = lower && s.kh == 1 && s.kw == 1 && s.stride_h == 1 && s.stride_w == 1 &&
                         s.groups == 1 && params.padding == Padding(0);
  Tensor weight = laid_out(conv_weight(context, {c_out, c_in / s.groups, s.kh, s.kw}, mode.storage,
                                       3, pattern, fraction));
  prepare(weight, s.groups);
  const std::int64_t part = std::min<std::int64_t>(n, 1);
  Workload work;
  work.operands = {{laid_out(normal(context, {n, c_in, h, w}, mode.storage, 1)), part}, {weight}};
  work.tolerance = 2 * tolerance_of(mode);
  // A dense library's result does not depend on its layout, but a pattern changes it.
  work.same_values =
      fmt::format("{} {} {} {} {}", name, pass, pattern, fraction, to_string(mode.storage));

  // The passes take the batch and the strides of their operands.
  const auto forward = [=](const Tensor& x, const Tensor& w_) {
    if (pointwise) return conv2d(x, w_, {}, {.math = math}).value();
    kernels::Conv2dShape here = s;
    here.n = x.size(0);
    Tensor y = make_conv2d_result(x, w_, here);
    conv2d_forward(here, x, w_, {}, y, Activation::none, math);
    return y;
  };
  const auto data = [=](const Tensor& x, const Tensor& w_, const Tensor& dy) {
    Tensor dx = Tensor::empty_like(x);
    if (pointwise) {
      Tensor dx_last = channels_last(dx, 1);
      pointwise_backward_data(channels_last(dy, 1), as_matrix(w_), dx_last, math);
      return dx;
    }
    kernels::Conv2dShape here = s;
    here.n = x.size(0);
    conv2d_backward_data(here, dy, w_, dx, math);
    return dx;
  };
  const auto weight_gradient = [=](const Tensor& x, const Tensor& w_, const Tensor& dy) {
    Tensor dw = Tensor::empty_like(w_), no_bias;
    if (pointwise) {
      Tensor matrix = as_matrix(dw);
      pointwise_backward_weight(channels_last(x, 1), channels_last(dy, 1), matrix, no_bias, math);
      return dw;
    }
    kernels::Conv2dShape here = s;
    here.n = x.size(0);
    conv2d_backward_weight(here, x, dy, dw, math);
    return dw;
  };

  if (pass == "forward") {
    work.compute = [=](const Tensors& o) { return Tensors{forward(o[0], o[1])}; };
    work.checked = {part};
    return work;
  }
  work.operands.push_back(
      {laid_out(normal(context, {n, c_out, s.h_out, s.w_out}, mode.storage, 2)), part, true});
  if (pass == "backward_data") {
    work.compute = [=](const Tensors& o) { return Tensors{data(o[0], o[1], o[2])}; };
    work.checked = {part};
  } else if (pass == "backward_weight") {
    work.compute = [=](const Tensors& o) { return Tensors{weight_gradient(o[0], o[1], o[2])}; };
    work.checked = {0};
  } else {
    work.compute = [=](const Tensors& o) {
      return Tensors{forward(o[0], o[1]), data(o[0], o[1], o[2]),
                     weight_gradient(o[0], o[1], o[2])};
    };
    work.checked = {part, part, 0};
  }
  return work;
}

Conv2dDesc describe(const ConvProblem& problem, Conv2dPass pass, Mode mode, int zero_percent) {
  Conv2dDesc desc;
  desc.shape = problem.shape();
  desc.pass = pass;
  desc.dtype = mode.storage;
  desc.math = mode.math;
  desc.zero_percent = zero_percent;
  return desc;
}

}  // namespace zerone::bench
