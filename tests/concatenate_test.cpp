// Concatenation: any axis, views, layouts, known zeros, gradients, errors, PyTorch's results.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/operand.h"

namespace zerone {
namespace {

using test::expect_contains;
using test::make_tensor;
using test::message_of;
using test::on_every_device;
using test::values_of;

using Values = std::vector<double>;

Shape with_size(const Shape& shape, int axis, std::int64_t size) {
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  sizes[static_cast<std::size_t>(axis)] = size;
  return Shape(std::span<const std::int64_t>(sizes));
}

/// Row-major [outer, sizes[i], inner] parts side by side.
Values joined(const std::vector<Values>& parts, const std::vector<std::int64_t>& sizes,
              std::int64_t outer, std::int64_t inner) {
  Values all;
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto begin = parts[i].begin() + o * sizes[i] * inner;
      all.insert(all.end(), begin, begin + sizes[i] * inner);
    }
  return all;
}

TEST(Concatenate, RandomProblems) {
  on_every_device([](const Context& context) {
    for (int index = 0; index < 300; ++index) {
      if (!test::case_wanted(index)) continue;
      test::Random random(static_cast<std::uint64_t>(index));
      const DType dtype = random.pick({DType::f64, DType::f32, DType::bf16, DType::f16});
      const int rank = static_cast<int>(random.integer(1, 8));
      std::vector<std::int64_t> base(static_cast<std::size_t>(rank));
      for (std::int64_t& size : base) size = random.integer(random.chance(0.03) ? 0 : 1, 3);
      const int axis = static_cast<int>(random.integer(0, rank - 1));
      const auto count = static_cast<std::size_t>(random.integer(1, 5));
      std::int64_t outer = 1, inner = 1;
      for (int i = 0; i < rank; ++i)
        (i < axis ? outer : inner) *= base[static_cast<std::size_t>(i)];
      inner /= std::max<std::int64_t>(base[static_cast<std::size_t>(axis)], 1);
      if (base[static_cast<std::size_t>(axis)] == 0) {
        inner = 1;
        for (int i = axis + 1; i < rank; ++i) inner *= base[static_cast<std::size_t>(i)];
      }

      Tape tape;
      std::vector<Var> inputs;
      std::vector<Values> parts;
      std::vector<std::int64_t> sizes;
      std::vector<test::Operand> operands;
      std::string problem = fmt::format("{} axis {}:", to_string(dtype), axis);
      for (std::size_t i = 0; i < count; ++i) {
        sizes.push_back(random.integer(random.chance(0.2) ? 0 : 1, 4));
        const Shape shape = with_size(Shape(std::span<const std::int64_t>(base)), axis, sizes[i]);
        parts.push_back(test::random_values(random, shape.numel(), dtype, true));
        const test::Placement placement = test::random_placement(random, rank);
        operands.emplace_back(context, shape, dtype, placement, parts[i]);
        problem += fmt::format(" {} {}", to_string(shape), placement.text());
        inputs.push_back(random.chance(0.8) ? tape.leaf(operands[i].view())
                                            : Var(operands[i].view()));
      }
      SCOPED_TRACE(test::reproduction(index, problem));
      const Var y = concatenate(inputs, random.chance(0.5) ? axis : axis - rank);
      EXPECT_EQ(values_of(y), joined(parts, sizes, outer, inner));
      EXPECT_TRUE(y.value().is_dense());
      if (!y.requires_grad()) continue;

      std::vector<Values> gradients;
      for (const Var& input : inputs)
        gradients.push_back(test::random_values(random, input.value().numel(), dtype, true));
      tape.backward(y, {.seed = make_tensor(context, y.shape(),
                                            joined(gradients, sizes, outer, inner), dtype),
                        .retain = false});
      for (std::size_t i = 0; i < count; ++i) {
        if (!inputs[i].requires_grad()) continue;
        EXPECT_EQ(values_of(tape.grad(inputs[i])), gradients[i]) << "input " << i;
      }
    }
  });
}

TEST(Concatenate, EveryTypeAndEveryBit) {
  on_every_device([](const Context& context) {
    for (const DType dtype :
         {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::u8}) {
      const Tensor a = Tensor::from<double>(context, {2, 1}, {1, 2}).to(dtype);
      const Tensor b = Tensor::from<double>(context, {2, 2}, {3, 4, 5, 6}).to(dtype);
      const Var y = concatenate({a, b}, 1);
      EXPECT_EQ(y.value().dtype(), dtype);
      EXPECT_EQ(values_of(y), (Values{1, 3, 4, 2, 5, 6}));
    }
    const Tensor large = Tensor::from<std::int64_t>(context, {1}, {(std::int64_t{1} << 62) + 1});
    EXPECT_EQ(concatenate({large, large}, 0).value().to_vector<std::int64_t>(),
              (std::vector<std::int64_t>(2, (std::int64_t{1} << 62) + 1)));
    const Values special = {std::numeric_limits<double>::quiet_NaN(),
                            std::numeric_limits<double>::infinity(), -0.0, 5e-324};
    const Values y = values_of(
        concatenate({make_tensor(context, {4}, special), make_tensor(context, {1}, {1})}, -1));
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], special[1]);
    EXPECT_TRUE(y[2] == 0 && std::signbit(y[2]));
    EXPECT_EQ(y[3], 5e-324);
  });
}

TEST(Concatenate, TakesTheMemoryOrderOfTheLargestInputWithoutGaps) {
  on_every_device([](const Context& context) {
    const Tensor nchw = Tensor::normal(context, {2, 3, 4, 5});
    const Tensor nhwc = nchw.contiguous_nhwc();
    EXPECT_EQ(concatenate({nhwc, nhwc}, 1).value().stride(1), 1);
    EXPECT_EQ(concatenate({nchw.slice(1, 0, 1), nhwc}, 1).value().stride(1), 1);
    EXPECT_EQ(concatenate({nchw, nhwc}, 1).value().stride(3), 1);
    EXPECT_TRUE(concatenate({nhwc.slice(3, 0, 2), nhwc.slice(3, 2, 5)}, 3).value().is_contiguous());
    // One channel each: NHWC and NCHW are the same memory, and both are right for the result's use.
    EXPECT_TRUE(concatenate({nchw.slice(1, 0, 1).clone(), nchw.slice(1, 0, 1).clone()}, 1)
                    .value()
                    .is_contiguous());
    const Tensor flat = Tensor::empty_nhwc(context, {2, 1, 4, 5});
    EXPECT_EQ(concatenate({flat, flat}, 1).value().stride(1), 1);
  });
}

TEST(Concatenate, OneInputIsCopied) {
  on_every_device([](const Context& context) {
    Tensor x = Tensor::full(context, {2, 2}, 1);
    const Var y = concatenate({x}, 0);
    x.fill_(5);
    EXPECT_EQ(values_of(y), Values(4, 1.0));
  });
}

TEST(Concatenate, OneInputTwiceAndGradientsThatAreViews) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(make_tensor(context, {2}, {1, 2})),
              z = tape.leaf(make_tensor(context, {1}, {3}));
    const Tensor seed = make_tensor(context, {5}, {1, 10, 100, 1000, 10000});
    std::vector<const void*> bytes;
    const Var inner = z * 2.0;
    tape.hook(inner, [&](const Tensor& gradient) {
      bytes.push_back(gradient.data());
      return Tensor();
    });
    tape.backward(concatenate({x, inner, x}, 0), {.seed = seed, .retain = false});
    EXPECT_EQ(values_of(tape.grad(x)), (Values{1001, 10010}));
    EXPECT_EQ(values_of(tape.grad(z)), (Values{200}));
    EXPECT_EQ(bytes, (std::vector<const void*>{seed.slice(0, 2, 3).data()}));
    EXPECT_EQ(values_of(seed), (Values{1, 10, 100, 1000, 10000}));
  });
}

TEST(Concatenate, KnownZeros) {
  on_every_device([](const Context& context) {
    const Tensor zero = Tensor::zeros(context, {2, 3}), one = Tensor::full(context, {2, 1}, 1);
    const Tensor nothing = Tensor::empty(context, {2, 0});
    const Var all = concatenate({zero, nothing, zero}, 1);
    EXPECT_TRUE(all.value().known_zero());
    EXPECT_EQ(values_of(all), Values(12, 0.0));
    const Var some = concatenate({zero, one}, 1);
    EXPECT_FALSE(some.value().known_zero());
    EXPECT_TRUE(zero.storage().zero_pending()) << "its zeros need not be written";
    EXPECT_EQ(values_of(some), (Values{0, 0, 0, 1, 0, 0, 0, 1}));

    Tape tape;
    const Var x = tape.leaf(one), y = tape.leaf(zero);
    tape.backward(concatenate({x, y}, 1),
                  {.seed = Tensor::zeros(context, {2, 4}), .retain = false});
    EXPECT_EQ(values_of(tape.grad(x)), Values(2, 0.0));
    EXPECT_EQ(values_of(tape.grad(y)), Values(6, 0.0));
  });
}

TEST(Concatenate, Gradcheck) {
  on_every_device([](const Context& context) {
    const Tensor a = Tensor::normal(context, {2, 3}, 0, 1, DType::f64),
                 b = Tensor::normal(context, {2, 1}, 0, 1, DType::f64);
    const auto check = gradcheck(
        [](std::span<const Var> in) {
          const Var y = concatenate({in[0], in[1], in[0] * in[0]}, 1);
          return y * y;
        },
        {a, b});
    EXPECT_TRUE(check.passed) << check.message;
  });
}

TEST(Concatenate, Goldens) {
  on_every_device([](const Context& context) {
    test::Golden golden("concatenate");
    for (const auto& entry : golden.cases())
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        SCOPED_TRACE(entry["name"].get<std::string>() + " " + to_string(dtype));
        Tape tape;
        std::vector<Var> inputs;
        for (int i = 0; test::Golden::has(entry, (fmt::format("x{}", i)).c_str()); ++i)
          inputs.push_back(tape.leaf(golden.tensor(context, entry, fmt::format("x{}", i), dtype)));
        ASSERT_FALSE(inputs.empty());
        const Var y = concatenate(inputs, entry["axis"].get<int>());
        EXPECT_EQ(y.shape(), test::Golden::shape(entry, "y"));
        EXPECT_EQ(values_of(y), golden.values(entry, "y"));
        tape.backward(y, {.seed = golden.tensor(context, entry, "gy", dtype), .retain = false});
        for (std::size_t i = 0; i < inputs.size(); ++i)
          EXPECT_EQ(values_of(tape.grad(inputs[i])), golden.values(entry, fmt::format("dx{}", i)))
              << "input " << i;
      }
  });
}

TEST(Concatenate, ErrorsNameTheInput) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::full(context, {2, 3}, 1);
    EXPECT_THROW((void)concatenate(std::span<const Var>(), 0), ShapeError);
    expect_contains(message_of<ShapeError>([&] {
                      (void)concatenate({x, x, Tensor::full(context, {3, 3}, 1)}, 1);
                    }),
                    {"concatenate", "input 2", "[3, 3]", "input 0", "[2, 3]", "axis 1"});
    expect_contains(message_of<ShapeError>([&] {
                      (void)concatenate({x, Tensor::full(context, {2, 3, 1}, 1)}, 1);
                    }),
                    {"input 1", "[2, 3, 1]"});
    expect_contains(message_of<DTypeError>([&] {
                      (void)concatenate({x, Tensor::full(context, {2, 3}, 1, DType::f64)}, 0);
                    }),
                    {"input 1", "f64", "f32"});
    const Context other;
    expect_contains(message_of<DeviceError>([&] {
                      (void)concatenate({x, Tensor::full(other, {2, 3}, 1)}, 0);
                    }),
                    {"input 1", other.name(), context.name()});
    expect_contains(message_of<ShapeError>([&] {
                      (void)concatenate({x, Tensor()}, 0);
                    }),
                    {"input 1"});
    expect_contains(
        message_of<ShapeError>([&] { (void)concatenate({Tensor::full(context, {}, 1)}, 0); }),
        {"input 0"});
    EXPECT_THROW((void)concatenate({x, x}, 2), ShapeError);
    EXPECT_THROW((void)concatenate({x, x}, -3), ShapeError);
    Tape a, b;
    expect_contains(message_of<AutogradError>([&] {
                      (void)concatenate({a.leaf(x), b.leaf(x)}, 0);
                    }),
                    {"concatenate", "tapes"});
  });
}

}  // namespace
}  // namespace zerone
