// A model as a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <zerone/ops/nn/module.h>

namespace zerone::nn {

/// One line of the table.
struct LayerSummary {
  std::string path;             ///< "0.conv"; "" for the model itself
  std::string description;      ///< "Conv2d 3 -> 64, 3x3"
  Shape output;                 ///< of its last call; rank 0 if it was not called
  std::int64_t parameters = 0;  ///< its own, without those of modules inside
  std::int64_t nonzeros = 0;    ///< of its own parameters
  /// Implementations that its own operations ran, "conv2d.forward/cuda.zero_skip".
  std::vector<std::string> rows;

  /// Share of parameters that are not 0; 1 if there are none.
  double density() const {
    return parameters == 0 ? 1 : static_cast<double>(nonzeros) / static_cast<double>(parameters);
  }
};

/// Runs the model once on x, without a tape, and says of each module, in order, what it gave, what
/// it holds and what ran. Waits for the device to count zeros. Forward hooks in place are replaced
/// and lifted; statistics and random numbers move on as by any call, so eval() comes first.
/// @code
/// nn::Sequential net;
/// net.emplace<nn::Linear>(context, nn::LinearOptions{.in_features = 8, .out_features = 4});
/// const std::string table = to_string(nn::summarize(net, Tensor::normal(context, {2, 8})));
/// @endcode
std::vector<LayerSummary> summarize(Module& model, const Tensor& x);

/// As a table of aligned columns with a line of totals.
std::string to_string(const std::vector<LayerSummary>& layers);

}  // namespace zerone::nn
