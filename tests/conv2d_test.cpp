// conv2d: every row of every pass against the f64 reference row, and the golden results.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "support/compare.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

// --- problems -----------------------------------------------------------------------------------

/// Which weights are zero; see tests/shapes/zero_skip.txt.
struct Pattern {
  std::string kind = "scattered";
  double fraction = 0;
};

struct Problem {
  std::string name{};
  std::int64_t n = 1, c_in = 1, c_out = 1, h = 1, w = 1, kh = 1, kw = 1;
  Conv2dParams params{};
  Placement x{}, weight{}, y{};
  DType dtype = DType::f32;
  Math math = Math::fp32;
  bool bias = false, integers = true;
  Pattern pattern{};

  Shape x_shape() const { return {n, c_in, h, w}; }
  Shape w_shape() const { return {c_out, c_in / params.groups, kh, kw}; }
  std::int64_t h_out() const {
    return (h + params.padding.top + params.padding.bottom - params.dilation.h * (kh - 1) - 1) /
               params.stride.h +
           1;
  }
  std::int64_t w_out() const {
    return (w + params.padding.left + params.padding.right - params.dilation.w * (kw - 1) - 1) /
               params.stride.w +
           1;
  }
  Shape y_shape() const { return {n, c_out, h_out(), w_out()}; }
  std::int64_t multiplies() const {
    return n * c_out * h_out() * w_out() * c_in / params.groups * kh * kw;
  }
};

/// The problem as a line of tests/shapes/conv2d.txt and what that leaves open.
std::string text(const Problem& p) {
  return fmt::format(
      "{} {} {} {} {} {}  {} {}  {} {}  {} {} {} {}  {} {}  {} | x {}, w {}, y {} | {}/{}{}{} {} | "
      "zeros {} {}",
      p.name, p.n, p.c_in, p.c_out, p.h, p.w, p.kh, p.kw, p.params.stride.h, p.params.stride.w,
      p.params.padding.top, p.params.padding.bottom, p.params.padding.left, p.params.padding.right,
      p.params.dilation.h, p.params.dilation.w, p.params.groups, p.x.text(), p.weight.text(),
      p.y.text(), to_string(p.dtype), to_string(p.math), p.bias ? " bias" : "",
      p.params.activation == Activation::relu ? " relu" : "", p.integers ? "integers" : "normal",
      p.pattern.kind, p.pattern.fraction);
}

/// Zeroes whole filters, channels, 16x8 blocks of one tap, or single weights.
void apply(const Pattern& pattern, const Problem& p, Random& random, std::vector<double>& w) {
  const std::int64_t channels = p.c_in / p.params.groups, taps = p.kh * p.kw;
  if (pattern.kind == "all" || pattern.kind == "negative_zero") {
    std::fill(w.begin(), w.end(), pattern.kind == "all" ? 0.0 : -0.0);
    return;
  }
  const std::uint64_t salt = random.bits();
  for (std::size_t i = 0; i < w.size(); ++i) {
    const auto flat = static_cast<std::int64_t>(i);
    const std::int64_t k = flat / (channels * taps), c = flat / taps % channels, tap = flat % taps;
    std::int64_t unit = flat;
    if (pattern.kind == "filter") unit = k;
    if (pattern.kind == "channel") unit = c;
    if (pattern.kind == "block") unit = (k / 16 * 1000 + c / 8) * 1000 + tap;
    if (Random(salt + static_cast<std::uint64_t>(unit)).chance(pattern.fraction))
      w[i] = 0;
    else if (pattern.kind == "denormal")
      w[i] = rounded(p.dtype, w[i] * 1e-42);
  }
}

std::vector<std::vector<std::string>> read_table(const std::string& name) {
  std::ifstream file(data_path("shapes/" + name));
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::vector<std::string> row;
    for (std::string word; words >> word;) row.push_back(word);
    if (!row.empty()) rows.push_back(row);
  }
  EXPECT_FALSE(rows.empty()) << "tests/shapes/" << name << " is missing or empty";
  return rows;
}

std::vector<Problem> named_problems() {
  std::vector<Problem> problems;
  for (const auto& row : read_table("conv2d.txt")) {
    const auto number = [&](std::size_t i) { return std::stoll(row.at(i)); };
    Problem p{.name = row[0],
              .n = number(1),
              .c_in = number(2),
              .c_out = number(3),
              .h = number(4),
              .w = number(5),
              .kh = number(6),
              .kw = number(7)};
    p.params.stride = {number(8), number(9)};
    p.params.padding = {number(10), number(11), number(12), number(13)};
    p.params.dilation = {number(14), number(15)};
    p.params.groups = number(16);
    if (row.at(17) == "nhwc") p.x = p.weight = p.y = channels_last();
    problems.push_back(p);
  }
  return problems;
}

std::vector<Problem> zero_skip_problems() {
  std::vector<Problem> shapes, problems;
  for (const auto& row : read_table("zero_skip.txt")) {
    const auto number = [&](std::size_t i) { return std::stoll(row.at(i)); };
    if (row[0] == "shape") {
      Problem p{.name = row[1],
                .n = number(2),
                .c_in = number(3),
                .c_out = number(4),
                .h = number(5),
                .w = number(6),
                .kh = number(7),
                .kw = number(8)};
      p.params.stride = number(9);
      p.params.padding = number(10);
      p.params.dilation = number(11);
      p.params.groups = number(12);
      shapes.push_back(p);
    } else {
      for (Problem p : shapes) {
        p.pattern = {row[1], std::stod(row.at(2))};
        problems.push_back(p);
      }
    }
  }
  return problems;
}

Problem random_problem(Random& random, bool plain_layouts, bool on_gpu) {
  Problem p{.name = "random"};
  const double kernel = random.real();
  p.kh = kernel < 0.2 ? 1 : kernel < 0.45 ? 3 : random.integer(1, 7);
  p.kw = kernel < 0.2 ? 1 : kernel < 0.45 ? 3 : random.integer(1, 7);
  if (random.chance(0.35)) p.params.stride = {random.integer(1, 3), random.integer(1, 3)};
  if (random.chance(0.25)) p.params.dilation = {random.integer(1, 3), random.integer(1, 3)};
  if (random.chance(0.6)) {
    const std::int64_t most = random.chance(0.15) ? 8 : 3;
    p.params.padding = {random.integer(0, most), random.integer(0, most), random.integer(0, most),
                        random.integer(0, most)};
  }
  const double grouping = random.real();
  if (grouping < 0.65) {
    p.c_in = random.pick<std::int64_t>({1, 2, 3, 4, 5, 7, 8, 16, 17, 24, 33});
    p.c_out = random.pick<std::int64_t>({1, 2, 3, 5, 8, 13, 16, 17, 32, 37});
  } else if (grouping < 0.82) {
    p.params.groups = p.c_in = random.integer(1, 12);
    p.c_out = p.c_in * random.pick<std::int64_t>({1, 1, 2, 3});
  } else {
    p.params.groups = random.integer(2, 5);
    p.c_in = p.params.groups * random.integer(1, 6);
    p.c_out = p.params.groups * random.integer(1, 9);
  }
  p.n = random.chance(0.06) ? 0 : random.integer(1, 5);
  const auto fit = [&](std::int64_t size, std::int64_t padding, std::int64_t k, std::int64_t d) {
    return std::max(size, d * (k - 1) + 1 - padding);
  };
  p.h = fit(random.integer(1, 15), p.params.padding.top + p.params.padding.bottom, p.kh,
            p.params.dilation.h);
  p.w = fit(random.integer(1, 17), p.params.padding.left + p.params.padding.right, p.kw,
            p.params.dilation.w);
  while (p.multiplies() > 400'000 && p.n > 1) --p.n;
  while (p.multiplies() > 400'000 && p.params.groups == 1 && p.c_out > 1) p.c_out /= 2;

  const double kind = random.real();
  p.dtype = kind < 0.6 ? DType::f32 : kind < 0.8 ? DType::f64 : DType::f32;
  if (kind > (on_gpu ? 0.6 : 0.9) && p.dtype != DType::f64)
    p.dtype = random.chance(0.5) ? DType::bf16 : DType::f16;
  if (random.chance(0.4)) p.math = random.pick({Math::strict, Math::tf32, Math::bf16, Math::fp16});
  p.bias = random.chance(0.5);
  if (random.chance(0.4)) p.params.activation = Activation::relu;
  p.integers = random.chance(0.5);
  const double pattern = random.real();
  p.pattern = pattern < 0.2    ? Pattern{"scattered", 0}
              : pattern < 0.35 ? Pattern{"scattered", 0.1}
              : pattern < 0.5  ? Pattern{"scattered", 0.5}
              : pattern < 0.65 ? Pattern{"all", 1}
              : pattern < 0.7  ? Pattern{"negative_zero", 1}
              : pattern < 0.8  ? Pattern{"filter", 0.5}
              : pattern < 0.9  ? Pattern{"channel", 0.5}
                               : Pattern{"block", 0.7};
  if (plain_layouts) {
    if (random.chance(0.5)) p.x = p.weight = p.y = channels_last();
  } else {
    p.x = random_placement(random, 4);
    p.weight = random_placement(random, 4);
    p.y = random_placement(random, 4);
  }
  return p;
}

// --- running ------------------------------------------------------------------------------------

/// Operands as plain numbers.
struct Data {
  std::vector<double> x, w, b, dy;
};

Data make_data(const Problem& p, Random& random) {
  Data data;
  data.x = random_values(random, p.x_shape().numel(), p.dtype, p.integers);
  data.w = random_values(random, p.w_shape().numel(), p.dtype, p.integers);
  data.b = random_values(random, p.c_out, p.dtype, p.integers);
  data.dy = random_values(random, p.y_shape().numel(), p.dtype, p.integers);
  apply(p.pattern, p, random, data.w);
  return data;
}

constexpr const char* forward_op = "conv2d.forward";
constexpr const char* data_op = "conv2d.backward_data";
constexpr const char* weight_op = "conv2d.backward_weight";

/// y, dx and dw by the f64 reference row, all row-major.
struct Results {
  std::vector<double> y, dx, dw;
};

Results reference(const Context& context, const Problem& p, const Data& data, Activation activation,
                  bool weight_pass) {
  const std::string row = reference_row(context);
  const ScopedForce forward(context, forward_op, row), backward(context, data_op, row),
      weight(context, weight_op, row);
  const Tensor x = make_tensor(context, p.x_shape(), data.x);
  const Tensor w = make_tensor(context, p.w_shape(), data.w);
  const Tensor b = p.bias ? make_tensor(context, {p.c_out}, data.b) : Tensor();
  const Tensor dy = make_tensor(context, p.y_shape(), data.dy);
  Tensor y = Tensor::empty_like(dy), dx = Tensor::empty_like(x), dw = Tensor::empty_like(w);
  const kernels::Conv2dShape shape = make_conv2d_shape(x, w, p.params);
  conv2d_forward(shape, x, w, b, y, activation, Math::strict);
  conv2d_backward_data(shape, dy, w, dx, Math::strict);
  if (weight_pass) conv2d_backward_weight(shape, x, dy, dw, Math::strict);
  return {values_of(y), values_of(dx), weight_pass ? values_of(dw) : std::vector<double>()};
}

/// Runs a problem on every row of every pass that it concerns.
class Checker {
 public:
  explicit Checker(const Context& context)
      : context_(context), vendor_(context.device().is_cuda() ? "cudnn" : "onednn") {}

  void check(const Problem& p, int index, bool vendors, bool weight_pass = true) {
    problem_ = &p;
    index_ = index;
    vendors_ = vendors;
    Random random(static_cast<std::uint64_t>(index));
    const Data data = make_data(p, random);
    const Results expected = reference(context_, p, data, p.params.activation, weight_pass);
    Results magnitude;
    if (!p.integers || (vendors && !sums_exactly("." + vendor_, p.dtype, p.math))) {
      const Data positive{absolute(data.x), absolute(data.w), absolute(data.b), absolute(data.dy)};
      magnitude = reference(context_, p, positive, Activation::none, weight_pass);
    }
    const Operand x(context_, p.x_shape(), p.dtype, p.x, data.x);
    const Operand w(context_, p.w_shape(), p.dtype, p.weight, data.w);
    const Operand dy(context_, p.y_shape(), p.dtype, p.y, data.dy);
    Tensor b;
    if (p.bias) b = make_tensor(context_, {p.c_out}, data.b, p.dtype);
    const kernels::Conv2dShape shape = make_conv2d_shape(x.view(), w.view(), p.params);
    const std::int64_t taps = p.kh * p.kw, groups = p.params.groups;

    run_rows(conv2d_forward_list(), p.c_in / groups * taps + 1, p.y_shape(), p.y, expected.y,
             magnitude.y, [&](Tensor& y) {
               conv2d_forward(shape, x.view(), w.view(), b, y, p.params.activation, p.math);
             });
    run_rows(conv2d_backward_data_list(), p.c_out / groups * taps, p.x_shape(), p.x, expected.dx,
             magnitude.dx,
             [&](Tensor& dx) { conv2d_backward_data(shape, dy.view(), w.view(), dx, p.math); });
    if (weight_pass)
      run_rows(conv2d_backward_weight_list(), p.n * p.h_out() * p.w_out(), p.w_shape(), p.weight,
               expected.dw, magnitude.dw,
               [&](Tensor& dw) { conv2d_backward_weight(shape, x.view(), dy.view(), dw, p.math); });
  }

  const RowCounts& counts() const { return counts_; }

 private:
  template <class List, class Work>
  void run_rows(const List& list, std::int64_t terms, const Shape& shape,
                const Placement& placement, const std::vector<double>& expected,
                const std::vector<double>& magnitude, Work&& work) {
    const Problem& p = *problem_;
    for (const std::string& row : row_names(list, context_)) {
      if (is_vendor(row) && !vendors_) continue;
      // The largest problems are there for the fast rows.
      if (row == "cpu.reference" && p.multiplies() > 20'000'000) continue;
      const auto fail = [&](const std::string& what) {
        ADD_FAILURE() << list.op() << "/" << row << ": " << what << "\n  "
                      << reproduction(index_, text(p));
      };
      Operand result = Operand::result(context_, shape, p.dtype, placement);
      bool ran = false;
      try {
        ran = run_forced(context_, list.op(), row, p.dtype, false, [&] { work(result.view()); });
      } catch (const Error& error) {
        fail(error.what());
      }
      if (!ran) continue;
      counts_.add(list.op(), row);
      std::string why;
      const std::vector<double> actual = result.read(why);
      if (!why.empty()) fail(why);
      Contract contract = product_contract(p.dtype, p.math, terms);
      if (is_vendor(row)) contract = twice_rounded(contract);
      if (p.integers && sums_exactly(row, p.dtype, p.math)) contract = exact_contract(p.dtype);
      if (why = mismatch(actual, expected, magnitude, contract); !why.empty()) fail(why);

      if (index_ % 8 != 0 || is_vendor(row)) continue;
      Operand again = Operand::result(context_, shape, p.dtype, placement);
      run_forced(context_, list.op(), row, p.dtype, true, [&] { work(again.view()); });
      why.clear();
      if (!mismatch(again.read(why), actual, {}, {.dtype = DType::f64, .exact = true}).empty())
        fail("a second run gives other bits");
    }
  }

  Context context_;
  std::string vendor_;
  RowCounts counts_;
  const Problem* problem_ = nullptr;
  int index_ = 0;
  bool vendors_ = false;
};

// --- tests --------------------------------------------------------------------------------------

TEST(Conv2d, NamedProblemsOnEveryRow) {
  const std::vector<Problem> problems = named_problems();
  on_shared_devices([&](const Context& context) {
    Checker checker(context);
    int index = 0;
    for (Problem p : problems) {
      const bool gpu = context.device().is_cuda(), large = p.multiplies() > 2'000'000;
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
        if (dtype != DType::f32 && (large || p.n > 1000)) continue;
        if (!gpu && (dtype == DType::bf16 || dtype == DType::f16)) continue;
        p.dtype = dtype;
        // Integers with bias, then real numbers.
        for (p.integers = true;; p.integers = false) {
          p.bias = p.integers != (dtype == DType::f64);
          const bool vendors = !gpu || index % 15 == 0;
          if (case_wanted(index)) checker.check(p, index, vendors);
          ++index;
          if (!p.integers || large || p.n > 1000) break;
        }
      }
    }
  });
}

TEST(Conv2d, WeightsWithZerosOnEveryRow) {
  const std::vector<Problem> problems = zero_skip_problems();
  on_shared_devices([&](const Context& context) {
    Checker checker(context);
    int index = 0;
    for (Problem p : problems) {
      p.integers = index % 3 != 0 && p.pattern.kind != "denormal";
      if (index % 5 == 4 && p.pattern.kind != "denormal") p.dtype = DType::f64;
      if (index % 4 == 3) p.x = p.y = channels_last();
      p.bias = index % 2 == 0;
      if (index % 7 == 3) p.params.activation = Activation::relu;
      // Many images on the CPU: each kind of pattern once.
      const bool repeats = p.n > 1000 && !context.device().is_cuda() &&
                           (p.pattern.fraction < 0.5 || p.pattern.kind == "denormal");
      if (!repeats && case_wanted(index)) checker.check(p, index, index % 10 == 0, false);
      ++index;
    }
  });
}

TEST(Conv2d, RandomSweepOnEveryRow) {
  on_shared_devices([&](const Context& context) {
    Checker checker(context);
    for (int index = 0; index < 600; ++index) {
      if (!case_wanted(index)) continue;
      const bool vendors = index % 10 == 0;
      Random random(1'000'000 + static_cast<std::uint64_t>(index));
      checker.check(random_problem(random, vendors && index % 50 != 0, context.device().is_cuda()),
                    index, vendors);
    }
    if (!case_wanted(-1)) return;
    checker.counts().expect_every_row(conv2d_forward_list(), context, 20);
    // A library row that takes stride 1 without groups only is among these.
    checker.counts().expect_every_row(conv2d_backward_data_list(), context, 12);
    checker.counts().expect_every_row(conv2d_backward_weight_list(), context, 15);
  });
}

/// Zero channels in: nothing is multiplied, y is the bias and dx is empty.
TEST(Conv2d, NoInputChannels) {
  on_shared_devices([&](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::empty(context, {2, 0, 4, 4}));
    const Var w = tape.leaf(Tensor::empty(context, {3, 0, 3, 3}));
    const Var b = tape.leaf(make_tensor(context, {3}, {1, -2, 3}, DType::f32));
    const Var y = conv2d(x, w, b);
    const std::vector<double> values = values_of(y);
    ASSERT_EQ(values.size(), 24u);
    for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(values[i], (std::vector{1, -2, 3})[i / 4 % 3]);
    tape.backward(sum(y));
    EXPECT_EQ(values_of(tape.grad(b)), (std::vector<double>{8, 8, 8}));
  });
}

/// Sizes do not tell how one channel lies; strides do, so that a network can be NHWC from its
/// start.
TEST(Conv2d, OneChannelIsNhwcIfItsStrideSaysSo) {
  test::on_every_device([](const Context& context) {
    const Tensor x = Tensor::uniform(context, {2, 1, 5, 6}),
                 w = Tensor::uniform(context, {4, 1, 3, 3});
    const Tensor rows = conv2d(x, w).value();
    EXPECT_TRUE(rows.is_contiguous());
    for (const Tensor& y :
         {conv2d(x.contiguous_nhwc(), w).value(), conv2d(x, w.contiguous_nhwc()).value()}) {
      EXPECT_EQ(y.stride(1), 1);
      const std::vector<float> actual = y.to_vector<float>(), expected = rows.to_vector<float>();
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(actual[i], expected[i], 1e-5) << i;
    }
  });
}

/// Results do not depend on the number of threads.
TEST(Conv2d, ThreadsDoNotChangeBits) {
  const Context one(Device::cpu(), {.threads = 1}), three(Device::cpu(), {.threads = 3});
  Random random(77);
  const Shape x_shape{3, 12, 17, 19}, w_shape{20, 12, 3, 3};
  const auto x = random_values(random, x_shape.numel(), DType::f32, false);
  auto w = random_values(random, w_shape.numel(), DType::f32, false);
  for (std::size_t i = 0; i < w.size(); i += 3) w[i] = 0;
  for (const std::string& row : row_names(conv2d_forward_list(), one)) {
    if (is_vendor(row) || row == "cpu.constant") continue;
    std::vector<std::vector<double>> results[2];
    for (const Context& context : {one, three}) {
      const ScopedForce forward(context, forward_op, row), backward(context, data_op, row);
      Tape tape;
      const Var leaf_x = tape.leaf(make_tensor(context, x_shape, x, DType::f32));
      const Var leaf_w = tape.leaf(make_tensor(context, w_shape, w, DType::f32));
      const Var y = conv2d(leaf_x, leaf_w, {}, {.padding = 1, .math = {}});
      tape.backward(sum(y * y));
      results[context == one ? 0 : 1] = {values_of(y), values_of(tape.grad(leaf_x)),
                                         values_of(tape.grad(leaf_w))};
    }
    EXPECT_TRUE(results[0] == results[1]) << row;
  }
}

// --- golden results -----------------------------------------------------------------------------

struct Gradients4 {
  std::vector<double> y, dx, dw, db;
};

/// conv2d on the tape, from row-major values.
Gradients4 run_on_tape(const Context& context, const nlohmann::json& entry, Golden& golden,
                       DType dtype, bool nhwc, bool magnitudes) {
  const auto& given = entry["params"];
  const auto number = [&](const char* name) { return given[name].get<std::int64_t>(); };
  Conv2dParams params{};
  params.stride = {number("stride_h"), number("stride_w")};
  params.padding = {number("pad_t"), number("pad_b"), number("pad_l"), number("pad_r")};
  params.dilation = {number("dil_h"), number("dil_w")};
  params.groups = number("groups");
  const auto load = [&](const char* name) {
    std::vector<double> values = golden.values(entry, name);
    if (magnitudes) values = absolute(values);
    const Tensor x = make_tensor(context, Golden::shape(entry, name), values, dtype);
    return nhwc && x.rank() == 4 ? x.contiguous_nhwc() : x;
  };
  Tape tape;
  const Var x = tape.leaf(load("x")), w = tape.leaf(load("w"));
  const bool bias = Golden::has(entry, "b");
  const Var b = bias ? tape.leaf(load("b")) : Var();
  const Var y = conv2d(x, w, b, params);
  tape.backward(y, {.seed = load("gy")});
  return {values_of(y), values_of(tape.grad(x)), values_of(tape.grad(w)),
          bias ? values_of(tape.grad(b)) : std::vector<double>()};
}

/// Small integers must come out exactly; other data within the contract of the sum.
void expect_golden(const Context& context, Golden& golden, const nlohmann::json& entry, DType dtype,
                   bool nhwc, const std::string& row, bool exact, const Gradients4& magnitude) {
  const Gradients4 actual = run_on_tape(context, entry, golden, dtype, nhwc, false);
  const auto number = [&](const char* name) { return entry["params"][name].get<std::int64_t>(); };
  const std::int64_t taps = number("kh") * number("kw"), groups = number("groups");
  const Shape y_shape = Golden::shape(entry, "y");
  const std::int64_t pixels = y_shape[0] * y_shape[2] * y_shape[3];
  const auto check = [&](const char* name, const std::vector<double>& values,
                         const std::vector<double>& sums, std::int64_t terms) {
    const bool integer = entry["integer"].get<bool>() && exact;
    const Contract contract =
        integer ? exact_contract(DType::f64) : product_contract(dtype, Math::fp32, terms);
    const std::string why = mismatch(values, golden.values(entry, name), sums, contract);
    EXPECT_EQ(why, "") << "golden conv2d " << entry["name"] << " " << name << " "
                       << to_string(dtype) << (nhwc ? " nhwc" : " nchw") << " row " << row;
  };
  check("y", actual.y, magnitude.y, number("c_in") / groups * taps + 1);
  check("dx", actual.dx, magnitude.dx, number("c_out") / groups * taps);
  check("dw", actual.dw, magnitude.dw, pixels);
  if (Golden::has(entry, "b")) check("db", actual.db, magnitude.db, pixels);
}

/// The sums of absolute products of every case, by the reference rows.
std::vector<Gradients4> magnitudes(const Context& context, Golden& golden) {
  const std::string row = reference_row(context);
  std::vector<std::unique_ptr<ScopedForce>> forces;
  for (const char* op : {forward_op, data_op, weight_op, "pointwise.forward",
                         "pointwise.backward_data", "pointwise.backward_weight"})
    forces.push_back(std::make_unique<ScopedForce>(context, op, row));
  std::vector<Gradients4> all;
  for (const auto& entry : golden.cases())
    all.push_back(run_on_tape(context, entry, golden, DType::f64, false, true));
  return all;
}

TEST(Conv2d, GoldenResultsAutomatic) {
  Golden golden("conv2d");
  EXPECT_GE(golden.cases().size(), 150u);
  on_shared_devices([&](const Context& context) {
    const bool gpu = context.device().is_cuda();
    const std::vector<Gradients4> magnitude = magnitudes(context, golden);
    std::size_t index = 0;
    for (const auto& entry : golden.cases()) {
      int variant = 0;
      for (const DType dtype : {DType::f64, DType::f32})
        for (const bool nhwc : {false, true}) {
          // Library plans take long to make.
          const bool wanted = !gpu || index % 12 == static_cast<std::size_t>(variant);
          if (wanted)
            expect_golden(context, golden, entry, dtype, nhwc, "automatic", !gpu, magnitude[index]);
          ++variant;
        }
      ++index;
    }
  });
}

TEST(Conv2d, GoldenResultsOnEveryRow) {
  Golden golden("conv2d");
  on_shared_devices([&](const Context& context) {
    const bool gpu = context.device().is_cuda();
    const std::vector<Gradients4> magnitude = magnitudes(context, golden);
    for (const std::string& row : row_names(conv2d_forward_list(), context)) {
      if (row.ends_with(".constant")) continue;
      // The zero-skip row has no backward weight pass; the reference row is its partner.
      const std::string weight_row = weight_partner(row, context);
      const ScopedForce forward(context, forward_op, row), backward(context, data_op, row),
          weight(context, weight_op, weight_row);
      for (std::size_t index = 0; index < golden.cases().size(); ++index) {
        if (gpu && is_vendor(row) && index % 10 != 0) continue;
        const auto& entry = golden.cases()[index];
        try {
          expect_golden(context, golden, entry, DType::f32, index % 3 == 0, row,
                        sums_exactly(row, DType::f32, Math::fp32), magnitude[index]);
        } catch (const SelectionError& error) {
          EXPECT_TRUE(is_partial(row)) << row << " " << entry["name"] << ": " << error.what();
        }
      }
    }
  });
}

// --- the ReLU in front of a convolution ----------------------------------------------------------

/// The row that writes dx zeroes it where x, a ReLU's result, is not positive. Against the same
/// network with the ReLU apart from its convolution by an operation that stops this.
TEST(Conv2d, GatesTheReluInFrontOnEveryRow) {
  on_shared_devices([](const Context& context) {
    Random random(5);
    const auto integers = [&](const Shape& shape) {
      return make_tensor(context, shape, random_values(random, shape.numel(), DType::f32, true),
                         DType::f32);
    };
    const Tensor x = integers({2, 3, 7, 6}), w1 = integers({4, 3, 3, 3}),
                 w2 = integers({5, 4, 3, 3}), seed = integers({2, 5, 7, 6});
    const Conv2dParams fused{.padding = 1, .activation = Activation::relu, .math = Math::strict};
    const Conv2dParams plain{.padding = 1, .math = Math::strict};
    const auto gradients = [&](bool gate, bool shared) {
      Tape tape;
      const Var a = tape.leaf(x), b = tape.leaf(w1), c = tape.leaf(w2);
      Var h = conv2d(a, b, {}, fused);
      int hooked = 0;
      if (!gate)
        tape.hook(h, [&](const Tensor& gradient) {
          for (const float value : gradient.to_vector<float>()) hooked += value != 0;
          return Tensor();
        });
      Var y = conv2d(h, c, {}, plain);
      if (shared) y = y + conv2d(h + h, c, {}, plain);  // whose gradient of h is not gated
      tape.backward(y, {.seed = seed});
      if (!gate) {
        const std::vector<float> values = h.value().to_vector<float>();
        EXPECT_GT(hooked,
                  std::count_if(values.begin(), values.end(), [](float v) { return v > 0; }))
            << "a hook sees the gradient of the ReLU's result, not gated";
      }
      std::vector<std::vector<float>> all;
      for (const Var& leaf : {a, b, c}) all.push_back(tape.grad(leaf).to_vector<float>());
      return all;
    };
    for (const std::string& row : row_names(conv2d_backward_data_list(), context)) {
      if (row.ends_with(".constant")) continue;
      const ScopedForce force(context, data_op, row);
      for (const bool shared : {false, true})
        EXPECT_EQ(gradients(true, shared), gradients(false, shared)) << row << " " << shared;
    }
  });
}

// --- numerics of zeros --------------------------------------------------------------------------

/// A write that breaks a mask's promise is never a fault in memory: the row gives the dense result,
/// or NaN.
TEST(Conv2d, ZeroSkipSurvivesABrokenMask) {
  on_shared_devices([&](const Context& context) {
    const bool gpu = context.device().is_cuda();
    Random random(78);
    const Shape shape{32, 16, 3, 3};
    Parameter weight(make_tensor(context, shape, std::vector<double>(4608, 1.0), DType::f32));
    std::vector<std::uint8_t> mask(4608);
    for (std::size_t i = 0; i < mask.size(); i += 10) mask[i] = 1;
    weight.set_mask(Tensor::from<std::uint8_t>(context, shape, mask));
    weight.value().copy_(
        make_tensor(context, shape, random_values(random, 4608, DType::f32, true), DType::f32));
    const Tensor x = make_tensor(context, {2, 16, 6, 6},
                                 random_values(random, 1152, DType::f32, true), DType::f32);
    const auto run = [&](const std::string& row) {
      const ScopedForce force(context, forward_op, row);
      return values_of(conv2d(x, weight.value(), {}, {.padding = 1, .math = {}}));
    };
    const std::vector<double> expected = run(reference_row(context));
    const std::vector<double> actual = run(to_string(context.device().type) + ".zero_skip");
    for (std::size_t i = 0; i < actual.size(); ++i)
      ASSERT_TRUE(actual[i] == expected[i] || (gpu && std::isnan(actual[i]))) << i;
  });
}

/// Denormal weights are no zeros for whoever counts.
TEST(Conv2d, DenormalsAreNotCountedAsZeros) {
  on_shared_devices([&](const Context& context) {
    std::vector<double> values(16 * 16 * 9, 1e-42);
    values[3] = 0;
    values[7] = -0.0;
    const Tensor w = make_tensor(context, {16, 16, 3, 3}, values, DType::f32);
    const kernels::Conv2dShape shape =
        make_conv2d_shape(Tensor::zeros(context, {1, 16, 8, 8}), w, {});
    EXPECT_EQ(weight_zeros(w, shape, true).census.zeros, 2);
  });
}

}  // namespace
}  // namespace zerone::test
