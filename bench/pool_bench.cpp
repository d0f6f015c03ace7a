// Suite pool: forward (without and with what a gradient keeps) and backward of the poolings that
// networks have, in both layouts.
#include <algorithm>

#include "bench/harness.h"

namespace zerone::bench {
namespace {

using kernels::Pool2dShape;
using kernels::PoolOp;

struct PoolProblem {
  const char* name;
  std::int64_t n, c, h, w;
  PoolOp op = PoolOp::max;
  Pool2dParams params{.kernel = 2};
  bool adaptive = false;  // kernel is the size of the result

  Pool2dShape shape(const Tensor& x) const {
    return adaptive ? make_adaptive_pool2d_shape(x, params.kernel)
                    : make_pool2d_shape("bench", op, x, params);
  }
};

const std::vector<PoolProblem> problems = {
    {"max2_224", 32, 64, 224, 224},
    {"max2_28", 32, 512, 28, 28},
    {"max2_14", 32, 512, 14, 14},
    {"max3_s2_112", 32, 64, 112, 112, PoolOp::max, {.kernel = 3, .stride = Pair(2), .padding = 1}},
    {"max3_s1_28", 32, 192, 28, 28, PoolOp::max, {.kernel = 3, .stride = Pair(1), .padding = 1}},
    {"avg2_56", 32, 128, 56, 56, PoolOp::average},
    {"avg3_s1_35",
     32,
     192,
     35,
     35,
     PoolOp::average,
     {.kernel = 3, .stride = Pair(1), .padding = 1}},
    {"adaptive7_56", 32, 256, 56, 56, PoolOp::average, {.kernel = 7}, true}};

Workload make_workload(const Context& context, const PoolProblem& p, const std::string& pass,
                       bool nhwc, DType dtype) {
  const std::int64_t part = 1;
  Tensor x = normal(context, {p.n, p.c, p.h, p.w}, dtype, 1);
  if (nhwc) x = x.contiguous_nhwc();
  const auto forward = [p](const Tensor& input, bool keep) {
    const Pool2dShape s = p.shape(input);
    const bool last = input.stride(1) == 1 && s.c > 1;
    const Shape sizes{s.n, s.c, s.h.out, s.w.out};
    const auto empty = [&](DType type) {
      return last ? Tensor::empty_nhwc(input.context(), sizes, type)
                  : Tensor::empty(input.context(), sizes, type);
    };
    Tensor y = empty(input.dtype()), argmax;
    if (keep) argmax = empty(s.argmax_dtype());
    pool2d_forward(p.op, s, input, y, argmax);
    return keep ? Tensors{y, argmax} : Tensors{y};
  };
  const bool maximum = p.op == PoolOp::max;
  Workload work;
  work.tolerance = dtype == DType::f32 ? 1e-5 : 1e-2;
  if (pass != "backward") {
    const bool keep = pass == "forward_argmax";
    work.operands = {{x, part}};
    work.compute = [=](const Tensors& o) { return forward(o[0], keep); };
    work.checked.assign(keep ? 2 : 1, part);
    return work;
  }
  const Tensors results = forward(x, maximum);
  work.operands = {{normal_like(results[0], 2), part, true}};
  if (maximum) work.operands.push_back({results[1], part});
  work.compute = [=](const Tensors& o) {
    const bool last = o[0].stride(1) == 1;
    const Shape sizes{o[0].size(0), p.c, p.h, p.w};
    Tensor dx = last ? Tensor::empty_nhwc(o[0].context(), sizes, o[0].dtype())
                     : Tensor::empty(o[0].context(), sizes, o[0].dtype());
    const Pool2dShape s = p.shape(dx);
    // The check brings every operand in f64.
    pool2d_backward(p.op, s, o[0], maximum ? o[1].to(s.argmax_dtype()) : Tensor(), dx);
    return Tensors{dx};
  };
  work.checked = {part};
  return work;
}

/// Each operand read once, each result written once.
double bytes_of(const PoolProblem& p, const std::string& pass, DType dtype) {
  const Pool2dShape s = p.shape(Tensor::empty(Context(), {1, 1, p.h, p.w}));
  const auto images = static_cast<double>(p.n * p.c);
  const double x = images * static_cast<double>(p.h * p.w);
  const double y = images * static_cast<double>(s.h.out * s.w.out);
  const bool argmax = pass == "forward_argmax" || (pass == "backward" && p.op == PoolOp::max);
  return (x + y) * static_cast<double>(size_of(dtype)) +
         (argmax ? y * static_cast<double>(size_of(s.argmax_dtype())) : 0);
}

}  // namespace

void register_cases(const Setting& setting) {
  std::vector<DType> dtypes{DType::f32};
  if (setting.cuda()) dtypes.push_back(DType::bf16);
  for (const int threads : setting.threads)
    for (PoolProblem p : problems)
      for (const bool nhwc : {false, true})
        for (const DType dtype : dtypes)
          for (const std::string pass : {"forward", "forward_argmax", "backward"}) {
            if (p.op != PoolOp::max && pass == "forward_argmax") continue;
            if (!setting.cuda()) p.n = setting.quick ? 1 : 4;
            add(setting, {.suite = "pool",
                          .name = std::string(p.name) + (nhwc ? "_nhwc" : ""),
                          .pass = pass,
                          .mode = {dtype, dtype == DType::f32 ? Math::fp32 : Math::bf16},
                          .impl = {.name = to_string(setting.device.type) + ".pool"},
                          .bytes = bytes_of(p, pass, dtype),
                          .threads = threads,
                          .make = [=](const Context& context) {
                            return make_workload(context, p, pass, nhwc, dtype);
                          }});
          }
}

}  // namespace zerone::bench
