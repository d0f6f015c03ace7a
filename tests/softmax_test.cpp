// Softmax, its logarithm and cross-entropy against f64 arithmetic on the host and PyTorch.
#include <cmath>
#include <fstream>
#include <sstream>

#include <zerone/core/views.h>
#include <zerone/ops/softmax.h>

#include "support/compare.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using Values = std::vector<double>;
using Labels = std::vector<std::int64_t>;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

struct Problem {
  std::string name;
  Shape shape;
  int axis = 1;
  Placement place{};
};

/// Row-major positions of the elements of each line.
struct HostLines {
  std::size_t length = 1, inner = 1, count = 0;

  HostLines(const Shape& shape, int axis) : length(static_cast<std::size_t>(shape[axis])) {
    for (int i = axis + 1; i < shape.rank(); ++i) inner *= static_cast<std::size_t>(shape[i]);
    if (length > 0) count = static_cast<std::size_t>(shape.numel()) / length;
  }
  /// Lines in row-major order of the other axes.
  std::size_t at(std::size_t line, std::size_t i) const {
    return line / inner * length * inner + i * inner + line % inner;
  }
};

struct LogSum {
  double largest = -infinity, log_sum = 0;
};

LogSum log_sum_of(const HostLines& lines, std::size_t line, const Values& x) {
  LogSum result;
  for (std::size_t i = 0; i < lines.length; ++i)
    result.largest = std::max(result.largest, x[lines.at(line, i)]);
  double sum = 0;
  for (std::size_t i = 0; i < lines.length; ++i)
    sum += std::exp(x[lines.at(line, i)] - result.largest);
  result.log_sum = std::log(sum);
  return result;
}

/// Values and the sizes that errors are relative to.
struct Sized {
  Values value, size;
  explicit Sized(std::size_t count) : value(count), size(count) {}
};

Sized host_softmax(const HostLines& lines, const Values& x, bool log) {
  Sized y(x.size());
  for (std::size_t line = 0; line < lines.count; ++line) {
    const LogSum sum = log_sum_of(lines, line, x);
    for (std::size_t i = 0; i < lines.length; ++i) {
      const std::size_t at = lines.at(line, i);
      const double distance = sum.largest - x[at];
      y.value[at] = log ? -distance - sum.log_sum : std::exp(-distance - sum.log_sum);
      y.size[at] = log ? 1 + distance + sum.log_sum : y.value[at] * (2 + distance);
    }
  }
  return y;
}

Sized host_gradient(const HostLines& lines, const Values& y, const Values& dy, bool log) {
  Sized dx(y.size());
  for (std::size_t line = 0; line < lines.count; ++line) {
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < lines.length; ++i) {
      const std::size_t at = lines.at(line, i);
      sum += log ? dy[at] : y[at] * dy[at];
      size += std::abs(log ? dy[at] : y[at] * dy[at]);
    }
    for (std::size_t i = 0; i < lines.length; ++i) {
      const std::size_t at = lines.at(line, i);
      dx.value[at] = log ? dy[at] - std::exp(y[at]) * sum : y[at] * (dy[at] - sum);
      dx.size[at] = log ? std::abs(dy[at]) + std::exp(y[at]) * (1 + std::abs(y[at])) * size
                        : std::abs(y[at]) * (std::abs(dy[at]) + size);
    }
  }
  return dx;
}

DType compute_type(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

/// Accumulated in the compute type, stored once in `dtype`.
Contract contract_of(DType dtype, double of_sum) {
  Contract contract{.dtype = dtype, .of_sum = of_sum * unit(compute_type(dtype))};
  contract.floor = dtype == DType::f64 ? 1e-300 : 0x1p-120;
  if (size_of(dtype) == 2) {
    contract.of_value = 1.001 * unit(dtype);
    contract.floor = dtype == DType::f16 ? 0x1p-24 : 0x1p-120;
  }
  return contract;
}

Values random_logits(Random& random, std::int64_t count, DType dtype) {
  Values values = random_values(random, count, dtype, false);
  const double scale = random.pick({1.0, 4.0, 30.0}), center = random.pick({0.0, 100.0, -500.0});
  for (double& value : values) value = rounded(dtype, value * scale + center);
  return values;
}

std::vector<Problem> listed() {
  std::ifstream file(data_path("shapes/softmax.txt"));
  std::vector<Problem> problems;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string layout;
    Problem p;
    fields >> p.name >> layout >> p.axis;
    std::vector<std::int64_t> sizes;
    for (std::int64_t size; fields >> size;) sizes.push_back(size);
    p.shape = Shape(std::span<const std::int64_t>(sizes));
    if (layout == "nhwc") {
      p.place.order.push_back(0);
      for (int axis = 2; axis < p.shape.rank(); ++axis) p.place.order.push_back(axis);
      p.place.order.push_back(1);
    }
    problems.push_back(p);
  }
  EXPECT_GE(problems.size(), 19u);
  return problems;
}

Problem random_view(Random& random, int least_rank) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(random.integer(least_rank, 5)));
  const std::int64_t longest = sizes.size() <= 2 ? 90 : sizes.size() == 3 ? 20 : 8;
  for (std::int64_t& size : sizes) size = random.integer(1, longest);
  Problem p{.name = "random", .shape = Shape(std::span<const std::int64_t>(sizes))};
  p.place = random_placement(random, p.shape.rank());
  return p;
}

// --- softmax ------------------------------------------------------------------------------------

void check_softmax(const Context& context, int index, Random& random, const Problem& p) {
  const DType dtype = random.pick({DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16});
  const Values x = random_logits(random, p.shape.numel(), dtype);
  const Values dy = random_values(random, p.shape.numel(), dtype, false);
  const Placement dy_place =
      random.chance(0.5) ? p.place : random_placement(random, p.shape.rank());
  const HostLines lines(p.shape, p.axis);
  const double terms = std::sqrt(static_cast<double>(lines.length));
  for (const bool log : {false, true})
    for (const std::string& row : row_names(softmax_forward_list(), context)) {
      const std::string where =
          row + " " +
          reproduction(index,
                       fmt::format("{} {} {} axis {} {} x {} dy {}", p.name,
                                   log ? "log_softmax" : "softmax", to_string(p.shape), p.axis,
                                   to_string(dtype), p.place.text(), dy_place.text()));
      const ScopedForce forward(context, "softmax.forward", row);
      const ScopedForce backward(context, "softmax.backward", row);
      const Operand x_view(context, p.shape, dtype, p.place, x);
      const Operand dy_view(context, p.shape, dtype, dy_place, dy);
      const auto run = [&](Values& y, Values& dx) {
        { Tensor poison = Tensor::full(context, p.shape, nan, dtype); }
        Tape tape;
        const Var leaf = tape.leaf(x_view.view());
        const Var result = log ? log_softmax(leaf, p.axis) : softmax(leaf, p.axis);
        for (int axis = 0; axis < p.shape.rank(); ++axis)
          EXPECT_TRUE(!x_view.view().is_dense() || p.shape[axis] == 1 ||
                      result.value().stride(axis) == x_view.view().stride(axis))
              << where;
        y = values_of(result);
        { Tensor poison = Tensor::full(context, p.shape, nan, dtype); }
        tape.backward(result, {.seed = dy_view.view()});
        dx = values_of(tape.grad(leaf));
      };
      Values y, dx, again, dx_again;
      run(y, dx);
      const Sized expected = host_softmax(lines, x, log);
      EXPECT_EQ(mismatch(y, expected.value, expected.size, contract_of(dtype, 6 + terms)), "")
          << where;
      // The gradient starts from y as it was stored.
      const Sized gradient = host_gradient(lines, y, dy, log);
      EXPECT_EQ(mismatch(dx, gradient.value, gradient.size, contract_of(dtype, 8 + terms)), "")
          << "gradient " << where;
      run(again, dx_again);
      EXPECT_EQ(mismatch(again, y, {}, exact_contract(DType::f64)), "") << "other bits " << where;
      EXPECT_EQ(mismatch(dx_again, dx, {}, exact_contract(DType::f64)), "") << "bits " << where;
    }
}

TEST(Softmax, ListedShapesOnEveryRow) {
  const std::vector<Problem> problems = listed();
  on_shared_devices([&](const Context& context) {
    int index = 0;
    for (const Problem& p : problems)
      for (int repeat = 0; repeat < 3; ++repeat, ++index) {
        if (!case_wanted(index)) continue;
        Random random(7'000'000 + static_cast<std::uint64_t>(index));
        check_softmax(context, index, random, p);
      }
  });
}

TEST(Softmax, RandomViewsOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 200; ++index) {
      if (!case_wanted(index)) continue;
      Random random(7'100'000 + static_cast<std::uint64_t>(index));
      Problem p = random_view(random, 1);
      p.axis = static_cast<int>(random.integer(0, p.shape.rank() - 1));
      check_softmax(context, index, random, p);
    }
  });
}

TEST(Softmax, AxesFromTheEndAndErrors) {
  on_shared_devices([](const Context& context) {
    const Tensor x = make_tensor(context, {2, 2}, {0, 0, std::log(3.0), 0});
    const Values rows = values_of(softmax(x, -1)), columns = values_of(softmax(x, -2));
    EXPECT_NEAR(rows[2], 0.75, 1e-15);
    EXPECT_NEAR(columns[2], 0.75, 1e-15);
    EXPECT_NEAR(rows[1], 0.5, 1e-15);
    EXPECT_NEAR(columns[0], 0.25, 1e-15);
    expect_contains(message_of<ShapeError>([&] { softmax(x, 2); }), {"softmax", "2"});
    expect_contains(message_of<ShapeError>([&] { log_softmax(x, -3); }), {"log_softmax", "-3"});
    expect_contains(message_of<DTypeError>([&] { softmax(x.to(DType::i64), 0); }), {"i64"});
    for (const Shape& shape : {Shape{0, 3}, Shape{3, 0}}) {
      Tape tape;
      const Var none = tape.leaf(Tensor::empty(context, shape));
      const Var y = softmax(none, 1);
      EXPECT_EQ(y.shape(), shape);
      tape.backward(y, {.seed = Tensor::empty(context, shape)});
      EXPECT_EQ(tape.grad(none).shape(), shape);
    }
    EXPECT_EQ(values_of(softmax(Tensor::zeros(context, {2, 4}), 1)), Values(8, 0.25));
  });
}

TEST(Softmax, SpecialValues) {
  on_shared_devices([](const Context& context) {
    // One line each; the whole line is NaN, or as given.
    const std::vector<std::pair<Values, Values>> lines = {
        {{1, infinity, 2, 0}, {}},
        {{-infinity, -infinity, -infinity, -infinity}, {}},
        {{nan, 1, 2, 3}, {}},
        {{-infinity, nan, -infinity, -infinity}, {}},
        {{infinity, infinity, 0, 1}, {}},
        {{-infinity, infinity, -infinity, -infinity}, {}},
        {{-infinity, 5, -infinity, 5}, {0, 0.5, 0, 0.5}},
        {{-infinity, -infinity, -infinity, -1e30}, {0, 0, 0, 1}},
        {{1e30, -1e30, 1e30, 0}, {0.5, 0, 0.5, 0}},
        {{-1000, -1000, -2000, -1000}, {1.0 / 3, 1.0 / 3, 0, 1.0 / 3}},
    };
    const auto count = static_cast<std::int64_t>(lines.size());
    for (const DType dtype : {DType::f32, DType::f64})
      for (const int repeat : {1, 150})  // longer than a warp and than a vector
        for (const bool across : {false, true}) {
          Values flat;
          for (const auto& [x, y] : lines)
            for (int i = 0; i < repeat; ++i) flat.insert(flat.end(), x.begin(), x.end());
          Tensor x = make_tensor(context, {count, 4 * repeat}, flat, dtype);
          if (across) x = x.transpose(0, 1).contiguous().transpose(0, 1);
          Tape tape;
          const Var leaf = tape.leaf(x), y = softmax(leaf, 1), log = log_softmax(leaf, 1);
          const Values got = values_of(y), logs = values_of(log);
          for (std::size_t i = 0; i < got.size(); ++i) {
            const auto& [in, expected] = lines[i / (4 * static_cast<std::size_t>(repeat))];
            if (expected.empty()) {
              EXPECT_TRUE(std::isnan(got[i]) && std::isnan(logs[i])) << i;
              continue;
            }
            const double p = expected[i % 4] / repeat;
            EXPECT_NEAR(got[i], p, 1e-6);
            if (p == 0) {
              EXPECT_EQ(got[i], 0) << i;
              EXPECT_LT(logs[i], -999) << i;
            } else {
              EXPECT_NEAR(logs[i], std::log(p), 1e-5) << i;
            }
          }
          // A class of probability 0 takes no part in the gradient.
          tape.backward(y, {.seed = Tensor::full(context, x.shape(), 1, dtype)});
          const Values dx = values_of(tape.grad(leaf));
          for (std::size_t i = 0; i < dx.size(); ++i) {
            const auto& expected = lines[i / (4 * static_cast<std::size_t>(repeat))].second;
            if (expected.empty())
              EXPECT_TRUE(std::isnan(dx[i])) << i;
            else
              EXPECT_NEAR(dx[i], 0, 1e-6) << i;
          }
        }
  });
}

// --- cross-entropy ------------------------------------------------------------------------------

struct Entropy {
  Reduction reduction = Reduction::mean;
  double smoothing = 0;
  std::int64_t ignored = -100;
};

struct ExpectedEntropy {
  Sized loss, dx;
};

/// `dloss`: one value, or one a sample.
ExpectedEntropy host_cross_entropy(const HostLines& lines, const Values& x, const Labels& labels,
                                   const Values& dloss, const Entropy& e) {
  const double classes = static_cast<double>(lines.length);
  const bool none = e.reduction == Reduction::none;
  Sized losses(lines.count), dx(x.size());
  double samples = 0;
  for (const std::int64_t label : labels) samples += label != e.ignored;
  const double factor = e.reduction == Reduction::mean ? 1 / samples : 1;
  for (std::size_t line = 0; line < lines.count; ++line) {
    const std::int64_t label = labels[line];
    if (label == e.ignored) continue;
    const LogSum sum = log_sum_of(lines, line, x);
    const auto target = static_cast<std::size_t>(label);
    const double g = factor * (none ? dloss[line] : dloss[0]);
    double magnitude = 0;
    for (std::size_t i = 0; i < lines.length; ++i) {
      const double value = x[lines.at(line, i)];
      const double log_p = value - sum.largest - sum.log_sum;
      const double weight = e.smoothing / classes + (i == target ? 1 - e.smoothing : 0);
      losses.value[line] -= weight * log_p;
      // Smoothing may sum x itself, whose roundings are those of the largest.
      losses.size[line] += weight * (1 + sum.log_sum + sum.largest - value);
      magnitude = std::max(magnitude, std::abs(value));
      dx.value[lines.at(line, i)] = g * (std::exp(log_p) - weight);
      dx.size[lines.at(line, i)] =
          std::abs(g) * (std::exp(log_p) * (2 + sum.largest - value) + weight);
    }
    if (e.smoothing > 0) losses.size[line] += e.smoothing * magnitude;
  }
  if (none) return {losses, dx};
  Sized total(1);
  long double sum = 0;
  for (std::size_t line = 0; line < lines.count; ++line) {
    sum += losses.value[line];
    total.size[0] += losses.size[line];
  }
  total.value[0] = static_cast<double>(sum * static_cast<long double>(factor));
  total.size[0] *= factor;
  return {total, dx};
}

const char* name_of(Reduction reduction) {
  constexpr const char* names[] = {"mean", "sum", "none"};
  return names[static_cast<int>(reduction)];
}

Shape without_classes(const Shape& shape) {
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  sizes.erase(sizes.begin() + 1);
  return Shape(std::span<const std::int64_t>(sizes));
}

void check_cross_entropy(const Context& context, int index, Random& random, const Problem& p) {
  const DType dtype = random.pick({DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16});
  const Values x = random_logits(random, p.shape.numel(), dtype);
  const HostLines lines(p.shape, 1);
  const auto classes = static_cast<std::int64_t>(lines.length);
  const Shape samples = without_classes(p.shape);
  const Entropy e{random.pick({Reduction::mean, Reduction::sum, Reduction::none}),
                  random.pick({0.0, 0.0, 0.1, 1.0}), random.pick<std::int64_t>({-100, 0})};
  Labels labels(lines.count);
  for (std::int64_t& label : labels)
    label = random.chance(0.15) ? e.ignored : random.integer(0, classes - 1);
  labels[0] = classes - 1;
  if (e.ignored == classes - 1) return;  // the only sample would be ignored
  const Shape loss_shape = e.reduction == Reduction::none ? samples : Shape{};
  const Values dloss = random_values(random, loss_shape.numel(), dtype, false);
  const Placement label_place = random_placement(random, samples.rank());
  const Placement dloss_place = random_placement(random, loss_shape.rank());
  const ExpectedEntropy expected = host_cross_entropy(lines, x, labels, dloss, e);
  Values label_values(labels.begin(), labels.end());

  for (const std::string& row : row_names(cross_entropy_forward_list(), context)) {
    const std::string where =
        row + " " +
        reproduction(index, fmt::format("{} {} {} {} smoothing {} ignored {} x {} "
                                        "labels {} dloss {}",
                                        p.name, to_string(p.shape), to_string(dtype),
                                        name_of(e.reduction), e.smoothing, e.ignored,
                                        p.place.text(), label_place.text(), dloss_place.text()));
    const ScopedForce forward(context, "cross_entropy.forward", row);
    const ScopedForce backward(context, "cross_entropy.backward", row);
    const Operand x_view(context, p.shape, dtype, p.place, x);
    const Operand label_view(context, samples, DType::i64, label_place, label_values);
    const Operand dloss_view(context, loss_shape, dtype, dloss_place, dloss);
    const auto run = [&](Values& loss, Values& dx) {
      { Tensor poison = Tensor::full(context, p.shape, nan, dtype); }
      Tape tape;
      const Var leaf = tape.leaf(x_view.view());
      const Var result =
          cross_entropy(leaf, label_view.view(), e.reduction, e.smoothing, e.ignored);
      EXPECT_EQ(result.shape(), loss_shape);
      loss = values_of(result);
      { Tensor poison = Tensor::full(context, p.shape, nan, dtype); }
      tape.backward(result, {.seed = dloss_view.view()});
      dx = values_of(tape.grad(leaf));
    };
    Values loss, dx, again, dx_again;
    run(loss, dx);
    const double terms = std::sqrt(static_cast<double>(lines.length));
    EXPECT_EQ(
        mismatch(loss, expected.loss.value, expected.loss.size, contract_of(dtype, 8 + terms)), "")
        << where;
    EXPECT_EQ(mismatch(dx, expected.dx.value, expected.dx.size, contract_of(dtype, 12 + terms)), "")
        << "gradient " << where;
    run(again, dx_again);
    EXPECT_EQ(mismatch(again, loss, {}, exact_contract(DType::f64)), "") << "other bits " << where;
    EXPECT_EQ(mismatch(dx_again, dx, {}, exact_contract(DType::f64)), "") << "bits " << where;
  }
}

TEST(CrossEntropy, ListedShapesOnEveryRow) {
  const std::vector<Problem> problems = listed();
  on_shared_devices([&](const Context& context) {
    int index = 0;
    for (const Problem& p : problems)
      for (int repeat = 0; p.axis == 1 && repeat < 6; ++repeat, ++index) {
        if (!case_wanted(index)) continue;
        Random random(7'200'000 + static_cast<std::uint64_t>(index));
        check_cross_entropy(context, index, random, p);
      }
  });
}

TEST(CrossEntropy, RandomViewsOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 200; ++index) {
      if (!case_wanted(index)) continue;
      Random random(7'300'000 + static_cast<std::uint64_t>(index));
      check_cross_entropy(context, index, random, random_view(random, 2));
    }
  });
}

TEST(CrossEntropy, Gradcheck) {
  on_shared_devices([](const Context& context) {
    Random random(7'400'000);
    const Shape shape{4, 5, 2, 3};
    const Tensor x =
        make_tensor(context, shape, random_values(random, shape.numel(), DType::f64, false));
    Labels values(24);
    for (std::int64_t& label : values) label = random.integer(0, 4);
    values[3] = values[7] = -100;
    const Tensor labels = Tensor::from<std::int64_t>(context, {4, 2, 3}, values);
    const auto check = [&](const char* what, const std::function<Var(std::span<const Var>)>& f) {
      for (const Tensor& input : {x, x.contiguous_nhwc()}) {
        const GradcheckResult result = gradcheck(f, {input});
        EXPECT_TRUE(result.passed) << what << ": " << result.message;
      }
    };
    for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none})
      for (const double smoothing : {0.0, 0.2})
        check(name_of(reduction), [&](std::span<const Var> in) {
          return cross_entropy(in[0], labels, reduction, smoothing);
        });
    for (const int axis : {0, 1, 3}) {
      check("softmax", [axis](std::span<const Var> in) { return softmax(in[0], axis); });
      check("log_softmax", [axis](std::span<const Var> in) { return log_softmax(in[0], axis); });
    }
  });
}

TEST(CrossEntropy, Golden) {
  Golden golden("softmax");
  on_shared_devices([&](const Context& context) {
    for (const auto& entry : golden.cases())
      for (const DType dtype : {DType::f64, DType::f32}) {
        SCOPED_TRACE(entry["name"].get<std::string>() + " " + to_string(dtype));
        const double tolerance = dtype == DType::f64 ? 1e-12 : 4e-6;
        const auto expect_near = [&](const Values& actual, const char* name) {
          const Values expected = golden.values(entry, name);
          ASSERT_EQ(actual.size(), expected.size());
          for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << name;
        };
        const Tensor x = golden.tensor(context, entry, "x", dtype);
        const Tensor dy = golden.tensor(context, entry, "gy", dtype);
        const auto& params = entry["params"];
        Tape tape;
        const Var leaf = tape.leaf(x);
        if (entry["kind"] == "softmax") {
          const int axis = params["axis"].get<int>();
          const Var y = softmax(leaf, axis);
          expect_near(values_of(y), "softmax");
          tape.backward(y, {.seed = dy});
          expect_near(values_of(tape.grad(leaf)), "dsoftmax");
          Tape second;
          const Var other = second.leaf(x), log = log_softmax(other, axis);
          expect_near(values_of(log), "log_softmax");
          second.backward(log, {.seed = dy});
          expect_near(values_of(second.grad(other)), "dlog_softmax");
          continue;
        }
        const std::string name = params["reduction"].get<std::string>();
        const Reduction reduction = name == "mean"  ? Reduction::mean
                                    : name == "sum" ? Reduction::sum
                                                    : Reduction::none;
        const Tensor labels = golden.tensor(context, entry, "labels").to(DType::i64);
        const Var loss = cross_entropy(leaf, labels, reduction, params["label_smoothing"],
                                       params["ignore_index"]);
        expect_near(values_of(loss), "loss");
        tape.backward(loss, {.seed = dy});
        expect_near(values_of(tape.grad(leaf)), "dx");
      }
  });
}

TEST(CrossEntropy, LabelsOutOfRange) {
  on_shared_devices([](const Context& context) {
    const Tensor x = Tensor::zeros(context, {3, 4});
    for (const std::int64_t bad : std::initializer_list<std::int64_t>{4, -1, INT64_MAX}) {
      const Tensor labels = Tensor::from<std::int64_t>(context, {3}, {0, bad, -100});
      if (!context.device().is_cuda()) {
        const std::string text = message_of<ShapeError>([&] { cross_entropy(x, labels); });
        expect_contains(text, {"cross_entropy", std::to_string(bad), "4 classes", "3 samples"});
        continue;
      }
      Tape tape;
      const Var leaf = tape.leaf(x);
      const Var losses = cross_entropy(leaf, labels, Reduction::none);
      const Values each = values_of(losses);
      EXPECT_NEAR(each[0], std::log(4.0), 1e-6);
      EXPECT_TRUE(std::isnan(each[1]));
      EXPECT_EQ(each[2], 0);
      tape.backward(losses, {.seed = Tensor::full(context, {3}, 1)});
      const Values dx = values_of(tape.grad(leaf));
      for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(std::isnan(dx[i]), i / 4 == 1) << i;
      EXPECT_TRUE(std::isnan(cross_entropy(x, labels).value().item()));
    }
  });
}

TEST(CrossEntropy, SpecialValues) {
  on_shared_devices([](const Context& context) {
    const Tensor none = Tensor::from<std::int64_t>(context, {2}, {-100, -100});
    const Tensor x = make_tensor(context, {2, 3}, {1, 2, 3, 4, 5, 6}, DType::f32);
    Tape tape;
    const Var leaf = tape.leaf(x), mean = cross_entropy(leaf, none);
    EXPECT_TRUE(std::isnan(mean.value().item())) << "the mean of nothing";
    tape.backward(mean);
    EXPECT_EQ(values_of(tape.grad(leaf)), Values(6, 0.0));
    EXPECT_EQ(cross_entropy(x, none, Reduction::sum).value().item(), 0);
    const Tensor empty = Tensor::empty(context, {0, 3});
    const Tensor no_labels = Tensor::empty(context, {0}, DType::i64);
    EXPECT_TRUE(std::isnan(cross_entropy(empty, no_labels).value().item()));
    EXPECT_EQ(cross_entropy(empty, no_labels, Reduction::sum).value().item(), 0);
    EXPECT_EQ(cross_entropy(empty, no_labels, Reduction::none).shape(), (Shape{0}));

    // A target of probability 0 costs infinitely much; an impossible other class costs nothing
    // unless smoothing wants a share of it. The rest is NaN.
    const Tensor odd = make_tensor(context, {6, 2},
                                   {-infinity, 1, -infinity, 1, 1, infinity,  //
                                    nan, 1, -infinity, -infinity, 1e30, -1e30},
                                   DType::f32);
    const Tensor labels = Tensor::from<std::int64_t>(context, {6}, {0, 1, 1, 1, 0, 0});
    const Values loss = values_of(cross_entropy(odd, labels, Reduction::none));
    EXPECT_EQ(loss[0], infinity);
    EXPECT_EQ(loss[1], 0);
    for (const std::size_t i : {2u, 3u, 4u}) EXPECT_TRUE(std::isnan(loss[i])) << i;
    EXPECT_EQ(loss[5], 0);
    EXPECT_EQ(values_of(cross_entropy(odd, labels, Reduction::none, 0.1))[1], infinity);
    Tape second;
    const Var again = second.leaf(odd);
    second.backward(cross_entropy(again, labels, Reduction::sum));
    const Values dx = values_of(second.grad(again));
    EXPECT_EQ(dx[0], -1);
    EXPECT_EQ(dx[1], 1);
    EXPECT_EQ(dx[2], 0);
    EXPECT_EQ(dx[3], 0);
    for (std::size_t i = 4; i < 10; ++i) EXPECT_TRUE(std::isnan(dx[i])) << i;
    // An ignored sample: no loss, but NaN logits reach its gradient, as 0 * NaN.
    const Tensor skip = Tensor::from<std::int64_t>(context, {6}, {0, -100, 1, -100, 0, 0});
    EXPECT_EQ(values_of(cross_entropy(odd, skip, Reduction::none))[3], 0);
  });
}

TEST(CrossEntropy, ThreadsDoNotChangeABit) {
  Random random(7'500'000);
  const Shape shape{3, 11, 50, 40};
  const Values x = random_logits(random, shape.numel(), DType::f32);
  Labels labels(6000);
  for (std::int64_t& label : labels) label = random.integer(0, 10);
  std::vector<Values> losses, gradients;
  for (const int threads : {1, 2, 5}) {
    ContextOptions options;
    options.threads = threads;
    const Context context(Device::cpu(), options);
    Tape tape;
    const Var leaf = tape.leaf(make_tensor(context, shape, x, DType::f32));
    const Var loss = cross_entropy(leaf, Tensor::from<std::int64_t>(context, {3, 50, 40}, labels));
    tape.backward(loss);
    losses.push_back(values_of(loss));
    gradients.push_back(values_of(tape.grad(leaf)));
  }
  for (const std::size_t i : {1u, 2u}) {
    EXPECT_EQ(losses[0], losses[i]);
    EXPECT_EQ(gradients[0], gradients[i]);
  }
}

TEST(CrossEntropy, Errors) {
  on_shared_devices([](const Context& context) {
    const Tensor x = Tensor::zeros(context, {2, 3, 4});
    const Tensor labels = Tensor::zeros(context, {2, 4}, DType::i64);
    const auto shape_error = [](auto&& body, std::initializer_list<std::string> parts) {
      expect_contains(message_of<ShapeError>(body), parts);
    };
    shape_error([&] { cross_entropy(x, Tensor::zeros(context, {2}, DType::i64)); },
                {"cross_entropy", "[2, 3, 4]", "[2]"});
    shape_error([&] { cross_entropy(Tensor::zeros(context, {3}), labels); }, {"[3]"});
    shape_error(
        [&] {
          cross_entropy(Tensor::zeros(context, {2, 0, 4}), labels, Reduction::mean);
        },
        {"[2, 0, 4]", "C > 0"});
    shape_error([&] { cross_entropy(x, labels, Reduction::mean, 1.5); }, {"label_smoothing 1.5"});
    shape_error([&] { cross_entropy(x, labels, Reduction::mean, nan); }, {"label_smoothing"});
    expect_contains(message_of<DTypeError>([&] {
                      cross_entropy(x, Tensor::zeros(context, {2, 4}));
                    }),
                    {"labels", "f32", "i64"});
    expect_contains(message_of<DTypeError>([&] { cross_entropy(labels, labels); }), {"i64"});
    const Context other;
    EXPECT_THROW(cross_entropy(x, Tensor::zeros(other, {2, 4}, DType::i64)), DeviceError);
    // What backward needs must not have changed.
    Tape tape;
    Tensor changed = labels.clone();
    const Var loss = cross_entropy(tape.leaf(x), changed);
    changed.fill_(1);
    expect_contains(message_of<AutogradError>([&] { tape.backward(loss); }),
                    {"cross_entropy", "its labels"});
  });
}

TEST(CrossEntropy, GraphReplaysTakeNewLabels) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  const Context context(Device::cuda());
  Random random(7'600'000);
  const Shape shape{6, 7, 5, 4};
  const Tensor x = make_tensor(context, shape,
                               random_values(random, shape.numel(), DType::f32, false), DType::f32);
  Tensor labels = Tensor::zeros(context, {6, 5, 4}, DType::i64), loss, dx;
  const auto step = [&] {
    Tape tape;
    const Var leaf = tape.leaf(x);
    const Var mean = cross_entropy(leaf, labels, Reduction::mean, 0.1, 2);
    tape.backward(mean);
    loss = mean.value();
    dx = tape.grad(leaf);
  };
  step();
  Graph graph = Graph::capture(context, step);
  const Tensor captured_loss = loss, captured_dx = dx;
  Labels values(120);
  for (std::int64_t& label : values) label = random.integer(0, 6);
  labels.copy_(Tensor::from<std::int64_t>(context, {6, 5, 4}, values));
  graph.replay();
  step();
  EXPECT_EQ(values_of(captured_loss), values_of(loss));
  EXPECT_EQ(values_of(captured_dx), values_of(dx));
}

}  // namespace
}  // namespace zerone::test
