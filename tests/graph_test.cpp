// CUDA graphs: capture and replay. What needs a GPU is skipped, visibly, where there is none.
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

std::vector<double> values_of(const Tensor& x) {
  return x.to(DType::f64).to_vector<double>();
}

// --- without a GPU ------------------------------------------------------------------------------

TEST(GraphOnCpu, CaptureIsAnErrorAndChangesNothing) {
  const Context context;
  const Tensor zero = Tensor::zeros(context, {3});
  bool ran = false;
  const std::string text =
      message_of<GraphError>([&] { (void)Graph::capture(context, [&] { ran = true; }); });
  expect_contains(text, {context.name()});
  EXPECT_FALSE(ran);
  EXPECT_EQ(values_of(add(zero, Tensor::full(context, {3}, 2))), std::vector<double>(3, 2.0));
  EXPECT_TRUE(Tensor::zeros(context, {3}).known_zero()) << "it still believes to be capturing";
}

TEST(GraphOnCpu, AnEmptyGraphCannotBeReplayed) {
  Graph graph;
  EXPECT_FALSE(graph.defined());
  EXPECT_THROW(graph.replay(), GraphError);
}

// --- with a GPU ---------------------------------------------------------------------------------

class GraphTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
    context_ = std::make_unique<Context>(Device::cuda());
  }
  Context& context() { return *context_; }
  /// The context works, and can capture.
  void expect_usable() {
    const Tensor x = Tensor::full(context(), {4}, 2);
    EXPECT_EQ(values_of(add(x, x)), std::vector<double>(4, 4.0));
    Tensor y = Tensor::full(context(), {4}, 0);
    Graph graph = Graph::capture(context(), [&] { y.copy_(add(x, x)); });
    EXPECT_EQ(values_of(y), std::vector<double>(4, 0.0)) << "capture ran the work";
    graph.replay();
    EXPECT_EQ(values_of(y), std::vector<double>(4, 4.0));
  }

 private:
  std::unique_ptr<Context> context_;
};

/// A small convolutional network, its data and its optimizer; the same seed, the same bits.
struct Training {
  explicit Training(Context context, std::uint64_t seed = 11) {
    context.seed(seed);
    net.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 3,
                                                       .out_channels = 8,
                                                       .kernel = 3,
                                                       .padding = 1,
                                                       .activation = Activation::relu});
    net.emplace<nn::Conv2d>(
        context, nn::Conv2dOptions{.in_channels = 8, .out_channels = 8, .kernel = 3, .stride = 2});
    net.emplace<nn::ReLU>();
    net.emplace<nn::Conv2d>(context,
                            nn::Conv2dOptions{.in_channels = 8, .out_channels = 4, .kernel = 1});
    x = Tensor::normal(context, {4, 3, 9, 9});
    target = Tensor::normal(context, {4, 4, 4, 4});
    loss = Tensor::full(context, {}, 0);
    optimizer = std::make_unique<nn::Sgd>(
        net.parameters(),
        nn::SgdOptions{.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 1e-4});
  }
  void step() {
    optimizer->zero_grad();
    Tape tape;
    const Var error = mean_square_error(net(tape.constant(x)), tape.constant(target));
    tape.backward(error);
    optimizer->step();
    loss.copy_(error);
  }
  std::vector<std::vector<float>> state() const {
    std::vector<std::vector<float>> all{loss.to_vector<float>()};
    for (const Parameter& parameter : net.parameters())
      all.push_back(parameter.value().to_vector<float>());
    return all;
  }

  nn::Sequential net;
  Tensor x, target, loss;
  std::unique_ptr<nn::Sgd> optimizer;
};

TEST_F(GraphTest, ReplayEqualsEager) {
  const Tensor x = Tensor::normal(context(), {2, 3, 8, 8}),
               w = Tensor::normal(context(), {5, 3, 3, 3});
  const auto work = [&] { return relu(conv2d(x, w, {}, {.padding = 1, .math = {}})) * 2.0; };
  const std::vector<float> eager = work().value().to_vector<float>();
  Var y;
  Graph graph = Graph::capture(context(), [&] { y = work(); });
  ASSERT_TRUE(graph.defined());
  graph.replay();
  EXPECT_EQ(y.value().to_vector<float>(), eager);
  Tensor(x).copy_(Tensor::normal(context(), {2, 3, 8, 8}));
  graph.replay();
  EXPECT_EQ(y.value().to_vector<float>(), work().value().to_vector<float>());
  EXPECT_NE(y.value().to_vector<float>(), eager);
}

TEST_F(GraphTest, AThousandTrainingStepsWithEagerCallsBetweenEqualEager) {
  Training eager(context()), replayed(context());
  ASSERT_EQ(eager.state(), replayed.state());
  eager.step();
  replayed.step();
  Graph graph = Graph::capture(context(), [&] { replayed.step(); });
  EXPECT_EQ(eager.state(), replayed.state()) << "capture ran the work";
  const double first = eager.loss.item();
  const Tensor probe = Tensor::normal(context(), {1, 3, 9, 9});
  for (int i = 1; i <= 1000; ++i) {
    eager.step();
    if (i % 100 == 50)
      replayed.step();  // an eager step among the replays
    else
      graph.replay();
    if (i % 10 == 0) {
      const Tensor scratch = Tensor::full(context(), {8, 8, 9, 9}, i);  // memory comes and goes
      (void)add(scratch, scratch);
      ASSERT_EQ(eager.net(probe).value().to_vector<float>(),
                replayed.net(probe).value().to_vector<float>())
          << "after step " << i;
    }
  }
  EXPECT_EQ(eager.state(), replayed.state());
  EXPECT_LT(eager.loss.item(), first);
}

TEST_F(GraphTest, ReplaysAskTheDriverForNothing) {
  Training training(context());
  training.step();
  Graph graph = Graph::capture(context(), [&] { training.step(); });
  graph.replay();
  const MemoryStats before = context().memory();
  for (int i = 0; i < 100; ++i) graph.replay();
  context().synchronize();
  EXPECT_EQ(context().memory().driver_calls, before.driver_calls);
  EXPECT_EQ(context().memory().live, before.live);
}

TEST_F(GraphTest, RandomNumbersAdvanceAsEagerOnesWould) {
  std::vector<std::vector<float>> eager;
  context().seed(7);
  for (int i = 0; i < 4; ++i) {
    eager.push_back(Tensor::uniform(context(), {1000}).to_vector<float>());
    eager.push_back(Tensor::normal(context(), {333}).to_vector<float>());
  }
  context().seed(7);
  Tensor u, n;
  Graph graph = Graph::capture(context(), [&] {
    u = Tensor::uniform(context(), {1000});
    n = Tensor::normal(context(), {333});
  });
  for (int i = 0; i < 4; ++i) {
    const std::size_t at = static_cast<std::size_t>(2 * i);
    if (i == 2) {  // eager draws take their turn
      EXPECT_EQ(Tensor::uniform(context(), {1000}).to_vector<float>(), eager[at]);
      EXPECT_EQ(Tensor::normal(context(), {333}).to_vector<float>(), eager[at + 1]);
      continue;
    }
    graph.replay();
    EXPECT_EQ(u.to_vector<float>(), eager[at]) << "replay " << i;
    EXPECT_EQ(n.to_vector<float>(), eager[at + 1]) << "replay " << i;
  }
}

TEST_F(GraphTest, ReplayBumpsTheVersionOfWhatItWrites) {
  Tensor x = Tensor::full(context(), {4}, 1), y = Tensor::full(context(), {4}, 0);
  Graph graph = Graph::capture(context(), [&] { y.add_(x); });
  const std::uint64_t read = x.version(), written = y.version();
  graph.replay();
  EXPECT_EQ(x.version(), read);
  EXPECT_GT(y.version(), written);
  // So a tape notices.
  Tape tape;
  const Var leaf = tape.leaf(y);
  const Var loss = sum(leaf * leaf);
  graph.replay();
  EXPECT_THROW(tape.backward(loss), AutogradError);
}

TEST_F(GraphTest, EveryResultIsBumpedAlsoThoseMadeWhereOthersDied) {
  const Tensor x = Tensor::full(context(), {16}, 1);
  std::vector<Tensor> results;
  Graph graph = Graph::capture(context(), [&] {
    for (int i = 0; i < 20; ++i) {
      for (int k = 0; k < 5; ++k) (void)(Var(x) * 2.0 + 1.0);  // comes and goes
      results.push_back(Var(x) * 3.0);
      results.push_back(Tensor::zeros(context(), {16}));
    }
  });
  std::vector<std::uint64_t> versions;
  for (const Tensor& result : results) versions.push_back(result.version());
  graph.replay();
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_GT(results[i].version(), versions[i]) << "result " << i;
    EXPECT_EQ(values_of(results[i])[15], i % 2 ? 0 : 3);
  }
}

TEST_F(GraphTest, PackedWeightsFollowWhatAGraphWrites) {
  context().set_zero_skip(ZeroSkip::force);
  const Tensor x = Tensor::normal(context(), {2, 4, 8, 8});
  Tensor source = Tensor::normal(context(), {4, 4, 3, 3});
  source.slice(0, 1, 4).fill_(0);
  Tensor w = source.clone();
  Graph graph = Graph::capture(context(), [&] { w.copy_(source); });
  for (int i = 0; i < 5; ++i) {
    source.copy_(Tensor::normal(context(), {4, 4, 3, 3}));
    source.slice(1, i % 4, i % 4 + 1).fill_(0);
    graph.replay();
    std::string chosen;
    Var y;
    for (const Explanation& e : explain(context(), [&] { y = conv2d(x, w); })) chosen = e.chosen;
    EXPECT_EQ(chosen, "cuda.zero_skip");
    const ScopedForce reference(context(), "conv2d.forward", "cuda.reference");
    const std::vector<double> expected = values_of(conv2d(x, w)), got = values_of(y);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], expected[k], 1e-4);
  }
}

TEST_F(GraphTest, UnplannedOperationIsNamedAndTheContextStaysUsable) {
  // Large enough for a library row: own rows need no plan.
  const Tensor x = Tensor::normal(context(), {2, 3, 64, 64}),
               w = Tensor::normal(context(), {5, 3, 3, 3});
  const std::string text =
      message_of<GraphError>([&] { (void)Graph::capture(context(), [&] { (void)conv2d(x, w); }); });
  expect_contains(text, {"conv2d.forward", "c3 h64 w64", "capturing"});
  expect_usable();
  (void)conv2d(x, w);
  Var y;
  Graph graph = Graph::capture(context(), [&] { y = conv2d(x, w); });
  graph.replay();
  EXPECT_EQ(y.value().to_vector<float>(), conv2d(x, w).value().to_vector<float>());
}

TEST_F(GraphTest, ExceptionInTheWorkLeavesTheContextUsable) {
  const Tensor x = Tensor::full(context(), {4}, 2);
  context().seed(3);
  const std::vector<float> expected = Tensor::uniform(context(), {8}).to_vector<float>();
  context().seed(3);
  EXPECT_THROW(Graph::capture(context(),
                              [&] {
                                (void)add(x, x);
                                (void)Tensor::uniform(context(), {100});
                                throw std::runtime_error("on purpose");
                              }),
               std::runtime_error);
  EXPECT_EQ(Tensor::uniform(context(), {8}).to_vector<float>(), expected)
      << "an abandoned capture draws nothing";
  expect_usable();
  EXPECT_THROW(Graph::capture(context(), [&] { (void)add(x, Tensor::full(context(), {3}, 1)); }),
               ShapeError);
  expect_usable();
}

TEST_F(GraphTest, HostTransfersInsideAreErrors) {
  Tensor x = Tensor::full(context(), {4}, 2);
  const Tensor host = Tensor::full(Context(), {4}, 3);
  const std::function<void()> works[] = {
      [&] { (void)x.to_vector<float>(); },
      [&] { (void)sum(x).value().item(); },
      [&] {
        (void)Tensor::from<float>(context(), {2}, {1, 2});
      },
      [&] { x.copy_(host); },
      [&] { (void)x.to(Context()); },
      [&] { context().synchronize(); },
      [&] { (void)time_work(context(), [] {}); },
  };
  for (const auto& work : works) {
    EXPECT_THROW(Graph::capture(context(), work), GraphError);
    expect_usable();
  }
}

TEST_F(GraphTest, NestedCaptureAndReplayInsideAreErrors) {
  const Tensor x = Tensor::full(context(), {4}, 2);
  Graph inner = Graph::capture(context(), [&] { (void)add(x, x); });
  EXPECT_THROW(
      Graph::capture(context(), [&] { (void)Graph::capture(context(), [&] { (void)add(x, x); }); }),
      GraphError);
  expect_usable();
  EXPECT_THROW(Graph::capture(context(), [&] { inner.replay(); }), GraphError);
  expect_usable();
  inner.replay();
}

/// [6, 4, 3, 3], nine of ten weights zero.
Tensor sparse_weight(const Context& context) {
  std::vector<float> values(6 * 4 * 9, 0.f);
  for (std::size_t i = 0; i < values.size(); i += 10) values[i] = 1 + static_cast<float>(i % 7);
  return Tensor::from<float>(context, {6, 4, 3, 3}, values);
}

TEST_F(GraphTest, FrozenZeroPatternRefusesAWrittenWeight) {
  context().set_zero_skip(ZeroSkip::force);
  const Tensor x = Tensor::normal(context(), {2, 4, 8, 8});
  Tensor w = sparse_weight(context());
  prepare(w);
  const std::vector<float> eager = conv2d(x, w).value().to_vector<float>();
  Var y;
  Graph graph = Graph::capture(context(), [&] { y = conv2d(x, w); });
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_EQ(y.value().to_vector<float>(), eager);
  w.slice(0, 0, 1).fill_(1);
  EXPECT_THROW(graph.replay(), GraphError);
  EXPECT_THROW(graph.replay(), GraphError);
  expect_usable();
}

TEST_F(GraphTest, WorkThatWritesAWeightWhoseZerosItSkipsIsAnError) {
  context().set_zero_skip(ZeroSkip::force);
  const Tensor x = Tensor::normal(context(), {2, 4, 8, 8});
  Tensor w = sparse_weight(context());
  prepare(w);
  (void)conv2d(x, w);
  const Tensor other = sparse_weight(context());
  EXPECT_THROW(Graph::capture(context(),
                              [&] {
                                (void)conv2d(x, w);
                                w.add_(other);
                              }),
               GraphError);
  expect_usable();
}

TEST_F(GraphTest, AMaskKeepsAGraphValidWhileWeightsTrain) {
  ContextOptions options;
  options.zero_skip = ZeroSkip::force;
  const Context skipping(Device::cuda(), options);
  Training eager(skipping), replayed(skipping);
  for (Training* training : {&eager, &replayed})
    for (const Parameter& parameter : training->net.parameters()) {
      if (parameter.value().rank() != 4) continue;
      std::vector<std::uint8_t> mask(static_cast<std::size_t>(parameter.value().numel()));
      for (std::size_t i = 0; i < mask.size(); ++i) mask[i] = i % 5 == 0;
      parameter.set_mask(Tensor::from<std::uint8_t>(skipping, parameter.value().shape(), mask));
    }
  eager.step();
  replayed.step();
  Graph graph = Graph::capture(skipping, [&] { replayed.step(); });
  for (int i = 0; i < 20; ++i) {
    eager.step();
    graph.replay();
  }
  EXPECT_EQ(eager.state(), replayed.state());
  const auto weight = replayed.net.parameters()[0].value().to_vector<float>();
  EXPECT_EQ(weight[1], 0);
  EXPECT_NE(weight[5], 0);
}

TEST_F(GraphTest, KnownZerosAreWrittenBeforeCaptureEnds) {
  const Tensor x = Tensor::full(context(), {1000}, 2);
  const Tensor outside = Tensor::zeros(context(), {1000});
  Tensor inside, sum_of_both;
  Graph graph = Graph::capture(context(), [&] {
    inside = Tensor::zeros(context(), {1000});
    sum_of_both = add(x, outside);
  });
  graph.replay();
  EXPECT_EQ(inside.to_vector<float>(), std::vector<float>(1000, 0.f));
  EXPECT_EQ(sum_of_both.to_vector<float>(), std::vector<float>(1000, 2.f));
  inside.fill_(9);
  Tensor(outside).fill_(5);  // was known zero at capture, is not now
  graph.replay();
  EXPECT_EQ(inside.to_vector<float>(), std::vector<float>(1000, 0.f));
  EXPECT_EQ(sum_of_both.to_vector<float>(), std::vector<float>(1000, 7.f));
}

TEST_F(GraphTest, ZerosKnownAtCaptureAreNotBakedIntoOperations) {
  Tensor x = Tensor::normal(context(), {1, 2, 5, 5}), w = Tensor::zeros(context(), {2, 2, 3, 3});
  Tensor y = Tensor::full(context(), {1, 2, 3, 3}, 1);
  context().set_zero_skip(ZeroSkip::off);
  Tensor planned = Tensor::normal(context(), {2, 2, 3, 3});
  (void)conv2d(x, planned);  // chooses the dense implementation
  Graph graph = Graph::capture(context(), [&] { y.copy_(conv2d(x, w)); });
  graph.replay();
  EXPECT_EQ(values_of(y), std::vector<double>(18, 0.0));
  w.copy_(planned);
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), conv2d(x, w).value().to_vector<float>());
}

TEST_F(GraphTest, MemoryGoesBackWithTheGraph) {
  const Tensor x = Tensor::full(context(), {1 << 20}, 1);
  context().synchronize();
  context().empty_cache();
  const MemoryStats before = context().memory();
  {
    Tensor y;
    {
      Graph graph = Graph::capture(context(), [&] { y = add(add(x, x), x); });
      graph.replay();
      EXPECT_GE(context().memory().reserved, before.reserved + (8u << 20));
    }
    // The pool lives as long as a tensor in it.
    EXPECT_EQ(y.to_vector<float>()[99], 3);
  }
  EXPECT_EQ(context().memory().live, before.live);
  EXPECT_EQ(context().memory().reserved, before.reserved);
}

TEST_F(GraphTest, MemoryOfTheGraphIsNotHandedOut) {
  const Tensor x = Tensor::normal(context(), {4096});
  Tensor y;
  Graph graph = Graph::capture(context(), [&] { y = relu(relu(x * 2.0) + 1.0); });
  graph.replay();
  const std::vector<float> expected = y.to_vector<float>();
  for (int i = 0; i < 10; ++i) {
    std::vector<Tensor> others;
    for (int k = 0; k < 8; ++k) others.push_back(Tensor::full(context(), {4096}, k));
    graph.replay();
    EXPECT_EQ(y.to_vector<float>(), expected);
    for (int k = 0; k < 8; ++k)
      EXPECT_EQ(others[static_cast<std::size_t>(k)].to_vector<float>(),
                std::vector<float>(4096, static_cast<float>(k)));
  }
}

TEST_F(GraphTest, InputsAreKeptAlive) {
  Tensor y = Tensor::full(context(), {1 << 16}, 0);
  Graph graph;
  {
    const Tensor x = Tensor::full(context(), {1 << 16}, 3);
    graph = Graph::capture(context(), [&] { y.copy_(add(x, x)); });
  }
  const Tensor other = Tensor::full(context(), {1 << 16}, -1);
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1 << 16, 6.f));
  EXPECT_EQ(other.to_vector<float>()[5], -1);
}

TEST_F(GraphTest, OutlivesItsContextHandle) {
  Graph graph;
  Tensor y;
  {
    const Context own(Device::cuda());
    const Tensor x = Tensor::full(own, {16}, 3);
    graph = Graph::capture(own, [&] { y = add(x, x); });
  }
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(16, 6.f));
}

TEST_F(GraphTest, AnotherInputShapeIsAShapeError) {
  Tensor x = Tensor::full(context(), {2, 3}, 1);
  Tensor y;
  Graph graph = Graph::capture(context(), [&] { y = add(x, x); });
  expect_contains(message_of<ShapeError>([&] {
                    x.copy_(Tensor::full(context(), {4, 3}, 1));
                  }),
                  {"[4, 3]", "[2, 3]"});
  graph.replay();
  EXPECT_EQ(values_of(y), std::vector<double>(6, 2.0));
}

TEST_F(GraphTest, TwoGraphsShareAContext) {
  Tensor x = Tensor::full(context(), {8}, 1);
  Graph doubles = Graph::capture(context(), [&] { x.add_(x); });
  Graph increments = Graph::capture(context(), [&] { x.copy_(Var(x) + 1.0); });
  doubles.replay();     // 2
  increments.replay();  // 3
  doubles.replay();     // 6
  doubles.replay();     // 12
  increments.replay();  // 13
  EXPECT_EQ(values_of(x), std::vector<double>(8, 13.0));
}

}  // namespace
}  // namespace zerone
