// Two training steps of two linear layers, with zerone as a subdirectory of the build.
#include <cstdio>

#include <zerone/zerone.h>

int main() {
  const zerone::Context context;
  zerone::nn::Sequential net;
  net.emplace<zerone::nn::Linear>(
      context, zerone::nn::LinearOptions{
                   .in_features = 5, .out_features = 16, .activation = zerone::Activation::relu});
  net.emplace<zerone::nn::Linear>(context,
                                  zerone::nn::LinearOptions{.in_features = 16, .out_features = 2});
  zerone::nn::Sgd sgd(net.parameters(), {.learning_rate = 0.05});

  // (rows, features), read in place through a permuted view
  const auto x = zerone::Tensor::normal(context, {5, 32}).transpose(0, 1);
  const auto target = zerone::Tensor::uniform(context, {32, 2});
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
