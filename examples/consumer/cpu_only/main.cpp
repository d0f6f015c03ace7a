// Two training steps written by hand on the tape, and what a CPU-only zerone says about GPUs.
#include <cstdio>

#include <zerone/zerone.h>

int main() {
  if (zerone::cuda_device_count() != 0) return 1;
  std::printf("no GPU: %s\n", zerone::why_no_cuda().c_str());
  try {
    const zerone::Context gpu(zerone::Device::cuda());
    return 1;
  } catch (const zerone::DeviceError& error) {
    std::printf("as it should be: %s\n", error.what());
  }

  const zerone::Context context;
  const auto x = zerone::Tensor::normal(context, {2, 4, 6, 6});  // (N,C,H,W)
  const auto target = zerone::Tensor::uniform(context, {2, 2, 6, 6});
  auto weight = zerone::Tensor::normal(context, {2, 4, 1, 1});
  double first = 0, last = 0;
  for (int step = 0; step < 3; ++step) {  // the third only measures
    zerone::Tape tape;
    const zerone::Var w = tape.leaf(weight);
    const zerone::Var loss = zerone::mean_square_error(zerone::conv2d(x, w), target);
    last = loss.value().item();
    if (step == 0) first = last;
    if (step == 2) break;
    tape.backward(loss);
    weight = zerone::sub(weight, zerone::affine(tape.grad(w), 0.1));
  }
  std::printf("zerone %s: loss %.6f, after two steps %.6f\n", zerone::version(), first, last);
  return last < first ? 0 : 1;
}
