// Suite softmax: softmax and log_softmax with and without gradients, and cross-entropy with its
// gradient where the axis is 1, over shapes/softmax.txt.
#include "bench/harness.h"

namespace zerone::bench {
namespace {

struct Problem {
  std::string name;
  bool nhwc = false;
  int axis = 1;
  Shape shape;
};

Problem parse(const std::vector<std::string>& fields) {
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 3; i < fields.size(); ++i) sizes.push_back(std::stoll(fields[i]));
  return {fields.at(0), fields.at(1) == "nhwc", std::stoi(fields.at(2)),
          Shape(std::span<const std::int64_t>(sizes))};
}

Tensor make_labels(const Context& context, const Shape& logits) {
  std::vector<std::int64_t> sizes(logits.begin(), logits.end());
  const std::int64_t classes = sizes[1];
  sizes.erase(sizes.begin() + 1);
  const Shape shape{std::span<const std::int64_t>(sizes)};
  std::vector<std::int64_t> labels(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<std::int64_t>(i * 2654435761u >> 7) % classes;
  return Tensor::from<std::int64_t>(context, shape, labels);
}

Workload make_workload(const Context& context, const Problem& p, const std::string& pass,
                       DType dtype) {
  Tensor x = normal(context, p.shape, dtype, 1);
  if (p.nhwc) x = x.contiguous_nhwc();
  Workload work;
  work.operands = {{x}};
  work.tolerance = tolerance_of({.storage = dtype});
  const bool backward = pass.ends_with("forward_backward");
  if (pass.starts_with("cross_entropy")) {
    work.operands.push_back({make_labels(context, p.shape)});
    work.compute = [backward](const Tensors& o) {
      const Tensor labels = o[1].dtype() == DType::i64 ? o[1] : o[1].to(DType::i64);
      if (!backward) return Tensors{cross_entropy(o[0], labels).value()};
      Tape tape;
      const Var in = tape.leaf(o[0]), loss = cross_entropy(in, labels);
      tape.backward(loss);
      return Tensors{loss.value(), tape.grad(in)};
    };
  } else {
    work.operands.push_back({normal_like(x, 2)});
    const auto apply = pass.starts_with("log") ? log_softmax : softmax;
    work.compute = [=, axis = p.axis](const Tensors& o) {
      if (!backward) return Tensors{apply(o[0], axis).value()};
      Tape tape;
      const Var in = tape.leaf(o[0]), y = apply(in, axis);
      tape.backward(y, {.seed = o[1]});
      return Tensors{y.value(), tape.grad(in)};
    };
  }
  work.checked.assign(backward ? 2 : 1, 0);
  return work;
}

}  // namespace

void register_cases(const Setting& setting) {
  std::vector<DType> dtypes{DType::f32};
  if (setting.cuda()) dtypes.push_back(DType::bf16);
  for (const int threads : setting.threads)
    for (const std::vector<std::string>& fields : shape_lines(setting, "softmax")) {
      const Problem p = parse(fields);
      const auto count = static_cast<double>(p.shape.numel());
      if (!setting.cuda() && count > (setting.quick ? 1e6 : 2e7)) continue;
      for (const DType dtype : dtypes)
        for (const auto& [pass, sweeps] : std::initializer_list<std::pair<const char*, double>>{
                 {"softmax", 2},
                 {"softmax_forward_backward", 5},
                 {"log_softmax", 2},
                 {"log_softmax_forward_backward", 5},
                 {"cross_entropy", 1},
                 {"cross_entropy_forward_backward", 3}}) {
          if (p.axis != 1 && std::string_view(pass).starts_with("cross")) continue;
          add(setting, {.suite = "softmax",
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
}

}  // namespace zerone::bench
