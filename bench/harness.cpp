#include "bench/harness.h"

#include <benchmark/benchmark.h>

#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>

namespace zerone::bench {

const std::vector<std::string> conv2d_operations = {"conv2d.forward", "conv2d.backward_data",
                                                    "conv2d.backward_weight"};
const std::vector<std::string> pointwise_operations = {
    "pointwise.forward", "pointwise.backward_data", "pointwise.backward_weight"};

Impl forced(std::string row, const std::vector<std::string>& operations) {
  Impl impl{.name = row};
  for (const std::string& operation : operations) impl.forced.emplace_back(operation, row);
  return impl;
}

std::vector<Mode> peer_modes(const Setting& setting) {
  if (!setting.cuda()) return {{}};
  return {{}, {DType::f32, Math::tf32}, {DType::bf16, Math::bf16}};
}

double tolerance_of(Mode mode) {
  if (mode.storage == DType::bf16) return 1.5e-2;
  if (mode.storage == DType::f16) return 2e-3;
  switch (mode.math) {
    case Math::strict:
    case Math::fp32: return 2e-5;
    case Math::tf32:
    case Math::fp16: return 2e-3;
    case Math::bf16: return 1.5e-2;
  }
  return 0;
}

// --- contexts -----------------------------------------------------------------------------------

namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

std::map<std::string, Context> contexts;  // emptied before the program ends

/// One context for each way of choosing implementations, so that plans are tuned once.
const Context& context_for(const Setting& setting, const Impl& impl, int threads) {
  std::string key = fmt::format("{} {}", threads, static_cast<int>(impl.zero_skip));
  for (const auto& [operation, row] : impl.forced) key += fmt::format(" {}={}", operation, row);
  auto it = contexts.find(key);
  if (it == contexts.end()) {
    ContextOptions options;
    options.zero_skip = impl.zero_skip;
    options.threads = threads;
    it = contexts.emplace(key, Context(setting.device, options)).first;
    for (const auto& [operation, row] : impl.forced) it->second.force(operation, row);
  }
  return it->second;
}

const Context& reference_context(const Setting& setting) {
  Impl impl{.name = "reference", .zero_skip = ZeroSkip::off};
  const std::string row = to_string(setting.device.type) + ".reference";
  for (const auto* operations : {&conv2d_operations, &pointwise_operations})
    for (const std::string& operation : *operations) impl.forced.emplace_back(operation, row);
  return context_for(setting, impl, 0);
}

// --- check --------------------------------------------------------------------------------------

using Values = std::vector<std::vector<double>>;

Tensor part(const Tensor& x, std::int64_t checked) {
  return checked > 0 && checked < x.size(0) ? x.slice(0, 0, checked) : x;
}

Values values_of(const Tensors& results, const std::vector<std::int64_t>& checked) {
  Values values;
  for (std::size_t i = 0; i < results.size(); ++i)
    values.push_back(part(results[i], checked[i]).to(DType::f64).to_vector<double>());
  return values;
}

const Values& reference_values(const Setting& setting, const Workload& work) {
  static std::map<std::string, Values> known;
  const auto it = known.find(work.same_values);
  if (it != known.end() && !work.same_values.empty()) return it->second;
  const Context& context = reference_context(setting);
  Tensors operands;
  for (const Operand& operand : work.operands)
    operands.push_back(
        part(operand.tensor, operand.checked).contiguous().to(context).to(DType::f64));
  return known.insert_or_assign(work.same_values, values_of(work.compute(operands), work.checked))
      .first->second;
}

/// max |result - reference| / max |reference| over all results.
double check(const Setting& setting, const Workload& work) {
  const Values& wanted = reference_values(setting, work);
  Tensors operands;
  for (const Operand& operand : work.operands) {
    Tensor tensor = operand.tensor;
    if (work.check_part_alone) {
      tensor = part(tensor, operand.checked);
    } else if (operand.seed && operand.checked < tensor.size(0)) {
      tensor = tensor.clone();
      tensor.slice(0, operand.checked, tensor.size(0)).fill_(0);
    }
    operands.push_back(tensor);
  }
  const Values found = values_of(work.compute(operands), work.checked);
  double worst = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    double error = 0, largest = 0;
    for (std::size_t k = 0; k < wanted[i].size(); ++k) {
      const double difference = std::abs(found[i][k] - wanted[i][k]);
      if (!(difference <= error)) error = difference;  // NaN stays
      largest = std::max(largest, std::abs(wanted[i][k]));
    }
    const double relative = largest > 0 ? error / largest : error;
    if (!(relative <= worst)) worst = relative;
  }
  return worst;
}

// --- timing -------------------------------------------------------------------------------------

struct Times {
  double median_ms = 0, min_ms = 0;
};

Times summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t middle = samples.size() / 2;
  return {samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2,
          samples.front()};
}

int repeats(double ms, double budget_ms, int least, int most) {
  return std::clamp(static_cast<int>(budget_ms / std::max(ms, 1e-4)), least, most);
}

double once_by_events(const Context& context, const std::function<void()>& work) {
  return time_work(context, work, {.warmup = 0, .samples = 1}).median_ms;
}

double once_by_clock(const Context& context, const std::function<void()>& work) {
  return time_wall(context, work, {.warmup = 0, .samples = 1}).median_ms;
}

/// Written before each sample: evicts every cache and, on a GPU, keeps the stream busy while the
/// host enqueues the sample, so that no launch gap is measured.
Tensor make_sweep(const Context& context) {
  const std::int64_t bytes =
      context.device().is_cuda() ? std::int64_t{512} << 20 : std::int64_t{128} << 20;
  return Tensor::empty(context, {bytes / 4});
}

/// Milliseconds of each replay of the step's graph.
Times time_graph(const Setting& setting, const Context& context, const std::function<void()>& step,
                 bool cold) {
  Graph graph = Graph::capture(context, step);
  const auto replay = [&] { graph.replay(); };
  replay();
  Tensor sweep = make_sweep(context);
  const auto sample = [&](bool behind_sweep) {
    if (behind_sweep) {
      sweep.fill_(1);
      if (!cold) replay();
    }
    return once_by_events(context, replay);
  };
  const double estimate = std::min(sample(cold), sample(cold));
  // Past 5 ms the gap before the first kernel is below 0.2 %.
  const bool behind_sweep = cold || estimate < 5;
  std::vector<double> samples(
      static_cast<std::size_t>(repeats(estimate, setting.budget_ms, setting.quick ? 3 : 5, 60)));
  for (double& time : samples) time = sample(behind_sweep);
  return summarize(std::move(samples));
}

/// Milliseconds of wall time of each call, the wait for the device included.
Times time_calls(const Setting& setting, const Context& context, const std::function<void()>& step,
                 bool cold) {
  Tensor sweep;
  if (cold) sweep = make_sweep(context);
  const auto sample = [&] {
    if (cold) sweep.fill_(1);
    return once_by_clock(context, step);
  };
  double estimate = sample();
  std::vector<double> samples{estimate};
  if (estimate < setting.budget_ms) {
    const int warmup = setting.cuda() ? 10 : 2;
    for (int i = 0; i < warmup; ++i) estimate = std::min(estimate, sample());
    samples.clear();
  }
  const double budget = setting.budget_ms * (setting.cuda() ? 4 : 1);
  const int count = repeats(estimate, budget, estimate > 1000 ? 1 : 3, cold ? 20 : 500);
  for (int i = 0; i < count; ++i) samples.push_back(sample());
  return summarize(std::move(samples));
}

// --- one row ------------------------------------------------------------------------------------

struct Totals {
  int measured = 0, rejected = 0, failed = 0;
  double tune_seconds = 0;
};
Totals totals;

/// Lets the context choose, and tune, the implementations of `step`; whether it tuned.
bool choose(const Setting& setting, Context context, const Impl& impl,
            const std::function<void()>& step) {
  step();
  context.synchronize();  // a census of zeros has arrived
  const auto start = Clock::now();
  step();
  context.synchronize();
  const bool slow = Seconds(Clock::now() - start).count() > 1;
  if (!impl.tune || slow || totals.tune_seconds >= setting.tune_seconds) return false;
  const auto tuning = Clock::now();
  tune(context, step);
  context.synchronize();
  totals.tune_seconds += Seconds(Clock::now() - tuning).count();
  return true;
}

void run(benchmark::State& state, const std::string& name, const Setting& setting, const Case& row,
         bool cold, const MoreCounters& more) {
  Times times;
  double max_error = 0;
  bool tuned = false;
  std::map<std::string, double> counters;
  Context context = context_for(setting, row.impl, row.threads);
  try {
    {
      Workload work = row.make(context);
      Tensors operands, results;
      for (const Operand& operand : work.operands) operands.push_back(operand.tensor);
      const auto step = [&] {
        results = work.compute(operands);
        for (const Tensor& result : results) (void)result.data();  // known zeros are written
      };
      tuned = choose(setting, context, row.impl, step);
      results.clear();
      max_error = check(setting, work);
      if (!(max_error <= work.tolerance))
        throw Error(fmt::format("error {:.3g} of the largest value; at most {:.3g} is allowed",
                                max_error, work.tolerance));
      const bool by_graph = setting.cuda() && !row.impl.eager;
      times = by_graph ? time_graph(setting, context, step, cold)
                       : time_calls(setting, context, step, cold);
      if (more) counters = more(context, step);
      context.synchronize();
    }
    if (row.bytes > 1e8) context.empty_cache();
  } catch (const SelectionError& error) {  // the row found out while planning
    ++totals.rejected;
    for (auto _ : state) state.SetIterationTime(0);
    state.SkipWithError(error.what());
    return;
  } catch (const std::exception& error) {
    ++totals.failed;
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    for (auto _ : state) state.SetIterationTime(0);
    state.SkipWithError(error.what());
    return;
  }
  ++totals.measured;
  for (auto _ : state) state.SetIterationTime(times.median_ms * 1e-3);
  state.counters["median_ms"] = times.median_ms;
  state.counters["min_ms"] = times.min_ms;
  state.counters["bytes"] = row.bytes;
  state.counters["flops"] = row.flops;
  state.counters["max_error"] = max_error;
  state.counters["tuned"] = tuned ? 1 : 0;
  for (const auto& [counter, value] : counters) state.counters[counter] = value;
}

void register_row(const Setting& setting, const Case& row, bool cold, const MoreCounters& more) {
  const std::string name =
      fmt::format("{}/{}{}{}/{}/{}/{}/{}", row.suite, row.name, cold ? "_cold" : "",
                  setting.cuda() ? "" : fmt::format("_t{}", row.threads), row.pass, row.impl.name,
                  to_string(row.mode.storage), to_string(row.mode.math));
  benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { run(state, name, setting, row, cold, more); })
      ->Iterations(1)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace

void add(const Setting& setting, Case row, const MoreCounters& more) {
  if (row.threads == 0) row.threads = setting.threads.front();
  register_row(setting, row, false, more);
  if (setting.cold && !row.impl.eager) register_row(setting, row, true, more);
}

// --- costs and data -----------------------------------------------------------------------------

Cost contraction_cost(double x, double w, double y, double macs, std::string_view pass, Mode mode) {
  const double once = x + w + y;
  double sweeps = 1, products = 1;
  if (pass == "backward") sweeps = products = 2;
  if (pass == "forward_backward") sweeps = products = 3;
  return {sweeps * once * static_cast<double>(size_of(mode.storage)), 2 * macs * products};
}

Tensor normal(const Context& context, const Shape& shape, DType dtype, std::uint64_t seed) {
  Context(context).seed(seed);
  return Tensor::normal(context, shape, 0, 1, dtype);
}

Tensor normal_like(const Tensor& like, std::uint64_t seed) {
  Tensor values = normal(like.context(), like.shape(), like.dtype(), seed);
  Tensor result = Tensor::empty_like(like);
  result.copy_(values);
  return result;
}

Tensor conv_weight(const Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
                   std::string_view pattern, double fraction) {
  const auto c_out = shape[0], c_in = shape[1], taps = shape[2] * shape[3];
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> values(
      0, static_cast<float>(std::sqrt(2.0 / static_cast<double>(c_in * taps))));
  std::uniform_real_distribution<double> chance;
  std::map<std::array<std::int64_t, 3>, bool> zero_parts;
  const auto zero_part = [&](std::array<std::int64_t, 3> which) {
    const auto it = zero_parts.find(which);
    return it != zero_parts.end()
               ? it->second
               : zero_parts.emplace(which, chance(engine) < fraction).first->second;
  };
  std::vector<float> host(static_cast<std::size_t>(shape.numel()));
  std::size_t at = 0;
  for (std::int64_t k = 0; k < c_out; ++k)
    for (std::int64_t c = 0; c < c_in; ++c)
      for (std::int64_t tap = 0; tap < taps; ++tap, ++at) {
        bool zero = pattern == "all";
        if (pattern == "scattered") zero = chance(engine) < fraction;
        if (pattern == "filter") zero = zero_part({k, 0, 0});
        if (pattern == "channel") zero = zero_part({c, 0, 0});
        if (pattern == "block") zero = zero_part({k / 16, c / 8, tap});
        const float value = values(engine);
        host[at] = zero ? 0.0f : value;
      }
  return Tensor::from(context, shape, host).to(dtype);
}

std::vector<std::vector<std::string>> shape_lines(const Setting& setting, const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(ZERONE_BENCH_FOLDER) / "shapes";
  std::filesystem::path path = folder / (name + "_full.txt");
  if (!setting.full || !std::filesystem::exists(path)) path = folder / (name + ".txt");
  std::ifstream file(path);
  if (!file) throw FileError(fmt::format("[bench] {}: cannot be opened", path.string()));
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::vector<std::string> fields;
    for (std::string word; words >> word;) fields.push_back(word);
    if (!fields.empty()) lines.push_back(std::move(fields));
  }
  return lines;
}

Tensor channels_last(const Tensor& x, int axis) {
  std::vector<int> axes;
  for (int i = 0; i < x.rank(); ++i)
    if (i != axis) axes.push_back(i);
  axes.push_back(axis);
  return x.permute(std::span<const int>(axes));
}

Tensors pointwise_gradients(const Tensor& x, const Tensor& w, const Tensor& dy, int axis, Math math,
                            bool data, bool weight) {
  Tensors results;
  const Tensor dy_last = channels_last(dy, axis);
  if (data) {
    Tensor dx = Tensor::empty_like(x), dx_last = channels_last(dx, axis);
    pointwise_backward_data(dy_last, w, dx_last, math);
    results.push_back(dx);
  }
  if (weight) {
    Tensor dw = Tensor::empty_like(w), db = Tensor::empty(w.context(), {w.size(0)}, w.dtype());
    pointwise_backward_weight(channels_last(x, axis), dy_last, dw, db, math);
    results.push_back(dw);
    results.push_back(db);
  }
  return results;
}

// --- the program --------------------------------------------------------------------------------

namespace {

/// First line that a command prints, or nothing.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((command + " 2>/dev/null").c_str(), "r"),
                                                   pclose);
  char line[256] = "";
  if (!pipe || !std::fgets(line, sizeof line, pipe.get())) return {};
  const std::string text = line;
  return text.substr(0, text.find_last_not_of(" \r\n") + 1);
}

std::string commit() {
  if (const char* given = std::getenv("ZERONE_COMMIT"); given && *given) return given;
  if (const std::string built = ZERONE_COMMIT; !built.empty()) return built;
  return output_of("git -C '" ZERONE_BENCH_FOLDER "' rev-parse HEAD");
}

std::string match(const std::string& text, const char* pattern) {
  std::smatch found;
  return std::regex_search(text, found, std::regex(pattern)) ? found[1].str() : "";
}

void add_header(const Setting& setting, const std::string& command) {
  const auto put = [](const char* key, const std::string& value) {
    if (!value.empty()) benchmark::AddCustomContext(key, value);
  };
  const Context cpu(Device::cpu());
  const std::string versions = library_versions(setting.device);
  put("machine", setting.cuda() ? Context(setting.device).device_name() : cpu.device_name());
  put("cpu", cpu.device_name());
  put("device", to_string(setting.device.type));
  if (setting.cuda()) {
    put("driver", output_of("nvidia-smi --query-gpu=driver_version --format=csv,noheader"));
    put("cuda", match(versions, "CUDA runtime ([0-9.]+)"));
    put("cudnn", match(versions, "cuDNN ([0-9.]+)"));
  }
  put("libraries", versions);
#if defined(__clang__)
  put("compiler", "clang " __clang_version__);
#else
  put("compiler", "g++ " __VERSION__);
#endif
  put("commit", commit());
  put("command", command);
  put("zerone", version());
}

constexpr const char* usage =
    "  --device auto|cpu|cuda  where to run (default: a GPU if there is one)\n"
    "  --threads 1,2           CPU thread counts (default: all that may be used)\n"
    "  --quick                 fewer samples and cases\n"
    "  --full                  the *_full.txt shape files\n"
    "  --cold                  also rows with cold caches, case suffix _cold\n"
    "  --reference             also rows of the reference implementations\n"
    "  --budget-ms N           timed work a row (default 25; CPU 400; a fifth with --quick)\n"
    "  --tune-seconds N        tuning in all (default 30); later rows are chosen by rule\n";

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "bench: %s\n%s", message.c_str(), usage);
  std::exit(2);
}

double positive(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0)) fail(option + " " + text + ": want a number");
  return value;
}

Setting parse(int argc, char** argv) {
  Setting setting;
  std::string device = "auto", threads;
  double budget = 0;
  setting.tune_seconds = 30;
  for (int i = 1; i < argc; ++i) {
    std::string option = argv[i], value;
    const std::size_t equals = option.find('=');
    const bool takes_value = !(option == "--quick" || option == "--full" || option == "--cold" ||
                               option == "--reference" || option == "--help");
    if (equals != std::string::npos) {
      value = option.substr(equals + 1);
      option.resize(equals);
    } else if (takes_value && i + 1 < argc) {
      value = argv[++i];
    }
    if (option == "--device")
      device = value;
    else if (option == "--threads")
      threads = value;
    else if (option == "--budget-ms")
      budget = positive(option, value);
    else if (option == "--tune-seconds")
      setting.tune_seconds = positive(option, value);
    else if (option == "--quick")
      setting.quick = true;
    else if (option == "--full")
      setting.full = true;
    else if (option == "--cold")
      setting.cold = true;
    else if (option == "--reference")
      setting.reference = true;
    else if (option == "--help") {
      std::printf("%s", usage);
      std::exit(0);
    } else
      fail("unknown option " + option);
  }
  if (device != "auto" && device != "cpu" && device != "cuda")
    fail("--device " + device + ": want auto, cpu or cuda");
  const bool has_cuda = cuda_device_count() > 0;
  if (device == "cuda" && !has_cuda) fail("--device cuda: " + why_no_cuda());
  if (device == "cuda" || (device == "auto" && has_cuda)) setting.device = Device::cuda();
  std::istringstream list(threads);
  for (std::string count; std::getline(list, count, ',');)
    setting.threads.push_back(static_cast<int>(positive("--threads", count)));
  if (setting.cuda()) setting.threads = {0};
  if (setting.threads.empty()) setting.threads = {Context(Device::cpu()).threads()};
  if (!setting.cuda() && *std::min_element(setting.threads.begin(), setting.threads.end()) < 1)
    fail("--threads " + threads + ": want numbers of at least 1");
  setting.budget_ms =
      budget > 0 ? budget : (setting.cuda() ? 25.0 : 400.0) / (setting.quick ? 5 : 1);
  return setting;
}

int run_program(int argc, char** argv) {
  std::string command = std::filesystem::path(argv[0]).is_absolute()
                            ? std::filesystem::path(argv[0]).filename().string()
                            : argv[0];
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  benchmark::Initialize(&argc, argv);
  const Setting setting = parse(argc, argv);
  add_header(setting, command);
  register_cases(setting);
  const auto start = Clock::now();
  const std::size_t matched = benchmark::RunSpecifiedBenchmarks();
  std::fprintf(stderr,
               "%d rows measured, %d rejected by their implementation, %d failed; %.1f s, "
               "of which tuning %.1f s\n",
               totals.measured, totals.rejected, totals.failed,
               Seconds(Clock::now() - start).count(), totals.tune_seconds);
  benchmark::Shutdown();
  contexts.clear();
  if (matched == 0) std::fprintf(stderr, "bench: no benchmark matches\n");
  return totals.failed > 0 || matched == 0 ? 1 : 0;
}

}  // namespace
}  // namespace zerone::bench

int main(int argc, char** argv) {
  try {
    return zerone::bench::run_program(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench: %s\n", error.what());
    return 2;
  }
}
