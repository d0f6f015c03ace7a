#include <zerone/autograd/gradcheck.h>

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <random>

#include <zerone/core/error.h>

namespace zerone {

GradcheckResult gradcheck(const std::function<Var(std::span<const Var>)>& function,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  for (const Tensor& input : inputs)
    if (!input.defined() || input.dtype() != DType::f64)
      throw DTypeError(fmt::format("[gradcheck] inputs must be f64, got {}", describe(input)));

  Tape tape;
  std::vector<Var> leaves;
  for (const Tensor& input : inputs) leaves.push_back(tape.leaf(input));
  const Var result = function(leaves);

  // Project the result on small random integers, which keep integer problems exact.
  std::mt19937_64 random(options.seed);
  std::vector<double> weights(static_cast<std::size_t>(result.value().numel()));
  for (double& weight : weights) weight = static_cast<double>(random() % 7) - 3;
  tape.backward(result,
                {.seed = Tensor::from<double>(result.value().context(), result.shape(), weights)});
  const auto project = [&](std::span<const Var> plain) {
    const std::vector<double> values = function(plain).value().to_vector<double>();
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += weights[i] * values[i];
    return sum;
  };

  GradcheckResult check;
  check.passed = true;
  std::vector<Var> moved(inputs.begin(), inputs.end());
  for (std::size_t which = 0; which < inputs.size(); ++which) {
    const Tensor& input = inputs[which];
    std::vector<double> values = input.to_vector<double>();
    const Tensor gradient = tape.grad(leaves[which]);
    const std::vector<double> analytic =
        gradient.defined() ? gradient.to_vector<double>() : std::vector<double>(values.size(), 0.0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double kept = values[i];
      const auto at = [&](double value) {
        values[i] = value;
        Tensor changed = Tensor::empty_like(input);
        changed.copy_(Tensor::from<double>(input.context(), input.shape(), values));
        moved[which] = changed;
        return project(moved);
      };
      const double numeric =
          (at(kept + options.step) - at(kept - options.step)) / (2 * options.step);
      values[i] = kept;
      const double error = std::abs(analytic[i] - numeric);
      check.max_error = std::max(check.max_error, error);
      if (!(error <= options.absolute + options.relative * std::abs(numeric)) && check.passed) {
        check.passed = false;
        check.message = fmt::format("input {} element {}: analytic {:.17g}, numeric {:.17g}", which,
                                    i, analytic[i], numeric);
      }
    }
    moved[which] = input;
  }
  return check;
}

}  // namespace zerone
