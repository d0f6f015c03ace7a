// zerone's side of safetensors_roundtrip.py.
//
//   safetensors_peer copy IN OUT           reads a file and writes what it read
//   safetensors_peer init MODEL DTYPE      saves the model below with random values
//   safetensors_peer forward MODEL X Y     y = model(x), all three in files; the type is x's
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <zerone/zerone.h>

namespace zerone {
namespace {

/// The network that safetensors_roundtrip.py builds from PyTorch's layers.
nn::Sequential make_model(const Context& context, DType dtype) {
  nn::Sequential model;
  model.emplace<nn::Conv2d>(
      context, nn::Conv2dOptions{
                   .in_channels = 3, .out_channels = 8, .kernel = 3, .padding = 1, .dtype = dtype});
  model.emplace<nn::BatchNorm>(context, nn::BatchNormOptions{.channels = 8, .dtype = dtype});
  model.emplace<nn::ReLU>();
  model.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 8,
                                                       .out_channels = 6,
                                                       .kernel = 3,
                                                       .stride = 2,
                                                       .groups = 2,
                                                       .bias = false,
                                                       .dtype = dtype});
  model.emplace<nn::ReLU>();
  model.emplace<nn::Conv2d>(context,
                            nn::Conv2dOptions{.in_channels = 6, .out_channels = 4, .dtype = dtype});
  model.emplace<nn::Linear>(context,
                            nn::LinearOptions{.in_features = 5, .out_features = 7, .dtype = dtype});
  for (const Parameter& parameter : model.parameters())
    nn::initialize(parameter, nn::Init::kaiming_uniform);
  return model;
}

DType dtype_named(const std::string& name) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    if (to_string(dtype) == name) return dtype;
  throw DTypeError("no floating-point type is called " + name);
}

int run(const std::vector<std::string>& arguments) {
  const Context context;
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command == "copy" && arguments.size() == 3) {
    save_safetensors(load_safetensors(context, arguments[1]), arguments[2],
                     SafetensorsFile(arguments[1]).metadata());
  } else if (command == "init" && arguments.size() == 3) {
    nn::save_module(make_model(context, dtype_named(arguments[2])), arguments[1]);
  } else if (command == "forward" && arguments.size() == 4) {
    const Tensor x = SafetensorsFile(arguments[2]).load(context, "x");
    nn::Sequential model = make_model(context, x.dtype());
    nn::load_module(model, arguments[1]);
    model.eval();
    save_safetensors(std::vector<NamedTensor>{{"y", model(x).value()}}, arguments[3]);
  } else {
    std::cerr << "safetensors_peer: copy IN OUT | init MODEL DTYPE | forward MODEL X Y\n";
    return 2;
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace zerone

int main(int count, char** values) {
  try {
    return zerone::run({values + 1, values + count});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return EXIT_FAILURE;
  }
}
