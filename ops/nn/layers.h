// Layers beyond convolution and linear: activations, pooling, normalization, dropout. Each is the
// operation of the same name as a module; options are that operation's.
#pragma once

#include <zerone/ops/batch_norm.h>
#include <zerone/ops/elementwise.h>
#include <zerone/ops/nn/module.h>
#include <zerone/ops/pool.h>

namespace zerone::nn {

/// zerone::relu().
class ReLU final : public Module {
 public:
  std::string description() const override { return "ReLU"; }

 private:
  Var forward(const Var& x) override { return relu(x); }
};

/// zerone::leaky_relu().
class LeakyReLU final : public Module {
 public:
  explicit LeakyReLU(double slope = 0.01) : slope_(slope) {}
  std::string description() const override { return "LeakyReLU"; }

 private:
  Var forward(const Var& x) override { return leaky_relu(x, slope_); }
  double slope_;
};

/// zerone::silu().
class SiLU final : public Module {
 public:
  std::string description() const override { return "SiLU"; }

 private:
  Var forward(const Var& x) override { return silu(x); }
};

/// zerone::gelu().
class GELU final : public Module {
 public:
  explicit GELU(Gelu form = Gelu::erf) : form_(form) {}
  std::string description() const override { return "GELU"; }

 private:
  Var forward(const Var& x) override { return gelu(x, form_); }
  Gelu form_;
};

/// zerone::sigmoid().
class Sigmoid final : public Module {
 public:
  std::string description() const override { return "Sigmoid"; }

 private:
  Var forward(const Var& x) override { return sigmoid(x); }
};

/// zerone::tanh().
class Tanh final : public Module {
 public:
  std::string description() const override { return "Tanh"; }

 private:
  Var forward(const Var& x) override { return tanh(x); }
};

/// zerone::softmax() over an axis.
class Softmax final : public Module {
 public:
  explicit Softmax(int axis = 1) : axis_(axis) {}
  std::string description() const override { return "Softmax"; }

 private:
  Var forward(const Var& x) override;
  int axis_;
};

/// zerone::max_pool2d().
class MaxPool2d final : public Module {
 public:
  explicit MaxPool2d(const Pool2dParams& params) : params_(params) {}
  std::string description() const override;

 private:
  Var forward(const Var& x) override { return max_pool2d(x, params_); }
  Pool2dParams params_;
};

/// zerone::avg_pool2d().
class AvgPool2d final : public Module {
 public:
  explicit AvgPool2d(const Pool2dParams& params) : params_(params) {}
  std::string description() const override;

 private:
  Var forward(const Var& x) override { return avg_pool2d(x, params_); }
  Pool2dParams params_;
};

/// zerone::adaptive_avg_pool2d().
class AdaptiveAvgPool2d final : public Module {
 public:
  explicit AdaptiveAvgPool2d(Pair out) : out_(out) {}
  std::string description() const override;

 private:
  Var forward(const Var& x) override { return adaptive_avg_pool2d(x, out_); }
  Pair out_;
};

/// [N, ...] to [N, C]: a view where x's layout allows, else a copy.
class Flatten final : public Module {
 public:
  std::string description() const override { return "Flatten"; }

 private:
  Var forward(const Var& x) override;
};

/// A batch normalization layer.
struct BatchNormOptions {
  std::int64_t channels = 0;
  double momentum = 0.1;
  double eps = 1e-5;
  bool affine = true;        ///< with weight (ones at first) and bias (zeros)
  DType dtype = DType::f32;  ///< of weight, bias and statistics; f32 serves 16-bit x, too
};

/// Batch normalization over axis 1 of [N, C] to [N, C, D, H, W]: PyTorch's BatchNorm1d, 2d and 3d.
/// The statistics of the batch in training, the running ones (buffers) in evaluation.
class BatchNorm final : public Module {
 public:
  BatchNorm(const Context&, const BatchNormOptions&);
  Members members() const override;
  std::string description() const override;

  Parameter weight, bias;
  Tensor running_mean, running_var;

 private:
  Var forward(const Var& x) override;
  BatchNormOptions options_;
};

/// Nothing in evaluation.
/// @code
/// nn::Sequential net;
/// net.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 3, .out_channels = 8});
/// net.emplace<nn::BatchNorm>(context, nn::BatchNormOptions{.channels = 8});
/// net.emplace<nn::GELU>();
/// net.emplace<nn::AdaptiveAvgPool2d>(1);
/// net.emplace<nn::Flatten>();
/// net.emplace<nn::Dropout>(0.2);
/// net.eval();
/// const Tensor y = net(Tensor::normal(context, {2, 3, 8, 8}));  // [2, 8]
/// @endcode
class Dropout final : public Module {
 public:
  explicit Dropout(double p = 0.5) : p_(p) {}
  std::string description() const override;

 private:
  Var forward(const Var& x) override;
  double p_;
};

}  // namespace zerone::nn
