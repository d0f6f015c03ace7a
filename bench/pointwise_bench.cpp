// Suite pointwise: every implementation that accepts, and the automatic choice, over
// shapes/pointwise.txt.
#include <fmt/format.h>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "bench/harness.h"

namespace zerone::bench {
namespace {

struct PointwiseProblem {
  std::string name, layout;
  std::int64_t n = 0, c_in = 0, c_out = 0, h = 0, w = 0, steps = 1;  // steps of a btchw series

  std::int64_t pixels() const { return n * h * w * steps; }
};

PointwiseProblem parse(const std::vector<std::string>& fields) {
  PointwiseProblem p{fields.at(0),
                     fields.at(6),
                     std::stoll(fields.at(1)),
                     std::stoll(fields.at(2)),
                     std::stoll(fields.at(3)),
                     std::stoll(fields.at(4)),
                     std::stoll(fields.at(5))};
  if (p.layout.starts_with("btchw_t")) p.steps = std::stoll(p.layout.substr(7));
  return p;
}

/// A view and the axis of its channels.
struct Image {
  Tensor tensor;
  int axis = 1;
};

/// x as the layout says.
Image make_image(const Context& context, const PointwiseProblem& p, DType dtype) {
  const auto fresh = [&](const Shape& shape) { return normal(context, shape, dtype, 1); };
  const std::int64_t n = p.n, c = p.c_in, h = p.h, w = p.w;
  long long a = 0, b = 0, d = 0;
  if (p.layout == "rows") return {fresh({n, c}), 1};
  if (p.layout == "nchw") return {fresh({n, c, h, w}), 1};
  if (p.layout == "nhwc") return {fresh({n, h, w, c}), 3};
  if (p.layout == "nhwc_view_of_nchw") return {fresh({n, c, h, w}).permute({0, 2, 3, 1}), 3};
  if (p.layout == "nchw_stride2_view") return {fresh({n, c, h, 2 * w}).slice(3, 0, 2 * w, 2), 1};
  if (p.layout.starts_with("btchw_t")) return {fresh({n, p.steps, c, h, w}), 2};
  if (std::sscanf(p.layout.c_str(), "nchw_channels_%lld_to_%lld_of_%lld", &a, &b, &d) == 3)
    return {fresh({n, d, h, w}).slice(1, a, b), 1};
  if (std::sscanf(p.layout.c_str(), "nchw_interior_of_%lldx%lld", &a, &b) == 2)
    return {fresh({n, c, a, b})
                .slice(2, (a - h) / 2, (a - h) / 2 + h)
                .slice(3, (b - w) / 2, (b - w) / 2 + w),
            1};
  if (std::sscanf(p.layout.c_str(), "nchw_offset_%lld_element", &a) == 1)
    return {fresh({a + n * c * h * w}).slice(0, a, a + n * c * h * w).reshape({n, c, h, w}), 1};
  throw ShapeError("[bench] unknown pointwise layout " + p.layout);
}

Workload make_workload(const Context& context, const PointwiseProblem& p, const std::string& pass,
                       Mode mode) {
  const Math math = mode.math;
  const auto [x, axis] = make_image(context, p, mode.storage);
  Tensor w = normal(context, {p.c_out, p.c_in}, mode.storage, 2);
  const Tensor b = normal(context, {p.c_out}, mode.storage, 3);
  // A little of the first axis: enough to see every channel and every kind of pixel.
  const std::int64_t per_entry =
      std::max<std::int64_t>(p.pixels() / std::max<std::int64_t>(p.n, 1), 1);
  const std::int64_t part = std::clamp<std::int64_t>(4096 / per_entry, 1, p.n);
  Workload work;
  work.operands = {{x, part}, {w}, {b}};
  work.tolerance = tolerance_of(mode);
  work.same_values = fmt::format("{} {} {}", p.name, pass, to_string(mode.storage));
  if (pass == "forward") {
    work.compute = [math, axis = axis](const Tensors& o) {
      return Tensors{linear(channels_last(o[0], axis), o[1], o[2], {.math = math}).value()};
    };
    work.checked = {part};
    return work;
  }
  // dy lies as y does, in x's axes.
  const Tensor y = linear(channels_last(x, axis), w, b, {.math = math}).value();
  std::vector<int> back;
  for (int i = 0, from = 0; i < x.rank(); ++i) back.push_back(i == axis ? x.rank() - 1 : from++);
  work.operands.push_back({normal_like(y, 4).permute(std::span<const int>(back)), part, true});
  const bool data = pass != "backward_weight", weight = pass != "backward_data";
  work.compute = [=, axis = axis](const Tensors& o) {
    return pointwise_gradients(o[0], o[1], o[3], axis, math, data, weight);
  };
  if (data) work.checked.push_back(part);
  if (weight) work.checked.insert(work.checked.end(), 2, 0);
  return work;
}

/// Rows that accept every such problem; what only the strides decide shows when it is planned.
std::vector<std::string> rows_of(const Setting& setting, const PointwiseProblem& p,
                                 const std::string& pass, Mode mode) {
  PointwiseDesc desc;
  desc.shape.pixels = {1, 1, p.pixels()};
  desc.shape.c_in = p.c_in;
  desc.shape.c_out = p.c_out;
  desc.shape.x_strides[2] = desc.shape.x_channel_stride = 1;
  desc.shape.y_strides[2] = desc.shape.y_channel_stride = 1;
  desc.dtype = mode.storage;
  desc.math = mode.math;
  if (pass == "forward") return accepting_rows(setting, pointwise_forward_list(), desc);
  desc.pass = PointwisePass::backward_data;
  if (pass == "backward_data") return accepting_rows(setting, pointwise_backward_data_list(), desc);
  desc.pass = PointwisePass::backward_weight;
  if (pass == "backward_weight")
    return accepting_rows(setting, pointwise_backward_weight_list(), desc);
  return {};  // both gradients: the automatic choice alone
}

}  // namespace

void register_cases(const Setting& setting) {
  std::vector<Mode> modes{{}};
  if (setting.cuda()) modes.push_back({DType::f32, Math::tf32});
  for (const int threads : setting.threads)
    for (const std::vector<std::string>& fields : shape_lines(setting, "pointwise")) {
      const PointwiseProblem p = parse(fields);
      const auto pixels = static_cast<double>(p.pixels());
      const auto c_in = static_cast<double>(p.c_in), c_out = static_cast<double>(p.c_out);
      if (!setting.cuda() && pixels * std::max(c_in, c_out) > (setting.quick ? 1e6 : 2e7)) continue;
      for (const Mode mode : modes)
        for (const std::string pass : {"forward", "backward_data", "backward_weight", "backward"}) {
          const Cost cost = contraction_cost(pixels * c_in, c_out * (c_in + 1), pixels * c_out,
                                             pixels * c_in * c_out, pass, mode);
          std::vector<Impl> impls{{.name = to_string(setting.device.type) + ".auto"}};
          for (const std::string& row : rows_of(setting, p, pass, mode))
            impls.push_back(forced(row, {"pointwise." + pass}));
          for (const Impl& impl : impls)
            add(setting, {.suite = "pointwise",
                          .name = p.name,
                          .pass = pass,
                          .mode = mode,
                          .impl = impl,
                          .bytes = cost.bytes,
                          .flops = cost.flops,
                          .threads = threads,
                          .make = [=](const Context& context) {
                            return make_workload(context, p, pass, mode);
                          }});
        }
    }
}

}  // namespace zerone::bench
