// A convolution of a shape file as a workload.
#pragma once

#include <string>

#include "bench/harness.h"

namespace zerone::bench {

struct ConvProblem {
  std::int64_t n = 0, c_in = 0, c_out = 0, h = 0, w = 0;
  Pair kernel = 1;
  Conv2dParams params = {};
  bool nhwc = false;

  /// Sizes and strides as the library's own operands would have them.
  kernels::Conv2dShape shape() const;
  /// Bytes and FLOPs of a pass; padding counts as multiplied.
  Cost cost(const std::string& pass, Mode mode) const;
  /// forward, backward_data, backward_weight or forward_backward on a weight with zeros, without a
  /// bias. `lower`: run a 1x1 kernel as a pointwise contraction where the library does.
  Workload workload(const Context& context, const std::string& name, const std::string& pass,
                    Mode mode, const std::string& pattern, double fraction, bool lower) const;
};

/// A description for Implementation::reject; zero_percent as in Conv2dDesc.
Conv2dDesc describe(const ConvProblem& problem, Conv2dPass pass, Mode mode, int zero_percent);

}  // namespace zerone::bench
