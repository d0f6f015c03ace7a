// Checks a chain of convolutions against the reference implementations in double precision.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <zerone/zerone.h>

/// y = relu?(conv2d(x, weight, bias)): a layer as the reference computes it. The weight may be that
/// of a linear layer, [c_out, c_in].
struct ReferenceLayer {
  zerone::Parameter weight, bias;  // bias may be undefined
  zerone::Padding padding = 0;
  bool relu = false;
};

/// What a network under test gave on some images.
struct Tested {
  zerone::Tensor x;                         // [n, c, h, w]
  std::vector<zerone::Tensor> activations;  // after each layer, [n, c, h, w]
  zerone::Tensor seed;                      // the gradient of the last activation
  zerone::Tensor dx;                        // undefined if not asked for
};

/// Largest |result - reference| / largest |reference|, over all tensors of a kind. Non-finite
/// results count as infinite errors; where the reference is all zero, so must the result be.
struct Agreement {
  double forward = 0, gradients = 0;
  double tolerance = 0;
  std::string worst;  // the tensor with the largest error
  double error() const { return forward > gradients ? forward : gradients; }
  bool ok() const { return error() <= tolerance; }
};

/// Largest error to be expected of `layers` layers in this arithmetic.
double tolerance(zerone::DType dtype, zerone::Math math, int layers);

class ReferenceCheck {
 public:
  ReferenceCheck(zerone::Device device, int threads);

  /// Compares activations, the layers' gradients (Parameter::grad) and dx.
  ///
  /// Where rounding moves a value across the kink of a ReLU, both sides are right, yet gradients
  /// differ by whole terms. So the reference takes the tested network's side of each kink, after
  /// checking that the activation itself agrees: what is left is rounding alone. The last
  /// evaluation is kept, and serves again when everything it depends on is the same.
  Agreement compare(const std::vector<ReferenceLayer>& layers, const Tested& tested,
                    double tolerance);

 private:
  using Values = std::vector<double>;
  /// The reference's answer, and all that it was computed from.
  struct Evaluation {
    std::vector<Values> inputs;
    std::vector<Values> activations, gradients;  // gradients: weight and bias a layer; the input's
  };
  void evaluate(const std::vector<ReferenceLayer>& layers, const Tested& tested,
                const std::vector<Values>& activations);

  zerone::Context context_;
  Evaluation last_;
  std::vector<std::unique_ptr<zerone::ScopedForce>> forced_;
};

/// First and last image of a batch [n, ...], or the only one: a view.
zerone::Tensor first_and_last(const zerone::Tensor& batch);
/// Fills `seed` (same shape as the network's result) with zeros, and its first and last image with
/// normal numbers: gradients of the whole batch then depend on these two alone, and the reference
/// need not compute the others.
void seed_first_and_last(zerone::Tensor& seed);
