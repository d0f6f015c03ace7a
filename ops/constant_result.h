// Results that need no multiplication because an operand is zero: known zeros, or the bias alone.
#pragma once

#include <string>

#include <zerone/core/tensor.h>
#include <zerone/ops/implementation.h>

namespace zerone {

struct PointwiseDesc;
struct PointwiseArgs;
struct PointwiseWeightArgs;

template <class Desc>
std::string reject_unless_zero(const Desc& desc) {
  return desc.operand_zero ? "" : "no operand is known to be zero";
}

/// y = act(b) for every pixel; without a bias y becomes known zero. The last axis of y holds the
/// channels.
void constant_result(const Tensor& b, Activation activation, Tensor& y);

void run_constant_pointwise(ContextState&, const PointwiseDesc&, const PointwiseArgs&, Plan*);
void run_constant_pointwise_weight(ContextState&, const PointwiseDesc&, const PointwiseWeightArgs&,
                                   Plan*);

}  // namespace zerone
