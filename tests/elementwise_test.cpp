// Elementwise operations: those that round once against host arithmetic, which gives the same bits;
// the others against long double, within the errors that ops/elementwise.h states.
#include <bit>
#include <cmath>
#include <limits>

#include <zerone/core/views.h>

#include "support/compare.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;
using Values = std::vector<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

constexpr UnaryOp unary_ops[] = {UnaryOp::relu,     UnaryOp::affine,   UnaryOp::leaky_relu,
                                 UnaryOp::clamp,    UnaryOp::exp,      UnaryOp::log,
                                 UnaryOp::sigmoid,  UnaryOp::tanh,     UnaryOp::silu,
                                 UnaryOp::gelu_erf, UnaryOp::gelu_tanh};
constexpr BinaryOp binary_ops[] = {BinaryOp::add,
                                   BinaryOp::sub,
                                   BinaryOp::mul,
                                   BinaryOp::div,
                                   BinaryOp::relu_backward,
                                   BinaryOp::leaky_relu_backward,
                                   BinaryOp::clamp_backward,
                                   BinaryOp::sigmoid_backward,
                                   BinaryOp::tanh_backward,
                                   BinaryOp::silu_backward,
                                   BinaryOp::gelu_erf_backward,
                                   BinaryOp::gelu_tanh_backward};

bool rounds_once(UnaryOp op) {
  return op <= UnaryOp::clamp;
}
bool rounds_once(BinaryOp op) {
  return op <= BinaryOp::clamp_backward;
}

/// One rounding: in double for f64, else in float and then to the storage type.
double in_type(DType dtype, double exact) {
  return rounded(dtype, dtype == DType::f64 ? exact : rounded(DType::f32, exact));
}

/// The exact value, and an error of one unit in the last place times the operation's condition.
struct Wanted {
  double value = 0, scale = 0;
};

Wanted wanted(DType dtype, long double value, long double scale) {
  const auto narrow = static_cast<double>(value);
  if (std::isinf(rounded(dtype, narrow))) return {rounded(dtype, narrow), 0};  // overflow
  return {narrow, static_cast<double>(scale)};
}

/// The logistic function, and e^x over it.
long double logistic(long double x) {
  const long double e = std::exp(-std::abs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
long double normal_cdf(long double x) {
  return std::erfc(-x / std::sqrt(2.0L)) / 2;
}
long double normal_density(long double x) {
  return std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0L));
}
/// The exponent of GELU's tanh form, its derivative, and the error that it brings.
struct Exponent {
  explicit Exponent(long double x)
      : value(factor * x * (1 + 0.044715L * x * x)),
        slope(factor * (1 + 3 * 0.044715L * x * x)),
        ulps(6 + 3 * std::abs(value)) {}
  static inline const long double factor = 2 * std::sqrt(2 / std::acos(-1.0L));
  long double value, slope, ulps;
};

Wanted wanted(UnaryOp op, DType dtype, double x, double alpha, double beta) {
  const long double v = x, y = logistic(v);
  const auto within = [&](long double value, long double ulps) {
    return wanted(dtype, value, ulps * std::abs(value));
  };
  switch (op) {
    case UnaryOp::relu: return {x <= 0 ? 0 : x};
    case UnaryOp::affine:
      if (dtype == DType::f64) return {std::fma(alpha, x, beta)};
      return {rounded(dtype,
                      static_cast<double>(std::fma(static_cast<float>(alpha), static_cast<float>(x),
                                                   static_cast<float>(beta))))};
    case UnaryOp::leaky_relu: return {x > 0 ? x : in_type(dtype, alpha * x)};
    case UnaryOp::clamp: return {x < alpha ? alpha : x > beta ? beta : x};
    case UnaryOp::exp: return within(std::exp(v), 2);
    case UnaryOp::log: return within(std::log(v), 2);
    case UnaryOp::sigmoid: return within(y, 4);
    case UnaryOp::tanh: return within(std::tanh(v), 2);
    case UnaryOp::silu: return within(v * y, 5);
    case UnaryOp::gelu_erf: return within(v * normal_cdf(v), 9 + (dtype == DType::f64 ? v * v : 0));
    case UnaryOp::gelu_tanh: {
      const Exponent z(v);
      return within(v * logistic(z.value), z.ulps);
    }
  }
  return {};
}

Wanted wanted(BinaryOp op, DType dtype, double a, double b, double alpha, double beta) {
  const long double dy = a, v = b;
  const auto of_terms = [&](long double first, long double second, long double ulps) {
    return wanted(dtype, dy * (first + second),
                  ulps * std::abs(dy) * (std::abs(first) + std::abs(second)));
  };
  switch (op) {
    case BinaryOp::add: return {in_type(dtype, a + b)};
    case BinaryOp::sub: return {in_type(dtype, a - b)};
    case BinaryOp::mul: return {in_type(dtype, a * b)};
    case BinaryOp::div: return {in_type(dtype, a / b)};
    case BinaryOp::relu_backward: return {b <= 0 ? 0 : a};
    case BinaryOp::leaky_relu_backward: return {b > 0 ? a : in_type(dtype, alpha * a)};
    case BinaryOp::clamp_backward: return {b >= alpha && b <= beta ? a : 0};
    case BinaryOp::sigmoid_backward: return of_terms(v * (1 - v), 0, 2);
    case BinaryOp::tanh_backward: return of_terms((1 - v) * (1 + v), 0, 2);
    case BinaryOp::silu_backward: return of_terms(logistic(v), v * logistic(v) * logistic(-v), 8);
    case BinaryOp::gelu_erf_backward:
      return of_terms(normal_cdf(v), v * normal_density(v), 9 + (dtype == DType::f64 ? v * v : 0));
    case BinaryOp::gelu_tanh_backward: {
      const Exponent z(v);
      return of_terms(logistic(z.value), v * logistic(z.value) * logistic(-z.value) * z.slope,
                      2 * z.ulps);
    }
  }
  return {};
}

/// Arguments, wanted results and how they are compared.
struct Expectation {
  Contract contract;
  Values values{}, scales{};

  void add(const Wanted& one) {
    values.push_back(one.value);
    scales.push_back(one.scale);
  }
  std::string mismatch(const Values& actual) const {
    return test::mismatch(actual, values, scales, contract);
  }
};

template <class Op>
Contract contract_of(Op op, DType dtype) {
  if (rounds_once(op)) return {.dtype = DType::f64, .exact = true};
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  // Where the logistic function is denormal its rounding is multiplied by up to 240 (the gradient
  // of the tanh form).
  const double floor = dtype == DType::f64    ? 0x1p-1060
                       : dtype == DType::f16  ? 0x1p-24
                       : dtype == DType::bf16 ? 0x1p-133
                                              : 256 * 0x1p-149;
  return {.dtype = dtype,
          .of_sum = 2 * unit(dtype == DType::f64 ? dtype : DType::f32),
          .of_value = half ? 1.001 * unit(dtype) : 0,
          .floor = floor};
}

Shape random_shape(Random& random) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(random.integer(0, 6)));
  const std::int64_t longest = sizes.size() <= 1 ? 5000 : sizes.size() <= 3 ? 19 : 5;
  for (std::int64_t& size : sizes) size = random.chance(0.03) ? 0 : random.integer(1, longest);
  return Shape(std::span<const std::int64_t>(sizes));
}

/// Some axes of `shape` made 1, and some leading ones left out.
Shape random_broadcast(Random& random, const Shape& shape) {
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  for (std::int64_t& size : sizes)
    if (random.chance(0.3)) size = 1;
  const auto drop = sizes.empty() || random.chance(0.7)
                        ? 0
                        : random.integer(0, static_cast<std::int64_t>(sizes.size()));
  sizes.erase(sizes.begin(), sizes.begin() + drop);
  return Shape(std::span<const std::int64_t>(sizes));
}

DType random_dtype(Random& random) {
  return random.pick({DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16});
}

/// alpha <= beta, as clamp wants them, and exact in every type.
std::pair<double, double> random_parameters(Random& random) {
  const double a = rounded(DType::bf16, random.normal());
  const double b = random.chance(0.3) ? 0 : rounded(DType::bf16, random.normal());
  return std::minmax({a, b});
}

/// Normal numbers, some of them large.
Values wide_values(Random& random, std::int64_t count, DType dtype) {
  Values values = random_values(random, count, dtype, false);
  const double scale = random.pick({0.25, 1.0, 4.0, 16.0});
  for (double& value : values) value *= scale;
  return values;
}

Var public_op(UnaryOp op, const Var& x, double alpha, double beta) {
  switch (op) {
    case UnaryOp::relu: return relu(x);
    case UnaryOp::affine: return affine(x, alpha, beta);
    case UnaryOp::leaky_relu: return leaky_relu(x, alpha);
    case UnaryOp::clamp: return clamp(x, alpha, beta);
    case UnaryOp::exp: return exp(x);
    case UnaryOp::log: return log(x);
    case UnaryOp::sigmoid: return sigmoid(x);
    case UnaryOp::tanh: return tanh(x);
    case UnaryOp::silu: return silu(x);
    case UnaryOp::gelu_erf: return gelu(x);
    case UnaryOp::gelu_tanh: return gelu(x, Gelu::tanh);
  }
  return {};
}

TEST(Elementwise, RandomBinaryOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 720; ++index) {
      if (!case_wanted(index)) continue;
      Random random(3'000'000 + static_cast<std::uint64_t>(index));
      const DType dtype = random_dtype(random);
      const Shape shape = random_shape(random);
      const Shape a_shape = random.chance(0.6) ? shape : random_broadcast(random, shape);
      const Shape b_shape = random.chance(0.4) ? shape : random_broadcast(random, shape);
      const BinaryOp op = binary_ops[index % std::size(binary_ops)];
      const auto [alpha, beta] = random_parameters(random);
      const Placement a_place = random_placement(random, a_shape.rank());
      const Placement b_place = random_placement(random, b_shape.rank());
      const Placement out_place = random_placement(random, shape.rank());
      const Operand a(context, a_shape, dtype, a_place,
                      random_values(random, a_shape.numel(), dtype, false));
      const Operand b(context, b_shape, dtype, b_place,
                      wide_values(random, b_shape.numel(), dtype));
      const Tensor a_full = a.view().expand(shape), b_full = b.view().expand(shape);
      const Values first = values_of(a_full.clone()), second = values_of(b_full.clone());
      Expectation expected{contract_of(op, dtype)};
      for (std::size_t i = 0; i < first.size(); ++i)
        expected.add(wanted(op, dtype, first[i], second[i], alpha, beta));
      const BinaryDesc desc{op, dtype, shape.numel()};
      const std::string where = reproduction(
          index, fmt::format("{} {} a {} {} b {} {} out {} alpha {} beta {}", to_string(desc),
                             to_string(shape), to_string(a_shape), a_place.text(),
                             to_string(b_shape), b_place.text(), out_place.text(), alpha, beta));
      for (const auto& row : binary_list().rows()) {
        if (row.device != context.device().type || shape.numel() == 0) continue;
        Operand out = Operand::result(context, shape, dtype, out_place);
        row.run(context.state(), desc,
                {mutable_view(out.view()), view(a_full), view(b_full), alpha, beta}, nullptr);
        std::string why;
        const std::vector<double> actual = out.read(why);
        EXPECT_EQ(why, "") << row.name << "\n  " << where;
        EXPECT_EQ(expected.mismatch(actual), "") << row.name << "\n  " << where;
      }
      if (op > BinaryOp::div) continue;
      const Shape whole = broadcast_shapes(a_shape, b_shape, "test");
      if (whole != shape) continue;
      const Var y = op == BinaryOp::add   ? add(a.view(), b.view())
                    : op == BinaryOp::sub ? sub(a.view(), b.view())
                    : op == BinaryOp::mul ? mul(a.view(), b.view())
                                          : div(a.view(), b.view());
      EXPECT_EQ(y.shape(), shape) << where;
      EXPECT_EQ(expected.mismatch(values_of(y)), "") << "public op\n  " << where;
    }
  });
}

TEST(Elementwise, RandomUnaryOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 660; ++index) {
      if (!case_wanted(index)) continue;
      Random random(4'000'000 + static_cast<std::uint64_t>(index));
      const DType dtype = random_dtype(random);
      const Shape shape = random_shape(random);
      const UnaryOp op = unary_ops[index % std::size(unary_ops)];
      const auto [alpha, beta] = random_parameters(random);
      const Placement place = random_placement(random, shape.rank());
      const Placement out_place = random_placement(random, shape.rank());
      const Operand x(context, shape, dtype, place, wide_values(random, shape.numel(), dtype));
      Expectation expected{contract_of(op, dtype)};
      for (const double value : values_of(x.view()))
        expected.add(wanted(op, dtype, value, alpha, beta));
      const UnaryDesc desc{op, dtype, shape.numel()};
      const std::string where = reproduction(
          index, fmt::format("{} {} x {} out {} alpha {} beta {}", to_string(desc),
                             to_string(shape), place.text(), out_place.text(), alpha, beta));
      for (const auto& row : unary_list().rows()) {
        if (row.device != context.device().type || shape.numel() == 0) continue;
        Operand out = Operand::result(context, shape, dtype, out_place);
        row.run(context.state(), desc, {mutable_view(out.view()), view(x.view()), alpha, beta},
                nullptr);
        std::string why;
        const std::vector<double> actual = out.read(why);
        EXPECT_EQ(why, "") << row.name << "\n  " << where;
        EXPECT_EQ(expected.mismatch(actual), "") << row.name << "\n  " << where;
      }
      const Var y = public_op(op, x.view(), alpha, beta);
      EXPECT_EQ(expected.mismatch(values_of(y)), "") << "public op\n  " << where;
    }
  });
}

/// The gradient of a broadcast operand has that operand's shape and holds the sums.
TEST(Elementwise, GradientsOfBroadcastOperands) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Tensor a_values = make_tensor(context, {2, 3}, {1, 2, 3, 4, 5, 6}, dtype);
      const Tensor b_values = make_tensor(context, {3}, {10, 20, 30}, dtype);
      const Tensor seed = make_tensor(context, {2, 3}, {1, 0, -1, 2, 3, 4}, dtype);
      const auto gradients = [&](Var (*op)(const Var&, const Var&)) {
        Tape tape;
        const Var a = tape.leaf(a_values), b = tape.leaf(b_values);
        tape.backward(op(a, b), {.seed = seed});
        EXPECT_EQ(tape.grad(b).shape(), Shape{3});
        return std::pair{values_of(tape.grad(a)), values_of(tape.grad(b))};
      };
      const Values dy{1, 0, -1, 2, 3, 4};
      EXPECT_EQ(gradients(add), (std::pair{dy, Values{3, 3, 3}}));
      EXPECT_EQ(gradients(sub), (std::pair{dy, Values{-3, -3, -3}}));
      EXPECT_EQ(gradients(mul), (std::pair{Values{10, 0, -30, 20, 60, 120}, Values{9, 15, 21}}));
      const Tensor powers = make_tensor(context, {3}, {2, -4, 0.5}, dtype);
      Tape tape;
      const Var a = tape.leaf(a_values), b = tape.leaf(powers);
      tape.backward(a / b, {.seed = seed});
      EXPECT_EQ(values_of(tape.grad(a)), (Values{0.5, 0, -2, 1, -0.75, 8}));
      // -sum(dy a) / b^2
      EXPECT_EQ(values_of(tape.grad(b)), (Values{-9.0 / 4, -15.0 / 16, -21.0 * 4}));
    }
  });
}

TEST(Elementwise, OperatorsAndBias) {
  on_shared_devices([](const Context& context) {
    const Tensor x = make_tensor(context, {2, 2}, {1, -2, 3, -4}, DType::f32);
    EXPECT_EQ(values_of(Var(x) + 1.0), (Values{2, -1, 4, -3}));
    EXPECT_EQ(values_of(Var(x) - 1.0), (Values{0, -3, 2, -5}));
    EXPECT_EQ(values_of(Var(x) * 2.0), (Values{2, -4, 6, -8}));
    EXPECT_EQ(values_of(Var(x) * Var(x) - Var(x)), (Values{0, 6, 6, 20}));
    EXPECT_EQ(values_of(Var(x) + Var(x)), (Values{2, -4, 6, -8}));
    EXPECT_EQ(values_of(Var(x) / 2.0), (Values{0.5, -1, 1.5, -2}));
    EXPECT_EQ(values_of(Var(x) / Var(x)), Values(4, 1));
    const Tensor b = make_tensor(context, {2}, {10, 20}, DType::f32);
    EXPECT_EQ(values_of(bias(x, b)), (Values{11, 18, 13, 16}));
    EXPECT_EQ(values_of(bias(x, b, 0)), (Values{11, 8, 23, 16}));
    EXPECT_EQ(values_of(bias(x, b, -1)), (Values{11, 18, 13, 16}));

    Tape tape;
    const Var leaf_x = tape.leaf(x), leaf_b = tape.leaf(b);
    tape.backward(sum(relu(bias(leaf_x * 3.0, leaf_b, 0))));
    // 3x + b = [13, 4, 29, 8]: all positive.
    EXPECT_EQ(values_of(tape.grad(leaf_x)), Values(4, 3));
    EXPECT_EQ(values_of(tape.grad(leaf_b)), Values(2, 2));
  });
}

/// The gradient of max(x, 0) is 0 at 0, and a NaN stays one.
TEST(Elementwise, ReluGradientAtZero) {
  on_shared_devices([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(make_tensor(context, {4}, {-1, 0, 1, -0.0}, DType::f32));
    tape.backward(sum(relu(x)));
    EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{0, 0, 1, 0}));
  });
}

/// A new tensor lies as the first operand of full size.
TEST(Elementwise, ResultsKeepTheMemoryOrder) {
  on_shared_devices([](const Context& context) {
    const Tensor nhwc = Tensor::uniform(context, {2, 3, 4, 5}).contiguous_nhwc();
    const Tensor b = Tensor::uniform(context, {3, 1, 1});
    for (const Tensor& y : {relu(nhwc).value(), add(nhwc, b).value(), add(b, nhwc).value()})
      EXPECT_EQ(y.stride(1), 1) << describe(y);
  });
}

/// Floats of every exponent, denormal and infinite ones among them, in and out of the functions and
/// their gradients: within the stated errors, and no NaN but where long double has one.
TEST(Elementwise, FloatsOfEveryExponent) {
  on_shared_devices([](const Context& context) {
    std::vector<float> arguments{0.0f, -0.0f};
    for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 65521)
      arguments.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    for (const float edge :
         {0x1p-126f, 88.72f, -103.97f, 1e19f, 3.4e38f, std::numeric_limits<float>::infinity()})
      for (const float x : {edge, -edge}) arguments.push_back(x);
    const Tensor x =
        Tensor::from(context, {static_cast<std::int64_t>(arguments.size())}, arguments);
    for (const UnaryOp op : unary_ops) {
      Expectation expected{contract_of(op, DType::f32)};
      for (const float value : arguments)
        expected.add(wanted(op, DType::f32, static_cast<double>(value), -0.25, 0.5));
      EXPECT_EQ(expected.mismatch(values_of(public_op(op, x, -0.25, 0.5))), "")
          << to_string(UnaryDesc{op, DType::f32, x.numel()});
    }
    const Tensor ones = Tensor::full(context, x.shape(), 1);
    for (const BinaryOp op : binary_ops) {
      Expectation expected{contract_of(op, DType::f32)};
      for (const float value : arguments)
        expected.add(wanted(op, DType::f32, 1, static_cast<double>(value), -0.25, 0.5));
      EXPECT_EQ(expected.mismatch(values_of(apply_binary(op, ones, x, -0.25, 0.5))), "")
          << to_string(BinaryDesc{op, DType::f32, x.numel()});
    }
  });
}

TEST(Elementwise, PyTorchGoldens) {
  Golden golden("elementwise");
  const auto close = [](const Values& actual, const Values& expected, double relative,
                        const std::string& where) {
    ASSERT_EQ(actual.size(), expected.size()) << where;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double a = actual[i], e = expected[i];
      const bool same = (std::isnan(a) && std::isnan(e)) || a == e ||
                        std::abs(a - e) <= relative * std::max(std::abs(e), 1.0);
      EXPECT_TRUE(same) << where << " element " << i << " is " << a << ", expected " << e;
    }
  };
  on_shared_devices([&](const Context& context) {
    for (const auto& entry : golden.cases()) {
      const std::string name = entry["name"];
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        const bool narrow = dtype == DType::bf16 || dtype == DType::f16;
        const double relative = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-5 : 0.02;
        const auto tensor = [&](const char* which) {
          return golden.tensor(context, entry, which, dtype);
        };
        Tape tape;
        if (name == "div") {
          const Var a = tape.leaf(tensor("a")), b = tape.leaf(tensor("b"));
          const Var y = a / b;
          tape.backward(y, {.seed = tensor("gy")});
          if (narrow) continue;
          close(values_of(y), golden.values(entry, "y"), relative, name);
          close(values_of(tape.grad(a)), golden.values(entry, "da"), relative, name + " da");
          close(values_of(tape.grad(b)), golden.values(entry, "db"), 10 * relative, name + " db");
          continue;
        }
        // Other types see other arguments; the special ones are the same in all.
        if (narrow && entry["values"] == "grid") continue;
        const auto& params = entry["params"];
        const Var x = tape.leaf(tensor("x"));
        Var y;
        if (name == "leaky_relu") {
          y = leaky_relu(x, params["slope"].get<double>());
        } else if (name == "clamp") {
          y = clamp(x, std::stod(params["low"].get<std::string>()),
                    std::stod(params["high"].get<std::string>()));
        } else {
          for (const UnaryOp op : unary_ops)
            if (to_string(UnaryDesc{op, dtype, 1}).starts_with(name + " "))
              y = public_op(op, x, 0, 0);
        }
        ASSERT_TRUE(y.defined()) << name;
        tape.backward(y, {.seed = tensor("gy")});
        Values values = golden.values(entry, "y"), gradient = golden.values(entry, "dx");
        for (Values* all : {&values, &gradient})
          for (double& value : *all)
            if (dtype != DType::f64 && std::isinf(rounded(dtype, value)))
              value = rounded(dtype, value);
        const std::string where = fmt::format("{} {} {} {}", name, entry["values"].dump(),
                                              params.dump(), to_string(dtype));
        close(values_of(y), values, relative, where);
        close(values_of(tape.grad(x)), gradient, 4 * relative, where + " dx");
      }
    }
  });
}

/// The sign of zeros, which == does not see.
TEST(Elementwise, SignsOfZeros) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      const Tensor x = make_tensor(context, {2}, {-0.0, 0.0}, dtype);
      for (const Var& y :
           {tanh(x), silu(x), gelu(x), gelu(x, Gelu::tanh), leaky_relu(x), clamp(x, 0, 1),
            clamp(x, -1, -0.0), x / make_tensor(context, {1}, {3}, dtype)}) {
        const Values values = values_of(y);
        EXPECT_EQ(values, (Values{0, 0}));
        EXPECT_TRUE(std::signbit(values[0]) && !std::signbit(values[1])) << to_string(dtype);
      }
      const Values far = values_of(silu(make_tensor(context, {2}, {-1000, -infinity}, dtype)));
      EXPECT_TRUE(far[0] == 0 && std::signbit(far[0]) && std::isnan(far[1])) << to_string(dtype);
    }
  });
}

TEST(Elementwise, GradientsByDifferences) {
  on_shared_devices([](const Context& context) {
    Random random(21);
    const auto normal = [&](const Shape& shape) {
      return make_tensor(context, shape, random_values(random, shape.numel(), DType::f64, false));
    };
    const auto check = [&](const char* what, const std::function<Var(std::span<const Var>)>& f,
                           const std::vector<Tensor>& inputs) {
      const GradcheckResult result = gradcheck(f, inputs);
      EXPECT_TRUE(result.passed) << what << ": " << result.message;
    };
    const Tensor x = normal({3, 4, 5}).contiguous(), view = normal({5, 6}).permute({1, 0});
    const Tensor positive = affine(exp(x), 1, 0.5);
    for (const Tensor& v : {x, view}) {
      check("exp", [](auto in) { return exp(in[0]); }, {v});
      check("sigmoid", [](auto in) { return sigmoid(in[0]); }, {v});
      check("tanh", [](auto in) { return tanh(in[0]); }, {v});
      check("silu", [](auto in) { return silu(in[0]); }, {v});
      check("gelu", [](auto in) { return gelu(in[0]); }, {v});
      check("gelu tanh", [](auto in) { return gelu(in[0], Gelu::tanh); }, {v});
      check("leaky_relu", [](auto in) { return leaky_relu(in[0], 0.2); }, {v});
      check("leaky_relu, negative slope", [](auto in) { return leaky_relu(in[0], -0.5); }, {v});
      check("clamp", [](auto in) { return clamp(in[0], -0.5, 0.75); }, {v});
    }
    check("log", [](auto in) { return log(in[0]); }, {positive});
    check("div", [](auto in) { return in[0] / in[1]; }, {x, positive});
    check("div by a row", [](auto in) { return in[0] / in[1]; }, {x, positive.slice(0, 0, 1)});
    check("div of a column", [](auto in) { return in[0] / in[1]; }, {x.slice(2, 0, 1), positive});
    check("div by itself", [](auto in) { return silu(in[0]) / in[0]; }, {positive});
    check("div by a number", [](auto in) { return in[0] / 3.0; }, {x});
  });
}

/// Only what a gradient reads is kept: writing to the other one is allowed.
TEST(Elementwise, NodesKeepInputOrOutput) {
  on_shared_devices([](const Context& context) {
    struct Case {
      const char* name;
      Var (*op)(const Var&);
      bool keeps_output;
    };
    const Case cases[] = {
        {"relu", relu, true},
        {"exp", exp, true},
        {"sigmoid", sigmoid, true},
        {"tanh", tanh, true},
        {"leaky_relu", [](const Var& x) { return leaky_relu(x); }, true},
        {"leaky_relu", [](const Var& x) { return leaky_relu(x, -1); }, false},
        {"clamp", [](const Var& x) { return clamp(x, 0, 1); }, false},
        {"log", log, false},
        {"silu", silu, false},
        {"gelu", [](const Var& x) { return gelu(x); }, false},
        {"gelu", [](const Var& x) { return gelu(x, Gelu::tanh); }, false},
    };
    for (const Case& one : cases)
      for (const bool write_output : {false, true}) {
        Tape tape;
        Tensor value = Tensor::full(context, {3}, 0.5);
        const Var x = tape.leaf(value);
        const Var y = one.op(x);
        const Var loss = sum(y);
        Tensor written = write_output ? y.value() : value;
        written.fill_(2);
        if (write_output == one.keeps_output)
          expect_contains(message_of<AutogradError>([&] { tape.backward(loss); }), {one.name});
        else
          EXPECT_NO_THROW(tape.backward(loss)) << one.name;
      }
  });
}

/// f(0) = 0 is passed on as known where it holds, and nowhere else.
TEST(Elementwise, KnownZeros) {
  on_shared_devices([](const Context& context) {
    const Tensor zero = Tensor::zeros(context, {3});
    for (const Var& y : {relu(zero), tanh(zero), silu(zero), gelu(zero), gelu(zero, Gelu::tanh),
                         leaky_relu(zero), clamp(zero, -1, 1), zero / 2.0}) {
      EXPECT_TRUE(y.value().known_zero());
      EXPECT_EQ(values_of(y), Values(3, 0));
    }
    EXPECT_EQ(values_of(exp(zero)), Values(3, 1));
    EXPECT_EQ(values_of(log(zero)), Values(3, -infinity));
    EXPECT_EQ(values_of(sigmoid(zero)), Values(3, 0.5));
    EXPECT_EQ(values_of(clamp(zero, 1, 2)), Values(3, 1));
    EXPECT_EQ(values_of(clamp(zero, -2, -1)), Values(3, -1));
    EXPECT_TRUE(std::isnan(values_of(leaky_relu(zero, infinity))[0]));
    EXPECT_TRUE(std::isnan(values_of(div(zero, zero))[0]));
    // Gradients: 0 where dy is 0 if the derivative is a number, the derivative's NaN else.
    const Tensor x = make_tensor(context, {3}, {-1, nan, infinity}, DType::f32);
    EXPECT_TRUE(apply_binary(BinaryOp::clamp_backward, zero, x, 0, 1).known_zero());
    EXPECT_TRUE(apply_binary(BinaryOp::leaky_relu_backward, zero, x, 0.5).known_zero());
    const Values silu_gradient = values_of(apply_binary(BinaryOp::silu_backward, zero, x));
    EXPECT_EQ(silu_gradient[0], 0);
    EXPECT_TRUE(std::isnan(silu_gradient[1]) && std::isnan(silu_gradient[2]));
    const Tensor ones = Tensor::full(context, {3}, 1);
    EXPECT_EQ(values_of(apply_binary(BinaryOp::silu_backward, ones, zero)), Values(3, 0.5));
    EXPECT_EQ(values_of(apply_binary(BinaryOp::tanh_backward, ones, zero)), Values(3, 1));
  });
}

/// Bounds count as the tensor can hold them: x on a bound has a gradient.
TEST(Elementwise, ClampRoundsItsBounds) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      Tape tape;
      const Tensor values = make_tensor(context, {4}, {-0.1, 0.1, 0.3, 0.7}, dtype);
      const Var x = tape.leaf(values);
      const Var y = clamp(x, 0.1, 0.3);
      const Values stored = values_of(values);
      EXPECT_EQ(values_of(y), (Values{stored[1], stored[1], stored[2], stored[2]}));
      tape.backward(sum(y));
      EXPECT_EQ(values_of(tape.grad(x)), (Values{0, 1, 1, 0})) << to_string(dtype);
    }
  });
}

TEST(Elementwise, CapturedInAGraph) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  const Context context(Device::cuda());
  Tensor x = Tensor::normal(context, {1000});
  Tensor result = Tensor::zeros(context, {1000});
  const auto step = [&] {
    Tape tape;
    const Var leaf = tape.leaf(x);
    tape.backward(sum(silu(gelu(leaf, Gelu::tanh)) / (exp(tanh(leaf)) + sigmoid(leaf))));
    result.copy_(tape.grad(leaf));
  };
  step();
  Graph graph = Graph::capture(context, step);
  x.copy_(Tensor::normal(context, {1000}));
  graph.replay();
  const Values replayed = values_of(result);
  step();
  EXPECT_EQ(values_of(result), replayed);
}

TEST(Elementwise, ErrorsNameBothOperands) {
  on_shared_devices([](const Context& context) {
    const Tensor a = Tensor::zeros(context, {2, 3}), b = Tensor::zeros(context, {2, 4});
    try {
      add(a, b);
      ADD_FAILURE() << "no error";
    } catch (const ShapeError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("add"), std::string::npos) << what;
      EXPECT_NE(what.find("[2, 3]"), std::string::npos) << what;
      EXPECT_NE(what.find("[2, 4]"), std::string::npos) << what;
    }
    EXPECT_THROW(mul(a, Tensor::zeros(context, {2, 3}, DType::f64)), DTypeError);
    const Tensor integers = Tensor::zeros(context, {2}, DType::i64);
    for (const UnaryOp op : unary_ops) EXPECT_THROW(public_op(op, integers, 0, 0), DTypeError);
    EXPECT_THROW(div(integers, integers), DTypeError);
    EXPECT_THROW(div(a, b), ShapeError);
    expect_contains(message_of<ShapeError>([&] { clamp(a, 2, 1); }), {"clamp", "2", "1"});
    EXPECT_THROW(clamp(a, nan, 1), ShapeError);
    EXPECT_THROW(clamp(a, 0, nan), ShapeError);
    EXPECT_THROW(bias(a, b), ShapeError);
    const Context other;
    EXPECT_THROW(add(a, Tensor::zeros(other, {2, 3})), DeviceError);
  });
}

}  // namespace
}  // namespace zerone::test
