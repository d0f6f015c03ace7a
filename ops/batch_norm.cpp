#include <zerone/ops/batch_norm.h>

#include <fmt/format.h>

#include <zerone/core/error.h>
#include <zerone/core/views.h>
#include <zerone/ops/elementwise.h>

namespace zerone {

std::size_t BatchNormDesc::hash() const {
  return static_cast<std::size_t>((channels * 31 + values) * 128 + static_cast<int>(dtype) * 16 +
                                  static_cast<int>(channel_dtype) * 2 + training);
}

std::string to_string(const BatchNormDesc& desc) {
  return fmt::format("batch_norm {} channels={} {} values={}{}", to_string(desc.dtype),
                     desc.channels, to_string(desc.channel_dtype), desc.values,
                     desc.training ? " training" : "");
}

const BatchNormForwardList& batch_norm_forward_list() {
  static const BatchNormForwardList list("batch_norm.forward", {
    batch_norm_cpu::forward_rows(),
#if ZERONE_CUDA
        batch_norm_cuda::forward_rows(),
#endif
  });
  return list;
}

const BatchNormBackwardList& batch_norm_backward_list() {
  static const BatchNormBackwardList list("batch_norm.backward", {
    batch_norm_cpu::backward_rows(),
#if ZERONE_CUDA
        batch_norm_cuda::backward_rows(),
#endif
  });
  return list;
}

namespace {

DType compute_type(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

BatchNormDesc describe_problem(const Tensor& x, DType channel_dtype, bool training) {
  const std::int64_t channels = x.size(1);
  return {x.dtype(), channel_dtype, training, channels, channels == 0 ? 0 : x.numel() / channels};
}

kernels::ConstView view_if_defined(const Tensor& x) {
  return x.defined() ? view(x) : kernels::ConstView{};
}

class BatchNormNode final : public Node {
 public:
  BatchNormNode(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& inv_std,
                const BatchNormDesc& desc)
      : x_(x), weight_(weight), mean_(mean), inv_std_(inv_std), desc_(desc) {}
  const char* name() const override { return "batch_norm"; }

  void backward(Gradients& gradients) override {
    const Tensor& x = x_.get(name(), "its input");
    const Tensor& weight = weight_.get(name(), "its weight");
    const auto of_channels = [&](int input) {
      return gradients.needs(input)
                 ? Tensor::empty(x.context(), {desc_.channels}, desc_.channel_dtype)
                 : Tensor();
    };
    Tensor dx = gradients.needs(0) ? Tensor::empty_like(x) : Tensor();
    Tensor dweight = of_channels(1), dbias = of_channels(2);
    kernels::BatchNormBackward args{.dy = view(gradients.output()),
                                    .x = view(x),
                                    .weight = view_if_defined(weight),
                                    .mean = mean_.get(name(), "its mean").data(),
                                    .inv_std = inv_std_.get(name(), "its deviation").data(),
                                    .training = desc_.training};
    if (dx.defined()) args.dx = mutable_view(dx);
    if (dweight.defined()) args.dweight = mutable_view(dweight);
    if (dbias.defined()) args.dbias = mutable_view(dbias);
    if (desc_.channels > 0) batch_norm_backward_list().run(x.context().state(), desc_, args);
    gradients.give(0, std::move(dx));
    gradients.give(1, std::move(dweight));
    gradients.give(2, std::move(dbias));
  }

 private:
  Saved x_, weight_, mean_, inv_std_;
  BatchNormDesc desc_;
};

/// The type of the channel tensors; throws unless they fit x and each other.
DType check_channels(const Tensor& x,
                     std::initializer_list<std::pair<const char*, const Tensor*>> tensors) {
  DType dtype = compute_type(x.dtype());
  const char* first = nullptr;
  for (const auto& [what, tensor] : tensors) {
    if (!tensor->defined()) continue;
    require_same_context("batch_norm", x, *tensor);
    if (tensor->rank() != 1 || tensor->size(0) != x.size(1))
      throw ShapeError(fmt::format("[batch_norm] {} is {}, but x is {}: expected [{}]", what,
                                   describe(*tensor), describe(x), x.size(1)));
    if (tensor->dtype() != x.dtype() && tensor->dtype() != compute_type(x.dtype()))
      throw DTypeError(fmt::format("[batch_norm] {} is {}, but x is {}: expected {}{}", what,
                                   describe(*tensor), describe(x), to_string(x.dtype()),
                                   size_of(x.dtype()) == 2 ? " or f32" : ""));
    if (first && tensor->dtype() != dtype)
      throw DTypeError(fmt::format("[batch_norm] {} is {}, but {} is {}", what, describe(*tensor),
                                   first, to_string(dtype)));
    first = what;
    dtype = tensor->dtype();
  }
  return dtype;
}

}  // namespace

Var batch_norm(const Var& x_var, const Var& weight, const Var& bias, Tensor& running_mean,
               Tensor& running_var, const BatchNormParams& params) {
  require_floating("batch_norm", x_var);
  const Tensor& x = x_var.value();
  if (x.rank() < 2 || x.rank() > 5)
    throw ShapeError(fmt::format(
        "[batch_norm] needs [N, C] to [N, C, D, H, W], got x {}, training={}, momentum={}, eps={}",
        describe(x), params.training, params.momentum, params.eps));
  const DType channel_dtype = check_channels(x, {{"weight", &weight.value()},
                                                 {"bias", &bias.value()},
                                                 {"running_mean", &running_mean},
                                                 {"running_var", &running_var}});
  if (running_mean.defined() != running_var.defined())
    throw ShapeError(fmt::format("[batch_norm] only {} is defined, for x {}",
                                 running_mean.defined() ? "running_mean" : "running_var",
                                 describe(x)));
  if (!params.training && !running_mean.defined())
    throw ShapeError(fmt::format(
        "[batch_norm] evaluation (training=false) needs running_mean and running_var, for x {}",
        describe(x)));
  const BatchNormDesc desc = describe_problem(x, channel_dtype, params.training);
  if (params.training && desc.values == 1)
    throw ShapeError(fmt::format(
        "[batch_norm] training needs more than one value a channel, got one: x {} has {} channels",
        describe(x), desc.channels));

  const DType compute = compute_type(x.dtype());
  Tensor y = Tensor::empty_like(x);
  Tensor mean = Tensor::empty(x.context(), {desc.channels}, compute);
  Tensor inv_std = Tensor::empty(x.context(), {desc.channels}, compute);
  if (x.numel() > 0) {
    kernels::BatchNormForward args{.y = mutable_view(y),
                                   .x = view(x),
                                   .weight = view_if_defined(weight),
                                   .bias = view_if_defined(bias),
                                   .mean = mean.mutable_data(),
                                   .inv_std = inv_std.mutable_data(),
                                   .momentum = params.momentum,
                                   .eps = params.eps,
                                   .training = params.training};
    if (!params.training) {
      args.given_mean = view(running_mean);
      args.given_var = view(running_var);
    } else if (running_mean.defined()) {
      args.running_mean = mutable_view(running_mean);
      args.running_var = mutable_view(running_var);
    }
    batch_norm_forward_list().run(x.context().state(), desc, args);
  }
  auto node = Tape::wants_grad({&x_var, &weight, &bias})
                  ? std::make_unique<BatchNormNode>(x, weight, mean, inv_std, desc)
                  : nullptr;
  return Tape::record(std::move(y), {&x_var, &weight, &bias}, std::move(node));
}

}  // namespace zerone
