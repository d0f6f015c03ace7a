// Views on the tape: no copy forward, gradients in the right places.
#include "support/compare.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using Values = std::vector<double>;

Values arange(std::int64_t count, double first = 0) {
  Values values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<double>(i);
  return values;
}

/// Gradient of sum(view(x) * seed), where seed counts from 1 in the view's order.
Values gradient(const Context& context, const Shape& shape, DType dtype,
                const std::function<Var(const Var&)>& view) {
  Tape tape;
  const Var x = tape.leaf(make_tensor(context, shape, arange(shape.numel()), dtype));
  const Var y = view(x);
  tape.backward(y, {.seed = make_tensor(context, y.shape(), arange(y.value().numel(), 1), dtype)});
  EXPECT_EQ(tape.grad(x).shape(), shape);
  return values_of(tape.grad(x));
}

TEST(View, ValuesAndSharedStorage) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16}) {
      Tape tape;
      const Var x = tape.leaf(make_tensor(context, {2, 3, 2}, arange(12), dtype));
      const std::size_t copied = context.memory().layout_copied;
      const Var permuted = permute(x, {2, 0, 1});
      EXPECT_EQ(permuted.shape(), (Shape{2, 2, 3}));
      EXPECT_EQ(values_of(permuted), (Values{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}));
      const Var reshaped = reshape(x, {3, -1});
      EXPECT_EQ(reshaped.shape(), (Shape{3, 4}));
      EXPECT_EQ(values_of(reshaped), arange(12));
      const Var sliced = slice(x, 1, -2, 3);
      EXPECT_EQ(values_of(sliced), (Values{2, 3, 4, 5, 8, 9, 10, 11}));
      const Var stepped = slice(x, 1, 0, 3, 2);
      EXPECT_EQ(values_of(stepped), (Values{0, 1, 4, 5, 6, 7, 10, 11}));
      const Var expanded = expand(slice(x, 2, 0, 1), {2, 2, 3, 4});
      EXPECT_EQ(expanded.shape(), (Shape{2, 2, 3, 4}));
      EXPECT_EQ(values_of(expanded)[5], 2);
      for (const Var& view : {permuted, reshaped, sliced, stepped, expanded})
        EXPECT_EQ(view.value().shared_storage(), x.value().shared_storage());
      EXPECT_EQ(context.memory().layout_copied, copied);
    }
  });
}

TEST(View, GradientsGoBackToTheirPlaces) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      EXPECT_EQ(gradient(context, {2, 3}, dtype,
                         [](const Var& x) {
                           return permute(x, {1, 0});
                         }),
                (Values{1, 3, 5, 2, 4, 6}));
      EXPECT_EQ(gradient(context, {2, 3}, dtype,
                         [](const Var& x) {
                           return permute(x, {-1, 0});
                         }),
                (Values{1, 3, 5, 2, 4, 6}));
      EXPECT_EQ(gradient(context, {2, 3}, dtype, [](const Var& x) { return reshape(x, {6}); }),
                arange(6, 1));
      EXPECT_EQ(gradient(context, {2, 4}, dtype, [](const Var& x) { return slice(x, 1, 1, 4, 2); }),
                (Values{0, 1, 0, 2, 0, 3, 0, 4}));
      EXPECT_EQ(gradient(context, {2, 1}, dtype,
                         [](const Var& x) {
                           return expand(x, {2, 2, 3});
                         }),
                (Values{1 + 2 + 3 + 7 + 8 + 9, 4 + 5 + 6 + 10 + 11 + 12}));
      EXPECT_EQ(gradient(context, {2, 3}, dtype,
                         [](const Var& x) {
                           return contiguous(permute(x, {1, 0}));
                         }),
                (Values{1, 3, 5, 2, 4, 6}));
      EXPECT_EQ(
          gradient(context, {1, 2, 2, 2}, dtype, [](const Var& x) { return contiguous_nhwc(x); }),
          arange(8, 1));
      // One tensor read through two views: contributions add up.
      EXPECT_EQ(gradient(context, {4}, dtype,
                         [](const Var& x) { return slice(x, 0, 0, 3) + slice(x, 0, 1, 4); }),
                (Values{1, 3, 5, 3}));
      // A reshape of a permuted gradient.
      EXPECT_EQ(gradient(context, {6}, dtype,
                         [](const Var& x) {
                           return permute(reshape(x, {2, 3}), {1, 0});
                         }),
                (Values{1, 3, 5, 2, 4, 6}));
      EXPECT_EQ(gradient(context, {2, 3}, dtype, [](const Var& x) { return slice(x, 0, 1, 1); }),
                Values(6, 0));
    }
  });
}

TEST(View, ContiguousCopiesOnlyWhereItMust) {
  on_shared_devices([](const Context& context) {
    const Tensor x = make_tensor(context, {2, 3, 4, 5}, arange(120), DType::f32);
    EXPECT_EQ(contiguous(x).value().shared_storage(), x.shared_storage());
    const std::size_t before = context.memory().layout_copied;
    const Var nhwc = contiguous_nhwc(x);
    EXPECT_EQ(context.memory().layout_copied - before, x.bytes());
    EXPECT_EQ(nhwc.value().stride(1), 1);
    EXPECT_EQ(values_of(nhwc), arange(120));
    EXPECT_EQ(contiguous_nhwc(nhwc).value().shared_storage(), nhwc.value().shared_storage());
    const Var back = contiguous(nhwc);
    EXPECT_TRUE(back.value().is_contiguous());
    EXPECT_EQ(values_of(back), arange(120));
  });
}

TEST(View, ErrorsNameTheSizes) {
  on_shared_devices([](const Context& context) {
    const Tensor x = Tensor::zeros(context, {2, 3});
    EXPECT_THROW(permute(x, {0, 0}), ShapeError);
    EXPECT_THROW(permute(x, {0}), ShapeError);
    EXPECT_THROW(reshape(x, {4}), ShapeError);
    EXPECT_THROW(reshape(x, {-1, 4}), ShapeError);
    EXPECT_THROW(reshape(permute(x, {1, 0}), {6}), ShapeError);
    EXPECT_THROW(slice(x, 2, 0, 1), ShapeError);
    EXPECT_THROW(slice(x, 1, 0, 4), ShapeError);
    EXPECT_THROW(expand(x, {2, 4}), ShapeError);
    EXPECT_EQ(values_of(x), Values(6, 0));
  });
}

}  // namespace
}  // namespace zerone::test
