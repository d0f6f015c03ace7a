// Optimizers: stochastic gradient descent, Adam and AdamW.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include <zerone/autograd/parameter.h>
#include <zerone/core/safetensors.h>
#include <zerone/kernels/optimizer.h>
#include <zerone/ops/implementation.h>

namespace zerone {

// --- implementation list: one step on all tensors of one type ------------------------------------

struct OptimizerDesc {
  kernels::OptimizerRule rule{};
  DType dtype{};
  std::int64_t tensors = 0, numel = 0;
  bool operator==(const OptimizerDesc&) const = default;
  std::size_t hash() const;
};
struct OptimizerArgs {
  kernels::OptimizerStep step{};
  std::span<const kernels::OptimizerTensor> tensors{};
};
std::string to_string(const OptimizerDesc&);
using OptimizerList = ImplementationList<OptimizerDesc, OptimizerArgs>;
const OptimizerList& optimizer_list();
namespace optimizer_cpu {
std::span<const OptimizerList::Row> rows();
}
namespace optimizer_cuda {
std::span<const OptimizerList::Row> rows();
}

namespace nn {

/// Numbers on the parameters' device that one step reads: f64 tensors of one element.
struct StepInputs {
  Tensor gradient_scale{};  ///< gradients are multiplied by it; undefined: by 1
  Tensor skip{};            ///< the step changes nothing where it is not 0; undefined: never
};

/// Moves parameters against their gradients. The parameters live in one context and are dense; one
/// that is listed twice steps once, and one without a gradient is left alone, its state and its
/// count of steps included. Where a parameter's mask is 0, value and state are exactly +0 after
/// every step, whatever they and the gradient held. NaN and infinite gradients spread as the
/// formulas say (kernels/optimizer_formulas.h). Steps repeat bit for bit.
///
/// 16-bit parameters: state is f32. With master weights so is the value: the parameter holds the
/// rounded master, and steps smaller than its last bit add up. When somebody else writes the
/// parameter, the master starts again from what was written.
///
/// Graphs: construct before the capture; step() can then be captured, also the very first one. The
/// learning rate, the counts of steps and StepInputs are on the device and read by every replay;
/// set_learning_rate between replays is in force from the next one on.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// All parameters of a type take one launch (two with Adam), or one for every 40 or so. A
  /// gradient that lies otherwise than its value is copied first. Throws ShapeError, DTypeError or
  /// DeviceError, naming the parameter, where value, gradient, mask and state do not fit together.
  void step(const StepInputs& inputs = {});
  void zero_grad() const;  ///< of all parameters

  double learning_rate() const { return learning_rate_; }  ///< in force
  /// Stream-ordered; does not wait. Inside a capture it becomes part of the graph.
  void set_learning_rate(double rate);

  /// In the order given, without repetitions.
  const std::vector<Parameter>& parameters() const { return parameters_; }

  /// What a continuation needs beside the parameters' values, to be equal bit for bit, as views of
  /// the live memory: "learning_rate" and, for each parameter by the name it had at construction
  /// (its index, if that was empty), "<name>.momentum_buffer" (Sgd), "<name>.exp_avg",
  /// "<name>.exp_avg_sq" and "<name>.step" (Adam), "<name>.master". ShapeError if two parameters
  /// that have state share a name.
  std::vector<NamedTensor> state() const;
  /// Copies such a list, from any device, into this optimizer; before anything is copied,
  /// ShapeError or DTypeError unless names, shapes and types are those of state(), in any order.
  /// Waits for the learning rate.
  void load_state(std::span<const NamedTensor> state);

 protected:
  /// `rule.momentum` and the like are fixed; `rule.dtype` and pointers are not used.
  Optimizer(const char* name, std::vector<Parameter> parameters, double learning_rate,
            bool master_weights, const kernels::OptimizerStep& rule);

 private:
  /// State of one parameter, in its memory order; undefined where the rule has none.
  struct State {
    std::string name;
    Tensor first, second, master, clock;
  };

  kernels::OptimizerTensor operand(const Parameter&, State&, std::vector<Tensor>& kept) const;

  const char* name_;
  kernels::OptimizerStep rule_;
  double learning_rate_ = 0;
  Tensor device_rate_;  // f64 []
  std::vector<Parameter> parameters_;
  std::vector<State> states_;
};

/// Stochastic gradient descent.
struct SgdOptions {
  double learning_rate = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool master_weights = true;  ///< of 16-bit parameters
};

/// PyTorch's SGD without dampening.
/// @code
/// nn::Linear layer(context, {.in_features = 4, .out_features = 1});
/// nn::Sgd optimizer(layer.parameters(), {.learning_rate = 0.1, .momentum = 0.9});
/// const Tensor x = Tensor::normal(context, {32, 4}), target = Tensor::uniform(context, {32, 1});
/// for (int step = 0; step < 3; ++step) {
///   Tape tape;
///   tape.backward(mean_square_error(layer(tape.constant(x)), target));
///   optimizer.step();
///   optimizer.zero_grad();
/// }
/// @endcode
class Sgd final : public Optimizer {
 public:
  Sgd(std::vector<Parameter> parameters, const SgdOptions& options = {});
};

/// Adam, arXiv:1412.6980.
struct AdamOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;  ///< outside the root
  double weight_decay = 0;
  bool master_weights = true;  ///< of 16-bit parameters
};

/// The decay joins the gradient, as in PyTorch's Adam.
class Adam final : public Optimizer {
 public:
  Adam(std::vector<Parameter> parameters, const AdamOptions& options = {});
};

/// AdamW, arXiv:1711.05101.
struct AdamWOptions {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  bool master_weights = true;
};

/// The decay shrinks the weights directly, as in PyTorch's AdamW.
class AdamW final : public Optimizer {
 public:
  AdamW(std::vector<Parameter> parameters, const AdamWOptions& options = {});
};

}  // namespace nn
}  // namespace zerone
