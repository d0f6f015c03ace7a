// Pointwise contractions and linear(): every row against the f64 reference row, the golden views,
// and the promise that no view is copied.
#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "support/compare.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

constexpr const char* forward_op = "pointwise.forward";
constexpr const char* data_op = "pointwise.backward_data";
constexpr const char* weight_op = "pointwise.backward_weight";

// --- problems -----------------------------------------------------------------------------------

struct Problem {
  std::string name{};
  std::vector<std::int64_t> pixels{};
  std::int64_t c_in = 1, c_out = 1;
  Placement x{}, w{}, y{};
  int broadcast = -1;  // pixel axis along which x is one and the same (x is then only read)
  DType dtype = DType::f32;
  Math math = Math::fp32;
  bool bias = false, integers = true;
  Activation activation = Activation::none;

  Shape shape(std::int64_t channels) const {
    std::vector<std::int64_t> sizes = pixels;
    sizes.push_back(channels);
    return Shape(std::span<const std::int64_t>(sizes));
  }
  int rank() const { return static_cast<int>(pixels.size()) + 1; }
  std::int64_t pixel_count() const { return shape(1).numel(); }
};

std::string text(const Problem& p) {
  return fmt::format(
      "{} pixels {} {}->{} x {}{}, w {}, y {} | {}/{}{}{} {}", p.name, p.pixels, p.c_in, p.c_out,
      p.x.text(), p.broadcast < 0 ? "" : fmt::format(" broadcast {}", p.broadcast), p.w.text(),
      p.y.text(), to_string(p.dtype), to_string(p.math), p.bias ? " bias" : "",
      p.activation == Activation::relu ? " relu" : "", p.integers ? "integers" : "normal");
}

/// A line of tests/shapes/pointwise.txt.
Problem parse(const std::string& line) {
  std::istringstream words(line);
  Problem p;
  std::int64_t n = 0, h = 0, w = 0;
  std::string layout;
  words >> p.name >> n >> p.c_in >> p.c_out >> h >> w >> layout;
  p.pixels = {n, h, w};
  const Placement planes{.order = {0, 3, 1, 2}};  // pixels first, NCHW in memory
  if (layout == "rows") {
    p.pixels = {n};
  } else if (layout == "nhwc") {
    p.x = p.y = row_major();
  } else if (layout == "nhwc_view_of_nchw") {
    p.x = planes;
  } else if (layout.starts_with("btchw_t")) {
    p.pixels = {n, std::stoll(layout.substr(7)), h, w};
    p.x = p.y = {.order = {0, 1, 4, 2, 3}};
  } else {
    p.x = p.y = planes;
    long long a = 0, b = 0, c = 0;
    if (std::sscanf(layout.c_str(), "nchw_channels_%lld_to_%lld_of_%lld", &a, &b, &c) == 3) {
      p.x.before = {0, 0, 0, a}, p.x.after = {0, 0, 0, c - b};
    } else if (std::sscanf(layout.c_str(), "nchw_interior_of_%lldx%lld", &a, &b) == 2) {
      p.x.before = {0, (a - h) / 2, (b - w) / 2, 0};
      p.x.after = {0, a - h - (a - h) / 2, b - w - (b - w) / 2, 0};
    } else if (layout == "nchw_stride2_view") {
      p.x.step = {1, 1, 2, 1};
    } else if (std::sscanf(layout.c_str(), "nchw_offset_%lld_element", &a) == 1) {
      p.x.offset = a;
    } else {
      EXPECT_EQ(layout, "nchw") << "unknown layout in tests/shapes/pointwise.txt";
    }
  }
  return p;
}

std::vector<Problem> named_problems() {
  std::ifstream file(data_path("shapes/pointwise.txt"));
  std::vector<Problem> problems;
  for (std::string line; std::getline(file, line);) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \r") != std::string::npos) problems.push_back(parse(line));
  }
  EXPECT_FALSE(problems.empty()) << "tests/shapes/pointwise.txt is missing or empty";
  return problems;
}

/// Zero to five pixel axes, in any order, cropped, stepped, misaligned, broadcast, external.
Problem random_problem(Random& random, bool plain_layouts, bool on_gpu) {
  Problem p{.name = "random"};
  const std::int64_t axes = plain_layouts ? random.integer(1, 3) : random.integer(0, 5);
  const std::int64_t longest = axes <= 1 ? 300 : axes == 2 ? 23 : axes == 3 ? 11 : 5;
  for (std::int64_t i = 0; i < axes; ++i)
    p.pixels.push_back(random.chance(0.02) ? 0 : random.integer(1, longest));
  p.c_in = random.chance(0.15) ? random.integer(1, 200) : random.integer(1, 40);
  p.c_out = random.chance(0.15) ? random.integer(1, 200) : random.integer(1, 40);
  if (random.chance(0.3)) p.c_in = random.pick<std::int64_t>({1, 16, 32, 64, 128});
  if (random.chance(0.3)) p.c_out = random.pick<std::int64_t>({1, 16, 32, 64, 128});
  while (p.pixel_count() * p.c_in * p.c_out > 300'000 && p.c_out > 1) p.c_out = (p.c_out + 1) / 2;
  const double kind = random.real();
  p.dtype = kind < 0.6 ? DType::f32 : kind < 0.8 ? DType::f64 : DType::f32;
  if (kind > (on_gpu ? 0.6 : 0.9) && p.dtype != DType::f64)
    p.dtype = random.chance(0.5) ? DType::bf16 : DType::f16;
  if (random.chance(0.4)) p.math = random.pick({Math::strict, Math::tf32, Math::bf16, Math::fp16});
  p.bias = random.chance(0.5);
  p.integers = random.chance(0.5);
  if (random.chance(0.3)) p.activation = Activation::relu;
  if (plain_layouts) {
    if (axes == 3 && random.chance(0.6)) p.x = p.y = {.order = {0, 3, 1, 2}};
    return p;
  }
  p.x = random_placement(random, p.rank());
  p.w = random_placement(random, 2);
  p.y = random_placement(random, p.rank());
  if (axes == 4 && random.chance(0.4)) p.x.order = p.y.order = {0, 1, 4, 2, 3};
  if (axes > 0 && random.chance(0.15)) {
    p.broadcast = static_cast<int>(random.integer(0, axes - 1));
    p.x.external = false;
  }
  return p;
}

// --- running ------------------------------------------------------------------------------------

struct Data {
  std::vector<double> x, w, b, dy;
};

/// y, dx, dw and db by the f64 reference row, row-major.
struct Results {
  std::vector<double> y, dx, dw, db;
};

/// x [pixels..., c_in], from values with size 1 along the broadcast axis.
Tensor spread(const Tensor& x, const Problem& p) {
  return x.expand(p.shape(p.c_in));
}

Shape stored_x_shape(const Problem& p) {
  Problem stored = p;
  if (p.broadcast >= 0) stored.pixels[static_cast<std::size_t>(p.broadcast)] = 1;
  return stored.shape(p.c_in);
}

Results reference(const Context& context, const Problem& p, const Data& data,
                  Activation activation) {
  const std::string row = reference_row(context);
  const ScopedForce forward(context, forward_op, row), backward(context, data_op, row),
      weight(context, weight_op, row);
  // As plain rows of channels, whatever the view.
  const std::int64_t pixels = p.pixel_count();
  const Tensor x = spread(make_tensor(context, stored_x_shape(p), data.x), p)
                       .contiguous()
                       .reshape(Shape{pixels, p.c_in});
  const Tensor w = make_tensor(context, {p.c_out, p.c_in}, data.w);
  const Tensor b = p.bias ? make_tensor(context, {p.c_out}, data.b) : Tensor();
  const Tensor dy = make_tensor(context, {pixels, p.c_out}, data.dy);
  Tensor y = Tensor::empty_like(dy), dx = Tensor::empty_like(x), dw = Tensor::empty_like(w);
  Tensor db = Tensor::empty(context, {p.c_out}, DType::f64);
  pointwise_forward(x, w, b, y, activation, Math::strict);
  pointwise_backward_data(dy, w, dx, Math::strict);
  pointwise_backward_weight(x, dy, dw, db, Math::strict);
  return {values_of(y), values_of(dx), values_of(dw), values_of(db)};
}

class Checker {
 public:
  explicit Checker(const Context& context) : context_(context) {}

  void check(const Problem& p, int index, bool vendors) {
    problem_ = &p;
    index_ = index;
    vendors_ = vendors;
    Random random(static_cast<std::uint64_t>(index));
    const Data data{random_values(random, stored_x_shape(p).numel(), p.dtype, p.integers),
                    random_values(random, p.c_out * p.c_in, p.dtype, p.integers),
                    random_values(random, p.c_out, p.dtype, p.integers),
                    random_values(random, p.shape(p.c_out).numel(), p.dtype, p.integers)};
    const Results expected = reference(context_, p, data, p.activation);
    Results magnitude;
    if (!p.integers || (vendors && context_.device().is_cuda()))
      magnitude = reference(
          context_, p, {absolute(data.x), absolute(data.w), absolute(data.b), absolute(data.dy)},
          Activation::none);
    const Operand stored_x(context_, stored_x_shape(p), p.dtype, p.x, data.x);
    const Tensor x = spread(stored_x.view(), p);
    const Operand w(context_, {p.c_out, p.c_in}, p.dtype, p.w, data.w);
    const Operand dy(context_, p.shape(p.c_out), p.dtype, p.y, data.dy);
    Tensor b;
    if (p.bias) b = make_tensor(context_, {p.c_out}, data.b, p.dtype);
    // Broadcasting cannot be undone by a result: dx lies densely there.
    const Placement dx_placement = p.broadcast < 0 ? p.x : row_major();

    const std::size_t copied = context_.memory().layout_copied;
    run_rows(pointwise_forward_list(), p.c_in + 1, p.shape(p.c_out), p.y, expected.y, magnitude.y,
             [&](Tensor& y) { pointwise_forward(x, w.view(), b, y, p.activation, p.math); });
    run_rows(pointwise_backward_data_list(), p.c_out, p.shape(p.c_in), dx_placement, expected.dx,
             magnitude.dx,
             [&](Tensor& dx) { pointwise_backward_data(dy.view(), w.view(), dx, p.math); });
    for (const bool with_db : {false, true}) {
      Operand db;
      run_rows(
          pointwise_backward_weight_list(), p.pixel_count(), {p.c_out, p.c_in}, p.w, expected.dw,
          magnitude.dw,
          [&](Tensor& dw) {
            if (with_db)
              db = Operand::result(context_, {p.c_out}, p.dtype, {.offset = 4, .tail = 16});
            pointwise_backward_weight(x, dy.view(), dw, db.view(), p.math);
          },
          with_db ? &db : nullptr, &expected.db, &magnitude.db);
    }
    EXPECT_EQ(context_.memory().layout_copied, copied)
        << "re-laid: " << reproduction(index, text(p));
  }

  const RowCounts& counts() const { return counts_; }

 private:
  template <class List, class Work>
  void run_rows(const List& list, std::int64_t terms, const Shape& shape,
                const Placement& placement, const std::vector<double>& expected,
                const std::vector<double>& magnitude, Work&& work, const Operand* db = nullptr,
                const std::vector<double>* expected_db = nullptr,
                const std::vector<double>* magnitude_db = nullptr) {
    const Problem& p = *problem_;
    // Views that three pixel axes cannot describe are cut up, and the parts rounded one by one.
    const bool narrow = p.dtype == DType::bf16 || p.dtype == DType::f16;
    const bool sliced = narrow && p.rank() > 4;
    for (const std::string& row : row_names(list, context_)) {
      if (is_vendor(row) && !vendors_) continue;
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
      Contract contract = product_contract(p.dtype, p.math, terms);
      if (is_vendor(row)) contract = twice_rounded(contract);
      if (sliced) contract.of_sum += 8 * unit(p.dtype);
      if (p.integers && !is_vendor(row) && !(sliced && expected_db))
        contract = exact_contract(p.dtype);
      std::string why;
      const std::vector<double> actual = result.read(why);
      if (!why.empty()) fail(why);
      const auto sums = [&](const std::vector<double>& given, std::size_t count) {
        return given.empty() ? std::vector<double>(count, 1e6) : given;
      };
      if (why = mismatch(actual, expected, sums(magnitude, actual.size()), contract); !why.empty())
        fail(why);
      if (db) {
        why.clear();
        const std::vector<double> bias = db->read(why);
        if (why.empty())
          why = mismatch(bias, *expected_db, sums(*magnitude_db, bias.size()), contract);
        if (!why.empty()) fail("db: " + why);
      }

      if (index_ % 8 != 0 || is_vendor(row)) continue;
      Operand again = Operand::result(context_, shape, p.dtype, placement);
      run_forced(context_, list.op(), row, p.dtype, true, [&] { work(again.view()); });
      why.clear();
      if (!mismatch(again.read(why), actual, {}, {.dtype = DType::f64, .exact = true}).empty())
        fail("a second run gives other bits");
    }
  }

  Context context_;
  RowCounts counts_;
  const Problem* problem_ = nullptr;
  int index_ = 0;
  bool vendors_ = false;
};

// --- tests --------------------------------------------------------------------------------------

TEST(Pointwise, NamedProblemsOnEveryRow) {
  const std::vector<Problem> problems = named_problems();
  on_shared_devices([&](const Context& context) {
    Checker checker(context);
    int index = 0;
    for (Problem p : problems) {
      const bool gpu = context.device().is_cuda();
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
        if (!gpu && (dtype == DType::bf16 || dtype == DType::f16)) continue;
        p.dtype = dtype;
        p.integers = index % 2 == 0;
        p.bias = index % 3 != 0;
        p.activation = index % 5 == 0 ? Activation::relu : Activation::none;
        if (case_wanted(index)) checker.check(p, index, !gpu || index % 5 == 0);
        ++index;
      }
    }
  });
}

TEST(Pointwise, RandomSweepOnEveryRow) {
  on_shared_devices([&](const Context& context) {
    Checker checker(context);
    for (int index = 0; index < 600; ++index) {
      if (!case_wanted(index)) continue;
      const bool vendors = index % 10 == 0;
      Random random(2'000'000 + static_cast<std::uint64_t>(index));
      checker.check(random_problem(random, vendors && index % 50 != 0, context.device().is_cuda()),
                    index, vendors);
    }
    if (!case_wanted(-1)) return;
    const auto expect = [&](const auto& list, int at_least) {
      RowCounts counts = checker.counts();
      counts.add(list.op(), to_string(context.device().type) + ".constant");
      counts.expect_every_row(list, context, at_least);
    };
    // Constant rows: see KnownZeroOperands.
    expect(pointwise_forward_list(), 1);
    expect(pointwise_backward_data_list(), 1);
    expect(pointwise_backward_weight_list(), 1);
  });
}

/// Known zeros: nothing is multiplied, y is act(b), and the gradients are zeros.
TEST(Pointwise, KnownZeroOperands) {
  on_shared_devices([&](const Context& context) {
    const std::string row = to_string(context.device().type) + ".constant";
    const ScopedForce forward(context, forward_op, row), backward(context, data_op, row);
    Tape tape;
    const Var x = tape.leaf(Tensor::uniform(context, {2, 3, 5}, 1, 2));
    const Var w = tape.leaf(Tensor::zeros(context, {4, 5}));
    const Var b = tape.leaf(make_tensor(context, {4}, {1, -2, 3, -4}, DType::f32));
    const Var y = linear(x, w, b, {.activation = Activation::relu, .math = {}});
    std::vector<double> expected;
    for (int i = 0; i < 6; ++i) expected.insert(expected.end(), {1, 0, 3, 0});
    EXPECT_EQ(values_of(y), expected);
    tape.backward(sum(y));
    EXPECT_EQ(values_of(tape.grad(x)), std::vector<double>(30, 0.0));
    EXPECT_EQ(values_of(tape.grad(b)), (std::vector<double>{6, 0, 6, 0}));

    const ScopedForce weight(context, weight_op, row);
    Operand dw = Operand::result(context, {4, 5}, DType::f32, {.offset = 1, .tail = 8});
    Operand db = Operand::result(context, {4}, DType::f32, {.offset = 1, .tail = 8});
    pointwise_backward_weight(x, Tensor::zeros(context, {2, 3, 4}), dw.view(), db.view(),
                              Math::fp32);
    std::string why;
    EXPECT_EQ(dw.read(why), std::vector<double>(20, 0.0));
    EXPECT_EQ(db.read(why), std::vector<double>(4, 0.0));
    EXPECT_EQ(why, "");
  });
}

/// No pixels, in more axes than one call can describe: the gradients are zeros, not left unwritten.
TEST(Pointwise, NoPixelsInManyAxes) {
  on_shared_devices([&](const Context& context) {
    Checker checker(context);
    Problem p{.name = "empty", .pixels = {5, 2, 0, 3, 2}, .c_in = 7, .c_out = 4};
    p.x.step = {1, 1, 1, 2, 2, 1};
    p.y.after = {0, 1, 0, 1, 1, 0};
    for (const bool bias : {false, true}) {
      p.bias = bias;
      checker.check(p, 0, false);
    }
  });
}

// --- golden views -------------------------------------------------------------------------------

/// The view that a golden case describes, as the tape follows it.
Var golden_view(Var x, const nlohmann::json& view) {
  if (!view["slices"].is_null()) {
    int axis = 0;
    for (const auto& s : view["slices"])
      x = slice(x, axis++, s[0].get<std::int64_t>(), s[1].get<std::int64_t>(),
                s[2].get<std::int64_t>());
  }
  if (!view["reshape"].is_null()) x = reshape(x, shape_of(view["reshape"]));
  if (!view["expand"].is_null()) x = expand(x, shape_of(view["expand"]));
  if (!view["permutation"].is_null()) {
    const auto axes = view["permutation"].get<std::vector<int>>();
    switch (axes.size()) {
      case 2: x = permute(x, {axes[0], axes[1]}); break;
      case 3: x = permute(x, {axes[0], axes[1], axes[2]}); break;
      case 4: x = permute(x, {axes[0], axes[1], axes[2], axes[3]}); break;
      case 5: x = permute(x, {axes[0], axes[1], axes[2], axes[3], axes[4]}); break;
      case 6: x = permute(x, {axes[0], axes[1], axes[2], axes[3], axes[4], axes[5]}); break;
      default: ADD_FAILURE() << "a permutation of " << axes.size() << " axes";
    }
  }
  EXPECT_EQ(x.shape(), shape_of(view["shape"]));
  return x;
}

struct Gradients4 {
  std::vector<double> y, dx, dw, db;
};

Gradients4 run_on_tape(const Context& context, Golden& golden, const nlohmann::json& entry,
                       DType dtype, bool magnitudes) {
  const auto load = [&](const char* name) {
    std::vector<double> values = golden.values(entry, name);
    if (magnitudes) values = absolute(values);
    return make_tensor(context, Golden::shape(entry, name), values, dtype);
  };
  Tape tape;
  const Var x = tape.leaf(load("x")), w = tape.leaf(load("w"));
  const bool bias = Golden::has(entry, "b");
  const Var b = bias ? tape.leaf(load("b")) : Var();
  const std::size_t copied = context.memory().layout_copied;
  const Var x_view = golden_view(x, entry["x_view"]), w_view = golden_view(w, entry["w_view"]);
  const Var y = linear(x_view, w_view, b);
  EXPECT_EQ(context.memory().layout_copied, copied) << entry["name"];
  tape.backward(y, {.seed = load("gy")});
  return {values_of(y), values_of(tape.grad(x)), values_of(tape.grad(w)),
          bias ? values_of(tape.grad(b)) : std::vector<double>()};
}

void expect_golden(const Context& context, Golden& golden, const nlohmann::json& entry, DType dtype,
                   const std::string& row, bool exact) {
  const Gradients4 actual = run_on_tape(context, golden, entry, dtype, false);
  const Gradients4 magnitude = run_on_tape(context, golden, entry, DType::f64, true);
  const Shape x_shape = shape_of(entry["x_view"]["shape"]);
  const Shape w_shape = shape_of(entry["w_view"]["shape"]);
  const std::int64_t pixels = w_shape[1] == 0 ? 0 : x_shape.numel() / w_shape[1];
  const auto check = [&](const char* name, const std::vector<double>& values,
                         const std::vector<double>& sums, std::int64_t terms) {
    const bool integer = entry["integer"].get<bool>() && exact;
    const std::string why =
        mismatch(values, golden.values(entry, name), sums,
                 integer ? exact_contract(DType::f64) : product_contract(dtype, Math::fp32, terms));
    EXPECT_EQ(why, "") << "golden pointwise " << entry["name"] << " " << name << " "
                       << to_string(dtype) << " row " << row;
  };
  check("y", actual.y, magnitude.y, w_shape[1] + 1);
  // A broadcast operand sums over its copies as well.
  check("dx", actual.dx, magnitude.dx, w_shape[0] * 4);
  check("dw", actual.dw, magnitude.dw, pixels * w_shape[0]);
  if (Golden::has(entry, "b")) check("db", actual.db, magnitude.db, pixels);
}

TEST(Pointwise, GoldenViewsAutomatic) {
  Golden golden("pointwise");
  EXPECT_GE(golden.cases().size(), 60u);
  on_shared_devices([&](const Context& context) {
    for (const auto& entry : golden.cases())
      for (const DType dtype : {DType::f64, DType::f32})
        expect_golden(context, golden, entry, dtype, "automatic", !context.device().is_cuda());
  });
}

TEST(Pointwise, GoldenViewsOnEveryRow) {
  Golden golden("pointwise");
  on_shared_devices([&](const Context& context) {
    for (const std::string& row : row_names(pointwise_forward_list(), context)) {
      if (row.ends_with(".constant")) continue;
      const ScopedForce forward(context, forward_op, row), backward(context, data_op, row),
          weight(context, weight_op, row);
      for (const auto& entry : golden.cases()) {
        if (golden.values(entry, "y").empty()) continue;  // nothing to force
        try {
          expect_golden(context, golden, entry, DType::f32, row, !is_vendor(row));
        } catch (const SelectionError& error) {
          EXPECT_TRUE(is_partial(row)) << row << " " << entry["name"] << ": " << error.what();
        }
      }
    }
  });
}

// --- no copies ----------------------------------------------------------------------------------

struct Spelling {
  const char* name;
  Var (*run)(const Var& x, const Var& w, const Var& b);
  Tensor (*make_x)(const Context&, std::int64_t c);
};

const Spelling spellings[] = {
    {"conv2d on NCHW",
     [](const Var& x, const Var& w, const Var& b) {
       return conv2d(x, reshape(w, {w.shape()[0], w.shape()[1], 1, 1}), b);
     },
     [](const Context& context, std::int64_t c) {
       return Tensor::uniform(context, {4, c, 128, 128}, -1, 1);
     }},
    {"conv2d on NHWC",
     [](const Var& x, const Var& w, const Var& b) {
       return conv2d(x, reshape(w, {w.shape()[0], w.shape()[1], 1, 1}), b);
     },
     [](const Context& context, std::int64_t c) {
       return Tensor::uniform(context, {4, c, 128, 128}, -1, 1).contiguous_nhwc();
     }},
    {"linear on the permuted view of NCHW",
     [](const Var& x, const Var& w, const Var& b) {
       return linear(permute(x, {0, 2, 3, 1}), w, b);
     },
     [](const Context& context, std::int64_t c) {
       return Tensor::uniform(context, {4, c, 128, 128}, -1, 1);
     }},
    {"linear on rows", [](const Var& x, const Var& w, const Var& b) { return linear(x, w, b); },
     [](const Context& context, std::int64_t c) {
       return Tensor::uniform(context, {4 * 128 * 128, c}, -1, 1);
     }},
    {"linear on [B,T,C,H,W]",
     [](const Var& x, const Var& w, const Var& b) {
       return linear(permute(x, {0, 1, 3, 4, 2}), w, b);
     },
     [](const Context& context, std::int64_t c) {
       return Tensor::uniform(context, {2, 2, c, 128, 128}, -1, 1);
     }},
};

/// 16 MiB of x and of y: a copy of either, beside scratch, would show.
TEST(Pointwise, NoSpellingCopiesItsInput) {
  constexpr std::int64_t c = 64;
  constexpr std::size_t slack = std::size_t{16} << 20;
  on_shared_devices([&](Context context) {
    const Tensor w = Tensor::uniform(context, {c, c}, -1, 1), b = Tensor::uniform(context, {c});
    for (const Spelling& spelling : spellings) {
      SCOPED_TRACE(spelling.name);
      const Tensor x = spelling.make_x(context, c);
      const std::size_t image = x.bytes();
      ASSERT_GE(image, slack);
      const Tensor seed = Tensor::empty_like(spelling.run(x, w, b).value());
      Tensor(seed).fill_(1);
      for (int round = 0; round < 2; ++round) {
        const MemoryStats before = context.memory();
        context.reset_peak_memory();
        {
          Tape tape;
          const Var leaf_x = tape.leaf(x), leaf_w = tape.leaf(w), leaf_b = tape.leaf(b);
          const Var y = spelling.run(leaf_x, leaf_w, leaf_b);
          EXPECT_LE(context.memory().peak_live - before.live, y.value().bytes() + slack / 2)
              << "forward";
          tape.backward(y, {.seed = seed});
          EXPECT_TRUE(tape.grad(leaf_x).defined() && tape.grad(leaf_w).defined());
          // y, dx, dw, db
          EXPECT_LE(context.memory().peak_live - before.live, 2 * image + slack) << "both";
        }
        EXPECT_EQ(context.memory().layout_copied, before.layout_copied);
        EXPECT_EQ(context.memory().live, before.live) << "something was kept";
      }
    }
  });
}

/// A gradient that lies otherwise is copied, and counted.
TEST(Pointwise, RelaidGradientIsCounted) {
  on_shared_devices([&](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::uniform(context, {2, 6, 5, 4}));
    const Var w = tape.leaf(Tensor::uniform(context, {3, 6, 1, 1}));
    const Var y = conv2d(x, w);
    const std::size_t before = context.memory().layout_copied;
    tape.backward(y, {.seed = Tensor::uniform(context, {2, 3, 5, 8}).slice(3, 0, 8, 2)});
    EXPECT_EQ(context.memory().layout_copied - before, y.value().bytes());
  });
}

/// One contraction behind all spellings: the same bits, forward and backward.
TEST(Pointwise, Conv2dEqualsLinearOnThePermutedView) {
  on_shared_devices([&](const Context& context) {
    Random random(5);
    for (const auto& [n, c, k, h, w] : {std::array<std::int64_t, 5>{2, 16, 24, 7, 9},
                                        {1, 3, 5, 1, 1},
                                        {3, 64, 64, 8, 8},
                                        {2, 5, 1, 1, 33},
                                        {1, 1, 7, 4, 4}}) {
      const Tensor x =
          make_tensor(context, {n, c, h, w},
                      random_values(random, n * c * h * w, DType::f32, false), DType::f32);
      const Tensor weight =
          make_tensor(context, {k, c}, random_values(random, k * c, DType::f32, false), DType::f32);
      const Tensor b =
          make_tensor(context, {k}, random_values(random, k, DType::f32, false), DType::f32);
      for (const Activation activation : {Activation::none, Activation::relu}) {
        Tape one, two;
        const Var x1 = one.leaf(x), w1 = one.leaf(weight.reshape({k, c, 1, 1})), b1 = one.leaf(b);
        const Var x2 = two.leaf(x), w2 = two.leaf(weight), b2 = two.leaf(b);
        const Var y1 = conv2d(x1, w1, b1, {.activation = activation, .math = {}});
        const Var y2 = permute(
            linear(permute(x2, {0, 2, 3, 1}), w2, b2, {.activation = activation, .math = {}}),
            {0, 3, 1, 2});
        const std::string where = fmt::format("{} {} {} {} {}", n, c, k, h, w);
        EXPECT_EQ(values_of(y1), values_of(y2)) << where;
        one.backward(sum(y1 * y1));
        two.backward(sum(y2 * y2));
        EXPECT_EQ(values_of(one.grad(x1)), values_of(two.grad(x2))) << where;
        EXPECT_EQ(values_of(one.grad(w1)), values_of(two.grad(w2))) << where;
        EXPECT_EQ(values_of(one.grad(b1)), values_of(two.grad(b2))) << where;
      }
    }
  });
}

TEST(Pointwise, ErrorsNameTheSizes) {
  on_shared_devices([&](const Context& context) {
    const Tensor x = Tensor::zeros(context, {2, 3, 5});
    try {
      linear(x, Tensor::zeros(context, {4, 6}));
      ADD_FAILURE() << "no error";
    } catch (const ShapeError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("[2, 3, 5]"), std::string::npos) << what;
      EXPECT_NE(what.find("[4, 6]"), std::string::npos) << what;
    }
    EXPECT_THROW(linear(x, Tensor::zeros(context, {4, 5}), Tensor::zeros(context, {5})),
                 ShapeError);
    EXPECT_THROW(linear(x, Tensor::zeros(context, {4, 5}, DType::f64)), DTypeError);
    EXPECT_EQ(linear(x, Tensor::zeros(context, {4, 5})).shape(), (Shape{2, 3, 4}));
  });
}

}  // namespace
}  // namespace zerone::test
