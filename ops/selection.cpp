#include <zerone/ops/selection.h>

#include <fmt/format.h>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include <zerone/core/error.h>
#include <zerone/ops/implementation.h>
#include <zerone/ops/reduce.h>
#include <zerone/version.h>
#if ZERONE_CUDA
#include <zerone/ops/vendor/handles.h>
#endif
#if ZERONE_ONEDNN
#include <zerone/ops/vendor/onednn_conv2d.h>
#endif

namespace zerone {
namespace detail {

void throw_no_row(const char* op, const std::string& row, DeviceType device,
                  std::span<const Candidate> rows) {
  std::string known;
  for (const Candidate& candidate : rows)
    known += fmt::format("{}{}{}", known.empty() ? "" : ", ", candidate.name,
                         row.empty() ? ": " + candidate.reason : "");
  if (row.empty())
    throw SelectionError(
        fmt::format("[{}] no implementation on {} runs this ({})", op, to_string(device), known));
  throw SelectionError(fmt::format("[{}] there is no implementation '{}' on {}; there are: {}", op,
                                   row, to_string(device), known));
}

void throw_forced_rejects(const char* op, const std::string& row, const std::string& problem,
                          const std::string& reason) {
  throw SelectionError(
      fmt::format("[{}] '{}' was asked for but cannot run {}: {}", op, row, problem, reason));
}

void throw_unplanned_capture(const char* op, const std::string& problem) {
  throw GraphError(fmt::format("[{}] no plan exists for {}; run the work once before capturing it",
                               op, problem));
}

bool is_reference(std::string_view name) {
  return name.ends_with(".reference");
}

bool comparable(const Tensor& result) {
  return result.dtype() == DType::f32 || result.dtype() == DType::f64;
}

std::string disagreement(const Tensor& result, const Tensor& expected, Math math) {
  if (!expected.defined()) return {};
  // Root mean square of the difference, of that of the expected values. FMA loops in another order
  // stay below 3e-5 for a million terms; TF32 inputs give 3e-4, bf16 inputs 3e-3.
  const bool exact = math == Math::strict || math == Math::fp32;
  const double tolerance = result.dtype() == DType::f64 ? 1e-12 : exact ? 2e-4 : 2e-2;
  auto& log = result.context().state().extension<SelectionLog>();
  std::vector<Explanation>* const sink = std::exchange(log.sink, nullptr);  // not the user's work
  const Tensor zero = Tensor::zeros(expected.context(), Shape{}, expected.dtype());
  const auto rms = [](const Tensor& a, const Tensor& b) {
    return std::sqrt(mean_square_error(a, b).value().item());
  };
  const double size = rms(expected, zero.expand(expected.shape()));
  const double error = rms(result, expected);
  log.sink = sink;
  if (error <= tolerance * size || std::isnan(size)) return {};
  return fmt::format("wrong: differs from the reference row by {:.1e} (relative, RMS)",
                     error / size);
}

}  // namespace detail

namespace {

/// Plans are only good where they were made.
nlohmann::json fingerprint(const Context& context) {
  return {{"zerone", version()},
          {"device", context.device_name()},
          {"libraries", library_versions(context.device())}};
}

}  // namespace

std::string library_versions(const Device& device) {
#if ZERONE_CUDA
  if (device.is_cuda()) return vendor::cuda_library_versions();
#else
  (void)device;
#endif
#if ZERONE_ONEDNN
  return vendor::onednn_version();
#else
  return "none";
#endif
}

std::string to_string(const Explanation& e) {
  std::string text = fmt::format("{} {}\n  ran {}", e.op, e.problem, e.chosen);
  if (!e.detail.empty()) text += fmt::format(" ({})", e.detail);
  text += fmt::format(", scratch {} B, copied {} B{}\n", e.scratch_bytes, e.copied_bytes,
                      e.tuned ? ", tuned" : "");
  for (const Candidate& c : e.candidates) {
    text += fmt::format("  {} {}", c.reason.empty() ? "+" : "-", c.name);
    if (c.microseconds > 0) text += fmt::format(" {:.2f} us", c.microseconds);
    text += c.reason.empty() ? "\n" : ": " + c.reason + "\n";
  }
  return text;
}

std::vector<Explanation> explain(const Context& context, const std::function<void()>& work) {
  std::vector<Explanation> explanations;
  auto& log = context.state().extension<detail::SelectionLog>();
  struct Restore {
    detail::SelectionLog& log;
    std::vector<Explanation>* saved;
    ~Restore() { log.sink = saved; }
  } restore{log, log.sink};
  log.sink = &explanations;
  work();
  return explanations;
}

void tune(const Context& context, const std::function<void()>& work) {
  ContextState& state = context.state();
  struct Restore {
    ContextState& state;
    bool saved;
    ~Restore() { state.tuning = saved; }
  } restore{state, state.tuning};
  state.tuning = true;
  work();
}

void save_plans(const Context& context, const std::string& path) {
  nlohmann::json plans = nlohmann::json::array();
  for (const auto& [key, choice] : context.state().extension<detail::SelectionLog>().chosen)
    plans.push_back(
        {{"problem", key}, {"row", choice.row}, {"token", choice.token}, {"tuned", choice.tuned}});
  const nlohmann::json file = {{"made_with", fingerprint(context)}, {"plans", plans}};
  std::ofstream out(path, std::ios::trunc);
  out << file.dump(1) << '\n';
  out.close();
  if (!out) throw FileError(fmt::format("[plans] {}: cannot be written", path));
}

void load_plans(const Context& context, const std::string& path) {
  std::ifstream in(path);
  if (!in) throw FileError(fmt::format("[plans] {}: cannot be opened", path));
  ContextState& state = context.state();
  auto& log = state.extension<detail::SelectionLog>();
  try {
    const nlohmann::json file = nlohmann::json::parse(in);
    if (file.at("made_with") != fingerprint(context))
      throw FileError(fmt::format("[plans] {}: made with {}, this is {}", path,
                                  file.at("made_with").dump(), fingerprint(context).dump()));
    std::unordered_map<std::string, detail::SelectionLog::Choice> loaded;
    for (const nlohmann::json& plan : file.at("plans"))
      loaded[plan.at("problem").get<std::string>()] = {plan.at("row").get<std::string>(),
                                                       plan.at("token").get<std::string>(),
                                                       plan.at("tuned").get<bool>()};
    log.loaded = std::move(loaded);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // not JSON, not the members asked for, not a file
    throw FileError(fmt::format("[plans] {}: {}", path, error.what()));
  }
  ++state.selection_epoch;
}

}  // namespace zerone
