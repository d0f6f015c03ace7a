#include <zerone/autograd/parameter.h>

#include <fmt/format.h>

#include <zerone/core/error.h>

namespace zerone {

void Parameter::set_mask(const Tensor& mask) const {
  Tensor& value = state_->value;
  require_same_context("set_mask", value, mask);
  if (mask.shape() != value.shape() || mask.dtype() != DType::u8)
    throw ShapeError(fmt::format("[set_mask] parameter '{}' is {}; the mask is {}, not u8 {}",
                                 state_->name, describe(value), describe(mask),
                                 to_string(value.shape())));
  // Kept in the value's memory order, which is how the optimizer kernels walk it.
  Tensor aligned = Tensor::view_of(
      std::make_shared<Storage>(value.context(), static_cast<std::size_t>(value.numel())), 0,
      value.is_dense() ? value.layout() : contiguous_layout(value.shape()), DType::u8);
  aligned.copy_(mask);
  state_->mask = aligned;

  const Context host(Device::cpu());
  Tensor kept = value.to(host).contiguous();
  const Tensor flags = mask.to(host).contiguous();
  Tensor values = kept.dtype() == DType::f64 ? kept.clone() : kept.to(DType::f64);
  double* v = values.mutable_data<double>();
  const std::uint8_t* m = flags.data<std::uint8_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i)
    if (m[i] == 0) v[i] = 0;
  value.copy_(values);
  if (value.is_dense() && value.offset() == 0 && value.storage().bytes() == value.bytes())
    value.storage().set_fixed_zeros(aligned.shared_storage());
}

}  // namespace zerone
