// Stochastic gradient descent.
#pragma once

#include <vector>

#include <zerone/autograd/parameter.h>
#include <zerone/kernels/elementwise.h>
#include <zerone/ops/implementation.h>

namespace zerone {

/// Implementation list "sgd": one fused pass a parameter, as kernels::SgdStep says.
struct SgdDesc {
  DType dtype{};
  bool momentum = false, mask = false;
  std::int64_t numel = 0;
  bool operator==(const SgdDesc&) const = default;
  std::size_t hash() const { return static_cast<std::size_t>(numel * 8) + static_cast<int>(dtype); }
};
std::string to_string(const SgdDesc&);
using SgdList = ImplementationList<SgdDesc, kernels::SgdStep>;
const SgdList& sgd_list();
namespace sgd_cpu {
std::span<const SgdList::Row> rows();
}
namespace sgd_cuda {
std::span<const SgdList::Row> rows();
}

namespace nn {

struct SgdOptions {
  double learning_rate = 0.01;
  double momentum = 0;
  double weight_decay = 0;
};

/// g = grad + weight_decay * value;  v = momentum * v + g (v = g at the first step);
/// value -= learning_rate * v. Elements whose mask is 0 stay exactly 0, whatever momentum and decay
/// carry. Parameters without a gradient are left alone; one that is listed twice steps once. A step
/// can be captured in a Graph once one step has run eagerly.
class Sgd {
 public:
  Sgd(std::vector<Parameter> parameters, const SgdOptions& options);
  void step();
  void zero_grad() const;
  SgdOptions options;

 private:
  std::vector<Parameter> parameters_;
  std::vector<Tensor> momentum_;  // undefined before a parameter's first step
};

}  // namespace nn
}  // namespace zerone
