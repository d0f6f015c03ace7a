// A 1x1 convolution and a linear layer are one contraction; and whether the headers that this was
// compiled with are those of the library.
#include <cstdio>
#include <cstring>

#include <zerone/zerone.h>

int main() {
  const zerone::Context context;
  const auto x = zerone::Tensor::normal(context, {2, 8, 5, 5});  // (N,C,H,W)
  const auto weight = zerone::Tensor::normal(context, {4, 8});
  const zerone::Tensor by_convolution = zerone::conv2d(x, weight.reshape({4, 8, 1, 1})).value();
  const zerone::Tensor by_linear = zerone::linear(x.permute({0, 2, 3, 1}), weight).value();
  const zerone::Tensor difference =
      zerone::sub(by_convolution.permute({0, 2, 3, 1}), by_linear).value();
  const double error = zerone::mean(zerone::mul(difference, difference)).value().item();
  std::printf("zerone %s: mean square difference %g\n", zerone::version(), error);
  return std::strcmp(zerone::version(), ZERONE_VERSION_STRING) == 0 && error < 1e-10 ? 0 : 1;
}
