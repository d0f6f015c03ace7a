// The tape: gradients, what it keeps and releases, its errors, parameters, the gradient checker.
#include <pthread.h>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/contexts.h"
#include "support/errors.h"

namespace zerone {
namespace {

using test::expect_contains;
using test::message_of;

using test::on_every_device;

std::vector<double> values_of(const Tensor& x) {
  return x.to(DType::f64).to_vector<double>();
}

Tensor scalar(const Context& context, double value, DType dtype = DType::f64) {
  return Tensor::full(context, {}, value, dtype);
}

/// A node whose backward is a function.
class CustomNode final : public Node {
 public:
  explicit CustomNode(std::function<void(Gradients&)> function) : function_(std::move(function)) {}
  const char* name() const override { return "custom"; }
  void backward(Gradients& gradients) override { function_(gradients); }

 private:
  std::function<void(Gradients&)> function_;
};

Var custom(Tensor value, std::initializer_list<const Var*> inputs,
           std::function<void(Gradients&)> backward) {
  return Tape::record(std::move(value), inputs, std::make_unique<CustomNode>(std::move(backward)));
}

// --- gradients ----------------------------------------------------------------------------------

TEST(Autograd, H13_SharedNodeIsDifferentiatedOnce) {
  on_every_device([](const Context& context) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      Tape tape;
      const Var x = tape.leaf(scalar(context, 1, dtype)), a = tape.leaf(scalar(context, 1, dtype));
      const Var xa = x * a;
      const Var f = x * xa + (x * x) * a + x * xa;
      EXPECT_EQ(f.value().item(), 3);
      tape.backward(f);
      EXPECT_EQ(tape.grad(x).item(), 6);
      EXPECT_EQ(tape.grad(a).item(), 3);
    }
  });
}

TEST(Autograd, SharedSubexpressionsInEveryCombination) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::from<double>(context, {3}, {1, 2, 3}));
    const Var y = x * x;           // x^2
    const Var z = y + y;           // 2x^2, both inputs one node
    const Var u = z * y - y + x;   // 2x^4 - x^2 + x
    const Var unused = mul(u, u);  // hangs on the tape, is not differentiated
    tape.backward(sum(u));
    EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{8 - 2 + 1, 64 - 4 + 1, 216 - 6 + 1}));
    EXPECT_TRUE(unused.requires_grad());
  });
}

TEST(Autograd, DeepSharingIsLinear) {
  // 2^60 paths, 60 nodes.
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(scalar(context, 1));
    Var y = x;
    for (int i = 0; i < 60; ++i) y = y + y;
    tape.backward(y);
    EXPECT_EQ(tape.grad(x).item(), std::ldexp(1, 60));
  });
}

TEST(Autograd, H16_BroadcastOperandKeepsItsShape) {
  on_every_device([](const Context& context) {
    std::vector<double> a_values;
    for (int i = 1; i <= 12; ++i) a_values.push_back(i);
    const Tensor a = Tensor::from<double>(context, {3, 4}, a_values);
    for (const Shape& shape :
         {Shape{1, 4}, Shape{3, 1}, Shape{4}, Shape{}, Shape{1, 1}, Shape{3, 4}, Shape{1}}) {
      SCOPED_TRACE(to_string(shape));
      std::vector<double> b_values;
      for (int i = 1; i <= shape.numel(); ++i) b_values.push_back(i);
      Tape tape;
      const Var b = tape.leaf(Tensor::from<double>(context, shape, b_values));
      const Var big = tape.leaf(a);
      const Var off = big + b - 100;
      tape.backward(sum(off * off));
      std::vector<double> expected(b_values.size(), 0.0);
      std::vector<double> all;
      const Tensor expanded = b.value().expand({3, 4});
      const std::vector<double> wide = values_of(expanded);
      for (int r = 0; r < 3; ++r)
        for (int c = 0; c < 4; ++c) {
          const std::size_t i = static_cast<std::size_t>(r * 4 + c);
          const double g = 2 * (a_values[i] + wide[i] - 100);
          all.push_back(g);
          std::size_t at = 0;
          if (shape.numel() == 12)
            at = i;
          else if (shape.numel() == 4)
            at = static_cast<std::size_t>(c);
          else if (shape.numel() == 3)
            at = static_cast<std::size_t>(r);
          expected[at] += g;
        }
      EXPECT_EQ(tape.grad(b).shape(), shape);
      EXPECT_EQ(values_of(tape.grad(b)), expected);
      EXPECT_EQ(values_of(tape.grad(big)), all);
    }
  });
}

TEST(Autograd, SeedGradients) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::from<float>(context, {3}, {1, 2, 3}));
    const Var y = x * x;
    tape.backward(y, {.seed = Tensor::from<float>(context, {3}, {1, 10, 100})});
    EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{2, 40, 600}));
  });
}

TEST(Autograd, SeedMustFit) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::from<float>(context, {3}, {1, 2, 3}));
    const Var y = x * x;
    expect_contains(message_of<AutogradError>([&] { tape.backward(y); }), {"seed", "[3]"});
    expect_contains(message_of<AutogradError>(
                        [&] { tape.backward(y, {.seed = Tensor::full(context, {2}, 1)}); }),
                    {"[2]", "[3]"});
    expect_contains(message_of<AutogradError>([&] {
                      tape.backward(y, {.seed = Tensor::full(context, {3}, 1, DType::f64)});
                    }),
                    {"f64", "f32"});
    EXPECT_THROW(tape.backward(y, {.seed = Tensor::full(Context(), {3}, 1)}), DeviceError);
    EXPECT_FALSE(tape.grad(x).defined());
    // Nothing was released by the failures.
    tape.backward(y, {.seed = Tensor::full(context, {3}, 1)});
    EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{2, 4, 6}));
  });
}

TEST(Autograd, ResultMustBeOnTheTape) {
  const Context context;
  Tape tape, other;
  const Var x = tape.leaf(scalar(context, 1)), y = other.leaf(scalar(context, 1));
  EXPECT_THROW(tape.backward(y), AutogradError);
  EXPECT_THROW(tape.backward(scalar(context, 1)), AutogradError);
  EXPECT_THROW(tape.backward(tape.constant(scalar(context, 1))), AutogradError);
  EXPECT_THROW(tape.backward(Var()), AutogradError);
  EXPECT_THROW((void)tape.grad(y), AutogradError);
  EXPECT_THROW((void)tape.grad(x * x), AutogradError);
  EXPECT_THROW((void)tape.leaf(Tensor::full(context, {2}, 1, DType::i64)), DTypeError);
  EXPECT_THROW((void)tape.leaf(Tensor()), Error);
  tape.backward(x);  // a leaf is its own gradient
  EXPECT_EQ(tape.grad(x).item(), 1);
}

TEST(Autograd, UnreachedLeafHasNoGradient) {
  const Context context;
  Tape tape;
  const Var x = tape.leaf(scalar(context, 2)), y = tape.leaf(scalar(context, 3));
  tape.backward(x * x);
  EXPECT_TRUE(tape.grad(x).defined());
  EXPECT_FALSE(tape.grad(y).defined());
}

TEST(Autograd, ConstantsGetNoGradientWork) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {2}, 3));
    const Var c = tape.constant(Tensor::full(context, {2}, 5));
    const std::size_t before = tape.size();
    const Var cc = c * c;
    EXPECT_EQ(tape.size(), before);
    EXPECT_FALSE(cc.requires_grad());
    bool wanted_x = false, wanted_c = true;
    const Var y = custom(mul(x.value(), cc.value()).value(), {&x, &cc}, [&](Gradients& g) {
      wanted_x = g.needs(0), wanted_c = g.needs(1);
      g.give(0, g.output());
      g.give(1, Tensor::full(context, {9, 9}, 1));  // not looked at
    });
    tape.backward(sum(y));
    EXPECT_TRUE(wanted_x);
    EXPECT_FALSE(wanted_c);
  });
}

// --- the path without a tape --------------------------------------------------------------------

TEST(Autograd, PlainTensorsRecordNothing) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::full(context, {2, 2}, 3);
    const Var y = relu(x * Var(x)) + x;
    EXPECT_EQ(y.tape(), nullptr);
    EXPECT_FALSE(y.requires_grad());
    EXPECT_EQ(values_of(y), std::vector<double>(4, 12.0));
    Tape tape;
    const Var leaf = tape.leaf(x);
    (void)(y * y);
    EXPECT_EQ(tape.size(), 1u);
    EXPECT_EQ((leaf * y).tape(), &tape);
    EXPECT_EQ(tape.size(), 2u);
  });
}

TEST(Autograd, TensorsInANetworkWithoutATapeAreFreed) {
  const Context context;
  const Tensor x = Tensor::full(context, {1000}, 1);
  const std::size_t before = context.memory().live;
  Var y = x;
  for (int i = 0; i < 10; ++i) y = relu(y * 1.5);
  EXPECT_LE(context.memory().live, before + 2 * 4096 + 1024);
}

// --- lifetimes and misuse -----------------------------------------------------------------------

TEST(Autograd, VarOutlivingItsTapeIsAnError) {
  on_every_device([](const Context& context) {
    Var x, y;
    {
      Tape tape;
      x = tape.leaf(scalar(context, 2));
      y = x * x;
    }
    EXPECT_EQ(y.value().item(), 4);  // its value is still there
    expect_contains(message_of<AutogradError>([&] { (void)(y * y); }), {"tape"});
    EXPECT_THROW((void)y.tape(), AutogradError);
    Tape other;
    EXPECT_THROW(other.backward(y), AutogradError);
    EXPECT_THROW((void)other.grad(x), AutogradError);
    EXPECT_EQ((Var(y.value()) * y.value()).value().item(), 16);
  });
}

TEST(Autograd, DifferentTapesDoNotMix) {
  const Context context;
  Tape a, b;
  const Var x = a.leaf(scalar(context, 2)), y = b.leaf(scalar(context, 3));
  expect_contains(message_of<AutogradError>([&] { (void)(x * y); }), {"mul", "tapes"});
  EXPECT_THROW((void)mul(x, b.constant(scalar(context, 1))), AutogradError);
  a.backward(x * x);
  EXPECT_EQ(a.grad(x).item(), 4);
}

TEST(Autograd, H14_WrittenOutputOfReluIsAnError) {
  // relu keeps its output.
  on_every_device([](const Context& context) {
    Tape tape;
    const Var a = tape.leaf(Tensor::from<double>(context, {3}, {1, 2, 3}));
    const Var b = relu(a);
    Tensor(b.value()).slice(0, 1, 2).fill_(2);
    expect_contains(message_of<AutogradError>([&] { tape.backward(sum(b)); }),
                    {"relu", "output", "[3]", "version"});
    EXPECT_FALSE(tape.grad(a).defined());
  });
}

TEST(Autograd, H14_WrittenInputOfMulIsAnError) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var a = tape.leaf(Tensor::from<double>(context, {3}, {1, 2, 3}));
    const Var c = tape.leaf(Tensor::from<double>(context, {3}, {4, 5, 6}));
    const Var b = a * c;
    Tensor(c.value()).slice(0, 1, 2).fill_(2);
    expect_contains(message_of<AutogradError>([&] { tape.backward(sum(b)); }), {"mul", "[3]"});
  });
}

TEST(Autograd, H14_WrittenOutputThatNobodyKeptIsFine) {
  on_every_device([](const Context& context) {
    // mul keeps its inputs, add nothing: writing their outputs is allowed.
    Tape tape;
    const Var a = tape.leaf(Tensor::from<double>(context, {3}, {1, 2, 3}));
    const Var b = a * a;
    Tensor(b.value()).slice(0, 1, 2).fill_(2);
    const Var c = b + a;
    Tensor(c.value()).fill_(0);
    tape.backward(sum(c));
    EXPECT_EQ(values_of(tape.grad(a)), (std::vector<double>{3, 5, 7}));
  });
}

TEST(Autograd, H14_WritesAreSeenThroughViewsAndPointers) {
  on_every_device([](const Context& context) {
    const std::function<void(Tensor)> writes[] = {
        [](Tensor x) {
          x.reshape({4, 1}).slice(0, 3, 4).fill_(0);
        },
        [](Tensor x) {
          (void)x.permute({1, 0}).mutable_data();
        },
        [](Tensor x) { x.mark_modified(); }, [](Tensor x) { x.add_(x.clone()); },
        [&](Tensor x) { x.copy_(Tensor::full(context, {}, 1)); }};
    for (const auto& write : writes) {
      Tape tape;
      const Var a = tape.leaf(Tensor::full(context, {2, 2}, 2));
      const Var loss = sum(a * a);
      write(a.value());
      EXPECT_THROW(tape.backward(loss), AutogradError);
    }
  });
}

TEST(Autograd, H14_ConvolutionNoticesAWrittenWeight) {
  on_every_device([](const Context& context) {
    for (const std::int64_t kernel : {1, 3}) {
      Tape tape;
      const Var x = tape.leaf(Tensor::full(context, {1, 2, 5, 5}, 1));
      const Var w = tape.leaf(Tensor::full(context, {2, 2, kernel, kernel}, 1));
      const Var loss = sum(conv2d(x, w));
      Tensor(w.value()).fill_(3);
      expect_contains(message_of<AutogradError>([&] { tape.backward(loss); }),
                      {"conv2d", "weight"});
    }
  });
}

TEST(Autograd, H15_SecondBackwardSaysHowToRetain) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::uniform(context, {5, 3, 8, 8}));
    const Var w = tape.leaf(Tensor::uniform(context, {10, 3, 4, 4}));
    const Var b = tape.leaf(Tensor::uniform(context, {10}));
    const Var loss = sum(conv2d(x, w, b, {.stride = 2, .padding = 1, .math = {}}));
    tape.backward(loss);
    const std::vector<double> dw = values_of(tape.grad(w));
    expect_contains(message_of<AutogradError>([&] { tape.backward(loss); }),
                    {"released", "retain"});
    EXPECT_EQ(values_of(tape.grad(w)), dw) << "the failed call changed a gradient";
    // The device is usable.
    EXPECT_EQ(add(w.value(), w.value()).value().numel(), w.value().numel());
  });
}

TEST(Autograd, H15_RetainDoublesExactly) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::uniform(context, {5, 3, 8, 8}));
    const Var w = tape.leaf(Tensor::uniform(context, {10, 3, 4, 4}));
    const Var b = tape.leaf(Tensor::uniform(context, {10}));
    const Var loss = sum(conv2d(x, w, b, {.stride = 2, .padding = 1, .math = {}}));
    tape.backward(loss, {.seed = {}, .retain = true});
    std::vector<std::vector<double>> once;
    for (const Var& leaf : {x, w, b}) once.push_back(values_of(tape.grad(leaf)));
    tape.backward(loss);
    std::size_t i = 0;
    for (const Var& leaf : {x, w, b}) {
      std::vector<double> doubled = once[i++];
      for (double& value : doubled) value *= 2;
      EXPECT_EQ(values_of(tape.grad(leaf)), doubled);
    }
    EXPECT_THROW(tape.backward(loss), AutogradError);
  });
}

TEST(Autograd, BackwardReleasesWhatNodesKept) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {1 << 16}, 1));
    Var loss;
    {
      Var y = x;
      for (int i = 0; i < 8; ++i) y = relu(y);  // each keeps 256 KiB
      loss = sum(y);
    }
    const std::size_t before = context.memory().live;
    tape.backward(loss);
    EXPECT_LE(context.memory().live + (std::size_t{6} << 18), before);
    EXPECT_EQ(values_of(tape.grad(x))[77], 1);
  });
}

/// A quarter of a million recorded operations, differentiated if `backward`, and dropped.
double long_chain(const Context& context, bool backward) {
  Tape tape;
  const Var x = tape.leaf(Tensor::full(context, {9}, 1, DType::f64));
  Var y = x;
  for (int i = 0; i < 200000; ++i) y = y + y * 0.002;
  if (!backward) return 0;
  tape.backward(sum(y));
  return values_of(tape.grad(x))[0];
}

TEST(Autograd, H17_LongChains) {
  const Context context;
  const double gradient = long_chain(context, true);
  EXPECT_TRUE(std::isfinite(gradient));
  EXPECT_NEAR(std::log(gradient) / 200000, std::log(1.002), 1e-9);
  long_chain(context, false);
}

TEST(Autograd, H17_LongChainsOnASmallStack) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
  pthread_t thread;
  double gradient = 0;
  const int started = pthread_create(
      &thread, &attributes,
      [](void* result) -> void* {
        ContextOptions options;
        options.threads = 1;
        const Context context(Device::cpu(), options);
        *static_cast<double*>(result) = long_chain(context, true);
        long_chain(context, false);
        return nullptr;
      },
      &gradient);
  ASSERT_EQ(started, 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_NEAR(std::log(gradient) / 200000, std::log(1.002), 1e-9);
}

// --- what a node gives --------------------------------------------------------------------------

TEST(Autograd, GradientsMustFitTheInput) {
  on_every_device([](const Context& context) {
    const auto given = [&](const Tensor& gradient) {
      Tape tape;
      const Var x = tape.leaf(Tensor::full(context, {2, 3}, 1));
      const Var y =
          custom(Tensor::full(context, {}, 1), {&x}, [&](Gradients& g) { g.give(0, gradient); });
      tape.backward(y);
    };
    expect_contains(message_of<AutogradError>([&] {
                      given(Tensor::full(context, {3, 2}, 1));
                    }),
                    {"custom", "[3, 2]", "[2, 3]"});
    expect_contains(message_of<AutogradError>([&] {
                      given(Tensor::full(context, {2, 3}, 1, DType::f64));
                    }),
                    {"custom", "f64", "f32"});
    EXPECT_NO_THROW(given(Tensor::full(context, {2, 3}, 1)));
  });
}

TEST(Autograd, ExceptionInBackwardKeepsEarlierGradients) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(scalar(context, 3));
    const Var good = x * x;
    tape.backward(good);
    bool fails = true;
    const Var bad = custom(scalar(context, 1), {&x}, [&](Gradients& g) {
      if (fails) throw std::logic_error("on purpose");
      g.give(0, g.output());
    });
    EXPECT_THROW(tape.backward(bad + x), std::logic_error);
    EXPECT_EQ(tape.grad(x).item(), 6);
    fails = false;
    tape.backward(bad);
    EXPECT_EQ(tape.grad(x).item(), 7);
  });
}

TEST(Autograd, SharedGradientsAreNotAddedToInPlace) {
  on_every_device([](const Context& context) {
    // add hands one gradient to both operands; p and q then collect more on their own.
    Tape tape;
    const Var p = tape.leaf(Tensor::from<float>(context, {2}, {1, 2}));
    const Var q = tape.leaf(Tensor::from<float>(context, {2}, {3, 4}));
    const Var first = p * 10.0, second = q * 100.0;  // recorded before: added after
    const Var both = p + q;
    tape.backward(sum(first + second + both + both));
    EXPECT_EQ(values_of(tape.grad(p)), (std::vector<double>{12, 12}));
    EXPECT_EQ(values_of(tape.grad(q)), (std::vector<double>{102, 102}));
  });
}

TEST(Autograd, AddOfOneVarTwice) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::from<float>(context, {2}, {1, 2}));
    const Var y = x + x, z = x - x;
    tape.backward(y + z, {.seed = Tensor::from<float>(context, {2}, {1, 7})});
    EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{2, 14}));
  });
}

TEST(Autograd, TheSeedIsNotWritten) {
  on_every_device([](const Context& context) {
    const Tensor seed = Tensor::from<float>(context, {2}, {1, 7});
    Tape tape;
    const Var x = tape.leaf(Tensor::from<float>(context, {2}, {1, 2}));
    const Var y = (x + x) + x;
    for (int i = 1; i <= 3; ++i) {
      tape.backward(y, {.seed = seed, .retain = true});
      EXPECT_EQ(values_of(seed), (std::vector<double>{1, 7}));
      EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{3.0 * i, 21.0 * i}));
    }
    // A leaf as the result gets the seed itself.
    Tape direct;
    const Var leaf = direct.leaf(Tensor::from<float>(context, {2}, {1, 2}));
    direct.backward(leaf, {.seed = seed, .retain = true});
    direct.backward(leaf, {.seed = seed, .retain = true});
    EXPECT_EQ(values_of(seed), (std::vector<double>{1, 7}));
    EXPECT_EQ(values_of(direct.grad(leaf)), (std::vector<double>{2, 14}));
  });
}

TEST(Autograd, GradientsOfTwoLeavesAreIndependentAcrossCalls) {
  // After the first call both leaves hold one and the same gradient tensor.
  on_every_device([](const Context& context) {
    Tape tape;
    const Var p = tape.leaf(Tensor::from<float>(context, {2}, {1, 2}));
    const Var q = tape.leaf(Tensor::from<float>(context, {2}, {3, 4}));
    const Tensor one = Tensor::full(context, {2}, 1);
    tape.backward(p + q, {.seed = one, .retain = false});
    tape.backward(p * 10.0, {.seed = one, .retain = false});
    EXPECT_EQ(values_of(tape.grad(p)), (std::vector<double>{11, 11}));
    EXPECT_EQ(values_of(tape.grad(q)), (std::vector<double>{1, 1}));
    EXPECT_EQ(values_of(one), (std::vector<double>{1, 1}));
    const Tensor kept = tape.grad(p);  // a user's handle is not written behind his back
    tape.backward(p * 10.0, {.seed = one, .retain = false});
    EXPECT_EQ(values_of(kept), (std::vector<double>{11, 11}));
    EXPECT_EQ(values_of(tape.grad(p)), (std::vector<double>{21, 21}));
  });
}

TEST(Autograd, RepeatedGradientsOfASumAddUp) {
  // The gradient of a sum is one number, expanded: not a tensor to add to in place.
  on_every_device([](const Context& context) {
    const Parameter parameter(Tensor::full(context, {3, 4}, 2));
    for (int i = 1; i <= 3; ++i) {
      Tape tape;
      tape.backward(sum(tape.parameter(parameter)));
      EXPECT_EQ(values_of(parameter.grad()), std::vector<double>(12, i));
    }
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {3, 4}, 2));
    const Var loss = sum(x);
    for (int i = 1; i <= 3; ++i) {
      tape.backward(loss, {.seed = {}, .retain = true});
      EXPECT_EQ(values_of(tape.grad(x)), std::vector<double>(12, i));
    }
  });
}

TEST(Autograd, GivingASavedTensorDoesNotExposeItToWrites) {
  on_every_device([](const Context& context) {
    const Tensor factor = Tensor::from<float>(context, {2}, {5, 6});
    Tape tape;
    const Var x = tape.leaf(Tensor::from<float>(context, {2}, {1, 2}));
    const Var more = x * 1.0;
    const Var y =
        custom(sum(mul(x.value(), factor)).value(), {&x}, [&](Gradients& g) { g.give(0, factor); });
    tape.backward(y + sum(more));
    EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{6, 7}));
    EXPECT_EQ(values_of(factor), (std::vector<double>{5, 6}));
  });
}

TEST(Autograd, KnownZeroGradients) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {4}, 1));
    const Var none = custom(Tensor::full(context, {4}, 1), {&x},
                            [&](Gradients& g) { g.give(0, Tensor::zeros(context, {4})); });
    tape.backward(sum(none + x));
    EXPECT_EQ(values_of(tape.grad(x)), std::vector<double>(4, 1.0));
    Tape again;
    const Var z = again.leaf(Tensor::full(context, {4}, 1));
    again.backward(z, {.seed = Tensor::zeros(context, {4})});
    EXPECT_EQ(values_of(again.grad(z)), std::vector<double>(4, 0.0));
  });
}

TEST(Autograd, ViewsPassGradients) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {2, 3}, 1));
    const Var y = slice(reshape(contiguous(permute(x, {1, 0})), {6}), 0, 1, 6, 2);
    tape.backward(y, {.seed = Tensor::from<float>(context, {3}, {1, 2, 3})});
    // Positions 1, 3, 5 of the transposed order are x[1][0], x[1][1], x[1][2].
    EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{0, 0, 0, 1, 2, 3}));
  });
}

// --- parameters ---------------------------------------------------------------------------------

TEST(Parameters, CollectOverBackwardCallsAndTapes) {
  on_every_device([](const Context& context) {
    const Parameter w(Tensor::from<float>(context, {2}, {1, 2}), "w");
    EXPECT_FALSE(w.grad().defined());
    const auto step = [&] {
      Tape tape;
      const Var v = tape.parameter(w);
      tape.backward(sum(v * v));
      EXPECT_EQ(tape.grad(v).data(), w.grad().data());
    };
    step();
    EXPECT_EQ(values_of(w.grad()), (std::vector<double>{2, 4}));
    step();
    EXPECT_EQ(values_of(w.grad()), (std::vector<double>{4, 8}));
    w.zero_grad();
    EXPECT_FALSE(w.grad().defined());
    step();
    EXPECT_EQ(values_of(w.grad()), (std::vector<double>{2, 4}));
  });
}

TEST(Parameters, HaveOneLeafATape) {
  on_every_device([](const Context& context) {
    const Parameter w(Tensor::from<float>(context, {2}, {1, 2}));
    Tape tape;
    const Var a = tape.parameter(w), b = tape.parameter(w);
    EXPECT_EQ(tape.size(), 1u);
    const Var x = tape.leaf(Tensor::full(context, {2}, 3));
    EXPECT_EQ(x.with(w).tape(), &tape);
    EXPECT_EQ(tape.size(), 2u);
    tape.backward(sum(a * b + x * x.with(w)));
    EXPECT_EQ(values_of(w.grad()), (std::vector<double>{5, 7}));
    EXPECT_EQ(Var(x.value()).with(w).tape(), nullptr);
    EXPECT_FALSE(x.with(Parameter()).defined());
  });
}

TEST(Parameters, FrozenOnesGetNoGradient) {
  on_every_device([](const Context& context) {
    const Parameter w(Tensor::full(context, {2}, 2));
    w.set_requires_grad(false);
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {2}, 3));
    tape.backward(sum(x * x.with(w)));
    EXPECT_FALSE(w.grad().defined());
    EXPECT_EQ(values_of(tape.grad(x)), (std::vector<double>{2, 2}));
    Tape inference;
    const Var v = inference.parameter(w);
    EXPECT_FALSE((v * v).requires_grad());
    EXPECT_EQ(inference.size(), 0u);
  });
}

TEST(Parameters, SharedGradientsStayApart) {
  on_every_device([](const Context& context) {
    const Parameter p(Tensor::full(context, {2}, 1)), q(Tensor::full(context, {2}, 1));
    const Tensor seed = Tensor::full(context, {2}, 1);
    {
      Tape tape;
      tape.backward(tape.parameter(p) + tape.parameter(q), {.seed = seed, .retain = false});
    }
    {
      Tape tape;
      tape.backward(tape.parameter(p) * 5.0, {.seed = seed, .retain = false});
    }
    EXPECT_EQ(values_of(p.grad()), (std::vector<double>{6, 6}));
    EXPECT_EQ(values_of(q.grad()), (std::vector<double>{1, 1}));
    EXPECT_EQ(values_of(seed), (std::vector<double>{1, 1}));
  });
}

TEST(Parameters, MaskZeroesAtOnce) {
  on_every_device([](const Context& context) {
    const Parameter w(Tensor::from<float>(context, {2, 3}, {1, 2, 3, 4, 5, 6}), "layer.weight");
    EXPECT_FALSE(w.mask().defined());
    w.set_mask(Tensor::from<std::uint8_t>(context, {2, 3}, {1, 0, 1, 0, 0, 1}));
    EXPECT_EQ(values_of(w.value()), (std::vector<double>{1, 0, 3, 0, 0, 6}));
    EXPECT_EQ(values_of(w.mask()), (std::vector<double>{1, 0, 1, 0, 0, 1}));
    expect_contains(message_of<ShapeError>([&] {
                      w.set_mask(Tensor::full(context, {3, 2}, 1, DType::u8));
                    }),
                    {"layer.weight", "[3, 2]", "[2, 3]"});
    EXPECT_THROW(w.set_mask(Tensor::full(context, {2, 3}, 1)), Error);
    EXPECT_THROW(w.set_mask(Tensor::full(Context(), {2, 3}, 1, DType::u8)), DeviceError);
    EXPECT_EQ(values_of(w.mask()), (std::vector<double>{1, 0, 1, 0, 0, 1}));
    nn::initialize(w, nn::Init::kaiming_normal);
    EXPECT_EQ(values_of(w.value())[1], 0);
    EXPECT_NE(values_of(w.value())[0], 0);
  });
}

TEST(Parameters, MaskOfAPermutedValue) {
  on_every_device([](const Context& context) {
    const Parameter w(
        Tensor::from<float>(context, {2, 3}, {1, 2, 3, 4, 5, 6}).permute({1, 0}));  // 3 x 2
    w.set_mask(Tensor::from<std::uint8_t>(context, {3, 2}, {1, 0, 0, 1, 1, 0}));
    EXPECT_EQ(values_of(w.value()), (std::vector<double>{1, 0, 0, 5, 3, 0}));
    EXPECT_EQ(w.mask().layout(), w.value().layout());
  });
}

// --- the gradient checker -----------------------------------------------------------------------

TEST(Gradcheck, PassesOnRightGradients) {
  on_every_device([](const Context& context) {
    const Tensor a = Tensor::from<double>(context, {2, 3}, {1, -2, 3, 4, -5, 6});
    const Tensor b = Tensor::from<double>(context, {3}, {2, 3, -1});
    const auto function = [](std::span<const Var> in) { return in[0] * in[1] + relu(in[0]); };
    const GradcheckResult result = gradcheck(function, {a, b});
    EXPECT_TRUE(result.passed) << result.message;
    EXPECT_LT(result.max_error, 1e-6);
    EXPECT_EQ(values_of(a), (std::vector<double>{1, -2, 3, 4, -5, 6}));
    // Quadratic, integers, step 1: exact.
    const auto square = [](std::span<const Var> in) { return in[0] * in[0] * 3.0; };
    const GradcheckResult exact = gradcheck(square, {a}, {.step = 1, .relative = 0, .absolute = 0});
    EXPECT_TRUE(exact.passed) << exact.message;
    EXPECT_EQ(exact.max_error, 0);
  });
}

TEST(Gradcheck, FailsOnWrongGradients) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::from<double>(context, {4}, {1, -2, 3, 4});
    const auto square = [](const Var& in, const std::function<Tensor(const Tensor&)>& derivative) {
      const Tensor value = in.value();
      return custom(mul(value, value).value(), {&in}, [value, derivative](Gradients& g) {
        g.give(0, mul(g.output(), derivative(value)).value());
      });
    };
    const auto check = [&](const std::function<Tensor(const Tensor&)>& derivative) {
      return gradcheck([&](std::span<const Var> in) { return square(in[0], derivative); }, {x});
    };
    EXPECT_TRUE(check([](const Tensor& v) { return affine(v, 2).value(); }).passed);
    const GradcheckResult factor = check([](const Tensor& v) { return affine(v, 2.01).value(); });
    EXPECT_FALSE(factor.passed);
    EXPECT_GT(factor.max_error, 1e-3);
    expect_contains(factor.message, {"input 0", "element"});
    EXPECT_FALSE(check([](const Tensor& v) { return affine(v, -2).value(); }).passed);
    // Wrong in a single element.
    EXPECT_FALSE(check([](const Tensor& v) {
                   Tensor d = affine(v, 2).value();
                   d.slice(0, 2, 3).fill_(0);
                   return d;
                 }).passed);
    // NaN is not close to anything.
    EXPECT_FALSE(check([](const Tensor& v) { return affine(v, std::nan("")).value(); }).passed);
    // A gradient that never comes.
    EXPECT_FALSE(gradcheck(
                     [](std::span<const Var> in) {
                       return custom(mul(in[0].value(), in[0].value()).value(), {&in[0]},
                                     [](Gradients&) {});
                     },
                     {x})
                     .passed);
  });
}

TEST(Gradcheck, TakesOnlyF64) {
  const Context context;
  const auto function = [](std::span<const Var> in) { return in[0]; };
  EXPECT_THROW(gradcheck(function, {Tensor::full(context, {2}, 1)}), DTypeError);
  EXPECT_THROW(gradcheck(function, {Tensor()}), DTypeError);
}

}  // namespace
}  // namespace zerone
