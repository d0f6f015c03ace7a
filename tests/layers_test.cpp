// Modules: what they are made of, their modes, hooks, layers and the summary of a model.
#include <cmath>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/errors.h"
#include "support/random.h"

namespace zerone::test {
namespace {

using nn::Members;

/// x + conv(norm(x)): a module of a user's own.
class Residual final : public nn::Module {
 public:
  Residual(const Context& context, std::int64_t channels)
      : norm_(context, {.channels = channels}),
        conv_(context,
              {.in_channels = channels, .out_channels = channels, .kernel = 3, .padding = 1}) {}
  Members members() const override { return {.modules = {{"norm", &norm_}, {"conv", &conv_}}}; }
  std::string description() const override { return "Residual"; }

 private:
  Var forward(const Var& x) override { return x + conv_(norm_(x)); }
  mutable nn::BatchNorm norm_;
  mutable nn::Conv2d conv_;
};

std::vector<std::string> names(const std::vector<Parameter>& parameters) {
  std::vector<std::string> all;
  for (const Parameter& parameter : parameters) all.push_back(parameter.name());
  return all;
}

TEST(Module, PathsOfParametersAndBuffers) {
  const Context context;
  nn::Sequential model;
  model.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 3, .out_channels = 4});
  const auto residual = model.emplace<Residual>(context, 4);
  model.add(residual);  // used twice, held once
  model.emplace<nn::BatchNorm>(context, nn::BatchNormOptions{.channels = 4, .affine = false});
  EXPECT_EQ(names(model.parameters()),
            (std::vector<std::string>{"0.weight", "0.bias", "1.norm.weight", "1.norm.bias",
                                      "1.conv.weight", "1.conv.bias"}));
  std::vector<std::string> buffers;
  for (const NamedTensor& buffer : model.buffers()) buffers.push_back(buffer.name);
  EXPECT_EQ(buffers, (std::vector<std::string>{"1.norm.running_mean", "1.norm.running_var",
                                               "3.running_mean", "3.running_var"}));
  EXPECT_EQ(model.parameter_count(), 3 * 4 + 4 + 4 + 4 + 4 * 4 * 9 + 4);
}

TEST(Module, TrainReachesEveryModule) {
  const Context context;
  nn::Sequential model;
  model.emplace<Residual>(context, 2);
  const auto all_are = [&](bool training) {
    model.for_each_module([&](const std::string& path, const nn::Module& module) {
      EXPECT_EQ(module.training(), training) << path;
    });
  };
  all_are(true);
  model.eval();
  all_are(false);
  model.train();
  all_are(true);
}

TEST(Module, ForwardHookSeesOperandAndResult) {
  const Context context;
  nn::ReLU layer;
  int calls = 0;
  layer.set_forward_hook([&](const Var& x, const Var& y) {
    ++calls;
    EXPECT_EQ(x.value().to_vector<float>(), (std::vector<float>{-1, 2}));
    EXPECT_EQ(y.value().to_vector<float>(), (std::vector<float>{0, 2}));
  });
  const Tensor x = Tensor::from<float>(context, {2}, {-1, 2});
  (void)layer(x);
  layer.set_forward_hook({});
  (void)layer(x);
  EXPECT_EQ(calls, 1);
}

TEST(Layers, AreTheOperations) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::normal(context, {2, 4, 6, 6});
    const auto expect_same = [&](nn::Module& layer, const Var& expected) {
      const Var y = layer(x);
      EXPECT_EQ(y.shape(), expected.shape()) << layer.description();
      EXPECT_EQ(y.value().to_vector<float>(), expected.value().to_vector<float>())
          << layer.description();
    };
    const Pool2dParams pool{.kernel = 3, .stride = Pair(2), .padding = 1};
    nn::ReLU relu_layer;
    expect_same(relu_layer, relu(x));
    nn::LeakyReLU leaky(0.2);
    expect_same(leaky, leaky_relu(x, 0.2));
    nn::SiLU silu_layer;
    expect_same(silu_layer, silu(x));
    nn::GELU gelu_layer(Gelu::tanh);
    expect_same(gelu_layer, gelu(x, Gelu::tanh));
    nn::Sigmoid sigmoid_layer;
    expect_same(sigmoid_layer, sigmoid(x));
    nn::Tanh tanh_layer;
    expect_same(tanh_layer, tanh(x));
    nn::Softmax softmax_layer(-1);
    expect_same(softmax_layer, softmax(x, -1));
    nn::MaxPool2d max_pool(pool);
    expect_same(max_pool, max_pool2d(x, pool));
    nn::AvgPool2d avg_pool(pool);
    expect_same(avg_pool, avg_pool2d(x, pool));
    nn::AdaptiveAvgPool2d adaptive(Pair(2, 3));
    expect_same(adaptive, adaptive_avg_pool2d(x, Pair(2, 3)));
    nn::Flatten flatten;
    expect_same(flatten, reshape(x, {2, 144}));
  });
}

TEST(Layers, FlattenOfNhwcIsInTheOrderOfAxes) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::normal(context, {2, 3, 4, 5});
    nn::Flatten flatten;
    EXPECT_EQ(flatten(x.contiguous_nhwc()).value().to_vector<float>(),
              flatten(x).value().to_vector<float>());
    expect_contains(message_of<ShapeError>([&] { (void)flatten(Tensor::zeros(context, {3})); }),
                    {"nn.Flatten", "rank 1"});
  });
}

TEST(Layers, BatchNormFollowsItsMode) {
  on_every_device([](const Context& context) {
    nn::BatchNorm norm(context, {.channels = 3, .momentum = 1});
    const Tensor x = Tensor::normal(context, {64, 3, 4, 4}, 5, 2);
    const std::vector<float> trained = norm(x).value().to_vector<float>();
    double sum = 0, squares = 0;
    for (const float value : trained) sum += value, squares += value * value;
    EXPECT_NEAR(sum / trained.size(), 0, 1e-5);
    EXPECT_NEAR(squares / trained.size(), 1, 1e-4);
    EXPECT_NEAR(norm.running_mean.to_vector<float>()[0], 5, 0.5);
    norm.eval();
    const std::vector<float> before = norm.running_var.to_vector<float>();
    const std::vector<float> evaluated = norm(x).value().to_vector<float>();
    EXPECT_EQ(norm.running_var.to_vector<float>(), before);
    // With momentum 1 only the n / (n - 1) of the variance differs.
    for (std::size_t i = 0; i < trained.size(); i += 97)
      EXPECT_NEAR(evaluated[i], trained[i], 2e-3 * std::abs(trained[i]) + 1e-4);
  });
}

TEST(Layers, DropoutOnlyInTraining) {
  on_every_device([](const Context& context) {
    nn::Dropout dropout_layer(0.25);
    const Tensor x = Tensor::full(context, {4096}, 3);
    const std::vector<float> dropped = dropout_layer(x).value().to_vector<float>();
    const auto zeros = std::count(dropped.begin(), dropped.end(), 0.0F);
    EXPECT_GT(zeros, 900);
    EXPECT_LT(zeros, 1150);
    EXPECT_EQ(std::count(dropped.begin(), dropped.end(), 4.0F), 4096 - zeros);
    dropout_layer.eval();
    EXPECT_EQ(dropout_layer(x).value().to_vector<float>(), x.to_vector<float>());
  });
}

TEST(Summary, TellsShapesDensityAndRows) {
  on_every_device([](const Context& context) {
    nn::Sequential model;
    const auto conv = model.emplace<nn::Conv2d>(
        context,
        nn::Conv2dOptions{
            .in_channels = 2, .out_channels = 4, .kernel = 3, .padding = 1, .bias = false});
    model.emplace<Residual>(context, 4);
    model.emplace<nn::Flatten>();
    model.emplace<nn::Linear>(context, nn::LinearOptions{.in_features = 64, .out_features = 5});
    std::vector<std::uint8_t> mask(72);
    for (std::size_t i = 0; i < mask.size(); i += 4) mask[i] = 1;
    conv->weight.set_mask(Tensor::from<std::uint8_t>(context, {4, 2, 3, 3}, mask));
    model.eval();

    const std::vector<nn::LayerSummary> layers =
        nn::summarize(model, Tensor::normal(context, {1, 2, 4, 4}));
    std::vector<std::string> paths;
    for (const nn::LayerSummary& layer : layers) paths.push_back(layer.path);
    EXPECT_EQ(paths, (std::vector<std::string>{"", "0", "1", "1.norm", "1.conv", "2", "3"}));
    EXPECT_EQ(layers[1].parameters, 72);
    EXPECT_EQ(layers[1].nonzeros, 18);
    EXPECT_EQ(layers[1].output, (Shape{1, 4, 4, 4}));
    ASSERT_EQ(layers[1].rows.size(), 1u);
    EXPECT_TRUE(layers[1].rows[0].starts_with("conv2d.forward/")) << layers[1].rows[0];
    ASSERT_EQ(layers[2].rows.size(), 1u) << "the addition";
    EXPECT_TRUE(layers[2].rows[0].starts_with("elementwise.binary/")) << layers[2].rows[0];
    EXPECT_EQ(layers[6].output, (Shape{1, 5}));
    EXPECT_TRUE(layers[0].rows.empty());

    const std::string table = nn::to_string(layers);
    for (const char* text : {"Conv2d 2 -> 4, 3x3", "25.0 %", "Linear 64 -> 5", "total"})
      EXPECT_NE(table.find(text), table.npos) << table;
  });
}

}  // namespace
}  // namespace zerone::test
