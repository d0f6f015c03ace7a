// Experiment 2: a 1x1 convolution and a linear layer over channels are the same thing. What does
// each spelling cost?
//
// Layer: 128 -> 128 channels with bias on images [n, 128, h, w]. The linear layer reaches the
// channels through a copy ("b c h w -> (b h w) c"), or through a permuted view without one. Then
// a three-layer MLP with ReLU in both spellings. See docs/experiments.md.

#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "options.h"
#include "reference_check.h"
#include "report.h"

using namespace zerone;

namespace {

constexpr std::int64_t channels = 128;
constexpr int mlp_layers = 3;

struct Options : options::Timed {
  std::string preset = "default";
  int batch = 0;  // 0: by the preset
  int size = 64;
  std::vector<std::string> math;
};

// --- spellings ----------------------------------------------------------------------------------

/// How a case reaches the channels of its input.
enum class Spelling {
  conv_nchw,        // conv2d on [n, c, h, w]
  linear_relaid,    // linear on a row-major copy of the permuted input, made at each pass
  linear_laid_out,  // linear on such a copy, made before
  linear_view,      // linear on the permuted view
  conv_nhwc,        // conv2d on [n, c, h, w] that lies in NHWC order
  linear_series,    // linear on the permuted view of [b, t, c, h, w]
};

bool is_conv(Spelling s) {
  return s == Spelling::conv_nchw || s == Spelling::conv_nhwc;
}

struct SpellingText {
  Spelling spelling;
  const char* key;
  const char* label;
};
constexpr SpellingText spellings[] = {
    {Spelling::conv_nchw, "conv1x1_nchw", "conv 1x1, NCHW"},
    {Spelling::linear_relaid, "linear_relaid", "linear, re-laid first (as published)"},
    {Spelling::linear_laid_out, "linear_laid_out", "linear, re-laid before the clock"},
    {Spelling::linear_view, "linear_view", "linear, permuted view, no copy"},
    {Spelling::conv_nhwc, "conv1x1_nhwc", "conv 1x1, NHWC"},
    {Spelling::linear_series, "linear_btchw", "linear, permuted [B,T,C,H,W] view"},
};

/// Images and their gradients in the memory orders that the cases need.
struct Data {
  Tensor nchw, rows;  // [n, c, h, w], [n * h * w, c]
  std::int64_t n = 0, h = 0, w = 0, time = 1;

  Data() = default;
  /// `x` is [n, c, h, w], row-major. `time`: how many images make a series.
  Data(const Tensor& x, std::int64_t steps)
      : nchw(x), n(x.size(0)), h(x.size(2)), w(x.size(3)), time(steps) {
    rows = x.permute({0, 2, 3, 1}).contiguous().reshape({n * h * w, channels});
  }
  /// The input of a case: views of the two tensors.
  Tensor input(Spelling s) const {
    if (s == Spelling::linear_laid_out) return rows;
    if (s == Spelling::conv_nhwc) return rows.reshape({n, h, w, channels}).permute({0, 3, 1, 2});
    if (s == Spelling::linear_series) return nchw.reshape({n / time, time, channels, h, w});
    return nchw;
  }
  /// A result, or a gradient of an input, as [n, c, h, w]: a view.
  Tensor as_images(const Tensor& y, bool channels_last) const {
    if (y.rank() == 2) return y.reshape({n, h, w, channels}).permute({0, 3, 1, 2});
    if (y.rank() == 4) return channels_last ? y.permute({0, 3, 1, 2}) : y;
    return (channels_last ? y.permute({0, 1, 4, 2, 3}) : y).reshape({n, channels, h, w});
  }
};

/// A stack of layers in one spelling; the parameters are shared with the other spellings.
class Stack {
 public:
  Stack(Spelling spelling, const std::vector<ReferenceLayer>& layers)
      : spelling_(spelling), layers_(layers) {}

  /// Results of all layers.
  std::vector<Var> forward_all(Var x) const {
    switch (spelling_) {
      case Spelling::linear_relaid:
        x = reshape(contiguous(permute(x, {0, 2, 3, 1})), {-1, channels});
        break;
      case Spelling::linear_view: x = permute(x, {0, 2, 3, 1}); break;
      case Spelling::linear_series: x = permute(x, {0, 1, 3, 4, 2}); break;
      default: break;
    }
    std::vector<Var> results;
    for (const ReferenceLayer& layer : layers_) {
      const Activation activation = layer.relu ? Activation::relu : Activation::none;
      const Var w = x.with(layer.weight), b = x.with(layer.bias);
      x = is_conv(spelling_) ? conv2d(x, w, b, {.activation = activation, .math = {}})
                             : linear(x, reshape(w, {channels, channels}), b,
                                      {.activation = activation, .math = {}});
      results.push_back(x);
    }
    return results;
  }
  Var forward(const Var& x) const { return forward_all(x).back(); }

  Spelling spelling() const { return spelling_; }
  const std::vector<ReferenceLayer>& layers() const { return layers_; }
  void zero_grad() const {
    for (const ReferenceLayer& layer : layers_) {
      layer.weight.zero_grad();
      layer.bias.zero_grad();
    }
  }
  std::vector<Parameter> parameters() const {
    std::vector<Parameter> all;
    for (const ReferenceLayer& layer : layers_) {
      all.push_back(layer.weight);
      all.push_back(layer.bias);
    }
    return all;
  }

 private:
  Spelling spelling_;
  std::vector<ReferenceLayer> layers_;
};

std::vector<ReferenceLayer> make_layers(const Context& context, int count, DType dtype) {
  std::vector<ReferenceLayer> layers;
  for (int i = 0; i < count; ++i) {
    const nn::Conv2d conv(context,
                          {.in_channels = channels, .out_channels = channels, .dtype = dtype});
    conv.bias.value().copy_(Tensor::uniform(context, {channels}, -0.1, 0.1, dtype));
    layers.push_back({conv.weight, conv.bias, 0, i + 1 < count});
  }
  return layers;
}

// --- rows ---------------------------------------------------------------------------------------

struct Row {
  const char* key;
  const char* label;
  const char* pass;
  const char* model;  // "layer", "mlp"
  std::string math;
  std::function<void()> work;
  std::vector<double> samples_ms;  // one a round
  Timing timing;
  report::Cost cost;  // without the layout's copy
  std::size_t relaid_bytes = 0;
  Agreement agreement;
  std::vector<report::Ran> ran;
};

Row* find(std::vector<Row>& rows, const std::string& model, const std::string& key,
          const std::string& pass, const std::string& math) {
  for (Row& row : rows)
    if (row.model == model && row.key == key && row.pass == pass && row.math == math &&
        !row.samples_ms.empty())
      return &row;
  return nullptr;
}

/// Two rows of the same rounds: 100 * a / b, round by round.
struct Percent {
  double min = 0, max = 0, mean = 0, median = 0;
};
Percent percent(const Row& a, const Row& b) {
  std::vector<double> values;
  for (std::size_t i = 0; i < std::min(a.samples_ms.size(), b.samples_ms.size()); ++i)
    values.push_back(100 * a.samples_ms[i] / b.samples_ms[i]);
  const Timing summary = report::summarize(values);
  return {summary.min_ms, *std::max_element(values.begin(), values.end()), summary.mean_ms,
          summary.median_ms};
}

// --- the experiment -----------------------------------------------------------------------------

class Experiment {
 public:
  Experiment(const Options& o, Device device, const std::vector<std::string>& maths)
      : o_(o),
        device_(device),
        maths_(maths),
        context_(device, {.threads = o.threads, .seed = o.seed, .stream = nullptr}),
        dtype_(options::parse_dtype(o.dtype)) {
    make_data();
    for (const SpellingText& text : spellings)
      stacks_.emplace_back(text.spelling, layer_of(text.spelling));
    for (const Spelling spelling :
         {Spelling::conv_nchw, Spelling::linear_relaid, Spelling::linear_view})
      mlps_.emplace_back(spelling, mlp_layers_);
    target_images_ = Tensor::uniform(context_, data_.nchw.shape(), 0, 1, dtype_);
    target_ = Data(target_images_, 1);
    for (const std::string& math : maths) {
      for (std::size_t i = 0; i < stacks_.size(); ++i) add_layer_rows(i, math);
      for (std::size_t i = 0; i < mlps_.size(); ++i) add_mlp_rows(i, math);
    }
  }

  std::string shape_text() const { return to_string(data_.nchw.shape()); }
  std::int64_t time_steps() const { return data_.time; }
  std::vector<Row>& rows() { return rows_; }
  Device device() const { return device_; }
  const std::vector<std::string>& maths() const { return maths_; }

  void tune_all() {
    if (!o_.tune.value_or(device_.is_cuda())) return;
    report::Progress progress(static_cast<int>(rows_.size()));
    for (Row& row : rows_) {
      if (report::interrupted()) return;
      progress.step(fmt::format("{}: timing implementations, {}, {}", to_string(device_), row.label,
                                row.math));
      // A training step would be taken several times; its passes are tuned through the others.
      if (std::string_view(row.pass) == "training step") continue;
      const ScopedMath math(context_, options::parse_math(row.math));
      tune(context_, row.work);
    }
    release();
  }

  /// Before any time is taken. Throws Disagreement.
  void check() {
    ReferenceCheck reference(device_, o_.threads);
    report::Progress progress(static_cast<int>(maths_.size() * (stacks_.size() + mlps_.size())));
    std::string faults;
    for (const std::string& name : maths_) {
      const Math math = options::parse_math(name);
      const ScopedMath scope(context_, math);
      for (const auto* group : {&stacks_, &mlps_})
        for (const Stack& stack : *group) {
          if (report::interrupted()) return;
          const bool mlp = group == &mlps_;
          const SpellingText& text = text_of(stack.spelling());
          progress.step(fmt::format("{}: checking against the reference, {}, {}",
                                    to_string(device_), text.label, name));
          const int layers = mlp ? mlp_layers : 1;
          Agreement agreement =
              check_stack(reference, stack, tolerance(dtype_, math, layers), !mlp);
          if (mlp && agreement.ok()) check_training_step(stack, agreement);
          for (Row& row : rows_)
            if (row.math == name && std::string_view(row.key) == text.key &&
                (std::string_view(row.model) == "mlp") == mlp) {
              row.agreement = agreement;
              note_choices(row);
            }
          if (!agreement.ok())
            faults += fmt::format("\n  {}, math {}, {}{}: {} is off by {:.2e} (allowed: {:.2e})",
                                  to_string(device_), name, mlp ? "MLP, " : "", text.label,
                                  agreement.worst, agreement.error(), agreement.tolerance);
          release();
        }
    }
    progress.clear();
    print_agreement();
    if (!faults.empty())
      throw options::Disagreement("results disagree with the reference:" + faults);
  }

  void profile() {
    constexpr int steps = 3;
    for (Row& row : rows_) run(row);
    context_.synchronize();
    const ProfileWindow window;
    for (Row& row : rows_) {
      const std::string name = fmt::format("{}/{}/{}", row.key, row.pass, row.math);
      for (int i = 0; i < steps; ++i) {
        const ProfileRange range(name.c_str());
        run(row);
      }
    }
    context_.synchronize();
    fmt::print("\n{}: ran {} profiled steps of each row; no times are taken under a profiler.\n",
               to_string(device_), steps);
  }

  void measure() {
    // Rounds: each takes every row once, in turn forwards and backwards, so that slow moments of
    // the machine hit all rows alike. Each group of rows is compared within itself.
    std::vector<std::vector<Row*>> groups;
    for (const std::string& math : maths_)
      for (const char* model : {"layer", "mlp"}) {
        groups.emplace_back();
        for (Row& row : rows_)
          if (row.math == math && std::string_view(row.model) == model)
            groups.back().push_back(&row);
      }
    report::Progress progress(static_cast<int>(groups.size()) * o_.trials);
    for (auto& group : groups) {
      for (Row* row : group) {
        if (report::interrupted()) return;
        run(*row);
      }
      const report::Stopwatch watch;
      const double budget_ms = 1e3 * o_.time_budget / static_cast<double>(groups.size());
      for (int round = 0; round < o_.trials; ++round) {
        progress.step(fmt::format("{}: {}, math {}, round {}", to_string(device_),
                                  group.front()->model, group.front()->math, round + 1));
        std::vector<std::pair<Row*, double>> taken;
        for (std::size_t i = 0; i < group.size() && !report::interrupted(); ++i) {
          Row& row = *group[round % 2 == 0 ? i : group.size() - 1 - i];
          const ScopedMath math(context_, options::parse_math(row.math));
          taken.emplace_back(&row,
                             time_wall(context_, row.work, {.warmup = 0, .samples = 1}).median_ms);
          release();
        }
        if (report::interrupted()) break;  // whole rounds only
        for (auto& [row, ms] : taken) row->samples_ms.push_back(ms);
        if (round >= 2 && watch.milliseconds() > budget_ms) break;
      }
      for (Row* row : group) row->timing = report::summarize(row->samples_ms);
    }
  }

 private:
  const std::vector<ReferenceLayer>& layer_of(Spelling) {
    if (layer_.empty()) layer_ = make_layers(context_, 1, dtype_);
    if (mlp_layers_.empty()) mlp_layers_ = make_layers(context_, mlp_layers, dtype_);
    return layer_;
  }
  static const SpellingText& text_of(Spelling spelling) {
    return *std::find_if(std::begin(spellings), std::end(spellings),
                         [&](const SpellingText& text) { return text.spelling == spelling; });
  }

  void make_data() {
    if (!o_.input.empty()) {
      const Tensor x = options::load_input(
          context_, o_.input, dtype_,
          [](const Shape& s) {
            return s.numel() > 0 &&
                   ((s.rank() == 4 && s[1] == channels) || (s.rank() == 5 && s[2] == channels));
          },
          "[n, 128, h, w] or [b, t, 128, h, w], none of them 0");
      const bool series = x.rank() == 5;
      const std::int64_t time = series ? x.size(1) : series_length(x.size(0));
      require_memory(x.numel());
      data_ = Data(series ? x.reshape({-1, channels, x.size(3), x.size(4)}) : x, time);
    } else {
      const std::int64_t n = batch();
      data_ = Data(Tensor::uniform(context_, {n, channels, o_.size, o_.size}, 0, 1, dtype_),
                   series_length(n));
    }
    seed_images_ = Tensor::full(context_, data_.nchw.shape(), 1, dtype_);
    seed_ = Data(seed_images_, data_.time);
  }

  /// Time steps a series: the largest divisor of n up to 10 that leaves more than one series.
  static std::int64_t series_length(std::int64_t n) {
    for (std::int64_t t = 10; t > 1; --t)
      if (n % t == 0 && t < n) return t;
    return n <= 10 ? n : 1;
  }

  /// Bytes that all rows together need at once: about 20 tensors of the input's size.
  std::size_t memory_needed(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_of(dtype_) * 20;
  }
  bool memory_there(std::int64_t elements) {
    const std::size_t bytes = memory_needed(elements);
    if (!device_.is_cuda()) {
      const double total = static_cast<double>(sysconf(_SC_PHYS_PAGES)) *
                           static_cast<double>(sysconf(_SC_PAGE_SIZE));
      return static_cast<double>(bytes) < 0.8 * total;
    }
    try {
      (void)Tensor::empty(context_, {static_cast<std::int64_t>(bytes)}, DType::u8);
    } catch (const OutOfMemoryError&) {
      return false;
    }
    context_.empty_cache();
    return true;
  }
  void require_memory(std::int64_t elements) {
    if (memory_there(elements)) return;
    throw options::UsageError(
        fmt::format("{} does not have the {} that {} needs; choose a smaller --batch or --size",
                    to_string(device_), report::bytes(static_cast<double>(memory_needed(elements))),
                    o_.input.empty() ? "this size" : "--input " + o_.input));
  }

  std::int64_t batch() {
    const std::int64_t pixels = channels * o_.size * o_.size;
    std::int64_t n = o_.batch;
    if (n == 0 && o_.preset == "default" && device_.is_cuda()) {
      for (n = 500; n > 1 && !memory_there(n * pixels); n /= 2) {
      }
    }
    if (n == 0) n = o_.preset == "published" ? 500 : 8;
    require_memory(n * pixels);
    return n;
  }

  /// `sweeps` passes through a layer, forward or one of its two gradients.
  report::Cost layer_cost(int sweeps) const {
    const auto values = static_cast<double>(data_.nchw.numel());
    report::Cost cost;
    for (int i = 0; i < sweeps; ++i)
      cost += report::contraction_cost(values, channels * (channels + 1), values, values * channels,
                                       dtype_);
    return cost;
  }

  /// Three layers forward, their weights' gradients and two data gradients; the loss reads results
  /// and targets and writes a gradient; the optimizer reads parameters and gradients and writes.
  report::Cost training_step_cost() const {
    report::Cost cost = layer_cost(3 * mlp_layers - 1);
    cost.bytes += 3 * static_cast<double>(size_of(dtype_)) *
                  static_cast<double>(data_.nchw.numel() + mlp_layers * channels * (channels + 1));
    return cost;
  }

  void add_layer_rows(std::size_t i, const std::string& math) {
    const SpellingText& text = text_of(stacks_[i].spelling());
    const auto add = [&](const char* pass, std::function<void()> work) {
      const report::Cost cost = layer_cost(std::string_view(pass) == "forward" ? 1 : 3);
      rows_.push_back(
          {text.key, text.label, pass, "layer", math, std::move(work), {}, {}, cost, 0, {}, {}});
    };
    // Recorded on a tape, as training records it.
    add("forward", [this, i] {
      Tape tape;
      result_ = stacks_[i].forward(tape.constant(data_.input(stacks_[i].spelling()))).value();
    });
    add("forward + backward", [this, i] {
      const Stack& stack = stacks_[i];
      stack.zero_grad();
      Tape tape;
      const Var x = tape.leaf(data_.input(stack.spelling()));
      const Var y = stack.forward(x);
      tape.backward(y, {.seed = seed_for(stack.spelling())});
      result_ = y.value();
      gradient_ = tape.grad(x);
    });
  }

  void add_mlp_rows(std::size_t i, const std::string& math) {
    const SpellingText& text = text_of(mlps_[i].spelling());
    const auto add = [&](const char* pass, std::function<void()> work) {
      const report::Cost cost =
          std::string_view(pass) == "forward" ? layer_cost(mlp_layers) : training_step_cost();
      rows_.push_back(
          {text.key, text.label, pass, "mlp", math, std::move(work), {}, {}, cost, 0, {}, {}});
    };
    add("forward", [this, i] {
      Tape tape;
      result_ = mlps_[i].forward(tape.constant(data_.input(mlps_[i].spelling()))).value();
    });
    add("training step", [this, i] { (void)train(mlps_[i], data_, target_, 1e-4); });
  }

  /// One step of gradient descent on the mean-square error; the loss before it.
  Tensor train(const Stack& stack, const Data& data, const Data& target, double rate) {
    nn::Sgd sgd(stack.parameters(), {.learning_rate = rate});
    sgd.zero_grad();
    Tape tape;
    const Var y = stack.forward(tape.constant(data.input(stack.spelling())));
    const Var loss = mean_square_error(y, like_result(target, stack.spelling()));
    tape.backward(loss);
    sgd.step();
    result_ = y.value();
    return loss.value();
  }

  /// Images in the shape and memory order in which a case gives its result.
  static Tensor like_result(const Data& images, Spelling spelling) {
    if (spelling == Spelling::linear_relaid || spelling == Spelling::linear_laid_out)
      return images.rows;
    const Tensor x = images.input(spelling);
    if (spelling == Spelling::linear_view) return x.permute({0, 2, 3, 1});
    if (spelling == Spelling::linear_series) return x.permute({0, 1, 3, 4, 2});
    return x;
  }
  Tensor seed_for(Spelling spelling) const { return like_result(seed_, spelling); }

  void run(Row& row) {
    const ScopedMath math(context_, options::parse_math(row.math));
    row.work();
    release();
  }
  void release() {
    result_ = Tensor();
    gradient_ = Tensor();
    for (const auto* group : {&stacks_, &mlps_})
      for (const Stack& stack : *group) stack.zero_grad();
  }

  /// The whole batch runs; the first and the last image are compared.
  Agreement check_stack(ReferenceCheck& reference, const Stack& stack, double allowed,
                        bool wants_dx) {
    const bool channels_last = !is_conv(stack.spelling());
    stack.zero_grad();
    Tape tape;
    const Tensor input = data_.input(stack.spelling());
    const Var x = wants_dx ? tape.leaf(input) : tape.constant(input);
    Tested tested{first_and_last(data_.nchw), {}, {}, {}};
    const std::vector<Var> results = stack.forward_all(x);
    for (const Var& y : results)
      tested.activations.push_back(first_and_last(data_.as_images(y.value(), channels_last)));
    Tensor seed = Tensor::empty_like(results.back().value());
    Tensor seed_images = data_.as_images(seed, channels_last);
    seed_first_and_last(seed_images);
    tape.backward(results.back(), {.seed = seed});
    tested.seed = first_and_last(seed_images);
    if (wants_dx) tested.dx = first_and_last(data_.as_images(tape.grad(x), false));
    return reference.compare(stack.layers(), tested, allowed);
  }

  /// On one image: the loss against its definition, and each parameter against
  /// value - rate * gradient, in double precision on the host. The parameters are put back.
  void check_training_step(const Stack& stack, Agreement& agreement) {
    constexpr double rate = 0.125;
    std::vector<Tensor> before;
    for (const Parameter& p : stack.parameters()) before.push_back(p.value().clone());
    const Data one(data_.nchw.slice(0, 0, 1).contiguous(), 1);
    const Data target(target_.nchw.slice(0, 0, 1).contiguous(), 1);
    const double loss = train(stack, one, target, rate).item();
    const auto y =
        one.as_images(result_, !is_conv(stack.spelling())).to(DType::f64).to_vector<double>();
    const auto wanted = target.nchw.to(DType::f64).to_vector<double>();
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += (y[i] - wanted[i]) * (y[i] - wanted[i]);
    const auto note = [&](double error, const char* what) {
      if (!(error <= agreement.tolerance)) agreement.worst = what;
      agreement.gradients = std::max(agreement.gradients, std::isfinite(error) ? error : HUGE_VAL);
    };
    note(std::abs(loss / (sum / static_cast<double>(y.size())) - 1), "loss of a training step");
    for (std::size_t k = 0; k < before.size(); ++k) {
      const Parameter p = stack.parameters()[k];
      const auto old = before[k].to(DType::f64).to_vector<double>();
      const auto now = p.value().to(DType::f64).to_vector<double>();
      const auto g = p.grad().to(DType::f64).to_vector<double>();
      double error = 0, largest = 0;
      for (std::size_t i = 0; i < old.size(); ++i) {
        error = std::max(error, std::abs(now[i] - (old[i] - rate * g[i])));
        largest = std::max(largest, std::abs(old[i]));
      }
      note(error / largest, "parameter after a training step");
      p.value().copy_(before[k]);
    }
  }

  void note_choices(Row& row) {
    const ScopedMath math(context_, options::parse_math(row.math));
    row.work();  // the counters are read at the second pass: choosing may copy
    release();
    const std::size_t before = context_.memory().layout_copied;
    const std::vector<Explanation> explanations = explain(context_, row.work);
    row.relaid_bytes = context_.memory().layout_copied - before;
    const auto count = [&](std::string_view op) {
      return std::count_if(explanations.begin(), explanations.end(),
                           [&](const Explanation& e) { return e.op == op; });
    };
    const bool backward = std::string_view(row.pass) != "forward";
    const bool mlp = std::string_view(row.model) == "mlp";
    const long layers = mlp ? mlp_layers : 1;
    // The input of the MLP wants no gradient.
    if (backward && (count("pointwise.backward_weight") < layers ||
                     count("pointwise.backward_data") < layers - (mlp ? 1 : 0)))
      throw options::Disagreement(
          fmt::format("{}: the backward pass of '{}' launched nothing, or not all of it",
                      to_string(device_), row.label));
    for (const report::Ran& ran : report::what_ran(explanations))
      if (ran.op.starts_with("pointwise") || ran.op.starts_with("conv2d")) row.ran.push_back(ran);
    release();
  }

  void print_agreement() {
    report::heading(fmt::format("{}: agreement with the reference in f64", to_string(device_)));
    report::Table table({"math", "results", "gradients", "results", "gradients", "allowed"});
    table.group("one layer", 2).group("MLP", 2).group("", 1);
    for (const std::string& math : maths_) {
      std::map<std::string, Agreement> worst;
      for (const Row& row : rows_) {
        if (row.math != math) continue;
        Agreement& a = worst[row.model];
        a.forward = std::max(a.forward, row.agreement.forward);
        a.gradients = std::max(a.gradients, row.agreement.gradients);
        a.tolerance = std::max(a.tolerance, row.agreement.tolerance);
      }
      table.row(
          {math, report::small(worst["layer"].forward), report::small(worst["layer"].gradients),
           report::small(worst["mlp"].forward), report::small(worst["mlp"].gradients),
           fmt::format("{:.1e}, MLP {:.1e}", worst["layer"].tolerance, worst["mlp"].tolerance)});
    }
    table.print();
    report::paragraph(
        "Largest error over all spellings, divided by the largest value of the same tensor; first "
        "and last image of the batch. The MLP's training step is checked on one image.");
  }

  const Options& o_;
  Device device_;
  std::vector<std::string> maths_;
  Context context_;
  DType dtype_;
  Data data_, seed_, target_;
  Tensor seed_images_, target_images_, result_, gradient_;
  std::vector<ReferenceLayer> layer_, mlp_layers_;
  std::vector<Stack> stacks_, mlps_;
  std::vector<Row> rows_;
};

// --- tables -------------------------------------------------------------------------------------

void print_group(Experiment& e, const std::string& storage, const std::string& math,
                 const char* model) {
  const bool mlp = std::string_view(model) == "mlp";
  const std::string second = mlp ? "training step" : "forward + backward";
  std::vector<Row>& rows = e.rows();
  std::size_t rounds = 0;
  report::Table table({"", "median", "min", "copied", "median", "min", "copied"});
  table.group("forward", 3).group(mlp ? "training step" : "forward + backward", 3);
  for (const SpellingText& text : spellings) {
    std::vector<std::string> cells{text.label};
    for (const std::string& pass : {std::string("forward"), second})
      if (const Row* row = find(rows, model, text.key, pass, math)) {
        cells.push_back(report::number(row->timing.median_ms));
        cells.push_back(report::number(row->timing.min_ms));
        cells.push_back(report::bytes(static_cast<double>(row->relaid_bytes)));
        rounds = row->samples_ms.size();
      }
    if (cells.size() == 7) table.row(std::move(cells));
  }
  if (rounds == 0) return;
  report::heading(fmt::format("{}, {}/{}: {}, milliseconds of {} rounds", to_string(e.device()),
                              storage, math, mlp ? "three-layer MLP with ReLU" : "one layer",
                              rounds));
  table.print();

  report::Table ratios({"linear / conv 1x1 NCHW, per cent", "min", "max", "mean", "median", "min",
                        "max", "mean", "median"});
  ratios.group("forward", 4).group(second, 4);
  if (!mlp)
    ratios.row(
        {"published (PyTorch, forward)", "191.91", "288.15", "197.67", "-", "-", "-", "-", "-"});
  for (const SpellingText& text : spellings) {
    if (is_conv(text.spelling)) continue;
    std::vector<std::string> cells{text.label};
    for (const std::string& pass : {std::string("forward"), second}) {
      const Row* const a = find(rows, model, text.key, pass, math);
      const Row* const b = find(rows, model, "conv1x1_nchw", pass, math);
      if (!a || !b) continue;
      const Percent p = percent(*a, *b);
      for (const double value : {p.min, p.max, p.mean, p.median})
        cells.push_back(fmt::format("{:.1f}", value));
    }
    if (cells.size() == 9) ratios.row(std::move(cells));
  }
  fmt::print("\n");
  ratios.print();
  std::vector<Timing> timings;
  for (const Row& row : rows)
    if (row.math == math && std::string_view(row.model) == model && !row.samples_ms.empty())
      timings.push_back(row.timing);
  report::note_noise(timings);
}

void print_choices(Experiment& e, const std::string& math) {
  report::heading(fmt::format("{}, math {}: what ran, and why not the rows before it",
                              to_string(e.device()), math));
  std::vector<std::pair<std::string, std::vector<report::Ran>>> groups;
  for (const Row& row : e.rows())
    if (row.math == math && std::string_view(row.pass) != "forward")
      groups.emplace_back(
          fmt::format("{}{}", std::string_view(row.model) == "mlp" ? "MLP, " : "", row.label),
          row.ran);
  report::print_what_ran(groups);
}

nlohmann::json rows_to_json(Experiment& e, const std::string& storage) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : e.rows()) {
    if (row.samples_ms.empty()) continue;
    nlohmann::json json = report::to_json(row.timing);
    json["device"] = to_string(e.device());
    json["model"] = row.model;
    json["path"] = row.key;
    json["weights"] = "Kaiming normal";
    json["pass"] = row.pass;
    json["mode"] = "eager";
    json["storage"] = storage;
    json["math"] = row.math;
    json["shape"] = e.shape_text();
    json["bytes"] = row.cost.bytes;
    json["flops"] = row.cost.flops;
    json["copied_bytes"] = row.relaid_bytes;
    json["max_error"] = row.agreement.error();
    json["tolerance"] = row.agreement.tolerance;
    if (const Row* conv = find(e.rows(), row.model, "conv1x1_nchw", row.pass, row.math)) {
      const Percent p = percent(row, *conv);
      json["percent_of_conv1x1"] = {
          {"min", p.min}, {"max", p.max}, {"mean", p.mean}, {"median", p.median}};
      json["speedup_over_conv1x1"] = conv->timing.median_ms / row.timing.median_ms;
    }
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

void run(const Options& o) {
  const bool narrow = o.dtype != "f32";
  if (narrow && !o.math.empty())
    throw options::UsageError(
        fmt::format("--math: says how f32 is multiplied; leave it out with --dtype {}, which "
                    "multiplies natively",
                    o.dtype));
  std::string gpu_only;
  for (const std::string& math : o.math)
    if (math != "fp32" && math != "strict") gpu_only = "--math " + math;
  if (narrow) gpu_only = "--dtype " + o.dtype;
  const std::vector<Device> devices = options::choose_devices(o, gpu_only.empty(), gpu_only);
  report::JsonFile json_file(o.json);

  nlohmann::json header = report::machine(
      devices, Context(Device::cpu(), {.threads = o.threads, .stream = nullptr}).threads());
  header.update({{"experiment", "conv1x1_vs_linear"},
                 {"storage", o.dtype},
                 {"seed", o.seed},
                 {"input", o.input.empty() ? "uniform [0, 1)" : o.input}});
  fmt::print("zerone {}: 1x1 convolution against linear  ({})\n\n", version(),
             header["date"].get<std::string>());
  report::print_machine(header);
  constexpr std::int64_t per_layer = channels * channels + channels;
  fmt::print(
      "  layer    128 -> 128 channels with bias: {},{:03d} parameters in either spelling (the\n"
      "           published script says 256: it adds up first dimensions)\n"
      "  MLP      three such layers, ReLU between them; training step: mean-square error and SGD\n",
      per_layer / 1000, per_layer % 1000);
  fmt::print("  input    {}, seed {}, drawn once: its values do not change the speed\n",
             header["input"].get<std::string>(), o.seed);
  fmt::print(
      "  timing   by the wall clock up to the device's end, on a tape; backward: dX, dW and db\n");
  std::fflush(stdout);

  nlohmann::json rows = nlohmann::json::array();
  for (const Device device : devices) {
    if (report::interrupted()) break;
    std::vector<std::string> maths = o.math;
    if (maths.empty())
      maths = narrow             ? std::vector<std::string>{"native"}
              : device.is_cuda() ? options::math_names
                                 : std::vector<std::string>{"fp32"};
    Experiment experiment(o, device, maths);
    fmt::print("\n{}: {}; [B,T,C,H,W] with {} time step{}\n", to_string(device),
               experiment.shape_text(), experiment.time_steps(),
               experiment.time_steps() == 1 ? "" : "s");
    experiment.tune_all();
    experiment.check();
    std::fflush(stdout);
    if (report::interrupted()) break;
    if (o.profile) {
      experiment.profile();
      continue;
    }
    header["ceilings"][to_string(device)] =
        report::ceilings(device, o.threads, options::parse_dtype(o.dtype), maths);
    experiment.measure();
    for (const std::string& math : maths)
      for (const char* model : {"layer", "mlp"}) print_group(experiment, o.dtype, math, model);
    for (const std::string& math : maths) print_choices(experiment, math);
    std::fflush(stdout);
    for (auto& row : rows_to_json(experiment, o.dtype)) rows.push_back(row);
    header["shapes"][to_string(device)] = experiment.shape_text();
    header["math"][to_string(device)] = maths;
  }
  if (!rows.empty()) {
    fmt::print("\n");
    report::paragraph(
        "copied: bytes that a pass wrote only to change the layout. Published: PyTorch, [500, 128, "
        "64, 64], linear 17.9 ms with its copy in fp32 against conv 8.6 ms; on recent GPUs the "
        "conv "
        "ran in tf32. Compare rows of one math mode: the copy is the cost, not the spelling.");
  }
  header["complete"] = !report::interrupted();
  const nlohmann::json published = {
      {"source", "PyTorch; linear in fp32 and with its copy, conv in tf32 on recent GPUs"},
      {"device", "gpu"},
      {"shape", "[500, 128, 64, 64]"},
      {"rows",
       {{{"path", "conv1x1_nchw"}, {"pass", "forward"}, {"ms", 8.6}},
        {{"path", "linear_relaid"},
         {"pass", "forward"},
         {"ms", 17.9},
         {"percent_of_conv1x1", {{"min", 191.91}, {"max", 288.15}, {"mean", 197.67}}}}}}};
  json_file.write({{"header", header}, {"rows", rows}, {"published", published}});
  if (!o.json.empty()) fmt::print("\nResults: {}\n", o.json);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.trials = 100;
  o.time_budget = 12;
  CLI::App app{
      "Experiment 2: a 1x1 convolution against a linear layer over channels.\n"
      "Runs 128 -> 128 with bias on images in each spelling and memory layout, with the layout's\n"
      "copy counted and not counted, forward and backward, then a three-layer MLP; checks all of\n"
      "them against a reference in double precision, and prints times and ratios.\n"};
  options::add_timed(app, o);
  auto* const preset =
      app.add_option("--preset", o.preset,
                     "published: [500, 128, 64, 64]; default: that on a GPU whose memory allows it "
                     "(else half, ...), 8 images on the CPU")
          ->check(CLI::IsMember({"default", "published"}))
          ->capture_default_str();
  auto* const batch = app.add_option("--batch", o.batch, "Images, in place of the preset's")
                          ->check(CLI::Range(1, 1'000'000));
  auto* const size = app.add_option("--size", o.size, "Height and width of the images")
                         ->check(CLI::Range(1, 65'536))
                         ->capture_default_str();
  batch->excludes(preset);
  for (CLI::Option* option : {preset, batch, size}) app.get_option("--input")->excludes(option);
  app.add_option("--math", o.math,
                 "How f32 is multiplied, separated by commas; default: all on a GPU, fp32 on the "
                 "CPU, which takes strict and fp32")
      ->delimiter(',')
      ->check(CLI::IsMember(options::math_names));
  app.footer(
      "Exit status: 0; 1 if results disagree with the reference or something failed; 2 for\n"
      "bad options; 130 after Ctrl-C, with what was measured by then.\n\n"
      "Example: conv1x1_vs_linear --device cuda --preset published --json results.json");
  return options::run_program(app, argc, argv, [&] { run(o); });
}
