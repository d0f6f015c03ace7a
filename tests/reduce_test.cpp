// Sums, means and the mean-square error against f64 sums on the host.
#include <cmath>

#include <zerone/core/views.h>

#include "support/compare.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

/// Sums over the marked axes of row-major values; the result keeps them with size 1.
std::vector<double> host_sum(const std::vector<double>& x, const Shape& shape,
                             const std::vector<bool>& summed) {
  std::int64_t count = 1;
  for (int i = 0; i < shape.rank(); ++i)
    if (!summed[static_cast<std::size_t>(i)]) count *= shape[i];
  std::vector<double> y(static_cast<std::size_t>(count));
  for (std::size_t k = 0; k < x.size(); ++k) {
    auto rest = static_cast<std::int64_t>(k);
    std::int64_t place = 0, stride = 1;
    for (int i = shape.rank(); i-- > 0;) {
      const std::int64_t at = rest % shape[i];
      rest /= shape[i];
      if (summed[static_cast<std::size_t>(i)]) continue;
      place += at * stride;
      stride *= shape[i];
    }
    y[static_cast<std::size_t>(place)] += x[k];
  }
  return y;
}

Shape kept_shape(const Shape& shape, const std::vector<bool>& summed) {
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (summed[i]) sizes[i] = 1;
  return Shape(std::span<const std::int64_t>(sizes));
}

TEST(Reduce, RandomSumsOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 400; ++index) {
      if (!case_wanted(index)) continue;
      Random random(5'000'000 + static_cast<std::uint64_t>(index));
      const DType dtype =
          random.pick({DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16});
      std::vector<std::int64_t> sizes(static_cast<std::size_t>(random.integer(0, 5)));
      const std::int64_t longest = sizes.size() <= 1 ? 20000 : sizes.size() <= 3 ? 23 : 6;
      for (std::int64_t& size : sizes) size = random.chance(0.04) ? 0 : random.integer(1, longest);
      const Shape shape{std::span<const std::int64_t>(sizes)};
      std::vector<bool> summed(sizes.size());
      for (std::size_t i = 0; i < sizes.size(); ++i) summed[i] = random.chance(0.5);
      const bool integers = random.chance(0.5);
      const double scale = random.chance(0.6) ? 1 : 0.25;  // a power of two: exact
      const Placement place = random_placement(random, shape.rank());
      const Shape kept = kept_shape(shape, summed);
      const Placement out_place = random_placement(random, kept.rank());
      const auto values = random_values(random, shape.numel(), dtype, integers);
      const Operand x(context, shape, dtype, place, values);
      std::vector<double> expected = host_sum(values, shape, summed);
      std::vector<double> magnitude = host_sum(absolute(values), shape, summed);
      for (double& value : expected) value *= scale;
      const std::int64_t terms = shape.numel() / std::max<std::int64_t>(kept.numel(), 1);
      const Contract contract =
          integers ? exact_contract(dtype) : product_contract(dtype, Math::fp32, terms);
      const ReduceDesc desc{ReduceOp::sum, dtype, shape.numel(), kept.numel()};
      const std::string where = reproduction(
          index, fmt::format("{} {} to {} x {} out {} scale {} {}", to_string(desc),
                             to_string(shape), to_string(kept), place.text(), out_place.text(),
                             scale, integers ? "integers" : "normal"));
      for (const std::string& row : row_names(reduce_list(), context)) {
        const ScopedForce force(context, "reduce", row);
        Operand out = Operand::result(context, kept, dtype, out_place);
        sum_into(out.view(), x.view(), scale);
        std::string why;
        const std::vector<double> actual = out.read(why);
        EXPECT_EQ(why, "") << row << "\n  " << where;
        EXPECT_EQ(mismatch(actual, expected, magnitude, contract), "") << row << "\n  " << where;
        Operand again = Operand::result(context, kept, dtype, out_place);
        sum_into(again.view(), x.view(), scale);
        EXPECT_EQ(mismatch(again.read(why), actual, {}, exact_contract(DType::f64)), "")
            << "a second run gives other bits\n  " << where;
      }
    }
  });
}

TEST(Reduce, AxesAndKeep) {
  on_shared_devices([](const Context& context) {
    using Values = std::vector<double>;
    const Tensor x =
        make_tensor(context, {2, 3, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, DType::f32);
    EXPECT_EQ(sum(x).shape(), Shape{});
    EXPECT_EQ(values_of(sum(x)), Values{78});
    EXPECT_EQ(values_of(mean(x)), Values{6.5});
    EXPECT_EQ(sum(x, {1}).shape(), (Shape{2, 2}));
    EXPECT_EQ(values_of(sum(x, {1})), (Values{9, 12, 27, 30}));
    EXPECT_EQ(sum(x, {-1, 0}, true).shape(), (Shape{1, 3, 1}));
    EXPECT_EQ(values_of(sum(x, {-1, 0}, true)), (Values{18, 26, 34}));
    EXPECT_EQ(values_of(sum(x, {})), values_of(x));
    EXPECT_EQ(values_of(sum(x.permute({2, 0, 1}), {0})), (Values{3, 7, 11, 15, 19, 23}));
    EXPECT_THROW(sum(x, {3}), ShapeError);
    EXPECT_THROW(sum(Tensor::zeros(context, {2}, DType::i64)), DTypeError);
  });
}

TEST(Reduce, NothingSumsToZero) {
  on_shared_devices([](const Context& context) {
    const Tensor none = Tensor::empty(context, {3, 0});
    EXPECT_EQ(values_of(sum(none)), std::vector<double>{0});
    EXPECT_EQ(values_of(sum(none, {1})), (std::vector<double>{0, 0, 0}));
    EXPECT_TRUE(values_of(sum(none, {0})).empty());
    EXPECT_TRUE(std::isnan(mean(none).value().item()));
    EXPECT_TRUE(std::isnan(mean_square_error(none, none).value().item()));
  });
}

TEST(Reduce, GradientsSpreadOut) {
  on_shared_devices([](const Context& context) {
    using Values = std::vector<double>;
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      if (!context.device().is_cuda() && size_of(dtype) == 2) continue;
      Tape tape;
      const Var x = tape.leaf(make_tensor(context, {2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}, dtype));
      tape.backward(sum(x, {1}), {.seed = make_tensor(context, {2}, {3, -1}, dtype)});
      EXPECT_EQ(values_of(tape.grad(x)), (Values{3, 3, 3, 3, -1, -1, -1, -1}));
      Tape second;
      const Var z = second.leaf(make_tensor(context, {2, 4}, Values(8, 1), dtype));
      second.backward(mean(z));
      EXPECT_EQ(values_of(second.grad(z)), Values(8, 0.125));
    }
  });
}

TEST(Reduce, MeanSquareErrorOnEveryLayout) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 60; ++index) {
      if (!case_wanted(index)) continue;
      Random random(6'000'000 + static_cast<std::uint64_t>(index));
      const DType dtype = random.pick({DType::f32, DType::f64, DType::f16, DType::bf16});
      const Shape shape{random.integer(1, 5), random.integer(1, 9), random.integer(1, 7),
                        random.integer(1, 8)};
      const auto count = static_cast<std::size_t>(shape.numel());
      const bool integers = random.chance(0.5);
      const auto a = random_values(random, shape.numel(), dtype, integers);
      const auto b = random_values(random, shape.numel(), dtype, integers);
      const Operand a_view(context, shape, dtype, random_placement(random, 4), a);
      const Operand b_view(context, shape, dtype, random_placement(random, 4), b);
      double total = 0, rough = 0;
      for (std::size_t i = 0; i < count; ++i) {
        total += (a[i] - b[i]) * (a[i] - b[i]);
        rough += (std::abs(a[i]) + std::abs(b[i])) * (std::abs(a[i]) + std::abs(b[i]));
      }
      const double scale = 1.0 / static_cast<double>(count);
      Tape tape;
      const Var leaf_a = tape.leaf(a_view.view()), leaf_b = tape.leaf(b_view.view());
      const Var loss = mean_square_error(leaf_a, leaf_b);
      const std::string where =
          reproduction(index, fmt::format("mse {} {}", to_string(dtype), to_string(shape)));
      EXPECT_EQ(loss.shape(), Shape{});
      EXPECT_EQ(mismatch(values_of(loss), {total * scale}, {rough * scale},
                         product_contract(dtype, Math::fp32, shape.numel())),
                "")
          << where;
      tape.backward(loss);
      std::vector<double> da(count), db(count), size(count);
      for (std::size_t i = 0; i < count; ++i) {
        da[i] = 2 * scale * (a[i] - b[i]);
        db[i] = -da[i];
        size[i] = 2 * scale * (std::abs(a[i]) + std::abs(b[i]));
      }
      const Contract contract = product_contract(dtype, Math::fp32, 1);
      EXPECT_EQ(mismatch(values_of(tape.grad(leaf_a)), da, size, contract), "") << where;
      EXPECT_EQ(mismatch(values_of(tape.grad(leaf_b)), db, size, contract), "") << where;
    }
    EXPECT_THROW(mean_square_error(Tensor::zeros(context, {2, 3}), Tensor::zeros(context, {3})),
                 ShapeError);
  });
}

}  // namespace
}  // namespace zerone::test
