// Layers: objects that hold parameters and turn a Var into a Var.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zerone/autograd/parameter.h>
#include <zerone/autograd/tape.h>
#include <zerone/core/error.h>
#include <zerone/core/safetensors.h>
#include <zerone/ops/conv2d.h>
#include <zerone/ops/pointwise.h>

namespace zerone::nn {

class Module;

/// What a module is made of, in a fixed order; names are those in files, without the path.
struct Members {
  std::vector<std::pair<std::string, Parameter>> parameters = {};  ///< undefined ones do not count
  std::vector<NamedTensor> buffers = {};  ///< state that is no parameter: running statistics
  std::vector<std::pair<std::string, Module*>> modules = {};
};

/// One forward() serves training and inference: on a Var of a tape it records, on a plain tensor it
/// does not. A module of one's own overrides forward() and says what it is made of in members();
/// inside, modules are called by operator().
class Module {
 public:
  virtual ~Module() = default;
  /// Runs the module, then its forward hook.
  Var operator()(const Var& x);
  /// What it is made of; files and optimizers go by it.
  virtual Members members() const { return {}; }
  /// For people: "Conv2d 3 -> 64, 3x3".
  virtual std::string description() const { return "Module"; }

  /// All parameters, in a fixed order; names are paths such as "0.weight". One that several modules
  /// share appears once, at its first place.
  std::vector<Parameter> parameters() const;
  /// All buffers, likewise.
  std::vector<NamedTensor> buffers() const;
  /// Number of scalar parameters.
  std::int64_t parameter_count() const;
  void zero_grad() const;  ///< of all parameters

  /// Sets what batch normalization and dropout go by, here and in all modules inside; a new module
  /// is in training.
  void train(bool on = true);
  void eval() { train(false); }                         ///< see train()
  bool training() const noexcept { return training_; }  ///< true at first

  /// Called after each forward() with its operand and result; an empty one lifts it.
  using ForwardHook = std::function<void(const Var& x, const Var& y)>;
  /// Replaces the hook; see ForwardHook.
  void set_forward_hook(ForwardHook hook) { forward_hook_ = std::move(hook); }

  /// f(path, module), this one first (its path is ""), then all inside in order, each once.
  void for_each_module(const std::function<void(const std::string&, const Module&)>& f) const;

  /// Prepares this module's own weights for zero-skipping: see prepare() below.
  virtual void prepare() const {}

 protected:
  /// What the module does.
  virtual Var forward(const Var& x) = 0;

 private:
  bool training_ = true;
  ForwardHook forward_hook_;
};

/// Finds out where the weights are zero, waiting for the device at most once a weight version, so
/// that the next forward pass already skips them.
void prepare(const Module& module);

/// Initial values.
enum class Init : std::uint8_t {
  zeros,
  kaiming_normal,   ///< normal, stddev sqrt(2 / fan_in)
  kaiming_uniform,  ///< uniform on +-sqrt(6 / fan_in)
  xavier_normal,    ///< normal, stddev sqrt(2 / (fan_in + fan_out))
  xavier_uniform,   ///< uniform on +-sqrt(6 / (fan_in + fan_out))
  uniform01,        ///< uniform on [0, 1)
};

/// Overwrites `parameter`; fan_in is the product of all its sizes but the first, fan_out of all but
/// the second. Masked elements become 0.
void initialize(const Parameter& parameter, Init init);

/// A convolution layer: sizes, and as Conv2dParams.
struct Conv2dOptions {
  std::int64_t in_channels = 0, out_channels = 0;
  Pair kernel = 1;
  Pair stride = 1;
  Padding padding = 0;
  Pair dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  Activation activation = Activation::none;
  Init init = Init::kaiming_normal;
  DType dtype = DType::f32;
};

/// Weight [out, in / groups, kh, kw], bias [out] (zeros at first).
class Conv2d final : public Module {
 public:
  Conv2d(const Context&, const Conv2dOptions&);
  Members members() const override { return {.parameters = {{"weight", weight}, {"bias", bias}}}; }
  std::string description() const override;
  void prepare() const override { zerone::prepare(weight.value(), params_.groups); }

  Parameter weight, bias;

 private:
  Var forward(const Var& x) override;
  Conv2dParams params_;
};

/// A linear layer.
struct LinearOptions {
  std::int64_t in_features = 0, out_features = 0;
  bool bias = true;
  Activation activation = Activation::none;
  Init init = Init::kaiming_normal;
  DType dtype = DType::f32;
};

/// Weight [out, in], bias [out] (zeros at first); contracts the last axis of any view.
class Linear final : public Module {
 public:
  Linear(const Context&, const LinearOptions&);
  Members members() const override { return {.parameters = {{"weight", weight}, {"bias", bias}}}; }
  std::string description() const override;

  Parameter weight, bias;

 private:
  Var forward(const Var& x) override;
  LinearParams params_;
};

/// Modules one after another.
/// @code
/// nn::Sequential net;
/// net.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 3,
///                                                    .out_channels = 8,
///                                                    .kernel = 3,
///                                                    .activation = Activation::relu});
/// net.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 8, .out_channels = 2});
/// const Tensor x = Tensor::normal(context, {4, 3, 8, 8});
/// const Tensor y = net(x);  // inference: nothing is recorded; [4, 2, 6, 6]
/// Tape tape;
/// tape.backward(mean(net(tape.constant(x))));
/// const Tensor gradient = net.parameters()[0].grad();
/// @endcode
class Sequential final : public Module {
 public:
  Sequential() = default;
  /// Appends a module, given or made from arguments, and returns it. ShapeError if it is null. @{
  template <class M>
  std::shared_ptr<M> add(std::shared_ptr<M> module) {
    if (!module) throw ShapeError("[nn.Sequential] add of a null module");
    modules_.push_back(module);
    return module;
  }
  template <class M, class... Args>
  std::shared_ptr<M> emplace(Args&&... args) {
    return add(std::make_shared<M>(std::forward<Args>(args)...));
  }
  /// @}
  /// In the order in which they run.
  const std::vector<std::shared_ptr<Module>>& modules() const { return modules_; }

  Members members() const override;
  std::string description() const override { return "Sequential"; }

 private:
  Var forward(const Var& x) override;
  std::vector<std::shared_ptr<Module>> modules_;
};

}  // namespace zerone::nn
