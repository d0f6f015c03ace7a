// Two training steps of a small convolutional network, against an installed zerone.
#include <cstdio>

#include <zerone/zerone.h>

int main() {
  const zerone::Context context;
  zerone::nn::Sequential net;
  net.emplace<zerone::nn::Conv2d>(
      context, zerone::nn::Conv2dOptions{.in_channels = 3,
                                         .out_channels = 8,
                                         .kernel = 3,
                                         .padding = 1,
                                         .activation = zerone::Activation::relu});
  net.emplace<zerone::nn::Conv2d>(context,
                                  zerone::nn::Conv2dOptions{.in_channels = 8, .out_channels = 1});
  zerone::nn::Sgd sgd(net.parameters(), {.learning_rate = 0.05, .momentum = 0.9});

  const auto x = zerone::Tensor::normal(context, {4, 3, 9, 7});  // (N,C,H,W)
  const auto target = zerone::Tensor::uniform(context, {4, 1, 9, 7});
  double first = 0, last = 0;
  for (int step = 0; step < 3; ++step) {  // the third only measures
    zerone::Tape tape;
    const zerone::Var loss = zerone::mean_square_error(net(tape.constant(x)), target);
    last = loss.value().item();
    if (step == 0) first = last;
    if (step == 2) break;
    tape.backward(loss);
    sgd.step();
    sgd.zero_grad();
  }
  std::printf("zerone %s: loss %.6f, after two steps %.6f\n", zerone::version(), first, last);
  return last < first ? 0 : 1;
}
