// Modules and training states in files: round trips, PyTorch's names, masks, and files that do not
// fit.
#include <unistd.h>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/errors.h"

namespace zerone::test {
namespace {

namespace fs = std::filesystem;

/// A folder of its own, removed at the end.
class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              fmt::format("zerone_checkpoint_{}_{}", getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name = "model.safetensors") const { return folder_ / name; }

 private:
  fs::path folder_;
};

/// conv 3 -> 4, batch normalization, ReLU, (conv 4 -> 2), linear 5 -> 6; all values random.
nn::Sequential make_module(const Context& context, DType dtype = DType::f32) {
  nn::Sequential module;
  module.emplace<nn::Conv2d>(
      context, nn::Conv2dOptions{
                   .in_channels = 3, .out_channels = 4, .kernel = 3, .padding = 1, .dtype = dtype});
  module.emplace<nn::BatchNorm>(
      context,
      nn::BatchNormOptions{.channels = 4, .dtype = dtype == DType::f64 ? DType::f64 : DType::f32});
  module.emplace<nn::ReLU>();
  const auto inner = module.emplace<nn::Sequential>();
  inner->emplace<nn::Conv2d>(
      context,
      nn::Conv2dOptions{.in_channels = 4, .out_channels = 2, .bias = false, .dtype = dtype});
  module.emplace<nn::Linear>(
      context, nn::LinearOptions{.in_features = 5, .out_features = 6, .dtype = dtype});
  for (const Parameter& parameter : module.parameters())
    nn::initialize(parameter, nn::Init::kaiming_uniform);
  for (NamedTensor& buffer : module.buffers())
    buffer.tensor.copy_(Tensor::uniform(context, {4}, 1, 2, buffer.tensor.dtype()));
  return module;
}

/// Of all parameters and buffers.
std::vector<std::vector<double>> values_of(const nn::Module& module) {
  std::vector<std::vector<double>> values;
  for (const Parameter& parameter : module.parameters())
    values.push_back(test::values_of(parameter.value()));
  for (const NamedTensor& buffer : module.buffers())
    values.push_back(test::values_of(buffer.tensor));
  return values;
}

using test::values_of;

std::vector<std::string> names_in(const std::string& path) {
  const SafetensorsFile file(path);
  std::vector<std::string> names;
  for (const auto& [name, entry] : file.entries()) names.push_back(name);
  return names;
}

TEST_F(Checkpoint, RoundTripsOnAndBetweenDevices) {
  for (const DType dtype : {DType::f32, DType::f64})
    on_every_device([&](const Context& from) {
      const nn::Sequential saved = make_module(from, dtype);
      nn::save_module(saved, path(), {.metadata = {{"epoch", "3"}}});
      EXPECT_EQ(names_in(path()),
                (std::vector<std::string>{"0.bias", "0.weight", "1.bias", "1.running_mean",
                                          "1.running_var", "1.weight", "3.0.weight", "4.bias",
                                          "4.weight"}));
      on_every_device([&](Context onto) {
        onto.seed(1);
        nn::Sequential loaded = make_module(onto, dtype);
        ASSERT_NE(values_of(loaded), values_of(saved));
        const auto report = nn::load_module(loaded, path());
        EXPECT_EQ(values_of(loaded), values_of(saved));
        EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
        EXPECT_EQ(report.metadata, (FileMetadata{{"epoch", "3"}}));
      });
    });
}

TEST_F(Checkpoint, LoadsInPlaceWhateverTheLayout) {
  on_every_device([&](const Context& context) {
    const nn::Sequential saved = make_module(context);
    nn::save_module(saved, path());
    nn::Sequential loaded = make_module(context);
    const Parameter weight = loaded.parameters()[0];
    weight.value() = weight.value().contiguous_nhwc();
    const Tensor kept = weight.value();  // whoever holds the tensor sees the new values
    const Layout layout = kept.layout();
    const auto version = kept.version();
    nn::load_module(loaded, path());
    EXPECT_EQ(weight.value().shared_storage(), kept.shared_storage());
    EXPECT_EQ(weight.value().layout(), layout);
    EXPECT_NE(kept.version(), version);
    EXPECT_EQ(values_of(loaded), values_of(saved));

    // The file is the same whatever the layout.
    nn::save_module(loaded, path("again"));
    for (const auto& [name, x] : load_safetensors(context, path()))
      EXPECT_EQ(values_of(SafetensorsFile(path("again")).load(context, name)), values_of(x));
  });
}

TEST_F(Checkpoint, PyTorchsCounterOfBatchesIsSkipped) {
  const Context context;
  nn::BatchNorm module(context, {.channels = 2});
  nn::save_module(module, path());
  std::vector<NamedTensor> tensors = load_safetensors(context, path());
  tensors.push_back({"num_batches_tracked", Tensor::full(context, {}, 5, DType::i64)});
  save_safetensors(tensors, path());
  EXPECT_TRUE(nn::load_module(module, path()).unexpected.empty());
}

TEST_F(Checkpoint, ASharedParameterIsSavedOnce) {
  const Context context;
  const auto layer = std::make_shared<nn::Linear>(
      context, nn::LinearOptions{.in_features = 3, .out_features = 3, .bias = false});
  nn::Sequential module;
  module.add(layer);
  module.add(layer);
  nn::save_module(module, path());
  EXPECT_EQ(names_in(path()), (std::vector<std::string>{"0.weight"}));
  nn::load_module(module, path());
}

TEST_F(Checkpoint, KnownZerosAreSavedAndOverwritten) {
  on_every_device([&](const Context& context) {
    const nn::LinearOptions options{.in_features = 3, .out_features = 2};
    nn::Linear random(context, options), zeros(context, options);
    zeros.weight.value() = Tensor::zeros(context, {2, 3});
    ASSERT_TRUE(zeros.weight.value().known_zero());
    nn::save_module(zeros, path("zeros"));
    nn::save_module(random, path());
    nn::load_module(zeros, path());
    EXPECT_FALSE(zeros.weight.value().known_zero());
    EXPECT_EQ(values_of(zeros), values_of(random));
    nn::load_module(random, path("zeros"));
    EXPECT_EQ(values_of(random.weight.value()), std::vector<double>(6, 0.0));
  });
}

// --- files that do not fit ----------------------------------------------------------------------

TEST_F(Checkpoint, EveryMisfitIsListedAndNothingChanges) {
  on_every_device([&](const Context& context) {
    nn::Sequential module = make_module(context);
    const auto before = values_of(module);
    std::vector<std::uint64_t> versions;
    for (const Parameter& parameter : module.parameters())
      versions.push_back(parameter.value().version());
    const auto full = [&](const Shape& shape, DType dtype = DType::f32) {
      return Tensor::full(context, shape, 7, dtype);
    };
    save_safetensors(std::vector<NamedTensor>{{"0.weight", full({4, 3, 3, 3})},
                                              {"0.bias", full({5})},
                                              {"1.running_mean", full({4}, DType::i64)},
                                              {"3.0.weight", full({2, 4, 1, 1}, DType::f16)},
                                              {"4.bias.mask", full({6, 1}, DType::u8)},
                                              {"3.mask", full({6}, DType::u8)},
                                              {"5.bias", full({6})}},
                     path());
    for (const bool strict : {true, false}) {
      const std::string text =
          message_of<FileError>([&] { nn::load_module(module, path(), {.strict = strict}); });
      expect_contains(
          text, {"load_module", path(), "nothing was changed", "'0.bias' is f32 [5], not f32 [4]",
                 "'1.running_mean' is i64 [4], not f32 [4]",
                 "'3.0.weight' is f16 [2, 4, 1, 1], not f32 [2, 4, 1, 1]",
                 "'4.bias.mask' is u8 [6, 1], not u8 [6]"});
      if (strict)
        expect_contains(text, {"missing: 1.weight, 1.bias, 4.weight, 4.bias, 1.running_var\n",
                               "unexpected: 3.mask, 5.bias\n"});
      else
        EXPECT_EQ(text.find("missing"), text.npos) << text;
      EXPECT_EQ(text.find("0.weight'"), text.find("3.0.weight'") + 2) << text;
    }
    EXPECT_EQ(values_of(module), before);
    for (std::size_t i = 0; i < versions.size(); ++i)
      EXPECT_EQ(module.parameters()[i].value().version(), versions[i]);
  });
}

TEST_F(Checkpoint, NotStrictLoadsWhatThereIs) {
  const Context context;
  nn::Sequential module = make_module(context);
  const auto before = values_of(module);
  save_safetensors(std::vector<NamedTensor>{{"4.bias", Tensor::full(context, {6}, 7)},
                                            {"other", Tensor::full(context, {1}, 7)}},
                   path());
  EXPECT_THROW(nn::load_module(module, path()), FileError);
  EXPECT_EQ(values_of(module), before);
  const auto report = nn::load_module(module, path(), {.strict = false});
  EXPECT_EQ(report.missing,
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "3.0.weight",
                                      "4.weight", "1.running_mean", "1.running_var"}));
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"other"}));
  auto expected = before;
  expected[6] = std::vector<double>(6, 7.0);
  EXPECT_EQ(values_of(module), expected);
  EXPECT_THROW(nn::load_module(module, path("missing"), {.strict = false}), FileError);
}

// --- masks --------------------------------------------------------------------------------------

Tensor checkered(const Context& context, const Shape& shape) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0;
  return Tensor::from<std::uint8_t>(context, shape, mask);
}

std::vector<double> masked(std::vector<double> values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (i % 3 != 0) values[i] = 0;
  return values;
}

TEST_F(Checkpoint, MasksAreKept) {
  on_every_device([&](const Context& context) {
    const nn::Sequential saved = make_module(context);
    const Parameter weight = saved.parameters()[0];
    weight.value() = weight.value().contiguous_nhwc();
    weight.set_mask(checkered(context, weight.value().shape()));
    nn::save_module(saved, path());
    nn::save_module(saved, path("plain"), {.masks = false});
    EXPECT_EQ(names_in(path()).size(), 10u);
    EXPECT_EQ(names_in(path("plain")).size(), 9u);

    nn::Sequential loaded = make_module(context);
    nn::load_module(loaded, path());
    const Parameter copy = loaded.parameters()[0];
    ASSERT_TRUE(copy.mask().defined());
    EXPECT_EQ(values_of(copy.mask()), values_of(weight.mask()));
    EXPECT_EQ(values_of(loaded), values_of(saved));

    nn::Sequential unmasked = make_module(context);
    nn::load_module(unmasked, path("plain"));
    EXPECT_FALSE(unmasked.parameters()[0].mask().defined());
    EXPECT_EQ(values_of(unmasked), values_of(saved));
  });
}

TEST_F(Checkpoint, AMaskInForceHolds) {
  on_every_device([&](const Context& context) {
    const nn::Sequential dense = make_module(context);
    nn::save_module(dense, path());
    const nn::Sequential pruned = make_module(context);
    const Parameter weight = pruned.parameters()[0];
    weight.set_mask(checkered(context, weight.value().shape()));
    nn::load_module(pruned, path());
    EXPECT_EQ(values_of(weight.value()), masked(values_of(dense.parameters()[0].value())));
    ASSERT_TRUE(weight.mask().defined());

    // A file's mask replaces the one in force.
    const Tensor ones = Tensor::full(context, weight.value().shape(), 1, DType::u8);
    dense.parameters()[0].set_mask(ones);
    nn::save_module(dense, path());
    nn::load_module(pruned, path());
    EXPECT_EQ(values_of(pruned), values_of(dense));
    EXPECT_EQ(values_of(weight.mask()), values_of(ones));
  });
}

// --- training states ----------------------------------------------------------------------------

/// Steps of training on data that depends on the step's number only.
void train(nn::Sequential& module, nn::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    Context context = module.parameters()[0].value().context();
    context.seed(static_cast<std::uint64_t>(step));
    const DType dtype = module.parameters()[0].value().dtype();
    const Tensor x = Tensor::uniform(context, {2, 3, 4, 5}, -1, 1, dtype);
    const Tensor target = Tensor::uniform(context, {2, 2, 4, 6}, -1, 1, dtype);
    optimizer.zero_grad();
    Tape tape;
    tape.backward(mean_square_error(module(tape.leaf(x)), target));
    optimizer.step();
  }
}

std::unique_ptr<nn::Optimizer> make_optimizer(const std::string& kind, const nn::Module& module) {
  std::vector<Parameter> parameters = module.parameters();
  if (kind == "sgd")
    return std::make_unique<nn::Sgd>(parameters,
                                     nn::SgdOptions{.learning_rate = 0.1, .momentum = 0.9});
  if (kind == "adam") return std::make_unique<nn::Adam>(parameters);
  return std::make_unique<nn::AdamW>(parameters);
}

std::vector<std::vector<double>> state_of(const nn::Optimizer& optimizer) {
  std::vector<std::vector<double>> values;
  for (const NamedTensor& entry : optimizer.state()) values.push_back(values_of(entry.tensor));
  return values;
}

TEST_F(Checkpoint, ATrainingThatGoesOnIsTheTrainingThatNeverStopped) {
  on_every_device([&](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16})
      for (const std::string kind : {"sgd", "adam", "adamw"}) {
        if (dtype == DType::bf16 && !context.device().is_cuda()) continue;  // no CPU convolutions
        SCOPED_TRACE(kind + " " + to_string(dtype));
        nn::Sequential module = make_module(context, dtype);
        module.parameters()[0].set_mask(checkered(context, {4, 3, 3, 3}));
        const auto optimizer = make_optimizer(kind, module);
        train(module, *optimizer, 0, 3);
        optimizer->set_learning_rate(0.0625);
        nn::save_checkpoint(module, *optimizer, path(), {{"step", "3"}});
        train(module, *optimizer, 3, 6);

        // Of other values and another age, and without a mask.
        nn::Sequential resumed = make_module(context, dtype);
        const auto resumed_optimizer = make_optimizer(kind, resumed);
        train(resumed, *resumed_optimizer, 7, 8);
        EXPECT_EQ(nn::load_checkpoint(resumed, *resumed_optimizer, path()),
                  (FileMetadata{{"step", "3"}}));
        EXPECT_EQ(resumed_optimizer->learning_rate(), 0.0625);
        train(resumed, *resumed_optimizer, 3, 6);
        EXPECT_EQ(values_of(resumed), values_of(module));
        EXPECT_EQ(state_of(*resumed_optimizer), state_of(*optimizer));
      }
  });
}

TEST_F(Checkpoint, ServesAsAModule) {
  const Context context;
  nn::Sequential module = make_module(context);
  const auto optimizer = make_optimizer("adam", module);
  train(module, *optimizer, 0, 1);
  nn::save_checkpoint(module, *optimizer, path(), {{"step", "1"}});
  nn::Sequential loaded = make_module(context);
  const auto report = nn::load_module(loaded, path());
  EXPECT_EQ(report.metadata, (FileMetadata{{"step", "1"}}));
  EXPECT_TRUE(report.unexpected.empty());
  EXPECT_EQ(values_of(loaded), values_of(module));
}

TEST_F(Checkpoint, AnotherOptimizerIsRefusedAndNothingChanges) {
  const Context context;
  nn::Sequential module = make_module(context);
  const auto adam = make_optimizer("adam", module);
  nn::save_checkpoint(module, *adam, path());
  nn::Sequential other = make_module(context);
  const auto sgd = make_optimizer("sgd", other);
  train(other, *sgd, 0, 1);
  const auto values = values_of(other);
  const auto state = state_of(*sgd);
  expect_contains(message_of<FileError>([&] { nn::load_checkpoint(other, *sgd, path()); }),
                  {"load_checkpoint", path(), "missing: optimizer/0.weight.momentum_buffer, ",
                   "unexpected: optimizer/0.bias.exp_avg, ", "optimizer/4.weight.step"});
  // A module without its optimizer is no checkpoint.
  nn::save_module(module, path());
  expect_contains(message_of<FileError>([&] { nn::load_checkpoint(other, *sgd, path()); }),
                  {"missing: optimizer/learning_rate, "});
  EXPECT_EQ(values_of(other), values);
  EXPECT_EQ(state_of(*sgd), state);
}

}  // namespace
}  // namespace zerone::test
