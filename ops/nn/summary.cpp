#include <zerone/ops/nn/summary.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <zerone/ops/implementation.h>
#include <zerone/ops/selection.h>

namespace zerone::nn {
namespace {

std::int64_t count_nonzeros(const Tensor& x) {
  const std::vector<double> values = x.to(DType::f64).to_vector<double>();
  return x.numel() - std::count(values.begin(), values.end(), 0.0);
}

}  // namespace

std::vector<LayerSummary> summarize(Module& model, const Tensor& x) {
  std::vector<LayerSummary> layers;
  std::map<const Module*, std::size_t> places;
  std::vector<Module*> modules;
  model.for_each_module([&](const std::string& path, const Module& module) {
    LayerSummary layer{.path = path, .description = module.description(), .output = {}, .rows = {}};
    for (const auto& [name, parameter] : module.members().parameters) {
      if (!parameter.defined()) continue;
      layer.parameters += parameter.value().numel();
      layer.nonzeros += count_nonzeros(parameter.value());
    }
    places.emplace(&module, layers.size());
    layers.push_back(std::move(layer));
    modules.push_back(const_cast<Module*>(&module));  // the model is not const
  });

  struct Unhook {
    std::vector<Module*>& modules;
    ~Unhook() {
      for (Module* module : modules) module->set_forward_hook({});
    }
  } unhook{modules};
  // Modules finish from the inside out: what ran since another finished is the module's own.
  auto& log = x.context().state().extension<detail::SelectionLog>();
  std::size_t told = 0;
  for (Module* module : modules)
    module->set_forward_hook([&, module](const Var&, const Var& y) {
      LayerSummary& layer = layers[places.at(module)];
      layer.output = y.shape();
      for (; told < log.sink->size(); ++told)
        layer.rows.push_back((*log.sink)[told].op + "/" + (*log.sink)[told].chosen);
    });
  (void)explain(x.context(), [&] { (void)model(x); });
  return layers;
}

std::string to_string(const std::vector<LayerSummary>& layers) {
  std::vector<std::array<std::string, 6>> lines{
      {"module", "layer", "output", "parameters", "density", "ran"}};
  std::int64_t parameters = 0, nonzeros = 0;
  for (const LayerSummary& layer : layers) {
    parameters += layer.parameters;
    nonzeros += layer.nonzeros;
    lines.push_back({layer.path.empty() ? "(model)" : layer.path, layer.description,
                     layer.output.rank() == 0 ? "-" : zerone::to_string(layer.output),
                     fmt::format("{}", layer.parameters),
                     layer.parameters == 0 ? "" : fmt::format("{:.1f} %", 100 * layer.density()),
                     fmt::format("{}", fmt::join(layer.rows, ", "))});
  }
  const LayerSummary total{.path = "",
                           .description = "",
                           .output = {},
                           .parameters = parameters,
                           .nonzeros = nonzeros,
                           .rows = {}};
  lines.push_back({"total", "", "", fmt::format("{}", parameters),
                   fmt::format("{:.1f} %", 100 * total.density()), ""});

  std::array<std::size_t, 6> widths{};
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const auto& line : lines) {
    std::string row =
        fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>{}}  {:>{}}  {}", line[0], widths[0], line[1],
                    widths[1], line[2], widths[2], line[3], widths[3], line[4], widths[4], line[5]);
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace zerone::nn
