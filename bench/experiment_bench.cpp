// Suites experiment1 (the network of zero weights), experiment2 (conv 1x1 against linear), mlp, and
// the copy row of ceilings.
#include <fmt/format.h>
#include <algorithm>

#include "bench/harness.h"
#include "bench/network.h"

namespace zerone::bench {
namespace {

/// "cuda" or "cpu", the first part of an impl's name.
std::string device_name(const Setting& setting) {
  return to_string(setting.device.type);
}

void register_ceilings(const Setting& setting) {
  const std::int64_t bytes = setting.cuda() ? std::int64_t{1} << 32 : std::int64_t{1} << 28;
  for (const int threads : setting.threads) {
    Case row{.suite = "ceilings",
             .name = setting.cuda() ? "copy_4GiB" : "copy_256MiB",
             .pass = "copy",
             .mode = {},
             .impl = {.name = device_name(setting) + ".copy", .tune = false},
             .bytes = 2.0 * static_cast<double>(bytes),
             .threads = threads};
    row.make = [bytes](const Context& context) {
      Workload work;
      work.operands = {{Tensor::uniform(context, {bytes / 4}), 4096}};
      work.compute = [](const Tensors& operands) { return Tensors{operands[0].clone()}; };
      work.checked = {4096};
      work.same_values = "copy";
      return work;
    };
    add(setting, row);
  }
}

// --- experiment 1 -------------------------------------------------------------------------------

struct NetworkImpl {
  Impl impl;
  bool nhwc = false;
};

std::vector<NetworkImpl> network_impls(const Setting& setting, const std::string& kind,
                                       std::int64_t batch) {
  const std::vector<std::string> skipping{"conv2d.forward", "conv2d.backward_data"};
  std::vector<NetworkImpl> impls;
  if (setting.cuda()) {
    impls.push_back({{.name = "cuda.dense", .zero_skip = ZeroSkip::off}});
    impls.push_back({{.name = "cuda.dense.nhwc", .zero_skip = ZeroSkip::off}, true});
    // Rules choose among zeros; tuning there would time cuDNN again for each density.
    const bool tune = kind == "kaiming" || (kind == "scattered90" && batch == 256);
    impls.push_back({{.name = "cuda.auto", .tune = tune}});
    if (kind != "kaiming") impls.push_back({forced("cuda.zero_skip", skipping)});
    return impls;
  }
  impls.push_back({{.name = "cpu.auto", .tune = kind == "kaiming"}});
  for (const char* row : {"cpu.onednn", "cpu.eigen"}) {
    const auto rows = conv2d_forward_list().rows();
    const bool built = std::any_of(rows.begin(), rows.end(), [&](const auto& known) {
      return std::string_view(known.name) == row;
    });
    if (built) impls.push_back({forced(row, conv2d_operations)});
  }
  if (kind != "kaiming") impls.push_back({forced("cpu.zero_skip", skipping)});
  for (NetworkImpl& impl : impls)
    if (!impl.impl.forced.empty()) impl.impl.tune = false;
  return impls;
}

void add_network(const Setting& setting, std::int64_t batch, const std::string& kind,
                 const std::string& pass, Mode mode, const NetworkImpl& impl, int threads) {
  const Cost cost = network_cost(batch, pass, mode);
  const bool nhwc = impl.nhwc;
  add(setting, {.suite = "experiment1",
                .name = fmt::format("b{}_{}", batch, kind),
                .pass = pass,
                .mode = mode,
                .impl = impl.impl,
                .bytes = cost.bytes,
                .flops = cost.flops,
                .threads = threads,
                .make = [=](const Context& context) {
                  return network_workload(context, batch, kind, pass, mode, nhwc);
                }});
}

void register_experiment1(const Setting& setting) {
  std::vector<std::int64_t> batches{1, 32, 256};
  if (!setting.cuda()) {
    batches = {1, 256};
    if (setting.quick) batches = {1};
  }
  const int most = *std::max_element(setting.threads.begin(), setting.threads.end());
  for (const int threads : setting.threads)
    for (const std::int64_t batch : batches) {
      if (!setting.cuda() && batch == 256 && threads < most) continue;
      for (const Mode mode : peer_modes(setting))
        for (const std::string kind : {"kaiming", "zero", "scattered90"})
          for (const std::string pass : {"forward", "backward_data", "forward_backward"}) {
            if (pass == "backward_data" &&
                (kind == "scattered90" || batch == 32 || mode.storage == DType::bf16))
              continue;
            if (setting.quick && kind == "scattered90" && batch != 256) continue;
            for (const NetworkImpl& impl : network_impls(setting, kind, batch))
              add_network(setting, batch, kind, pass, mode, impl, threads);
          }
    }
  if (!setting.cuda()) return;
  for (const Mode mode : peer_modes(setting))
    for (const std::string kind : {"kaiming", "zero"})
      for (const std::string pass : {"forward", "forward_backward"})
        add_network(setting, 1, kind, pass, mode,
                    {{.name = "cuda.auto.eager", .tune = kind == "kaiming", .eager = true}}, 0);
}

// --- experiment 2 -------------------------------------------------------------------------------

constexpr std::int64_t width = 128;

/// Images of experiment 2 and the case suffix that tells of fewer.
std::pair<std::int64_t, std::string> images(const Setting& setting) {
  if (setting.cuda()) return {500, ""};
  if (setting.quick) return {10, "_n10"};
  return {50, "_n50"};
}

/// What a case makes of x [.., 128 channels ..], w [128, 128] and b [128].
Var layer_of(const std::string& name, const Var& x, const Var& w, const Var& b, Math math) {
  if (name == "conv_btchw") {
    const Shape s = x.shape();
    const Var flat = reshape(x, Shape{s[0] * s[1], s[2], s[3], s[4]});
    return conv2d(flat, reshape(w, {width, width, 1, 1}), b, {.math = math});
  }
  if (name.starts_with("conv"))
    return conv2d(x, reshape(w, {width, width, 1, 1}), b, {.math = math});
  if (name == "rearrange_linear")
    return linear(reshape(contiguous(permute(x, {0, 3, 2, 1})), {-1, width}), w, b, {.math = math});
  if (name == "rearrange_linear_btchw")
    return linear(reshape(contiguous(permute(x, {0, 1, 3, 4, 2})), {-1, width}), w, b,
                  {.math = math});
  if (name == "linear_permuted") return linear(permute(x, {0, 2, 3, 1}), w, b, {.math = math});
  if (name == "linear_permuted_btchw")
    return linear(permute(x, {0, 1, 3, 4, 2}), w, b, {.math = math});
  return linear(x, w, b, {.math = math});
}

Workload layer_workload(const Context& context, std::string name, const std::string& pass,
                        std::int64_t n, Mode mode) {
  const Math math = mode.math;
  // The copy belongs to the forward pass: without it, laid-out rows are left.
  if (pass == "backward" && name.starts_with("rearrange")) name = "linear_laidout";
  const bool series = name.ends_with("btchw"), rows = name == "linear_laidout";
  const Shape shape = rows     ? Shape{n * 4096, width}
                      : series ? Shape{n / 10, 10, width, 64, 64}
                               : Shape{n, width, 64, 64};
  const std::int64_t part = rows ? 4096 : 1;
  Tensor x = normal(context, shape, mode.storage, 1);
  if (name == "conv_nhwc") x = x.contiguous_nhwc();
  Tensor w = normal(context, {width, width}, mode.storage, 2);
  const Tensor b = normal(context, {width}, mode.storage, 3);

  Workload work;
  work.operands = {{x, part}, {w}, {b}};
  work.tolerance = tolerance_of(mode);
  work.same_values = fmt::format("{} {} {}", name, pass, to_string(mode.storage));
  const Tensor y = layer_of(name, x, w, b, math);
  const std::int64_t y_part = y.size(0) * part / x.size(0);
  if (pass == "forward") {
    work.compute = [=](const Tensors& operands) {
      return Tensors{layer_of(name, operands[0], operands[1], operands[2], math)};
    };
    work.checked = {y_part};
    return work;
  }
  work.checked = {part, 0, 0};
  if (pass == "forward_backward") {
    work.operands.push_back({normal_like(y, 4), y_part, true});
    work.compute = [=](const Tensors& operands) {
      Tape tape;
      const Var vx = tape.leaf(operands[0]), vw = tape.leaf(operands[1]),
                vb = tape.leaf(operands[2]);
      tape.backward(layer_of(name, vx, vw, vb, math), {.seed = operands[3]});
      return Tensors{tape.grad(vx), tape.grad(vw), tape.grad(vb)};
    };
    return work;
  }
  const int axis = rows ? 1 : series ? 2 : 1;
  work.operands.push_back({normal_like(x, 4), part, true});
  work.compute = [=](const Tensors& operands) {
    return pointwise_gradients(operands[0], operands[1], operands[3], axis, math, true, true);
  };
  return work;
}

void register_experiment2(const Setting& setting) {
  const auto [n, suffix] = images(setting);
  const auto numel = static_cast<double>(n * 4096 * width);
  std::vector<Mode> modes{{}};
  if (setting.cuda())
    modes = {{DType::f32, Math::strict}, {DType::f32, Math::fp32}, {DType::f32, Math::tf32},
             {DType::f32, Math::bf16},   {DType::f32, Math::fp16}, {DType::bf16, Math::bf16}};
  if (setting.cuda() && setting.quick) modes = peer_modes(setting);
  const std::string device = device_name(setting);
  const std::vector<std::string> own{setting.cuda() ? "cuda.cublas" : "cpu.eigen",
                                     device + ".pointwise"};
  for (const int threads : setting.threads)
    for (const Mode mode : modes)
      for (const std::string name :
           {"conv_nchw", "conv_nhwc", "linear_laidout", "rearrange_linear", "linear_permuted",
            "conv_btchw", "rearrange_linear_btchw", "linear_permuted_btchw"})
        for (const std::string pass : {"forward", "backward", "forward_backward"}) {
          const Cost cost =
              contraction_cost(numel, width * (width + 1), numel, numel * width, pass, mode);
          std::vector<Impl> impls{{.name = device + ".auto"}};
          if (name == "conv_nchw" || name == "conv_nhwc" || name == "linear_laidout")
            for (const std::string& row : own) impls.push_back(forced(row, pointwise_operations));
          for (const Impl& impl : impls)
            add(setting, {.suite = "experiment2",
                          .name = name + suffix,
                          .pass = pass,
                          .mode = mode,
                          .impl = impl,
                          .bytes = cost.bytes,
                          .flops = cost.flops,
                          .threads = threads,
                          .make = [=, n = n](const Context& context) {
                            return layer_workload(context, name, pass, n, mode);
                          }});
        }
}

// --- mlp ----------------------------------------------------------------------------------------

/// Three 128-wide layers with ReLU between them; operands x, w, b, w, b, w, b.
Var mlp(const std::string& name, Var y, std::span<const Var> parameters, Math math) {
  if (name == "mlp_linear") y = reshape(contiguous(permute(y, {0, 3, 2, 1})), {-1, width});
  if (name == "mlp_linear_permuted") y = permute(y, {0, 2, 3, 1});
  for (std::size_t layer = 0; layer < 3; ++layer) {
    const Var &w = parameters[2 * layer], &b = parameters[2 * layer + 1];
    const Activation activation = layer < 2 ? Activation::relu : Activation::none;
    if (name == "mlp_conv")
      y = conv2d(y, reshape(w, {width, width, 1, 1}), b, {.activation = activation, .math = math});
    else
      y = linear(y, w, b, {.activation = activation, .math = math});
  }
  return y;
}

Workload mlp_workload(const Context& context, const std::string& name, const std::string& pass,
                      std::int64_t rows, std::int64_t n, Mode mode) {
  const Math math = mode.math;
  const bool laid_out = name == "mlp_linear_laidout" || name == "mlp_rows";
  const Tensor x =
      normal(context, laid_out ? Shape{rows, width} : Shape{n, width, 64, 64}, mode.storage, 1);
  const std::int64_t part = laid_out ? std::min<std::int64_t>(rows, 4096) : 1;
  Workload work;
  work.operands = {{x, part}};
  std::vector<Var> parameters;
  for (std::uint64_t layer = 0; layer < 3; ++layer) {
    Context(context).seed(10 + layer);
    const Tensor w = Tensor::normal(context, {width, width}, 0, 0.125, mode.storage);
    const Tensor b = normal(context, {width}, mode.storage, 20 + layer);
    for (const Tensor& parameter : {w, b}) {
      work.operands.push_back({parameter});
      parameters.emplace_back(parameter);
    }
  }
  work.tolerance = 5 * tolerance_of(mode);
  work.same_values = fmt::format("{} {} {} {}", name, pass, part, to_string(mode.storage));
  const Tensor y = mlp(name, x, parameters, math);
  const std::int64_t y_part = y.size(0) * part / x.size(0);
  if (pass == "forward") {
    work.compute = [=](const Tensors& operands) {
      const std::vector<Var> given(operands.begin() + 1, operands.end());
      return Tensors{mlp(name, operands[0], given, math)};
    };
    work.checked = {y_part};
    return work;
  }
  work.tolerance = std::min(100 * tolerance_of(mode), 0.3);
  work.operands.push_back({normal_like(y, 4), y_part});
  work.check_part_alone = true;
  work.compute = [=](const Tensors& operands) {
    Tape tape;
    std::vector<Var> given;
    for (std::size_t i = 1; i < 7; ++i) given.push_back(tape.leaf(operands[i]));
    const Var result = mlp(name, tape.constant(operands[0]), given, math);
    tape.backward(mean_square_error(result, operands[7]));
    Tensors gradients;
    for (const Var& parameter : given) gradients.push_back(tape.grad(parameter));
    return gradients;
  };
  work.checked.assign(6, 0);
  return work;
}

/// Bytes of a fused network (train: x and target read, x read again), FLOPs of all layers.
Cost mlp_cost(std::int64_t rows, const std::string& pass, Mode mode) {
  const double values = static_cast<double>(rows * width), parameters = 3 * width * (width + 1);
  const auto size = static_cast<double>(size_of(mode.storage));
  if (pass == "forward") return {(2 * values + parameters) * size, 6 * values * width};
  return {(3 * values + 2 * parameters) * size, 16 * values * width};
}

void register_mlp(const Setting& setting) {
  const auto [n, suffix] = images(setting);
  const std::string device = device_name(setting);
  const auto add_mlp = [&](const std::string& name, const std::string& shown,
                           const std::string& pass, std::int64_t rows, Mode mode, int threads,
                           bool eager) {
    const Cost cost = mlp_cost(rows, pass, mode);
    add(setting, {.suite = "mlp",
                  .name = shown,
                  .pass = pass,
                  .mode = mode,
                  .impl = {.name = device + (eager ? ".auto.eager" : ".auto"), .eager = eager},
                  .bytes = cost.bytes,
                  .flops = cost.flops,
                  .threads = threads,
                  .make = [=, n = n](const Context& context) {
                    return mlp_workload(context, name, pass, rows, n, mode);
                  }});
  };
  for (const int threads : setting.threads) {
    for (const Mode mode : peer_modes(setting))
      for (const std::string name :
           {"mlp_conv", "mlp_linear", "mlp_linear_laidout", "mlp_linear_permuted"})
        for (const std::string pass : {"forward", "train"})
          add_mlp(name, name + suffix, pass, n * 4096, mode, threads, false);
    for (const std::int64_t rows : {1, 16, 256, 4096}) {
      const std::string shown = fmt::format("mlp_rows_{}", rows);
      if (setting.cuda()) add_mlp("mlp_rows", shown, "forward", rows, {}, threads, false);
      add_mlp("mlp_rows", shown, "forward", rows, {}, threads, true);
    }
  }
}

}  // namespace

void register_cases(const Setting& setting) {
  register_ceilings(setting);
  register_experiment1(setting);
  register_experiment2(setting);
  register_mlp(setting);
}

}  // namespace zerone::bench
