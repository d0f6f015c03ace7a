// Layers: objects that hold parameters and turn a Var into a Var.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <zerone/autograd/parameter.h>
#include <zerone/autograd/tape.h>
#include <zerone/core/error.h>
#include <zerone/ops/conv2d.h>
#include <zerone/ops/pointwise.h>

namespace zerone::nn {

/// One forward() serves training and inference: on a Var of a tape it records, on a plain tensor it
/// does not.
class Module {
 public:
  virtual ~Module() = default;
  virtual Var forward(const Var& x) = 0;
  Var operator()(const Var& x) { return forward(x); }

  /// All parameters, in a fixed order; names are paths such as "0.weight". One that several modules
  /// share appears once, at its first place.
  std::vector<Parameter> parameters() const;
  /// Number of scalar parameters.
  std::int64_t parameter_count() const;
  void zero_grad() const;

  /// For containers: appends parameters, and prepares weights for zero-skipping.
  virtual void collect(std::vector<Parameter>& parameters, const std::string& prefix) const;
  virtual void prepare() const {}
};

/// Finds out where the weights are zero, waiting for the device at most once a weight version, so
/// that the next forward pass already skips them.
void prepare(const Module& module);

/// Initial values.
enum class Init : std::uint8_t {
  zeros,
  kaiming_normal,   ///< normal, stddev sqrt(2 / fan_in)
  kaiming_uniform,  ///< uniform on +-sqrt(6 / fan_in)
  uniform01,        ///< uniform on [0, 1)
};

/// Overwrites `parameter`; fan_in is the product of all its sizes but the first. Masked elements
/// become 0.
void initialize(const Parameter& parameter, Init init);

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
  Var forward(const Var& x) override;
  void collect(std::vector<Parameter>&, const std::string& prefix) const override;
  void prepare() const override { zerone::prepare(weight.value(), params_.groups); }

  Parameter weight, bias;

 private:
  Conv2dParams params_;
};

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
  Var forward(const Var& x) override;
  void collect(std::vector<Parameter>&, const std::string& prefix) const override;

  Parameter weight, bias;

 private:
  LinearParams params_;
};

class ReLU final : public Module {
 public:
  Var forward(const Var& x) override;
};

/// Modules one after another.
class Sequential final : public Module {
 public:
  Sequential() = default;
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
  const std::vector<std::shared_ptr<Module>>& modules() const { return modules_; }

  Var forward(const Var& x) override;
  void collect(std::vector<Parameter>&, const std::string& prefix) const override;
  void prepare() const override;

 private:
  std::vector<std::shared_ptr<Module>> modules_;
};

}  // namespace zerone::nn
