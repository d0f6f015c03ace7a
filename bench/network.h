// The eleven-layer network of experiment 1 as a workload.
#pragma once

#include <string>

#include "bench/harness.h"

namespace zerone::bench {

/// Bytes and FLOPs of the network with its ReLUs fused, layer by layer.
Cost network_cost(std::int64_t batch, const std::string& pass, Mode mode);

/// forward; forward_backward: gradients of all weights; backward_data: the gradient of x alone,
/// from the activations of an earlier forward pass. `kind` of weights: kaiming, zero or
/// scattered90.
Workload network_workload(const Context& context, std::int64_t batch, const std::string& kind,
                          const std::string& pass, Mode mode, bool nhwc);

}  // namespace zerone::bench
