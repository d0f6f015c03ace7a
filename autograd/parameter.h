// A trainable tensor that outlives tapes.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <zerone/core/tensor.h>

namespace zerone {

/// A shared handle to a value, its gradient and an optional mask. Tape::backward adds to the
/// gradient; zero_grad() drops it. Optimizers keep the value exactly 0 where the mask is 0.
/// @code
/// const Parameter weight(Tensor::normal(context, {4, 8}), "weight");
/// const Tensor x = Tensor::normal(context, {16, 8});
/// Tape tape;
/// tape.backward(mean(linear(tape.constant(x), tape.parameter(weight))));
/// const Tensor gradient = weight.grad();  // [4, 8]
/// @endcode
class Parameter {
 public:
  Parameter() = default;
  explicit Parameter(Tensor value, std::string name = {})
      : state_(std::make_shared<State>(State{std::move(value), {}, {}, std::move(name), true})) {}

  bool defined() const noexcept {
    return state_ != nullptr;
  }                                                ///< whether there is one behind the handle
  Tensor& value() const { return state_->value; }  ///< the tensor itself, to read and to write
  /// Undefined until a backward reached the parameter.
  Tensor& grad() const { return state_->grad; }
  void zero_grad() const { state_->grad = Tensor(); }  ///< makes the gradient undefined

  /// u8 zeros and ones of the value's shape. Setting it zeroes the masked weights at once. @{
  const Tensor& mask() const { return state_->mask; }
  void set_mask(const Tensor& mask) const;
  /// @}

  const std::string& name() const { return state_->name; }  ///< for messages and files
  /// See name().
  void set_name(std::string name) const { state_->name = std::move(name); }
  /// Whether a tape that meets it records; a frozen one costs nothing. @{
  bool requires_grad() const { return state_->requires_grad; }
  void set_requires_grad(bool requires_grad) const { state_->requires_grad = requires_grad; }
  /// @}

  /// Identity, for maps.
  const void* id() const noexcept { return state_.get(); }

 private:
  struct State {
    Tensor value, grad, mask;
    std::string name;
    bool requires_grad = true;
  };
  std::shared_ptr<State> state_;
};

}  // namespace zerone
