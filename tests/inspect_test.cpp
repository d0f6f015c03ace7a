// Tools on the tape: gradient hooks, the finder of NaN, what a tape prints, what it keeps in
// memory.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/errors.h"

namespace zerone {
namespace {

using test::expect_contains;
using test::message_of;
using test::on_every_device;
using test::values_of;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

/// An operation whose gradient function is given; it keeps `kept`.
class CustomNode final : public Node {
 public:
  CustomNode(const std::vector<Tensor>& kept, std::function<void(Gradients&)> function)
      : function_(std::move(function)) {
    for (const Tensor& tensor : kept) kept_.push_back(Saved(tensor));
  }
  const char* name() const override { return "custom"; }
  void backward(Gradients& gradients) override { function_(gradients); }

 private:
  std::vector<Saved> kept_;
  std::function<void(Gradients&)> function_;
};

Var custom(Tensor value, std::initializer_list<const Var*> inputs, const std::vector<Tensor>& kept,
           std::function<void(Gradients&)> backward = {}) {
  return Tape::record(std::move(value), inputs,
                      std::make_unique<CustomNode>(kept, std::move(backward)));
}

// --- hooks --------------------------------------------------------------------------------------

TEST(Hooks, SeeTheCompleteGradientAndMayReplaceIt) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::from<float>(context, {2}, {1, 2}));
    const Var y = x * 3.0;
    const Var z = y * y + y;  // three contributions to dy
    std::vector<Values> seen;
    tape.hook(y, [&](const Tensor& gradient) {
      seen.push_back(values_of(gradient));
      return Tensor();
    });
    tape.hook(y, [&](const Tensor& gradient) { return affine(gradient, 10).value(); });
    tape.hook(y, [&](const Tensor& gradient) {
      seen.push_back(values_of(gradient));
      return Tensor();
    });
    tape.hook(z, [&](const Tensor& gradient) {
      seen.push_back(values_of(gradient));
      return Tensor();
    });
    tape.backward(z, {.seed = Tensor::full(context, {2}, 1), .retain = false});
    EXPECT_EQ(seen, (std::vector<Values>{{1, 1}, {7, 13}, {70, 130}}));
    EXPECT_EQ(values_of(tape.grad(x)), (Values{210, 390}));
  });
}

TEST(Hooks, OnLeavesAndParametersSeeWhatThisBackwardContributes) {
  on_every_device([](const Context& context) {
    const Parameter w(Tensor::from<float>(context, {2}, {1, 2}), "w");
    const Tensor seed = Tensor::full(context, {2}, 1);
    for (int step = 1; step <= 2; ++step) {
      Tape tape;
      const Var v = tape.parameter(w), x = tape.leaf(Tensor::full(context, {2}, 5));
      std::vector<Values> seen;
      const auto note = [&](const Tensor& gradient) {
        seen.push_back(values_of(gradient));
        return affine(gradient, 2).value();
      };
      tape.hook(v, note);
      tape.hook(tape.parameter(w), note);  // the same leaf
      tape.hook(x, note);
      const Var y = v * x;
      tape.backward(y, {.seed = seed, .retain = true});
      EXPECT_EQ(seen, (std::vector<Values>{{1, 2}, {5, 5}, {10, 10}}));
      tape.backward(y, {.seed = seed, .retain = true});
      EXPECT_EQ(seen.size(), 6u);
      EXPECT_EQ(seen.back(), (Values{10, 10}));
      EXPECT_EQ(values_of(tape.grad(x)), (Values{4, 8}));
      EXPECT_EQ(values_of(w.grad()), (Values{40.0 * step, 40.0 * step}));
    }
    EXPECT_EQ(values_of(seed), (Values{1, 1}));
  });
}

TEST(Hooks, AReplacementIsNotWrittenLater) {
  on_every_device([](const Context& context) {
    const Tensor mine = Tensor::from<float>(context, {2}, {7, 8});
    const Parameter p(Tensor::full(context, {2}, 1));
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {2}, 1)), v = tape.parameter(p);
    for (const Var& var : {x, v}) tape.hook(var, [&](const Tensor&) { return mine; });
    for (int i = 1; i <= 3; ++i) {
      tape.backward(x + v, {.seed = Tensor::full(context, {2}, 1), .retain = false});
      EXPECT_EQ(values_of(tape.grad(x)), (Values{7.0 * i, 8.0 * i}));
      EXPECT_EQ(values_of(p.grad()), (Values{7.0 * i, 8.0 * i}));
    }
    EXPECT_EQ(values_of(mine), (Values{7, 8}));
  });
}

TEST(Hooks, AreNotCalledWhereNoGradientComes) {
  const Context context;
  Tape tape;
  const Var x = tape.leaf(Tensor::full(context, {}, 1)), unused = tape.leaf(x.value());
  int calls = 0;
  const auto count = [&](const Tensor&) {
    ++calls;
    return Tensor();
  };
  tape.hook(unused, count);
  const Var above = x * 2.0;
  tape.hook(above * 2.0, count);
  tape.backward(above);
  EXPECT_EQ(calls, 0);
}

TEST(Hooks, MayAddHooks) {
  const Context context;
  Tape tape;
  const Var x = tape.leaf(Tensor::full(context, {}, 1));
  std::vector<int> order;
  tape.hook(x, [&](const Tensor&) {
    order.push_back(1);
    for (int i = 0; i < 100; ++i)
      tape.hook(x, [&](const Tensor&) {
        order.push_back(2);
        return Tensor();
      });
    return Tensor();
  });
  tape.backward(x * 2.0);
  EXPECT_EQ(order.size(), 101u);
  EXPECT_EQ(order[0], 1);
}

TEST(Hooks, Errors) {
  on_every_device([](const Context& context) {
    Tape tape, other;
    const Var x = tape.leaf(Tensor::full(context, {2}, 1)), c = tape.constant(x.value());
    const auto none = [](const Tensor&) { return Tensor(); };
    EXPECT_THROW(tape.hook(c, none), AutogradError);
    EXPECT_THROW(tape.hook(x.value(), none), AutogradError);
    EXPECT_THROW(other.hook(x, none), AutogradError);
    EXPECT_THROW(tape.hook(x, {}), AutogradError);
    const Tensor seed = Tensor::full(context, {2}, 1);
    const Var y = x * 2.0;
    Tensor replacement = Tensor::full(context, {3}, 1);
    tape.hook(y, [&](const Tensor&) { return replacement; });
    const auto run = [&] { tape.backward(y, {.seed = seed, .retain = true}); };
    expect_contains(message_of<AutogradError>(run), {"hook", "affine", "[3]", "[2]"});
    replacement = Tensor::full(context, {2}, 1, DType::f64);
    expect_contains(message_of<AutogradError>(run), {"hook", "f64", "f32"});
    replacement = Tensor::full(Context(), {2}, 1);
    EXPECT_THROW(run(), DeviceError);
    EXPECT_FALSE(tape.grad(x).defined());
    replacement = Tensor::full(context, {2}, 5);
    run();  // the failures left the tape as it was
    EXPECT_EQ(values_of(tape.grad(x)), (Values{10, 10}));
  });
}

// --- the finder of NaN --------------------------------------------------------------------------

TEST(FindNan, NamesTheFirstEntryForward) {
  on_every_device([](const Context& context) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(to_string(dtype));
      Tape tape;
      find_nan(tape);
      const Var x = tape.leaf(test::make_tensor(context, {2, 3}, {1, 2, 3, 4, 5, 6}, dtype));
      const Var y = relu(x);
      Tensor poison = test::make_tensor(context, {2, 3}, {0, 0, 0, 0, inf, 0}, dtype);
      expect_contains(message_of<AutogradError>([&] { (void)(y * poison); }),
                      {"forward", "entry 2", "mul", "[2, 3]", to_string(dtype), "[1, 1]", "inf"});
      poison = test::make_tensor(context, {2, 3}, {0, 0, nan, 0, inf, 0}, dtype);
      expect_contains(message_of<AutogradError>([&] { (void)(y + poison); }),
                      {"forward", "entry 2", "add", "[0, 2]", "nan"});
      expect_contains(message_of<AutogradError>([&] { (void)tape.leaf(poison); }),
                      {"entry 2", "leaf"});
      // Nothing of that stands on the tape: it goes on.
      EXPECT_EQ(tape.size(), 2u);
      tape.backward(y, {.seed = Tensor::full(context, {2, 3}, 1, dtype), .retain = false});
      EXPECT_EQ(values_of(tape.grad(x)), Values(6, 1.0));
    }
  });
}

TEST(FindNan, SeesEveryLayoutAndTheLargestFiniteNumbersAreFine) {
  on_every_device([](const Context& context) {
    Tape tape;
    find_nan(tape);
    const Tensor base =
        Tensor::from<float>(context, {2, 3},
                            {1, static_cast<float>(nan), std::numeric_limits<float>::max(), -0.f, 5,
                             std::numeric_limits<float>::denorm_min()});
    (void)tape.leaf(base.slice(1, 2, 3));
    (void)tape.leaf(base.slice(0, 1, 2));
    (void)tape.leaf(Tensor::empty(context, {0, 3}));
    (void)tape.leaf(Tensor::zeros(context, {4}));
    (void)tape.leaf(Tensor::from<f16>(context, {1}, {f16(65504.f)}));
    expect_contains(message_of<AutogradError>([&] {
                      (void)tape.leaf(base.permute({1, 0}));
                    }),
                    {"[1, 0]"});
    expect_contains(message_of<AutogradError>([&] {
                      (void)tape.leaf(base.slice(1, 1, 2).expand({2, 7}));
                    }),
                    {"[0, 0]"});
  });
}

TEST(FindNan, NamesWhatMadeAGradientInReverseOrder) {
  on_every_device([](const Context& context) {
    Tape tape;
    find_nan(tape);
    const Tensor one = Tensor::full(context, {2}, 1);
    const Var x = tape.leaf(one);                            // 0
    const Var a = custom(one, {&x}, {}, [&](Gradients& g) {  // 1: would be wrong, too
      g.give(0, Tensor::full(context, {2}, nan));
    });
    const Var b = custom(one, {&a, &x}, {}, [&](Gradients& g) {  // 2: the culprit
      g.give(1, g.output());
      g.give(0, Tensor::from<float>(context, {2}, {1, static_cast<float>(-inf)}));
    });
    const Var c = sum(b);  // 3
    expect_contains(message_of<AutogradError>([&] { tape.backward(c); }),
                    {"backward", "entry 2 (custom)", "entry 1 (custom)", "[2]", "[1]", "-inf"});
    EXPECT_FALSE(tape.grad(x).defined());
    expect_contains(message_of<AutogradError>([&] {
                      tape.backward(c, {.seed = Tensor::full(context, {}, nan), .retain = true});
                    }),
                    {"the seed", "entry 3 (sum)"});
  });
}

TEST(FindNan, AnOverflowingSumOfGradientsIsFound) {
  on_every_device([](const Context& context) {
    Tape tape;
    find_nan(tape);
    const Tensor one = Tensor::full(context, {1}, 1, DType::f16);
    const Var x = tape.leaf(one);
    const auto large = [&](Gradients& g) {
      g.give(0, Tensor::full(context, {1}, 60000, DType::f16));
    };
    const Var a = custom(one, {&x}, {}, large), b = custom(one, {&x}, {}, large);
    expect_contains(message_of<AutogradError>([&] {
                      tape.backward(custom(one, {&a, &b}, {}, [](Gradients& g) {
                        g.give(0, g.output());
                        g.give(1, g.output());
                      }));
                    }),
                    {"entry 1", "entry 0", "inf"});
  });
}

TEST(FindNan, InfinitiesMayBeAllowedAndOffMeansOff) {
  on_every_device([](const Context& context) {
    Tape tape;
    find_nan(tape, NonFinite::nan);
    const Var x = tape.leaf(Tensor::full(context, {2}, inf));
    EXPECT_THROW((void)(x - x), AutogradError);
    tape.observe(nullptr);
    EXPECT_TRUE(std::isnan(values_of(x - x)[0]));
    Tape off;
    (void)off.leaf(Tensor::full(context, {2}, nan));
  });
}

// --- memory -------------------------------------------------------------------------------------

TEST(ActivationMemoryReport, CountsEachStorageOnceAndNoParameters) {
  on_every_device([](const Context& context) {
    const Parameter w(Tensor::full(context, {10}, 2), "w"), frozen(Tensor::full(context, {10}, 3));
    frozen.set_requires_grad(false);
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {10}, 1));  // 0
    const Var y = x * tape.parameter(w);                      // 1: w, 2: x kept
    const Var z = relu(y * tape.parameter(frozen));           // 3: y kept, 4: z kept
    const Var v = z * z + x;                                  // 5: z again, 6: nothing
    ActivationMemory memory = activation_memory(tape);
    EXPECT_EQ(memory.entries, (std::vector<std::size_t>{0, 0, 40, 40, 40, 0, 0}));
    EXPECT_EQ(memory.total, 120u);
    tape.backward(sum(z));  // releases what is below z and the sum
    memory = activation_memory(tape);
    EXPECT_EQ(memory.entries, (std::vector<std::size_t>{0, 0, 0, 0, 0, 40, 0, 0}));
    EXPECT_EQ(memory.total, 40u);
  });
}

TEST(ActivationMemoryReport, ViewsKeepWholeStoragesAndPendingZerosNone) {
  on_every_device([](const Context& context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::full(context, {100}, 1, DType::f64));
    const Tensor part = x.value().slice(0, 3, 5), zeros = Tensor::zeros(context, {1000});
    const Var y = custom(x.value(), {&x}, {part, part, zeros, Tensor()});
    EXPECT_EQ(activation_memory(tape).entries, (std::vector<std::size_t>{0, 800}));
    (void)zeros.data();
    EXPECT_EQ(activation_memory(tape).total, 800u + 4000u);
  });
}

TEST(ActivationMemoryReport, SavedTensorsBelongToTheNodeTheyWereMadeIn) {
  const Context context;
  const Tensor a = Tensor::full(context, {4}, 1), b = Tensor::full(context, {8}, 1);
  const auto count = [](const Node& node) {
    std::size_t found = 0;
    node.for_each_saved([&](const Tensor&) { ++found; });
    return found;
  };
  Tape tape;
  const Var x = tape.leaf(a);
  (void)custom(a, {&x}, {a, b, a, b, a});  // grows its vector meanwhile
  EXPECT_EQ(count(*tape.entry(1).node), 5u);
  const Saved stray(a), copy(stray);
  EXPECT_EQ(count(*tape.entry(1).node), 5u);
  Saved outlives;
  {
    const CustomNode unrecorded({a}, {});
    const Saved within(b);
    EXPECT_EQ(count(unrecorded), 2u);
    outlives = within;
  }
  std::unique_ptr<Saved> longer;
  {
    const CustomNode unrecorded({}, {});
    longer = std::make_unique<Saved>(b);
    EXPECT_EQ(count(unrecorded), 1u);
  }
  EXPECT_EQ(longer->get("test", "b").numel(), 8);
  EXPECT_EQ(outlives.get("test", "b").numel(), 8);
  Tensor(b).fill_(2);
  EXPECT_THROW((void)outlives.get("test", "b"), AutogradError);
}

// --- printing -----------------------------------------------------------------------------------

TEST(PrintedTape, Table) {
  const Context context;
  const Parameter w(Tensor::full(context, {3}, 2), "layer.w");
  Tape tape;
  const Var x = tape.leaf(Tensor::full(context, {2, 3}, 1));
  const Var y = x * tape.parameter(w);
  const Var z = y + tape.constant(Tensor::full(context, {2, 3}, 1));
  EXPECT_EQ(to_string(tape),
            "entry  op       inputs  shape   type  bytes kept\n"
            "    0  leaf             [2, 3]  f32             \n"
            "    1  layer.w          [3]     f32             \n"
            "    2  mul      0 1     [2, 3]  f32           24\n"
            "    3  add      2 -     [2, 3]  f32            0\n"
            "4 entries keep 24 bytes\n");
  tape.backward(sum(z));
  expect_contains(to_string(tape),
                  {"2  mul      0 1     [2, 3]  f32     released\n", "5 entries keep 0 bytes\n"});
  EXPECT_EQ(to_string(Tape()),
            "entry  op  inputs  shape  type  bytes kept\n0 entries keep 0 bytes\n");
}

TEST(PrintedTape, Dot) {
  const Context context;
  const Parameter w(Tensor::full(context, {3}, 2, DType::f64), "a \"b\"");
  Tape tape;
  const Var x = tape.leaf(Tensor::full(context, {2, 3}, 1, DType::f64));
  (void)(x * tape.parameter(w));
  EXPECT_EQ(to_dot(tape),
            "digraph tape {\n"
            "  node [shape=box];\n"
            "  n0 [label=\"0 leaf\\nf64 [2, 3]\", style=filled, fillcolor=lightgray];\n"
            "  n1 [label=\"1 a \\\"b\\\"\\nf64 [3]\", style=filled, fillcolor=lightgray];\n"
            "  n2 [label=\"2 mul\\nf64 [2, 3]\\n48 bytes\"];\n"
            "  n0 -> n2;\n"
            "  n1 -> n2;\n"
            "}\n");
}

}  // namespace
}  // namespace zerone
