#include <iostream>

#include <zerone/zerone.h>

int main() {
  using namespace zerone;
  const Context context(Device::cpu());  // Device::cuda() for the first GPU
  const Tensor x = Tensor::normal(context, {8, 64, 32, 32});

  // A 3x3 convolution of which pruning has left every sixteenth weight.
  const Parameter weight(Tensor::normal(context, {64, 64, 3, 3}, 0, 0.06), "weight");
  Tensor mask = Tensor::zeros(context, weight.value().shape(), DType::u8);
  mask.reshape({-1}).slice(0, 0, mask.numel(), 16).fill_(1);
  weight.set_mask(mask);

  for (const Explanation& e : explain(context, [&] {
         Tape tape;
         const Var y = conv2d(tape.constant(x), tape.parameter(weight), {}, {.padding = 1});
         tape.backward(mean(y * y));
       }))
    if (e.op.starts_with("conv2d")) std::cout << to_string(e);  // what ran, why the rest did not
  std::cout << "gradient: " << describe(weight.grad()) << "\n";
}
