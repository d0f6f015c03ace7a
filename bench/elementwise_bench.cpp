// Suite elementwise: every operation, and the gradient of each that has one of its own, on
// contiguous values. Bytes: each operand read once, the result written once; a GPU row's share of
// the copy bandwidth says how much of its arithmetic hides behind them.
#include <optional>
#include <string>

#include "bench/harness.h"

namespace zerone::bench {
namespace {

using kernels::BinaryOp;

struct Operation {
  const char* name;
  Var (*run)(const Var&, const Var&);  // of x, and of b where it takes two
  std::optional<BinaryOp> gradient{};  // of (dy, y or x), where it is an operation of its own
  bool two = false;
};

const Operation operations[] = {
    {"add", [](const Var& x, const Var& b) { return x + b; }, {}, true},
    {"div", [](const Var& x, const Var& b) { return x / b; }, {}, true},
    {"affine", [](const Var& x, const Var&) { return affine(x, 2, 1); }},
    {"relu", [](const Var& x, const Var&) { return relu(x); }, BinaryOp::relu_backward},
    {"leaky_relu", [](const Var& x, const Var&) { return leaky_relu(x, 0.1); },
     BinaryOp::leaky_relu_backward},
    {"clamp", [](const Var& x, const Var&) { return clamp(x, -1, 1); }, BinaryOp::clamp_backward},
    {"exp", [](const Var& x, const Var&) { return exp(x); }},
    {"log", [](const Var& x, const Var&) { return log(x); }},
    {"sigmoid", [](const Var& x, const Var&) { return sigmoid(x); }, BinaryOp::sigmoid_backward},
    {"tanh", [](const Var& x, const Var&) { return tanh(x); }, BinaryOp::tanh_backward},
    {"silu", [](const Var& x, const Var&) { return silu(x); }, BinaryOp::silu_backward},
    {"gelu", [](const Var& x, const Var&) { return gelu(x); }, BinaryOp::gelu_erf_backward},
    {"gelu_tanh", [](const Var& x, const Var&) { return gelu(x, Gelu::tanh); },
     BinaryOp::gelu_tanh_backward},
};

Workload make_workload(const Context& context, const Operation& op, bool backward, Mode mode,
                       std::int64_t count) {
  // Rows of 4096, of which the check sees some. Positive values: log and div stay tame.
  const Shape shape{count / 4096, 4096};
  const std::int64_t part = 4;
  Workload work;
  for (int i = 0; i < (op.two || backward ? 2 : 1); ++i) {
    const Tensor values = normal(context, shape, mode.storage, static_cast<std::uint64_t>(i + 1));
    work.operands.push_back(
        {op.two || op.name == std::string("log") ? exp(values).value() : values, part});
  }
  work.checked = {part};
  work.tolerance = tolerance_of(mode);
  work.compute = [run = op.run, gradient = op.gradient, backward](const Tensors& o) {
    if (backward) return Tensors{apply_binary(*gradient, o[0], o[1], 0.1, 1)};
    return Tensors{run(o[0], o.size() > 1 ? Var(o[1]) : Var()).value()};
  };
  return work;
}

}  // namespace

void register_cases(const Setting& setting) {
  std::vector<std::int64_t> counts{1 << 16, setting.cuda() ? 1 << 26 : 1 << 22};
  if (setting.quick) counts.pop_back();
  std::vector<Mode> modes{{}};
  if (setting.cuda()) modes.push_back({DType::bf16, Math::bf16});
  for (const int threads : setting.threads)
    for (const std::int64_t count : counts)
      for (const Mode mode : modes)
        for (const Operation& op : operations)
          for (const bool backward : {false, true}) {
            if (backward && !op.gradient) continue;
            const double tensors = op.two || backward ? 3 : 2;
            add(setting, {.suite = "elementwise",
                          .name = std::string(op.name) + "_" + std::to_string(count >> 10) + "k",
                          .pass = backward ? "backward" : "forward",
                          .mode = mode,
                          .impl = {.name = to_string(setting.device.type) + ".auto"},
                          .bytes = tensors * static_cast<double>(count) *
                                   static_cast<double>(size_of(mode.storage)),
                          .threads = threads,
                          .make = [=](const Context& context) {
                            return make_workload(context, op, backward, mode, count);
                          }});
          }
}

}  // namespace zerone::bench
