// Elementwise operations against host arithmetic, which gives the same bits.
#include <cmath>

#include <zerone/core/views.h>

#include "support/compare.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;

/// Each operation rounds once: in double for f64, else in float and then to the storage type.
double host(BinaryOp op, DType dtype, double a, double b) {
  if (op == BinaryOp::relu_backward) return b <= 0 ? 0 : a;
  const double exact = op == BinaryOp::add ? a + b : op == BinaryOp::sub ? a - b : a * b;
  return rounded(dtype, dtype == DType::f64 ? exact : rounded(DType::f32, exact));
}

double host(UnaryOp op, DType dtype, double x, double alpha, double beta) {
  if (op == UnaryOp::relu) return x > 0 || std::isnan(x) ? x : 0;
  if (dtype == DType::f64) return std::fma(alpha, x, beta);
  return rounded(dtype,
                 static_cast<double>(std::fma(static_cast<float>(alpha), static_cast<float>(x),
                                              static_cast<float>(beta))));
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

const Contract same_bits{.dtype = DType::f64, .exact = true};

TEST(Elementwise, RandomBinaryOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 400; ++index) {
      if (!case_wanted(index)) continue;
      Random random(3'000'000 + static_cast<std::uint64_t>(index));
      const DType dtype = random_dtype(random);
      const Shape shape = random_shape(random);
      const Shape a_shape = random.chance(0.6) ? shape : random_broadcast(random, shape);
      const Shape b_shape = random.chance(0.4) ? shape : random_broadcast(random, shape);
      const BinaryOp op =
          random.pick({BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::relu_backward});
      const Placement a_place = random_placement(random, a_shape.rank());
      const Placement b_place = random_placement(random, b_shape.rank());
      const Placement out_place = random_placement(random, shape.rank());
      const Operand a(context, a_shape, dtype, a_place,
                      random_values(random, a_shape.numel(), dtype, false));
      const Operand b(context, b_shape, dtype, b_place,
                      random_values(random, b_shape.numel(), dtype, false));
      const Tensor a_full = a.view().expand(shape), b_full = b.view().expand(shape);
      std::vector<double> expected = values_of(a_full.clone());
      const std::vector<double> second = values_of(b_full.clone());
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = host(op, dtype, expected[i], second[i]);
      const BinaryDesc desc{op, dtype, shape.numel()};
      const std::string where =
          reproduction(index, fmt::format("{} {} a {} {} b {} {} out {}", to_string(desc),
                                          to_string(shape), to_string(a_shape), a_place.text(),
                                          to_string(b_shape), b_place.text(), out_place.text()));
      for (const auto& row : binary_list().rows()) {
        if (row.device != context.device().type || shape.numel() == 0) continue;
        Operand out = Operand::result(context, shape, dtype, out_place);
        row.run(context.state(), desc, {mutable_view(out.view()), view(a_full), view(b_full)},
                nullptr);
        std::string why;
        const std::vector<double> actual = out.read(why);
        EXPECT_EQ(why, "") << row.name << "\n  " << where;
        EXPECT_EQ(mismatch(actual, expected, {}, same_bits), "") << row.name << "\n  " << where;
      }
      if (op == BinaryOp::relu_backward) continue;
      const Shape whole = broadcast_shapes(a_shape, b_shape, "test");
      if (whole != shape) continue;
      const Var y = op == BinaryOp::add   ? add(a.view(), b.view())
                    : op == BinaryOp::sub ? sub(a.view(), b.view())
                                          : mul(a.view(), b.view());
      EXPECT_EQ(y.shape(), shape) << where;
      EXPECT_EQ(mismatch(values_of(y), expected, {}, same_bits), "") << "public op\n  " << where;
    }
  });
}

TEST(Elementwise, RandomUnaryOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 300; ++index) {
      if (!case_wanted(index)) continue;
      Random random(4'000'000 + static_cast<std::uint64_t>(index));
      const DType dtype = random_dtype(random);
      const Shape shape = random_shape(random);
      const UnaryOp op = random.pick({UnaryOp::relu, UnaryOp::affine});
      const double alpha = rounded(DType::bf16, random.normal());
      const double beta = random.chance(0.3) ? 0 : rounded(DType::bf16, random.normal());
      const Placement place = random_placement(random, shape.rank());
      const Placement out_place = random_placement(random, shape.rank());
      const Operand x(context, shape, dtype, place,
                      random_values(random, shape.numel(), dtype, false));
      std::vector<double> expected = values_of(x.view());
      for (double& value : expected) value = host(op, dtype, value, alpha, beta);
      const UnaryDesc desc{op, dtype, shape.numel()};
      const std::string where =
          reproduction(index, fmt::format("{} {} x {} out {}", to_string(desc), to_string(shape),
                                          place.text(), out_place.text()));
      for (const auto& row : unary_list().rows()) {
        if (row.device != context.device().type || shape.numel() == 0) continue;
        Operand out = Operand::result(context, shape, dtype, out_place);
        row.run(context.state(), desc, {mutable_view(out.view()), view(x.view()), alpha, beta},
                nullptr);
        std::string why;
        const std::vector<double> actual = out.read(why);
        EXPECT_EQ(why, "") << row.name << "\n  " << where;
        EXPECT_EQ(mismatch(actual, expected, {}, same_bits), "") << row.name << "\n  " << where;
      }
      const Var y = op == UnaryOp::relu ? relu(x.view()) : affine(x.view(), alpha, beta);
      EXPECT_EQ(mismatch(values_of(y), expected, {}, same_bits), "") << "public op\n  " << where;
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
      using Values = std::vector<double>;
      const Values dy{1, 0, -1, 2, 3, 4};
      EXPECT_EQ(gradients(add), (std::pair{dy, Values{3, 3, 3}}));
      EXPECT_EQ(gradients(sub), (std::pair{dy, Values{-3, -3, -3}}));
      EXPECT_EQ(gradients(mul), (std::pair{Values{10, 0, -30, 20, 60, 120}, Values{9, 15, 21}}));
    }
  });
}

TEST(Elementwise, OperatorsAndBias) {
  on_shared_devices([](const Context& context) {
    using Values = std::vector<double>;
    const Tensor x = make_tensor(context, {2, 2}, {1, -2, 3, -4}, DType::f32);
    EXPECT_EQ(values_of(Var(x) + 1.0), (Values{2, -1, 4, -3}));
    EXPECT_EQ(values_of(Var(x) - 1.0), (Values{0, -3, 2, -5}));
    EXPECT_EQ(values_of(Var(x) * 2.0), (Values{2, -4, 6, -8}));
    EXPECT_EQ(values_of(Var(x) * Var(x) - Var(x)), (Values{0, 6, 6, 20}));
    EXPECT_EQ(values_of(Var(x) + Var(x)), (Values{2, -4, 6, -8}));
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
    EXPECT_THROW(relu(Tensor::zeros(context, {2}, DType::i64)), DTypeError);
    EXPECT_THROW(bias(a, b), ShapeError);
    const Context other;
    EXPECT_THROW(add(a, Tensor::zeros(other, {2, 3})), DeviceError);
  });
}

}  // namespace
}  // namespace zerone::test
