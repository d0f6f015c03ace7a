// Suite batch_norm: training, evaluation, and training with its gradients, over
// shapes/batch_norm.txt.
#include "bench/harness.h"

namespace zerone::bench {
namespace {

struct Problem {
  std::string name;
  bool nhwc = false;
  Shape shape;
};

Problem parse(const std::vector<std::string>& fields) {
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 2; i < fields.size(); ++i) sizes.push_back(std::stoll(fields[i]));
  return {fields.at(0), fields.at(1) == "nhwc", Shape(std::span<const std::int64_t>(sizes))};
}

Workload make_workload(const Context& context, const Problem& p, const std::string& pass,
                       DType dtype) {
  Tensor x = normal(context, p.shape, dtype, 1);
  if (p.nhwc) x = x.contiguous_nhwc();
  const DType channel_dtype = dtype == DType::f64 ? DType::f64 : DType::f32;
  Workload work;
  work.operands = {{x},
                   {normal(context, {p.shape[1]}, channel_dtype, 2)},
                   {normal(context, {p.shape[1]}, channel_dtype, 3)}};
  work.tolerance = tolerance_of({.storage = dtype});
  if (pass == "forward_backward") {
    work.operands.push_back({normal_like(x, 4)});
    work.compute = [](const Tensors& o) {
      Tape tape;
      Tensor none;
      const Var in = tape.leaf(o[0]), w = tape.leaf(o[1]), b = tape.leaf(o[2]);
      const Var y = batch_norm(in, w, b, none, none);
      tape.backward(y, {.seed = o[3]});
      return Tensors{y.value(), tape.grad(in), tape.grad(w), tape.grad(b)};
    };
    work.checked.assign(4, 0);
    return work;
  }
  work.compute = [training = pass == "training"](const Tensors& o) {
    Tensor mean, var;
    if (!training) {  // any numbers will do, the variance positive
      mean = o[2];
      var = mul(o[1], o[1]).value();
    }
    return Tensors{batch_norm(o[0], o[1], o[2], mean, var, {.training = training}).value()};
  };
  work.checked = {0};
  return work;
}

}  // namespace

void register_cases(const Setting& setting) {
  std::vector<DType> dtypes{DType::f32};
  if (setting.cuda()) dtypes.push_back(DType::bf16);
  for (const int threads : setting.threads)
    for (const std::vector<std::string>& fields : shape_lines(setting, "batch_norm")) {
      const Problem p = parse(fields);
      const auto count = static_cast<double>(p.shape.numel());
      if (!setting.cuda() && count > (setting.quick ? 1e6 : 2e7)) continue;
      for (const DType dtype : dtypes)
        for (const auto& [pass, sweeps] : std::initializer_list<std::pair<const char*, double>>{
                 {"training", 2}, {"evaluation", 2}, {"forward_backward", 5}})
          add(setting, {.suite = "batch_norm",
                        .name = p.name,
                        .pass = pass,
                        .mode = {.storage = dtype},
                        .impl = {.name = to_string(setting.device.type) + ".auto"},
                        .bytes = sweeps * count * static_cast<double>(size_of(dtype)),
                        .threads = threads,
                        .make = [=, pass = std::string(pass)](const Context& context) {
                          return make_workload(context, p, pass, dtype);
                        }});
    }
}

}  // namespace zerone::bench
