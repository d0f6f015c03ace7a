#include <zerone/ops/constant_result.h>

#include <zerone/ops/elementwise.h>
#include <zerone/ops/pointwise.h>

namespace zerone {
namespace {

/// The whole storage when `x` covers it (fresh results do), else the bytes. A caller's own memory
/// is written at once: the caller may look at it without asking.
void set_zero(Tensor& x) {
  if (x.is_dense() && x.offset() == 0 && x.bytes() == x.storage().bytes() &&
      !x.storage().external())
    x.storage().set_known_zero();
  else
    x.fill_(0);
}

}  // namespace

void constant_result(const Tensor& b, Activation activation, Tensor& y) {
  if (!b.defined() || b.known_zero())
    set_zero(y);
  else
    y.copy_(activation == Activation::relu ? relu(b).value() : b);
}

void run_constant_pointwise(ContextState&, const PointwiseDesc& desc, const PointwiseArgs& args,
                            Plan*) {
  constant_result(args.b, desc.activation, args.y);
}

void run_constant_pointwise_weight(ContextState&, const PointwiseDesc&,
                                   const PointwiseWeightArgs& args, Plan*) {
  set_zero(args.dw);
  if (args.db.defined()) set_zero(args.db);
}

}  // namespace zerone
