// Pooling: every row of both passes against definitions in f64 on the host, and golden results.
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "support/compare.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using kernels::Pool2dShape;
using kernels::PoolOp;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// --- problems -----------------------------------------------------------------------------------

struct Problem {
  std::string name{}, kind = "max";
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  Pool2dParams params{.kernel = 1};  // adaptive: kernel is the size of the result
  Placement x{}, y{}, argmax{};
  DType dtype = DType::f32;
  bool integers = true;

  bool max() const { return kind == "max"; }
  bool adaptive() const { return kind == "adaptive"; }
  PoolOp op() const { return max() ? PoolOp::max : PoolOp::average; }
  Shape x_shape() const { return {n, c, h, w}; }
  Var run(const Var& input) const {
    if (adaptive()) return adaptive_avg_pool2d(input, params.kernel);
    return max() ? max_pool2d(input, params) : avg_pool2d(input, params);
  }
};

/// The problem as a line of tests/shapes/pool.txt and what that leaves open.
std::string text(const Problem& p) {
  const Pair stride = p.params.stride.value_or(p.params.kernel);
  return fmt::format(
      "{} {} {} {} {} {}  {} {}  {} {}  {} {} {} {}  {} {}  {} {} | x {}, y {}, argmax {} | {} {}",
      p.name, p.kind, p.n, p.c, p.h, p.w, p.params.kernel.h, p.params.kernel.w, stride.h, stride.w,
      p.params.padding.top, p.params.padding.bottom, p.params.padding.left, p.params.padding.right,
      p.params.dilation.h, p.params.dilation.w, static_cast<int>(p.params.ceil_mode),
      static_cast<int>(p.params.count_padding), p.x.text(), p.y.text(), p.argmax.text(),
      to_string(p.dtype), p.integers ? "integers" : "normal");
}

std::vector<Problem> named_problems() {
  std::vector<Problem> problems;
  std::ifstream file(data_path("shapes/pool.txt"));
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    Problem p;
    if (!(words >> p.name)) continue;
    std::vector<std::int64_t> v(16);
    std::string layout;
    words >> p.kind;
    for (std::int64_t& value : v) words >> value;
    words >> layout;
    EXPECT_TRUE(words) << line;
    p.n = v[0], p.c = v[1], p.h = v[2], p.w = v[3];
    p.params.kernel = {v[4], v[5]};
    p.params.stride = Pair{v[6], v[7]};
    p.params.padding = {v[8], v[9], v[10], v[11]};
    p.params.dilation = {v[12], v[13]};
    p.params.ceil_mode = v[14] != 0;
    p.params.count_padding = v[15] != 0;
    if (layout == "nhwc") p.x = p.y = p.argmax = channels_last();
    problems.push_back(p);
  }
  EXPECT_FALSE(problems.empty()) << "tests/shapes/pool.txt is missing or empty";
  return problems;
}

// --- definitions --------------------------------------------------------------------------------

/// The positions of one window on one axis, -1 for what is not in the image, and how many of them
/// an average counts.
struct Window {
  std::vector<std::int64_t> positions;
  std::int64_t counted = 0;
};

std::vector<Window> windows(const Problem& p, bool vertical) {
  const auto side = [&](const Pair& pair) { return vertical ? pair.h : pair.w; };
  const std::int64_t in = vertical ? p.h : p.w, kernel = side(p.params.kernel);
  std::vector<Window> all;
  if (p.adaptive()) {
    for (std::int64_t o = 0; o < kernel; ++o) {
      Window window;
      // Position i belongs to window o where [i, i + 1) meets [o, o + 1) * in / kernel.
      for (std::int64_t i = 0; i < in; ++i)
        if (i * kernel < (o + 1) * in && (i + 1) * kernel > o * in) window.positions.push_back(i);
      window.counted = static_cast<std::int64_t>(window.positions.size());
      all.push_back(window);
    }
    return all;
  }
  const std::int64_t stride = side(p.params.stride.value_or(p.params.kernel));
  const std::int64_t dilation = side(p.params.dilation);
  const std::int64_t before = vertical ? p.params.padding.top : p.params.padding.left;
  const std::int64_t after = vertical ? p.params.padding.bottom : p.params.padding.right;
  for (std::int64_t first = -before;; first += stride) {
    const std::int64_t behind = first + (kernel - 1) * dilation + 1 - (in + after);
    const bool fits = behind <= 0, may_overhang = p.params.ceil_mode && behind < stride;
    if (!fits && !(may_overhang && first < in)) return all;
    Window window;
    for (std::int64_t r = 0; r < kernel; ++r) {
      const std::int64_t i = first + r * dilation;
      const bool inside = i >= 0 && i < in;
      window.positions.push_back(inside ? i : -1);
      if (p.params.count_padding ? i < in + after : inside) ++window.counted;
    }
    all.push_back(window);
  }
}

/// y, the places of maxima and dx by the definitions, row-major.
struct Results {
  std::int64_t h_out = 0, w_out = 0;
  std::vector<double> y, argmax, dx;
};

Results define(const Problem& p, const std::vector<double>& x, const std::vector<double>& dy) {
  const std::vector<Window> rows = windows(p, true), columns = windows(p, false);
  Results results;
  results.h_out = static_cast<std::int64_t>(rows.size());
  results.w_out = static_cast<std::int64_t>(columns.size());
  results.dx.assign(x.size(), 0);
  for (std::int64_t plane = 0; plane < p.n * p.c; ++plane)
    for (const Window& row : rows)
      for (const Window& column : columns) {
        double best = -infinity, sum = 0;
        std::int64_t tap = 0, chosen = -1, source = -1;
        std::vector<std::size_t> taken;
        for (const std::int64_t i : row.positions)
          for (const std::int64_t j : column.positions) {
            const std::int64_t here = tap++;
            if (i < 0 || j < 0) continue;
            const std::int64_t at = (plane * p.h + i) * p.w + j;
            const double value = x[static_cast<std::size_t>(at)];
            taken.push_back(static_cast<std::size_t>(at));
            sum += value;
            if (chosen >= 0 && !(value > best) && !std::isnan(value)) continue;
            best = value, chosen = here, source = at;
          }
        const std::size_t output = results.y.size();
        const double gradient = dy.empty() ? 0 : dy[output];
        if (p.max()) {
          results.y.push_back(best);
          results.argmax.push_back(static_cast<double>(chosen));
          if (source >= 0) results.dx[static_cast<std::size_t>(source)] += gradient;
        } else {
          const auto divisor = static_cast<double>(row.counted * column.counted);
          results.y.push_back(sum / divisor);
          for (const std::size_t at : taken) results.dx[at] += gradient / divisor;
        }
      }
  return results;
}

std::int64_t most_taps(const Problem& p) {
  std::size_t rows = 1, columns = 1;
  for (const Window& window : windows(p, true)) rows = std::max(rows, window.positions.size());
  for (const Window& window : windows(p, false))
    columns = std::max(columns, window.positions.size());
  return static_cast<std::int64_t>(rows * columns);
}

/// The most windows that hold one element.
std::int64_t most_windows(const Problem& p) {
  std::int64_t most = 1;
  for (const bool vertical : {true, false}) {
    std::vector<std::int64_t> over(static_cast<std::size_t>(vertical ? p.h : p.w));
    for (const Window& window : windows(p, vertical))
      for (const std::int64_t i : window.positions)
        if (i >= 0) ++over[static_cast<std::size_t>(i)];
    most *= *std::max_element(over.begin(), over.end());
  }
  return most;
}

// --- every row ----------------------------------------------------------------------------------

class Checker {
 public:
  explicit Checker(const Context& context) : context_(context) {}

  void check(const Problem& p, int index) {
    Random random(7'000'000 + static_cast<std::uint64_t>(index));
    const auto x = random_values(random, p.x_shape().numel(), p.dtype, p.integers);
    const Results sizes = define(p, x, {});
    const Shape y_shape{p.n, p.c, sizes.h_out, sizes.w_out};
    const auto dy = random_values(random, y_shape.numel(), p.dtype, p.integers);
    const Results expected = define(p, x, dy), magnitude = define(p, absolute(x), absolute(dy));
    // A maximum is copied; its gradient is a sum, exact on integers.
    const Contract exact = exact_contract(p.dtype);
    const Contract mean = product_contract(p.dtype, Math::fp32, most_taps(p));
    const Contract sums = product_contract(p.dtype, Math::fp32, most_windows(p));
    const std::vector<double> dx_magnitude = p.max() ? scatter(p, x, dy) : magnitude.dx;

    const Operand x_operand(context_, p.x_shape(), p.dtype, p.x, x);
    const Operand dy_operand(context_, y_shape, p.dtype, p.y, dy);
    const Pool2dShape shape = p.adaptive()
                                  ? make_adaptive_pool2d_shape(x_operand.view(), p.params.kernel)
                                  : make_pool2d_shape("test", p.op(), x_operand.view(), p.params);
    const std::string where = reproduction(index, text(p));
    ASSERT_EQ((std::pair{shape.h.out, shape.w.out}), (std::pair{sizes.h_out, sizes.w_out}))
        << where;

    const auto expect = [&](const std::string& row, Operand& operand, const char* what,
                            const std::vector<double>& wanted, const std::vector<double>& scale,
                            const Contract& contract) {
      std::string why;
      const std::vector<double> actual = operand.read(why);
      EXPECT_EQ(why, "") << row << " " << what << "\n  " << where;
      EXPECT_EQ(mismatch(actual, wanted, scale, contract), "")
          << row << " " << what << "\n  " << where;
      return actual;
    };
    for (const std::string& row : row_names(pool2d_forward_list(), context_)) {
      counts_.add(pool2d_forward_list().op(), row);
      const ScopedForce force(context_, pool2d_forward_list().op(), row);
      Tensor none;
      Operand y = Operand::result(context_, y_shape, p.dtype, p.y);
      pool2d_forward(p.op(), shape, x_operand.view(), y.view(), none);
      const auto first = expect(row, y, "y", expected.y, magnitude.y, p.max() ? exact : mean);
      Operand again = Operand::result(context_, y_shape, p.dtype, p.y);
      Operand argmax = Operand::result(context_, y_shape, shape.argmax_dtype(), p.argmax);
      pool2d_forward(p.op(), shape, x_operand.view(), again.view(), p.max() ? argmax.view() : none);
      expect(row, again, "y beside argmax", first, {}, exact);
      if (p.max()) {
        std::vector<double> wanted = expected.argmax;
        std::string why;
        std::vector<double> places = argmax.read(why);
        EXPECT_EQ(why, "") << row << " argmax\n  " << where;
        for (std::size_t i = 0; i < wanted.size(); ++i)
          if (wanted[i] < 0) places[i] = wanted[i];  // no place: any will do
        EXPECT_EQ(mismatch(places, wanted, {}, exact_contract(DType::f64)), "")
            << row << " argmax\n  " << where;
      }
    }
    // The host's places where there is one, any tap outside the image where there is none.
    Tensor places;
    Operand places_operand;
    if (p.max()) {
      std::vector<double> values = expected.argmax;
      for (double& value : values) value = std::max(value, 0.0);
      places_operand = Operand(context_, y_shape, shape.argmax_dtype(), p.argmax, values);
      places = places_operand.view();
    }
    for (const std::string& row : row_names(pool2d_backward_list(), context_)) {
      counts_.add(pool2d_backward_list().op(), row);
      const ScopedForce force(context_, pool2d_backward_list().op(), row);
      Operand dx = Operand::result(context_, p.x_shape(), p.dtype, p.x);
      pool2d_backward(p.op(), shape, dy_operand.view(), places, dx.view());
      const auto first =
          expect(row, dx, "dx", expected.dx, dx_magnitude, p.max() && p.integers ? exact : sums);
      Operand again = Operand::result(context_, p.x_shape(), p.dtype, p.x);
      pool2d_backward(p.op(), shape, dy_operand.view(), places, again.view());
      expect(row, again, "dx again", first, {}, exact_contract(DType::f64));
    }
  }

  const RowCounts& counts() const { return counts_; }

 private:
  /// sum |dy| over the windows that chose an element.
  static std::vector<double> scatter(const Problem& p, const std::vector<double>& x,
                                     const std::vector<double>& dy) {
    return define(p, x, absolute(dy)).dx;
  }

  Context context_;
  RowCounts counts_;
};

TEST(Pool, NamedProblemsOnEveryRow) {
  const std::vector<Problem> problems = named_problems();
  on_shared_devices([&](const Context& context) {
    Checker checker(context);
    int index = 0;
    for (const Problem& named : problems)
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
        for (const bool integers : {true, false}) {
          Problem p = named;
          p.dtype = dtype, p.integers = integers;
          if (case_wanted(index)) checker.check(p, index);
          ++index;
          if (p.n > 1000) break;
        }
    checker.counts().expect_every_row(pool2d_forward_list(), context, 100);
    checker.counts().expect_every_row(pool2d_backward_list(), context, 100);
  });
}

Problem random_problem(Random& random) {
  Problem p{.name = "random"};
  p.kind = random.pick<std::string>({"max", "max", "avg", "avg", "adaptive"});
  p.n = random.chance(0.03) ? 0 : random.integer(1, 4);
  p.c = random.pick<std::int64_t>({1, 2, 3, 4, 7, 8, 16, 24});
  p.h = random.integer(1, 14), p.w = random.pick<std::int64_t>({1, 2, 3, 5, 8, 9, 12, 16, 24, 32});
  const auto side = [&](std::int64_t most) {
    return Pair{random.integer(1, most), random.integer(1, most)};
  };
  if (p.adaptive()) {
    p.params.kernel = side(9);
  } else {
    p.params.kernel = random.chance(0.3) ? Pair(2) : random.chance(0.3) ? Pair(3) : side(6);
    if (random.chance(0.7)) p.params.stride = random.chance(0.4) ? Pair(2) : side(4);
    if (p.max() && random.chance(0.3)) p.params.dilation = side(3);
    p.params.ceil_mode = random.chance(0.5);
    p.params.count_padding = random.chance(0.5);
    const std::int64_t top = p.params.kernel.h / 2, left = p.params.kernel.w / 2;
    if (random.chance(0.6))
      p.params.padding = {random.integer(0, top), random.integer(0, top), random.integer(0, left),
                          random.integer(0, left)};
    p.h = std::max(p.h, (p.params.kernel.h - 1) * p.params.dilation.h + 1);
    p.w = std::max(p.w, (p.params.kernel.w - 1) * p.params.dilation.w + 1);
  }
  p.dtype = random.pick({DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16});
  p.integers = random.chance(0.5);
  if (random.chance(0.5)) {
    p.x = random_placement(random, 4), p.y = random_placement(random, 4);
    p.argmax = random_placement(random, 4);
  } else if (random.chance(0.5)) {
    p.x = p.y = p.argmax = channels_last();
  }
  return p;
}

TEST(Pool, RandomProblemsOnEveryRow) {
  on_shared_devices([](const Context& context) {
    Checker checker(context);
    for (int index = 10'000; index < 10'800; ++index) {
      if (!case_wanted(index)) continue;
      Random random(8'000'000 + static_cast<std::uint64_t>(index));
      checker.check(random_problem(random), index);
    }
  });
}

// --- on the tape --------------------------------------------------------------------------------

TEST(Pool, ResultsAndGradientsLieLikeX) {
  on_shared_devices([](const Context& context) {
    int index = 0;
    for (Problem p : named_problems()) {
      if (p.n > 1000) continue;
      Random random(9'000'000 + static_cast<std::uint64_t>(index++));
      const auto values = random_values(random, p.x_shape().numel(), DType::f64, true);
      Tensor x = make_tensor(context, p.x_shape(), values);
      if (!p.x.order.empty()) x = x.contiguous_nhwc();
      Tape tape;
      const Var leaf = tape.leaf(x);
      const Var y = p.run(leaf);
      const auto dy = random_values(random, y.value().numel(), DType::f64, true);
      tape.backward(y, {.seed = make_tensor(context, y.shape(), dy)});
      const Results expected = define(p, values, dy);
      ASSERT_EQ(y.shape(), (Shape{p.n, p.c, expected.h_out, expected.w_out})) << p.name;
      const Contract contract{.dtype = DType::f64, .floor = 1e-13};
      const std::vector<double> none(values.size()), none_y(dy.size());
      EXPECT_EQ(mismatch(values_of(y), expected.y, none_y, contract), "") << p.name;
      EXPECT_EQ(mismatch(values_of(tape.grad(leaf)), expected.dx, none, contract), "") << p.name;
      EXPECT_EQ(mismatch(values_of(p.run(x)), values_of(y), {}, exact_contract(DType::f64)), "")
          << p.name << " without a gradient";
      if (p.c == 1 || y.value().numel() == 0) continue;
      const bool nhwc = !p.x.order.empty();
      EXPECT_EQ(y.value().stride(1) == 1 && y.value().stride(3) == p.c, nhwc) << p.name;
    }
  });
}

TEST(Pool, ExpandedAndPermutedOperands) {
  on_shared_devices([](const Context& context) {
    const Tensor one = make_tensor(context, {1, 1, 2, 3}, {1, 4, 2, 3, 0, 5}, DType::f32);
    const Tensor x = one.expand({2, 2, 2, 3});
    EXPECT_EQ(values_of(max_pool2d(x, {.kernel = {2, 2}, .stride = Pair(1)})),
              (std::vector<double>{4, 5, 4, 5, 4, 5, 4, 5}));
    Tape tape;
    const Var leaf = tape.leaf(one.permute({0, 1, 3, 2}).clone());
    tape.backward(sum(max_pool2d(leaf, {.kernel = {2, 2}, .stride = Pair(1)})));  // dy is expanded
    EXPECT_EQ(values_of(tape.grad(leaf)), (std::vector<double>{0, 0, 1, 0, 0, 1}));
  });
}

TEST(Pool, GradientsAgainstDifferences) {
  on_shared_devices([](const Context& context) {
    Random random(77);
    // Distinct values half apart, so that a step of 1/8 moves no maximum.
    std::vector<double> values(2 * 3 * 6 * 7);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i) / 2;
    for (std::size_t i = values.size(); i > 1; --i)
      std::swap(values[i - 1],
                values[static_cast<std::size_t>(random.integer(0, static_cast<int>(i) - 1))]);
    const Tensor x = make_tensor(context, {2, 3, 6, 7}, values);
    const std::vector<std::function<Var(const Var&)>> functions = {
        [](const Var& v) { return max_pool2d(v, {.kernel = 2}); },
        [](const Var& v) {
          return max_pool2d(v, {.kernel = 3, .stride = Pair(1), .padding = 1, .dilation = {1, 2}});
        },
        [](const Var& v) {
          return avg_pool2d(v, {.kernel = 3, .stride = Pair(2), .padding = 1, .ceil_mode = true});
        },
        [](const Var& v) {
          return avg_pool2d(v, {.kernel = {6, 7}});
        },
        [](const Var& v) {
          return adaptive_avg_pool2d(v, {4, 3});
        },
        [](const Var& v) { return adaptive_avg_pool2d(v, 1); }};
    for (const bool nhwc : {false, true})
      for (std::size_t i = 0; i < functions.size(); ++i) {
        const auto check = gradcheck([&](std::span<const Var> in) { return functions[i](in[0]); },
                                     {nhwc ? x.contiguous_nhwc() : x},
                                     {.step = 0.125, .relative = 1e-10, .absolute = 1e-10});
        EXPECT_TRUE(check.passed) << "function " << i << ": " << check.message;
      }
  });
}

TEST(Pool, KnownZerosStayKnown) {
  on_shared_devices([](const Context& context) {
    const Tensor x = Tensor::zeros(context, {2, 3, 4, 4});
    EXPECT_TRUE(max_pool2d(x, {.kernel = 2}).value().known_zero());
    EXPECT_TRUE(avg_pool2d(x, {.kernel = 2}).value().known_zero());
    EXPECT_TRUE(adaptive_avg_pool2d(x, 1).value().known_zero());
    EXPECT_TRUE(adaptive_avg_pool2d(x, 3).value().known_zero());
    const Pool2dParams dilated{.kernel = 2, .stride = Pair(1), .padding = 1, .dilation = 3};
    EXPECT_EQ(values_of(max_pool2d(Tensor::zeros(context, {1, 1, 2, 2}), dilated))[0], -infinity);
    for (const bool maximum : {true, false}) {
      Tape tape;
      const Var leaf = tape.leaf(x);
      const Var y = maximum ? max_pool2d(leaf, {.kernel = 2}) : avg_pool2d(leaf, {.kernel = 2});
      tape.backward(y, {.seed = Tensor::zeros(context, y.shape())});
      EXPECT_TRUE(tape.grad(leaf).known_zero());
      EXPECT_EQ(values_of(tape.grad(leaf)), std::vector<double>(2 * 3 * 16, 0.0));
    }
  });
}

TEST(Pool, OnlyTheGradientKeepsAnArgmax) {
  on_shared_devices([](const Context& context) {
    const Tensor x =
        make_tensor(context, {8, 64, 64, 32}, std::vector<double>(1 << 20, 1.0), DType::f32);
    const auto live_after = [&](const Var& input) {
      const std::size_t before = context.memory().live;
      const Var y = max_pool2d(input, {.kernel = 2});
      return context.memory().live - before;
    };
    const std::size_t without = live_after(x);
    Tape tape;
    const std::size_t with = live_after(tape.leaf(x));
    EXPECT_LT(without, std::size_t{5} << 18);           // y alone is 1 MiB
    EXPECT_GE(with, without + (std::size_t{1} << 18));  // one byte an output
    EXPECT_LT(with, without + 5 * (std::size_t{1} << 16));
  });
}

TEST(Pool, ThreadsChangeNothing) {
  Random random(5);
  const auto values = random_values(random, 3 * 40 * 33 * 35, DType::f32, false);
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3, 7}) {
    ContextOptions options;
    options.threads = threads;
    const Context context(Device::cpu(), options);
    for (const bool nhwc : {false, true}) {
      const Tensor x = make_tensor(context, {3, 40, 33, 35}, values, DType::f32);
      Tape tape;
      const Var leaf = tape.leaf(nhwc ? x.contiguous_nhwc() : x);
      const Var y = add(max_pool2d(leaf, {.kernel = 3, .stride = Pair(2), .padding = 1}),
                        adaptive_avg_pool2d(leaf, {17, 18}));
      tape.backward(y, {.seed = y});
      std::vector<double> result = values_of(y), dx = values_of(tape.grad(leaf));
      result.insert(result.end(), dx.begin(), dx.end());
      if (results.size() < 2) results.push_back(result);
      EXPECT_EQ(result, results[nhwc ? 1 : 0]) << threads << " threads, nhwc " << nhwc;
    }
  }
}

// --- special values -----------------------------------------------------------------------------

struct Special {
  std::vector<double> x, y, dx;  // of one 2x2 window with dy = 1
};

TEST(Pool, SpecialValues) {
  const std::vector<Special> maxima = {
      {{1, nan, nan, 2}, {nan}, {0, 0, 1, 0}},
      {{nan, infinity, 1, 2}, {nan}, {1, 0, 0, 0}},
      {{-infinity, -infinity, -infinity, -infinity}, {-infinity}, {1, 0, 0, 0}},
      {{-infinity, -5, infinity, infinity}, {infinity}, {0, 0, 1, 0}},
      {{-0.0, 0.0, -0.0, 0.0}, {-0.0}, {1, 0, 0, 0}},
      {{0.0, -0.0, -0.0, 0.0}, {0.0}, {1, 0, 0, 0}},
      {{-1, 3, 3, 3}, {3}, {0, 1, 0, 0}}};
  const std::vector<Special> averages = {
      {{1, nan, 2, 3}, {nan}, {0.25, 0.25, 0.25, 0.25}},
      {{infinity, -infinity, 2, 3}, {nan}, {0.25, 0.25, 0.25, 0.25}},
      {{infinity, infinity, 2, 3}, {infinity}, {0.25, 0.25, 0.25, 0.25}},
      {{-0.0, -0.0, -0.0, -0.0}, {0.0}, {0.25, 0.25, 0.25, 0.25}}};
  on_shared_devices([&](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
      for (const bool maximum : {true, false})
        for (const Special& special : maximum ? maxima : averages)
          for (const std::int64_t columns : {2, 4, 16, 32})
            for (const std::int64_t channels : {1, 16})
              for (const bool nhwc : {false, true}) {
                // The window repeated, so that vector and scalar paths both see it.
                std::vector<double> values;
                for (std::int64_t i = 0; i < channels * 2 * columns; ++i)
                  values.push_back(
                      special.x[static_cast<std::size_t>(i / columns % 2 * 2 + i % 2)]);
                Tensor x = make_tensor(context, {1, channels, 2, columns}, values, dtype);
                if (nhwc) x = x.contiguous_nhwc();
                Tape tape;
                const Var leaf = tape.leaf(x);
                const auto pool = [&](const Var& v) {
                  return maximum ? max_pool2d(v, {.kernel = 2, .stride = Pair(2)})
                                 : avg_pool2d(v, {.kernel = 2, .stride = Pair(2)});
                };
                const Var y = pool(leaf);
                tape.backward(sum(y));
                const auto same = [](double a, double b) {
                  return (std::isnan(a) && std::isnan(b)) ||
                         (a == b && std::signbit(a) == std::signbit(b));
                };
                for (const double value : values_of(y))
                  EXPECT_TRUE(same(value, special.y[0])) << value << " not " << special.y[0];
                for (const double value : values_of(pool(x)))
                  EXPECT_TRUE(same(value, special.y[0]))
                      << value << " not " << special.y[0] << " without a gradient";
                const std::vector<double> dx = values_of(tape.grad(leaf));
                for (std::size_t i = 0; i < dx.size(); ++i) {
                  const std::size_t tap = i / static_cast<std::size_t>(columns) % 2 * 2 + i % 2;
                  EXPECT_EQ(dx[i], special.dx[tap]) << "element " << i;
                }
              }
  });
}

TEST(Pool, GradientsCarrySpecialValues) {
  on_shared_devices([](const Context& context) {
    for (const bool nhwc : {false, true}) {
      Tensor x = make_tensor(context, {1, 2, 2, 4},
                             {1, 2, 3, 4, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0}, DType::f32);
      if (nhwc) x = x.contiguous_nhwc();
      Tape tape;
      const Var leaf = tape.leaf(x);
      tape.backward(max_pool2d(leaf, {.kernel = 2}),
                    {.seed = make_tensor(context, {1, 2, 1, 2}, {nan, infinity, -infinity, -0.0},
                                         DType::f32)});
      const std::vector<double> dx = values_of(tape.grad(leaf));
      EXPECT_TRUE(std::isnan(dx[1]));
      EXPECT_EQ(dx[3], infinity);
      EXPECT_EQ(dx[8], -infinity);
      for (const std::size_t i : {0, 2, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15})
        EXPECT_TRUE(dx[i] == 0 && !std::signbit(dx[i])) << i;
    }
  });
}

// --- errors -------------------------------------------------------------------------------------

TEST(Pool, Errors) {
  on_shared_devices([](const Context& context) {
    const Tensor x = Tensor::zeros(context, {2, 3, 5, 6});
    const auto shape_error = [](auto&& body, std::initializer_list<std::string> parts) {
      expect_contains(message_of<ShapeError>(body), parts);
    };
    shape_error([&] { max_pool2d(x, {.kernel = 2, .padding = 2}); },
                {"[max_pool2d]", "padding", "half", "kernel (2, 2)", "[2, 3, 5, 6]"});
    shape_error(
        [&] {
          avg_pool2d(x, {.kernel = 3, .padding = {0, 2, 0, 0}});
        },
        {"[avg_pool2d]", "padding of the height", "(0, 2, 0, 0)"});
    shape_error([&] { max_pool2d(x, {.kernel = 2, .padding = 2, .dilation = 3}); }, {"half"});
    shape_error([&] { avg_pool2d(x, {.kernel = 2, .dilation = 2}); }, {"dilation (2, 2)"});
    shape_error(
        [&] {
          max_pool2d(x, {.kernel = {2, 7}});
        },
        {"no window fits the width", "6", "7", "kernel (2, 7)"});
    shape_error([&] { max_pool2d(x, {.kernel = 0}); }, {"kernel"});
    shape_error([&] { max_pool2d(x, {.kernel = 2, .stride = Pair(1, 0)}); }, {"stride (1, 0)"});
    shape_error([&] { max_pool2d(x, {.kernel = 2, .padding = -1}); }, {"negative"});
    shape_error([&] { max_pool2d(x, {.kernel = 2, .stride = Pair(std::int64_t{1} << 40)}); },
                {"2^31"});
    shape_error([&] { max_pool2d(x, {.kernel = 2, .dilation = std::int64_t{1} << 40}); }, {"2^31"});
    shape_error(
        [&] {
          max_pool2d(Tensor::zeros(context, {2, 3, 5}), {.kernel = 2});
        },
        {"[n, c, h, w]"});
    shape_error(
        [&] {
          max_pool2d(Tensor::zeros(context, {2, 3, 0, 5}), {.kernel = 1});
        },
        {"at least 1"});
    shape_error([&] { adaptive_avg_pool2d(x, {-1, 2}); }, {"[adaptive_avg_pool2d]", "(-1, 2)"});
    shape_error(
        [&] {
          adaptive_avg_pool2d(Tensor::zeros(context, {2, 0, 5, 5}), 2);
        },
        {"at least"});
    EXPECT_THROW(max_pool2d(Tensor::zeros(context, {1, 1, 2, 2}, DType::i64), {.kernel = 2}),
                 DTypeError);
    EXPECT_THROW(adaptive_avg_pool2d(Tensor::zeros(context, {1, 1, 2, 2}, DType::u8), 1),
                 DTypeError);
    // A gradient does not need x, so x may be written.
    Tape tape;
    Tensor changing = make_tensor(context, {1, 1, 2, 2}, {1, 2, 3, 4});
    const Var leaf = tape.leaf(changing);
    const Var y = max_pool2d(leaf, {.kernel = 2});
    changing.fill_(9);
    tape.backward(y);
    EXPECT_EQ(values_of(tape.grad(leaf)), (std::vector<double>{0, 0, 0, 1}));
  });
}

// --- capture ------------------------------------------------------------------------------------

TEST(Pool, AGraphReplaysBothPasses) {
  on_shared_devices([](const Context& context) {
    if (!context.device().is_cuda()) return;
    Random random(3);
    const Shape shape{2, 8, 12, 12};
    Tensor x = Tensor::zeros(context, shape), total = Tensor::zeros(context, shape);
    const auto fill = [&] {
      const auto values = random_values(random, shape.numel(), DType::f32, false);
      x.copy_(make_tensor(context, shape, values, DType::f32));
    };
    const auto step = [&] {
      Tape tape;
      const Var leaf = tape.leaf(x);
      const Var pooled = max_pool2d(leaf, {.kernel = 3, .stride = Pair(2), .padding = 1});
      tape.backward(sum(mul(adaptive_avg_pool2d(pooled, 1), avg_pool2d(pooled, {.kernel = 2}))));
      total.copy_(tape.grad(leaf));
    };
    fill();
    step();
    Graph graph = Graph::capture(context, step);
    for (int i = 0; i < 3; ++i) {
      fill();
      graph.replay();
      const std::vector<double> replayed = values_of(total);
      step();
      EXPECT_EQ(replayed, values_of(total));
    }
  });
}

// --- golden results -----------------------------------------------------------------------------

TEST(Pool, GoldenResults) {
  Golden golden("pool");
  EXPECT_GE(golden.cases().size(), 60u);
  on_shared_devices([&](const Context& context) {
    for (const auto& entry : golden.cases())
      for (const DType dtype : {DType::f64, DType::f32})
        for (const bool nhwc : {false, true}) {
          const auto& given = entry["params"];
          const auto number = [&](const char* name) { return given[name].get<std::int64_t>(); };
          const Shape shape = Golden::shape(entry, "x");
          Problem p{
              .kind = entry["kind"], .n = shape[0], .c = shape[1], .h = shape[2], .w = shape[3]};
          p.params.kernel = {number("kh"), number("kw")};
          if (!p.adaptive()) {
            p.params.stride = Pair{number("stride_h"), number("stride_w")};
            p.params.padding = {number("pad_t"), number("pad_b"), number("pad_l"), number("pad_r")};
            p.params.dilation = {number("dil_h"), number("dil_w")};
            p.params.ceil_mode = number("ceil") != 0;
            p.params.count_padding = number("count") != 0;
          }
          const Tensor x = golden.tensor(context, entry, "x", dtype);
          Tape tape;
          const Var leaf = tape.leaf(nhwc ? x.contiguous_nhwc() : x);
          const Var y = p.run(leaf);
          const std::string where =
              fmt::format("golden pool {} {} {}", entry["name"].get<std::string>(),
                          to_string(dtype), nhwc ? "nhwc" : "nchw");
          ASSERT_EQ(y.shape(), Golden::shape(entry, "y")) << where;
          tape.backward(y, {.seed = golden.tensor(context, entry, "gy", dtype)});
          const auto values = golden.values(entry, "x"), dy = golden.values(entry, "gy");
          const Results magnitude = define(p, p.max() ? values : absolute(values), absolute(dy));
          const Contract mean = product_contract(dtype, Math::fp32, most_taps(p));
          const Contract sums = product_contract(dtype, Math::fp32, most_windows(p));
          EXPECT_EQ(mismatch(values_of(y), golden.values(entry, "y"), magnitude.y,
                             p.max() ? exact_contract(DType::f64) : mean),
                    "")
              << where << " y";
          EXPECT_EQ(
              mismatch(values_of(tape.grad(leaf)), golden.values(entry, "dx"), magnitude.dx, sums),
              "")
              << where << " dx";
        }
  });
}

}  // namespace
}  // namespace zerone::test
