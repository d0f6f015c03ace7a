// Experiment 1: does a convolution network run faster when its weights are zero?
//
// Network: conv 3->64, then ten times (conv 64->64, ReLU); every conv 3x3, stride 1, padding 1, no
// bias. Two ways to run it: "dense" is the vendor's library, which never looks at the weights;
// "zerone" skips what is zero where that is expected to be faster. See docs/experiments.md.

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "options.h"
#include "reference_check.h"
#include "report.h"

using namespace zerone;

namespace {

constexpr int conv_count = 11;
constexpr std::int64_t width = 64;

struct Options : options::Timed {
  int batch = 1;
  std::string math = "fp32";
  std::vector<std::string> weights{"uniform", "kaiming", "zeros50", "zeros90", "zeros99", "zero"};
};

// --- weights ------------------------------------------------------------------------------------

struct WeightKind {
  const char* key;
  const char* label;
  double zero_share;
};
constexpr WeightKind weight_kinds[] = {
    {"uniform", "uniform [0, 1)", 0}, {"kaiming", "Kaiming normal", 0},
    {"zeros50", "50 % zeros", 0.5},   {"zeros90", "90 % zeros", 0.9},
    {"zeros99", "99 % zeros", 0.99},  {"zero", "all zero", 1},
};

/// Values of all layers, the same for every device and path.
struct Weights {
  WeightKind kind;
  std::vector<std::vector<float>> layers;
  std::vector<double> zero_share;  // of each layer, as drawn
};

Weights draw(const WeightKind& kind, std::uint64_t seed) {
  Context host(Device::cpu(), {.seed = seed, .stream = nullptr});
  Weights weights{kind, {}, {}};
  for (int i = 0; i < conv_count; ++i) {
    const std::int64_t c_in = i == 0 ? 3 : width;
    const Shape shape{width, c_in, 3, 3};
    const bool uniform = std::string_view(kind.key) == "uniform";
    // Kept weights are scaled so that what a layer puts out is as large as without zeros.
    const double kept = 1 - kind.zero_share;
    const double stddev = std::sqrt(2 / (9 * static_cast<double>(c_in) * std::max(kept, 1e-9)));
    std::vector<float> values =
        (uniform ? Tensor::uniform(host, shape) : Tensor::normal(host, shape, 0, stddev))
            .to_vector<float>();
    const std::vector<float> lot = Tensor::uniform(host, shape).to_vector<float>();
    for (std::size_t k = 0; k < values.size(); ++k)
      if (lot[k] < static_cast<float>(kind.zero_share)) values[k] = 0;
    weights.zero_share.push_back(
        static_cast<double>(std::count(values.begin(), values.end(), 0.0f)) /
        static_cast<double>(values.size()));
    weights.layers.push_back(std::move(values));
  }
  return weights;
}

// --- one network on one path --------------------------------------------------------------------

class Network {
 public:
  Network(const Context& context, const Weights& weights, const Tensor& x)
      : context_(context), weights_(weights), x_(x) {
    for (int i = 0; i < conv_count; ++i) {
      auto conv = net_.emplace<nn::Conv2d>(
          context, nn::Conv2dOptions{.in_channels = i == 0 ? 3 : width,
                                     .out_channels = width,
                                     .kernel = 3,
                                     .padding = 1,
                                     .bias = false,
                                     .activation = i == 0 ? Activation::none : Activation::relu,
                                     .init = nn::Init::zeros,
                                     .dtype = x.dtype()});
      Tensor& value = conv->weight.value();
      value.copy_(
          Tensor::from(context, value.shape(), weights.layers[static_cast<std::size_t>(i)]));
      layers_.push_back({conv->weight, {}, 1, i > 0});
    }
    nn::prepare(net_);
    seed_ = Tensor::full(context, {x.size(0), width, x.size(2), x.size(3)}, 1, x.dtype());
  }

  const Context& context() const { return context_; }
  const Weights& weights() const { return weights_; }
  const Tensor& x() const { return x_; }

  /// One pass. What it computes is in memory when the device is done with it: a result that is
  /// known to be zero is written too.
  void pass(bool backward) {
    result_ = Tensor();
    if (!backward) {
      result_ = net_(x_).value();
      (void)result_.data();
      return;
    }
    net_.zero_grad();
    Tape tape;
    const Var y = net_(tape.constant(x_));
    tape.backward(y, {.seed = seed_});
    result_ = y.value();
    (void)result_.data();
    for (const ReferenceLayer& layer : layers_) (void)layer.weight.grad().data();
  }

  /// Compares a pass at full batch size with the reference, on the first and the last image.
  Agreement check(ReferenceCheck& reference, double tolerance) {
    net_.zero_grad();
    Tape tape;
    Tested tested{first_and_last(x_), {}, {}, {}};
    Var h = tape.constant(x_);
    for (const auto& module : net_.modules()) {
      h = (*module)(h);
      tested.activations.push_back(first_and_last(h.value()));
    }
    Tensor seed = Tensor::empty_like(h.value());
    seed_first_and_last(seed);
    tape.backward(h, {.seed = seed});
    tested.seed = first_and_last(seed);
    return reference.compare(layers_, tested, tolerance);
  }

  /// Runs forward and backward once and makes sure that the backward did its work: a gradient for
  /// each weight, and each pass of each layer run.
  std::vector<Explanation> explain_pass() {
    const std::vector<Explanation> ran = explain(context_, [this] { pass(true); });
    const auto count = [&](const char* op) {
      return std::count_if(ran.begin(), ran.end(),
                           [&](const Explanation& e) { return e.op == op; });
    };
    // The image wants no gradient, so the first layer has no backward-data pass.
    const bool complete = count("conv2d.forward") == conv_count &&
                          count("conv2d.backward_data") == conv_count - 1 &&
                          count("conv2d.backward_weight") == conv_count;
    for (const ReferenceLayer& layer : layers_)
      if (!complete || !layer.weight.grad().defined())
        throw options::Disagreement(fmt::format(
            "[{}] the backward pass launched nothing, or not all of it, for weights '{}'",
            context_.name(), weights_.kind.label));
    return ran;
  }

  void release() {
    result_ = Tensor();
    net_.zero_grad();
  }

 private:
  Context context_;
  const Weights& weights_;
  Tensor x_, seed_, result_;
  nn::Sequential net_;
  std::vector<ReferenceLayer> layers_;
};

/// Share of the multiplies of a forward pass, or of forward and backward, that did not happen.
double skipped_share(const std::vector<Explanation>& ran, const std::vector<double>& zero_share,
                     bool backward) {
  double all = 0, skipped = 0;
  std::size_t forward = 0, data = conv_count, weight = conv_count;
  for (const Explanation& e : ran) {
    std::size_t layer = 0;
    if (e.op == "conv2d.forward")
      layer = forward++;
    else if (backward && e.op == "conv2d.backward_data")
      layer = --data;
    else if (backward && e.op == "conv2d.backward_weight")
      layer = --weight;
    else
      continue;
    const double multiplies = layer == 0 ? 3 : width;  // up to a factor that all layers share
    all += multiplies;
    if (e.chosen.ends_with(".constant")) skipped += multiplies;
    if (e.chosen.ends_with(".zero_skip")) skipped += multiplies * zero_share[layer];
  }
  return all > 0 ? skipped / all : 0;
}

/// Bytes and FLOPs of all layers, with nothing skipped. The image wants no gradient.
report::Cost network_cost(const Tensor& x, bool backward) {
  const auto pixels = static_cast<double>(x.size(0) * x.size(2) * x.size(3));
  report::Cost cost;
  for (int i = 0; i < conv_count; ++i) {
    const double c_in = i == 0 ? 3 : width, w = 9 * c_in * width;
    const int sweeps = !backward ? 1 : i == 0 ? 2 : 3;
    for (int sweep = 0; sweep < sweeps; ++sweep)
      cost += report::contraction_cost(pixels * c_in, w, pixels * width, pixels * w, x.dtype());
  }
  return cost;
}

// --- measurement --------------------------------------------------------------------------------

enum Path { dense, automatic };
constexpr std::array<const char*, 2> path_names{"dense", "zerone"};
constexpr std::array<const char*, 2> pass_names{"forward", "forward + backward"};

struct Row {
  std::size_t weights = 0;
  int path = dense;
  bool backward = false, graph = false;
  std::vector<double> samples_ms;
  Timing timing;
  double skipped = 0;
  Agreement agreement;
  std::vector<report::Ran> ran;
};

/// Times one row once more: as many passes as fit into the budget, one at least.
void visit(Network& network, Row& row, double budget_ms, int trials) {
  const Context& context = network.context();
  const std::function<void()> pass = [&] { network.pass(row.backward); };
  pass();  // warm-up; and a step must have run eagerly before it is captured
  network.release();
  Graph graph;
  if (row.graph) graph = Graph::capture(context, pass);
  const std::function<void()> replay = [&] { graph.replay(); };
  // Samples of half a millisecond for replays: events tick every half microsecond.
  const auto sample = [&](int warmup) {
    return row.graph
               ? time_work(context, replay, {.warmup = warmup, .samples = 1, .sample_ms = 0.5})
               : time_wall(context, pass, {.warmup = warmup, .samples = 1});
  };
  const report::Stopwatch watch;
  for (int i = 0; i < trials && !report::interrupted(); ++i) {
    row.samples_ms.push_back(sample(i == 0 ? 1 : 0).median_ms);
    if (watch.milliseconds() > budget_ms) break;
  }
  row.timing = report::summarize(row.samples_ms);
  network.release();
}

struct DeviceResults {
  Device device;
  std::vector<Row> rows;
};

const Row* find(const std::vector<Row>& rows, std::size_t weights, int path, bool backward,
                bool graph) {
  for (const Row& row : rows)
    if (row.weights == weights && row.path == path && row.backward == backward &&
        row.graph == graph && !row.samples_ms.empty())
      return &row;
  return nullptr;
}

double median(const Row* row) {
  return row ? row->timing.median_ms : 0;
}

std::string cell(const Row* row) {
  return row ? report::number(row->timing.median_ms) : "-";
}

// --- tables -------------------------------------------------------------------------------------

void print_agreement(Device device, const std::vector<Weights>& weights,
                     const std::vector<Row>& rows) {
  report::heading(fmt::format("{}: agreement with the reference in f64", to_string(device)));
  report::Table table({"weights", "dense", "zerone", "dense", "zerone"});
  table.group("results", 2).group("weight gradients", 2);
  double tolerance = 0;
  for (std::size_t w = 0; w < weights.size(); ++w) {
    std::vector<std::string> cells{weights[w].kind.label};
    for (const bool gradients : {false, true})
      for (const Row& row : rows)
        if (row.weights == w && !row.backward && !row.graph) {
          cells.push_back(
              report::small(gradients ? row.agreement.gradients : row.agreement.forward));
          tolerance = row.agreement.tolerance;
        }
    table.row(std::move(cells));
  }
  table.print();
  report::paragraph(fmt::format(
      "Largest error of every layer's result and gradient, divided by the largest value; {:.1e} is "
      "allowed.",
      tolerance));
}

void print_times(const DeviceResults& results, const std::vector<Weights>& weights, bool graph) {
  const bool gpu = results.device.is_cuda();
  report::heading(fmt::format("{}{}: milliseconds a pass, median", to_string(results.device),
                              gpu ? (graph ? ", graph replay" : ", eager") : ""));
  report::Table table(
      {"weights", "dense", "zerone", "faster", "skipped", "dense", "zerone", "faster", "skipped"});
  table.group("forward", 4).group("forward + backward", 4);
  for (std::size_t w = 0; w < weights.size(); ++w) {
    std::vector<std::string> cells{weights[w].kind.label};
    for (const bool backward : {false, true}) {
      const Row* const on_dense = find(results.rows, w, dense, backward, graph);
      const Row* const on_own = find(results.rows, w, automatic, backward, graph);
      cells.push_back(cell(on_dense));
      cells.push_back(cell(on_own));
      cells.push_back(report::ratio(median(on_dense), median(on_own)));
      cells.push_back(on_own ? fmt::format("{:.0f} %", 100 * on_own->skipped) : "-");
    }
    table.row(std::move(cells));
  }
  table.print();
  report::paragraph(
      "faster: dense / zerone. skipped: share of the multiplies that zerone did not do.");
  std::vector<Timing> timings;
  for (const Row& row : results.rows)
    if (row.graph == graph && !row.samples_ms.empty()) timings.push_back(row.timing);
  report::note_noise(timings);
}

/// Published seconds a pass: {CPU, GPU} x {forward, "forward + backward"} x {uniform, zero}.
constexpr double published_seconds[2][2][2] = {{{0.0452, 0.0416}, {0.0429, 0.0424}},
                                               {{0.0045, 0.0034}, {0.0036, 0.0034}}};

nlohmann::json published_json() {
  nlohmann::json rows;
  for (const bool gpu : {false, true})
    for (const bool backward : {false, true})
      rows.push_back({{"device", gpu ? "gpu" : "cpu"},
                      {"pass", backward ? "forward+backward" : "forward"},
                      {"random_ms", 1e3 * published_seconds[gpu][backward][0]},
                      {"zero_ms", 1e3 * published_seconds[gpu][backward][1]}});
  return {{"source", "PyTorch, on a laptop GPU and its CPU"}, {"rows", rows}};
}

/// The claim under test, on the published figures, on the vendor's library and on zerone.
void print_claim(const std::vector<DeviceResults>& all, const std::vector<Weights>& weights) {
  const auto index = [&](const char* key) {
    for (std::size_t w = 0; w < weights.size(); ++w)
      if (std::string_view(weights[w].kind.key) == key) return static_cast<int>(w);
    return -1;
  };
  const int random = index("uniform") >= 0 ? index("uniform") : index("kaiming");
  const int zero = index("zero");
  if (random < 0 || zero < 0) return;

  report::heading("The claim: are zero weights faster than random ones?  (milliseconds)");
  report::Table table(
      {"", "random", "zero", "ratio", "random", "zero", "ratio", "random", "zero", "ratio"});
  table.group("published", 3).group("dense, here", 3).group("zerone, here", 3);
  for (const DeviceResults& results : all) {
    const bool gpu = results.device.is_cuda();
    for (const bool graph : {false, true}) {
      if (graph && !gpu) continue;
      for (const bool backward : {false, true}) {
        std::vector<std::string> cells{fmt::format("{}{}{}", gpu ? "GPU" : "CPU",
                                                   gpu ? (graph ? " graph" : " eager") : "",
                                                   backward ? ", fwd + bwd" : ", forward")};
        const double* const then = published_seconds[gpu][backward];
        cells.push_back(report::number(1e3 * then[0]));
        cells.push_back(report::number(1e3 * then[1]));
        cells.push_back(report::ratio(then[0], then[1]));
        for (const int path : {dense, automatic}) {
          const Row* const on_random =
              find(results.rows, static_cast<std::size_t>(random), path, backward, graph);
          const Row* const on_zero =
              find(results.rows, static_cast<std::size_t>(zero), path, backward, graph);
          cells.push_back(cell(on_random));
          cells.push_back(cell(on_zero));
          cells.push_back(report::ratio(median(on_random), median(on_zero)));
        }
        table.row(std::move(cells));
      }
    }
  }
  table.print();
  report::paragraph(fmt::format(
      "ratio: random / zero; random is {}. The published figures are PyTorch on other machines (a "
      "laptop GPU); their \"backward\" was never called, the GPU was not waited for, nothing was "
      "warmed up and the random case always ran first. Here every pass is waited for, the backward "
      "is real, and the rows take turns in both orders.",
      weights[static_cast<std::size_t>(random)].kind.label));
}

void print_choices(const DeviceResults& results, const std::vector<Weights>& weights) {
  report::heading(
      fmt::format("{}: what ran, and why not the rows before it", to_string(results.device)));
  std::vector<std::pair<std::string, std::vector<report::Ran>>> groups;
  for (const Row& row : results.rows)
    if (row.backward && !row.graph) {
      // The dense path does not look at the weights.
      if (row.path == dense && row.weights == 0) groups.emplace_back("dense, any weights", row.ran);
      if (row.path == automatic)
        groups.emplace_back(fmt::format("zerone, {}", weights[row.weights].kind.label), row.ran);
    }
  report::print_what_ran(groups);
}

// --- the experiment -----------------------------------------------------------------------------

Tensor make_input(const Context& context, const Options& o, DType dtype) {
  if (!o.input.empty())
    return options::load_input(
        context, o.input, dtype,
        [](const Shape& s) { return s.rank() == 4 && s[1] == 3 && s.numel() > 0; },
        "[n, 3, h, w], none of them 0");
  return Tensor::normal(context, {o.batch, 3, 32, 32}, 0, 1, dtype);
}

class Experiment {
 public:
  Experiment(const Options& o, Device device, const std::vector<Weights>& weights)
      : o_(o), weights_(weights) {
    results_.device = device;
    const ContextOptions context_options{.math = options::parse_math(o.math),
                                         .threads = o.threads,
                                         .seed = o.seed,
                                         .stream = nullptr};
    for (const ZeroSkip mode : {ZeroSkip::off, ZeroSkip::automatic}) {
      Context context(device, context_options);
      context.set_zero_skip(mode);
      const Tensor x = make_input(context, o, options::parse_dtype(o.dtype));
      for (const Weights& w : weights) networks_.emplace_back(context, w, x);
    }
    for (const int path : {dense, automatic})
      for (std::size_t w = 0; w < weights.size(); ++w)
        for (const bool graph : {false, true})
          for (const bool backward : {false, true})
            if (!graph || device.is_cuda())
              results_.rows.push_back({.weights = w,
                                       .path = path,
                                       .backward = backward,
                                       .graph = graph,
                                       .samples_ms = {},
                                       .timing = {},
                                       .skipped = 0,
                                       .agreement = {},
                                       .ran = {}});
  }

  Network& network(const Row& row) {
    return networks_[static_cast<std::size_t>(row.path) * weights_.size() + row.weights];
  }

  void tune_all() {
    if (!o_.tune.value_or(results_.device.is_cuda())) return;
    report::Progress progress(static_cast<int>(networks_.size()));
    for (Network& n : networks_) {
      if (report::interrupted()) return;
      progress.step(fmt::format("{}: timing implementations, {}", to_string(results_.device),
                                n.weights().kind.label));
      tune(n.context(), [&] { n.pass(true); });
    }
  }

  /// Before any time is taken. Throws Disagreement.
  void check() {
    ReferenceCheck reference(results_.device, o_.threads);
    const double allowed =
        tolerance(options::parse_dtype(o_.dtype), options::parse_math(o_.math), conv_count);
    report::Progress progress(static_cast<int>(networks_.size()));
    std::string faults;
    for (std::size_t w = 0; w < weights_.size(); ++w)
      for (const int path : {dense, automatic}) {
        if (report::interrupted()) return;
        progress.step(
            fmt::format("{}: checking against the reference, {}, {}", to_string(results_.device),
                        path_names[static_cast<std::size_t>(path)], weights_[w].kind.label));
        Network& n = networks_[static_cast<std::size_t>(path) * weights_.size() + w];
        const Agreement agreement = n.check(reference, allowed);
        const std::vector<Explanation> explanations = n.explain_pass();
        const std::vector<report::Ran> ran = report::what_ran(explanations);
        n.release();
        for (Row& row : results_.rows) {
          if (row.path != path || row.weights != w) continue;
          row.agreement = agreement;
          row.skipped = skipped_share(explanations, weights_[w].zero_share, row.backward);
          for (const report::Ran& one : ran)
            if (one.op.starts_with("conv2d") && (row.backward || one.op == "conv2d.forward"))
              row.ran.push_back(one);
        }
        if (!agreement.ok())
          faults += fmt::format("\n  {}, {}, {}: {} is off by {:.2e} (allowed: {:.2e})",
                                to_string(results_.device),
                                path_names[static_cast<std::size_t>(path)], weights_[w].kind.label,
                                agreement.worst, agreement.error(), agreement.tolerance);
      }
    progress.clear();
    print_agreement(results_.device, weights_, results_.rows);
    if (!faults.empty())
      throw options::Disagreement("results disagree with the reference:" + faults);
  }

  void profile() {
    constexpr int steps = 3;
    for (const Row& row : results_.rows)
      if (!row.graph) network(row).pass(row.backward);
    const ProfileWindow window;
    for (const Row& row : results_.rows) {
      if (row.graph) continue;
      const std::string name =
          fmt::format("{}/{}/{}", path_names[static_cast<std::size_t>(row.path)],
                      weights_[row.weights].kind.label, pass_names[row.backward]);
      for (int i = 0; i < steps; ++i) {
        const ProfileRange range(name.c_str());
        network(row).pass(row.backward);
      }
    }
    for (Network& n : networks_) Context(n.context()).synchronize();
    fmt::print("\n{}: ran {} profiled steps of each row; no times are taken under a profiler.\n",
               to_string(results_.device), steps);
  }

  void measure() {
    constexpr int visits = 4;  // forwards and backwards in turn, so that no row always comes first
    const int count = static_cast<int>(results_.rows.size());
    const double budget_ms = 1e3 * o_.time_budget;
    const int trials = (o_.trials + visits - 1) / visits;
    report::Progress progress(count * visits);
    const report::Stopwatch watch;
    for (int v = 0; v < visits; ++v) {
      if (v >= 2 && watch.milliseconds() > budget_ms) break;  // slow passes: both orders are done
      for (int i = 0; i < count && !report::interrupted(); ++i) {
        Row& row = results_.rows[static_cast<std::size_t>(v % 2 == 0 ? i : count - 1 - i)];
        progress.step(fmt::format("{}: {}, {}, {}{}", to_string(results_.device),
                                  path_names[static_cast<std::size_t>(row.path)],
                                  weights_[row.weights].kind.label, pass_names[row.backward],
                                  row.graph ? ", graph" : ""));
        visit(network(row), row, budget_ms / (count * visits), trials);
      }
    }
  }

  const DeviceResults& results() const { return results_; }
  report::Cost cost(bool backward) const { return network_cost(networks_.front().x(), backward); }

 private:
  const Options& o_;
  const std::vector<Weights>& weights_;
  std::vector<Network> networks_;  // [path][weights]
  DeviceResults results_;
};

/// Share of zeros among all weights of the network.
double zero_share(const Weights& weights) {
  double zeros = 0, all = 0;
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const auto count = static_cast<double>(weights.layers[i].size());
    zeros += weights.zero_share[i] * count;
    all += count;
  }
  return zeros / all;
}

nlohmann::json rows_to_json(const Experiment& experiment, const std::vector<Weights>& weights) {
  const DeviceResults& results = experiment.results();
  nlohmann::json rows = nlohmann::json::array();
  const auto index_of = [&](const char* key) {
    for (std::size_t w = 0; w < weights.size(); ++w)
      if (std::string_view(weights[w].kind.key) == key) return w;
    return weights.size();
  };
  const auto over = [](const Row* a, const Row& b) -> nlohmann::json {
    if (!a || b.timing.median_ms <= 0) return nullptr;
    return a->timing.median_ms / b.timing.median_ms;
  };
  for (const Row& row : results.rows) {
    if (row.samples_ms.empty()) continue;
    nlohmann::json json = report::to_json(row.timing);
    json["device"] = to_string(results.device);
    json["weights"] = weights[row.weights].kind.key;
    json["path"] = path_names[static_cast<std::size_t>(row.path)];
    json["pass"] = row.backward ? "forward+backward" : "forward";
    json["mode"] = row.graph ? "graph" : "eager";
    json["zero_share"] = zero_share(weights[row.weights]);
    json["bytes"] = experiment.cost(row.backward).bytes;
    json["flops"] = experiment.cost(row.backward).flops;
    json["speedup_over_dense"] =
        over(find(results.rows, row.weights, dense, row.backward, row.graph), row);
    json["speedup_over_uniform"] =
        over(find(results.rows, index_of("uniform"), row.path, row.backward, row.graph), row);
    json["multiplies_skipped"] = row.skipped;
    json["max_error"] = row.agreement.error();
    json["tolerance"] = row.agreement.tolerance;
    for (const report::Ran& ran : row.ran)
      json["ran"].push_back({{"op", ran.op},
                             {"problem", ran.problem},
                             {"implementation", ran.chosen},
                             {"count", ran.count},
                             {"why", ran.why}});
    rows.push_back(std::move(json));
  }
  return rows;
}

void run(Options o) {
  const bool cpu_takes_it = o.dtype == "f32" && (o.math == "fp32" || o.math == "strict");
  const std::string what = o.dtype != "f32" ? "--dtype " + o.dtype : "--math " + o.math;
  const std::vector<Device> devices = options::choose_devices(o, cpu_takes_it, what);
  report::JsonFile json_file(o.json);
  if (!o.input.empty()) {
    const Context host{Device::cpu()};
    o.batch = static_cast<int>(make_input(host, o, DType::f32).size(0));
  }

  // Eleven layers of positive weights make values grow by 288 each, up to 1e25.
  const bool narrow_range = o.dtype == "f16" || (o.dtype == "f32" && o.math == "fp16");
  std::vector<Weights> weights;
  std::string left_out;
  for (const WeightKind& kind : weight_kinds) {
    if (std::find(o.weights.begin(), o.weights.end(), kind.key) == o.weights.end()) continue;
    if (narrow_range && std::string_view(kind.key) == "uniform")
      left_out =
          "uniform [0, 1) weights are left out: the network's values overflow a 16-bit float.";
    else
      weights.push_back(draw(kind, o.seed));
  }
  if (weights.empty())
    throw options::UsageError(
        "--weights uniform: overflows 16-bit floats; legal here: kaiming, zeros50, zeros90, "
        "zeros99, zero");

  nlohmann::json header = report::machine(
      devices, Context(Device::cpu(), {.threads = o.threads, .stream = nullptr}).threads());
  const std::string math = o.dtype == "f32" ? o.math : "native";
  const std::string input = o.input.empty()
                                ? fmt::format("standard normal, [{}, 3, 32, 32]", o.batch)
                                : fmt::format("{}, {} images", o.input, o.batch);
  header.update({{"experiment", "zero_weights"},
                 {"batch", o.batch},
                 {"storage", o.dtype},
                 {"math", math},
                 {"seed", o.seed},
                 {"input", input}});
  fmt::print("zerone {}: zero weights  ({})\n\n", version(), header["date"].get<std::string>());
  report::print_machine(header);
  fmt::print(
      "  network  conv 3->64, then ten times (conv 64->64, ReLU); 3x3, padding 1, no bias\n");
  fmt::print("  input    {}; storage {}, math {}, seed {}\n", input, o.dtype, math, o.seed);
  fmt::print(
      "  rows     dense: the vendor's library, ReLU fused where it can; zerone: chosen by "
      "itself\n");
  if (!left_out.empty()) fmt::print("  note     {}\n", left_out);
  std::fflush(stdout);

  std::vector<DeviceResults> all;
  nlohmann::json rows = nlohmann::json::array();
  for (const Device device : devices) {
    if (report::interrupted()) break;
    Experiment experiment(o, device, weights);
    experiment.tune_all();
    experiment.check();
    std::fflush(stdout);
    if (report::interrupted()) break;
    if (o.profile) {
      experiment.profile();
      continue;
    }
    header["ceilings"][to_string(device)] =
        report::ceilings(device, o.threads, options::parse_dtype(o.dtype), {math});
    experiment.measure();
    all.push_back(experiment.results());
    if (device.is_cuda()) print_times(all.back(), weights, true);
    print_times(all.back(), weights, false);
    print_choices(all.back(), weights);
    std::fflush(stdout);
    for (auto& row : rows_to_json(experiment, weights)) rows.push_back(row);
  }
  if (!all.empty()) print_claim(all, weights);
  header["complete"] = !report::interrupted();
  json_file.write({{"header", header}, {"rows", rows}, {"published", published_json()}});
  if (!o.json.empty()) fmt::print("\nResults: {}\n", o.json);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.trials = 1000;
  o.time_budget = 12;
  CLI::App app{
      "Experiment 1: is a convolution network faster when its weights are zero?\n"
      "Runs conv 3->64 and ten times (conv 64->64, ReLU) with random, pruned and zero weights, on\n"
      "the vendor's dense library and on zerone, checks both against a reference in double\n"
      "precision, and prints what a forward and a real backward pass take.\n"};
  options::add_timed(app, o);
  auto* const batch = app.add_option("--batch", o.batch, "Images of [3, 32, 32]")
                          ->check(CLI::Range(1, 1'000'000))
                          ->capture_default_str();
  app.get_option("--input")->excludes(batch);
  app.add_option("--math", o.math, "How f32 is multiplied; the CPU takes strict and fp32")
      ->check(CLI::IsMember(options::math_names))
      ->capture_default_str();
  std::vector<std::string> keys;
  for (const WeightKind& kind : weight_kinds) keys.emplace_back(kind.key);
  app.add_option("--weights", o.weights, "Kinds of weights, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember(keys))
      ->capture_default_str();
  app.footer(
      "Exit status: 0; 1 if results disagree with the reference or something failed; 2 for\n"
      "bad options; 130 after Ctrl-C, with what was measured by then.\n\n"
      "Example: zero_weights --device cuda --batch 256 --math tf32 --json results.json");
  return options::run_program(app, argc, argv, [&] { run(o); });
}
