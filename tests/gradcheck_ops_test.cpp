// Gradients of every op and every row against central differences, in f64.
#include <memory>

#include "support/compare.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using Function = std::function<Var(std::span<const Var>)>;

Tensor integers(const Context& context, Random& random, const Shape& shape) {
  return make_tensor(context, shape, random_values(random, shape.numel(), DType::f64, true));
}

/// With integers and a step of 1, a function at most quadratic in each element must match exactly.
void expect_exact(const Function& function, const std::vector<Tensor>& inputs,
                  const std::string& what) {
  const GradcheckResult result =
      gradcheck(function, inputs, {.step = 1, .relative = 0, .absolute = 0});
  EXPECT_TRUE(result.passed) << what << ": " << result.message;
}

TEST(GradcheckOps, ElementwiseReduceAndViews) {
  on_shared_devices([](const Context& context) {
    Random random(11);
    const auto ints = [&](const Shape& shape) { return integers(context, random, shape); };
    expect_exact([](auto v) { return add(v[0], v[1]); }, {ints({2, 3}), ints({3})}, "add");
    expect_exact([](auto v) { return sub(v[0], v[1]); }, {ints({2, 1, 3}), ints({4, 1})}, "sub");
    expect_exact([](auto v) { return mul(v[0], v[1]); }, {ints({2, 3, 2}), ints({3, 1})}, "mul");
    expect_exact([](auto v) { return mul(v[0], v[0]); }, {ints({5})}, "square");
    expect_exact([](auto v) { return affine(v[0], 3, -2); }, {ints({4, 2})}, "affine");
    expect_exact([](auto v) { return bias(v[0], v[1]); }, {ints({2, 3, 2, 2}), ints({3})}, "bias");
    expect_exact([](auto v) { return bias(v[0], v[1], -1); }, {ints({2, 3}), ints({3})}, "bias -1");
    expect_exact([](auto v) { return sum(v[0]); }, {ints({3, 4})}, "sum");
    expect_exact([](auto v) { return sum(v[0], {0, 2}); }, {ints({2, 3, 4})}, "sum of axes");
    expect_exact([](auto v) { return sum(v[0], {1}, true); }, {ints({2, 3, 4})}, "sum keep");
    expect_exact([](auto v) { return mean(v[0]); }, {ints({2, 4})}, "mean");
    expect_exact([](auto v) { return mean_square_error(v[0], v[1]); }, {ints({2, 4}), ints({2, 4})},
                 "mean_square_error");
    expect_exact([](auto v) { return permute(v[0], {2, 0, 1}); }, {ints({2, 3, 4})}, "permute");
    expect_exact([](auto v) { return reshape(v[0], {4, -1}); }, {ints({2, 3, 4})}, "reshape");
    expect_exact([](auto v) { return slice(v[0], 1, 1, 6, 2); }, {ints({2, 7})}, "slice");
    expect_exact([](auto v) { return expand(v[0], {2, 3, 4}); }, {ints({3, 1})}, "expand");
    expect_exact(
        [](auto v) {
          return contiguous(permute(v[0], {1, 0}));
        },
        {ints({3, 4})}, "contiguous");
    expect_exact([](auto v) { return contiguous_nhwc(v[0]); }, {ints({2, 3, 2, 2})},
                 "contiguous_nhwc");
    // Away from its kink ReLU is linear.
    Tensor away = ints({4, 5});
    away = mul(away, make_tensor(context, {1}, {4})) + make_tensor(context, {1}, {2});
    expect_exact([](auto v) { return relu(v[0]); }, {away}, "relu");
    // Layouts other than row-major.
    const Tensor nhwc = ints({2, 3, 2, 4}).contiguous_nhwc();
    expect_exact([](auto v) { return mul(v[0], v[1]); }, {nhwc, ints({2, 3, 2, 4})}, "mul nhwc");
    expect_exact([](auto v) { return sum(v[0], {2, 3}); }, {nhwc}, "sum nhwc");
  });
}

/// A function that is not quadratic, by a small step: the checker's other mode.
TEST(GradcheckOps, SmallSteps) {
  on_shared_devices([](const Context& context) {
    Random random(12);
    const Tensor a = make_tensor(context, {3, 4}, random_values(random, 12, DType::f64, false));
    const GradcheckResult good = gradcheck([](auto v) { return mul(mul(v[0], v[0]), v[0]); }, {a});
    EXPECT_TRUE(good.passed) << good.message;
  });
}

struct ConvCase {
  const char* name;
  Shape x, w;
  Conv2dParams params{};
  bool bias = true;
};

const ConvCase conv_cases[] = {
    {"3x3", {2, 2, 5, 4}, {3, 2, 3, 3}, {.padding = 1, .math = {}}},
    {"valid 2x3 stride 2x1", {1, 2, 6, 5}, {2, 2, 2, 3}, {.stride = {2, 1}, .math = {}}},
    {"unread edge", {1, 1, 6, 6}, {1, 1, 3, 3}, {.stride = 2, .math = {}}, false},
    {"four-sided", {1, 2, 3, 4}, {2, 2, 3, 2}, {.padding = {2, 0, 1, 3}, .math = {}}},
    {"dilated", {1, 1, 7, 6}, {2, 1, 3, 2}, {.padding = 2, .dilation = {2, 3}, .math = {}}},
    {"grouped", {2, 4, 4, 4}, {6, 2, 3, 3}, {.padding = 1, .groups = 2, .math = {}}},
    {"depthwise stride 2",
     {1, 3, 5, 5},
     {3, 1, 3, 3},
     {.stride = 2, .padding = 1, .groups = 3, .math = {}},
     false},
    {"1x1 stride 2", {2, 3, 5, 3}, {2, 3, 1, 1}, {.stride = 2, .math = {}}},
    {"padding over the kernel", {1, 1, 2, 3}, {2, 1, 2, 2}, {.padding = 3, .math = {}}},
    {"1x7", {1, 2, 2, 8}, {2, 2, 1, 7}, {.padding = {0, 3}, .math = {}}},
};

TEST(GradcheckOps, Conv2dOnEveryRow) {
  on_shared_devices([](const Context& context) {
    std::vector<std::string> rows = row_names(conv2d_forward_list(), context);
    rows.emplace_back();
    for (const std::string& row : rows) {
      // A constant row takes nothing but zeros, around which no difference can be formed.
      if (row.ends_with(".constant")) continue;
      std::vector<std::unique_ptr<ScopedForce>> forces;
      if (!row.empty()) {
        const std::string weight_row = weight_partner(row, context);
        forces.push_back(std::make_unique<ScopedForce>(context, "conv2d.forward", row));
        forces.push_back(std::make_unique<ScopedForce>(context, "conv2d.backward_data", row));
        forces.push_back(
            std::make_unique<ScopedForce>(context, "conv2d.backward_weight", weight_row));
      }
      // Library plans take long to make, and a plan is made for each call on changed zeros.
      const bool costly = context.device().is_cuda() && (row.empty() || is_vendor(row));
      int index = 0;
      for (const ConvCase& one : conv_cases) {
        if (costly && index++ % 4 != 0) continue;
        for (const bool nhwc : {false, true}) {
          Random random(13);
          Tensor x = integers(context, random, one.x), w = integers(context, random, one.w);
          if (nhwc) x = x.contiguous_nhwc();
          std::vector<Tensor> inputs{x, w};
          if (one.bias) inputs.push_back(integers(context, random, {one.w[0]}));
          try {
            expect_exact(
                [&](std::span<const Var> v) {
                  return conv2d(v[0], v[1], one.bias ? v[2] : Var(), one.params);
                },
                inputs,
                fmt::format("conv2d {} {} row {}", one.name, nhwc ? "nhwc" : "nchw",
                            row.empty() ? "automatic" : row));
          } catch (const SelectionError& error) {
            EXPECT_TRUE(is_partial(row)) << row << " " << one.name << ": " << error.what();
          }
        }
      }
    }
  });
}

TEST(GradcheckOps, PointwiseOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (const std::string& row : row_names(pointwise_forward_list(), context)) {
      if (row.ends_with(".constant")) continue;
      const ScopedForce forward(context, "pointwise.forward", row),
          backward(context, "pointwise.backward_data", row),
          weight(context, "pointwise.backward_weight", row);
      Random random(14);
      const auto check = [&](const char* what, const Function& function,
                             const std::vector<Tensor>& inputs) {
        try {
          expect_exact(function, inputs, std::string(what) + " row " + row);
        } catch (const SelectionError& error) {
          EXPECT_TRUE(is_partial(row)) << row << " " << what << ": " << error.what();
        }
      };
      const auto ints = [&](const Shape& shape) { return integers(context, random, shape); };
      check("linear on rows", [](auto v) { return linear(v[0], v[1], v[2]); },
            {ints({5, 4}), ints({3, 4}), ints({3})});
      check("linear on a permuted view",
            [](auto v) {
              return linear(permute(v[0], {0, 2, 3, 1}), v[1], v[2]);
            },
            {ints({2, 4, 2, 3}), ints({3, 4}), ints({3})});
      check("linear on [B,T,C,H,W]",
            [](auto v) {
              return linear(permute(v[0], {0, 1, 3, 4, 2}), v[1]);
            },
            {ints({2, 2, 3, 2, 2}), ints({2, 3})});
      check("linear on a broadcast view",
            [](auto v) {
              return linear(expand(v[0], {3, 2, 4}), v[1], v[2]);
            },
            {ints({1, 2, 4}), ints({3, 4}), ints({3})});
      check("linear with a sliced weight",
            [](auto v) { return linear(v[0], slice(v[1], 1, 1, 4)); },
            {ints({4, 3}), ints({5, 6})});
      check("conv2d 1x1", [](auto v) { return conv2d(v[0], v[1], v[2]); },
            {ints({2, 3, 2, 3}), ints({4, 3, 1, 1}), ints({4})});
      check("conv2d 1x1 nhwc", [](auto v) { return conv2d(v[0], v[1], v[2]); },
            {ints({2, 3, 2, 3}).contiguous_nhwc(), ints({4, 3, 1, 1}), ints({4})});
    }
  });
}

/// The fused activation, away from its kink: x and w are positive, the bias moves some channels
/// far below zero.
TEST(GradcheckOps, FusedActivationOnEveryRow) {
  on_shared_devices([](const Context& context) {
    Random random(15);
    const auto positive = [&](const Shape& shape) {
      std::vector<double> values(static_cast<std::size_t>(shape.numel()));
      for (double& value : values) value = static_cast<double>(random.integer(2, 4));
      return make_tensor(context, shape, values);
    };
    const Tensor x = positive({1, 2, 4, 4}), b = make_tensor(context, {3}, {1, -5000, 2});
    for (const std::int64_t k : {3, 1}) {
      const Tensor w = positive({3, 2, k, k});
      const char* op = k == 1 ? "pointwise.forward" : "conv2d.forward";
      const auto rows = k == 1 ? row_names(pointwise_forward_list(), context)
                               : row_names(conv2d_forward_list(), context);
      for (const std::string& row : rows) {
        if (row.ends_with(".constant")) continue;
        const ScopedForce force(context, op, row);
        try {
          expect_exact(
              [&](std::span<const Var> v) {
                return conv2d(v[0], v[1], v[2],
                              {.padding = k / 2, .activation = Activation::relu, .math = {}});
              },
              {x, w, b}, fmt::format("kernel {} row {}", k, row));
        } catch (const SelectionError& error) {
          EXPECT_TRUE(is_partial(row)) << row << ": " << error.what();
        }
      }
    }
  });
}

}  // namespace
}  // namespace zerone::test
