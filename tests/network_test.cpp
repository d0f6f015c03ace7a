// Both experiments' networks, with all gradients, against the golden results.
#include <cmath>

#include "support/compare.h"
#include "support/golden.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

/// Errors travel through layers, so they are measured against the largest value of a tensor.
void expect_close(const Tensor& actual, const std::vector<double>& wanted, double tolerance,
                  const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  const std::vector<double> values = values_of(actual);
  ASSERT_EQ(values.size(), wanted.size()) << what;
  double largest = 0, error = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    const double here = std::abs(values[i] - wanted[i]);
    if (!(here <= error)) error = here, worst = i;
  }
  EXPECT_LE(error, tolerance * largest)
      << what << " element " << worst << ": " << values[worst] << ", expected " << wanted[worst];
}

/// conv 3 -> 64, then ten times (conv 64 -> 64, ReLU), 3x3, padding 1; `fused`: ReLU in the conv.
void check_experiment1(const Context& context, Golden& golden, DType dtype, bool nhwc, bool fused,
                       double tolerance, bool gradients, const std::string& what) {
  const auto& entry = golden.find("experiment1");
  Tape tape;
  Tensor x = generated(context, entry, "x", dtype);
  if (nhwc) x = x.contiguous_nhwc();
  const Var leaf = tape.leaf(x);
  std::vector<Var> weights;
  Var y = leaf;
  for (int layer = 0; layer <= 10; ++layer) {
    weights.push_back(tape.leaf(generated(context, entry, fmt::format("w{}", layer), dtype)));
    const bool relus = layer > 0;
    y = conv2d(y, weights.back(), {},
               {.padding = 1,
                .activation = relus && fused ? Activation::relu : Activation::none,
                .math = {}});
    if (relus && !fused) y = relu(y);
  }
  const std::string where = fmt::format("experiment1 {} {}{} {}", to_string(dtype),
                                        nhwc ? "nhwc" : "nchw", fused ? " fused" : "", what);
  expect_close(y, golden.values(entry, "y"), tolerance, where + " y");
  if (!gradients) return;
  tape.backward(y, {.seed = generated(context, entry, "gy", dtype)});
  expect_close(tape.grad(leaf), golden.values(entry, "dx"), tolerance, where + " dx");
  // The weight gradients are stored in f32.
  for (std::size_t layer = 0; layer <= 10; ++layer) {
    const std::string name = fmt::format("dw{}", layer);
    expect_close(tape.grad(weights[layer]), golden.values(entry, name),
                 std::max(tolerance, 0x1p-23), where + " " + name);
  }
}

TEST(Network, Experiment1) {
  Golden golden("networks");
  on_shared_devices([&](const Context& context) {
    for (const bool nhwc : {false, true})
      for (const bool fused : {false, true}) {
        check_experiment1(context, golden, DType::f64, nhwc, fused, 1e-12, true, "automatic");
        check_experiment1(context, golden, DType::f32, nhwc, fused, 1e-5, true, "automatic");
      }
    if (!context.device().is_cuda()) return;
    check_experiment1(context, golden, DType::f16, false, true, 0.01, false, "automatic");
    check_experiment1(context, golden, DType::bf16, true, true, 0.08, false, "automatic");
  });
}

TEST(Network, Experiment1OnEveryRow) {
  Golden golden("networks");
  on_shared_devices([&](const Context& context) {
    for (const std::string& row : row_names(conv2d_forward_list(), context)) {
      if (row.ends_with(".constant")) continue;
      const std::string weight_row = weight_partner(row, context);
      const ScopedForce forward(context, "conv2d.forward", row),
          backward(context, "conv2d.backward_data", row),
          weight(context, "conv2d.backward_weight", weight_row);
      check_experiment1(context, golden, DType::f32, false, true, 1e-5, true, row);
      if (!is_partial(row))
        check_experiment1(context, golden, DType::f64, true, false, 1e-12, true, row);
    }
  });
}

TEST(Network, Experiment1WithZeroWeightsGivesZeros) {
  for (const ZeroSkip skip : {ZeroSkip::off, ZeroSkip::automatic, ZeroSkip::force})
    on_every_device(
        [](const Context& context) {
          nn::Sequential model;
          model.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 3,
                                                               .out_channels = 64,
                                                               .kernel = 3,
                                                               .padding = 1,
                                                               .bias = false,
                                                               .init = nn::Init::zeros});
          for (int i = 0; i < 10; ++i) {
            model.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 64,
                                                                 .out_channels = 64,
                                                                 .kernel = 3,
                                                                 .padding = 1,
                                                                 .bias = false,
                                                                 .init = nn::Init::zeros});
            model.emplace<nn::ReLU>();
          }
          EXPECT_EQ(model.parameter_count(), 64 * 27 + 10 * 64 * 64 * 9);
          nn::prepare(model);
          Tape tape;
          const Var x = tape.leaf(Tensor::uniform(context, {2, 3, 8, 8}, -1, 1));
          const Var y = model(x);
          EXPECT_EQ(values_of(y), std::vector<double>(2 * 64 * 64, 0.0));
          tape.backward(y, {.seed = Tensor::uniform(context, {2, 64, 8, 8}, -1, 1)});
          EXPECT_EQ(values_of(tape.grad(x)), std::vector<double>(2 * 3 * 64, 0.0));
          for (const Parameter& parameter : model.parameters()) {
            ASSERT_TRUE(parameter.grad().defined());
            for (const double value : values_of(parameter.grad())) ASSERT_EQ(value, 0);
          }
        },
        {.zero_skip = skip});
}

/// Three layers of 128 with ReLU between; spelled as 1x1 convolutions, or as linear layers on the
/// permuted view of the same NCHW tensor.
void check_experiment2(const Context& context, Golden& golden, DType dtype, bool as_linear,
                       bool nhwc, double tolerance, const std::string& what) {
  const auto& entry = golden.find(as_linear ? "experiment2_mlp_linear" : "experiment2_mlp_conv");
  Tape tape;
  Tensor x = generated(context, entry, "x", dtype),
         target = generated(context, entry, "target", dtype);
  if (nhwc) x = x.contiguous_nhwc();
  const Var leaf = tape.leaf(x);
  std::vector<Var> weights, biases;
  Var y = as_linear ? permute(leaf, {0, 2, 3, 1}) : leaf;
  for (int layer = 0; layer < 3; ++layer) {
    weights.push_back(tape.leaf(generated(context, entry, fmt::format("w{}", layer), dtype)));
    biases.push_back(tape.leaf(generated(context, entry, fmt::format("b{}", layer), dtype)));
    const Activation activation = layer < 2 ? Activation::relu : Activation::none;
    y = as_linear ? linear(y, weights.back(), biases.back(), {.activation = activation, .math = {}})
                  : conv2d(y, reshape(weights.back(), {128, 128, 1, 1}), biases.back(),
                           {.activation = activation, .math = {}});
  }
  if (as_linear) target = target.permute({0, 2, 3, 1});
  const Var loss = mean_square_error(y, target);
  const std::string where = fmt::format("experiment2 {} {}{} {}", to_string(dtype),
                                        as_linear ? "linear" : "conv", nhwc ? " nhwc" : "", what);
  EXPECT_NEAR(values_of(loss)[0], entry["loss"].get<double>(), tolerance) << where;
  expect_close(y, golden.values(entry, "y"), tolerance, where + " y");
  tape.backward(loss);
  expect_close(tape.grad(leaf), golden.values(entry, "dx"), tolerance, where + " dx");
  for (std::size_t layer = 0; layer < 3; ++layer) {
    expect_close(tape.grad(weights[layer]), golden.values(entry, fmt::format("dw{}", layer)),
                 tolerance, fmt::format("{} dw{}", where, layer));
    expect_close(tape.grad(biases[layer]), golden.values(entry, fmt::format("db{}", layer)),
                 tolerance, fmt::format("{} db{}", where, layer));
  }
}

TEST(Network, Experiment2) {
  Golden golden("networks");
  on_shared_devices([&](const Context& context) {
    for (const bool as_linear : {false, true})
      for (const bool nhwc : {false, true}) {
        check_experiment2(context, golden, DType::f64, as_linear, nhwc, 1e-12, "automatic");
        check_experiment2(context, golden, DType::f32, as_linear, nhwc, 1e-5, "automatic");
      }
  });
}

TEST(Network, Experiment2OnEveryRow) {
  Golden golden("networks");
  on_shared_devices([&](const Context& context) {
    for (const std::string& row : row_names(pointwise_forward_list(), context)) {
      if (row.ends_with(".constant")) continue;
      const ScopedForce forward(context, "pointwise.forward", row),
          backward(context, "pointwise.backward_data", row),
          weight(context, "pointwise.backward_weight", row);
      for (const bool as_linear : {false, true})
        check_experiment2(context, golden, DType::f32, as_linear, false, 1e-5, row);
    }
  });
}

}  // namespace
}  // namespace zerone::test
