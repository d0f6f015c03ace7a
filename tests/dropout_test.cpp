// Dropout: every row against the definition, the random stream, gradients, graphs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/core/context_state.h>
#include <zerone/kernels/dropout.h>
#include <zerone/kernels/philox.h>
#include <zerone/zerone.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/errors.h"
#include "support/operand.h"

namespace zerone {
namespace {

using test::expect_contains;
using test::make_tensor;
using test::message_of;
using test::on_every_device;
using test::values_of;

using Values = std::vector<double>;
constexpr DType float_types[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

/// Whether element i is kept, from the words themselves.
bool kept(std::uint64_t seed, std::uint64_t position, std::int64_t i, double p) {
  const auto block = position + static_cast<std::uint64_t>(i / 4);
  const std::uint32_t word =
      kernels::philox::block(seed, block, kernels::philox::tag_dropout).words[i % 4];
  return word < std::max(std::round((1 - p) * 0x1p32), 1.0);
}

/// x * factor in the type that `dtype` computes in, rounded once.
double scaled(DType dtype, double x, double factor) {
  if (dtype == DType::f64) return x * factor;
  return test::rounded(dtype, static_cast<float>(x) * static_cast<float>(factor));
}

/// The result for `x` in the order of memory.
Values expected(const Values& x, DType dtype, double p, std::uint64_t seed,
                std::uint64_t position) {
  const double scale = p == 1 ? 0 : 1 / (1 - p);
  Values y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    y[i] = scaled(dtype, x[i], kept(seed, position, static_cast<std::int64_t>(i), p) ? scale : 0.0);
  return y;
}

void expect_same(const Values& actual, const Values& wanted) {
  EXPECT_EQ(test::mismatch(actual, wanted, {}, {.dtype = DType::f64, .exact = true}), "");
}

TEST(Dropout, ValuesAndGradients) {
  on_every_device([](Context context) {
    test::Random random(1);
    for (const DType dtype : float_types)
      for (const std::int64_t n : {1, 3, 4, 5, 7, 8, 9, 12, 13, 511, 512, 513, 4099, 70001})
        for (const double p : {0.1, 0.5, 0.999, 1.0}) {
          const std::uint64_t seed = random.bits();
          const auto skipped = random.integer(0, 9);
          SCOPED_TRACE(fmt::format("{} n={} p={} seed={} position={}", to_string(dtype), n, p, seed,
                                   skipped));
          const Values x = test::random_values(random, n, dtype, false),
                       dy = test::random_values(random, n, dtype, false);
          const Tensor input = make_tensor(context, {n}, x, dtype),
                       upstream = make_tensor(context, {n}, dy, dtype);
          context.seed(seed);
          (void)Tensor::uniform(context, {skipped});
          const auto position = static_cast<std::uint64_t>(skipped);
          Tape tape;
          const Var leaf = tape.leaf(input);
          const Var y = dropout(leaf, p);
          tape.backward(y, {.seed = upstream, .retain = false});
          expect_same(values_of(y), expected(x, dtype, p, seed, position));
          expect_same(values_of(tape.grad(leaf)), expected(dy, dtype, p, seed, position));
          expect_same(values_of(input), x);
          // Without a tape no flags are written; the draw is the next one.
          expect_same(values_of(dropout(input, p)),
                      expected(x, dtype, p, seed, position + static_cast<std::uint64_t>(n)));
        }
  });
}

TEST(Dropout, ABadlyAlignedOperandAndNothingOutside) {
  on_every_device([](const Context& context) {
    ContextState& state = context.state();
    test::Random random(2);
    for (const DType dtype : float_types)
      for (const std::int64_t n : {1, 6, 8, 11, 300, 5000})
        for (const std::int64_t offset : {0, 1, 3, 8})
          for (const bool in_place : {false, true}) {
            SCOPED_TRACE(fmt::format("{} n={} offset={} in_place={}", to_string(dtype), n, offset,
                                     in_place));
            const Values x = test::random_values(random, n, dtype, false);
            const test::Placement place{.offset = offset, .tail = 16};
            test::Operand operand(context, {n}, dtype, {.offset = offset}, x);
            test::Operand result = test::Operand::result(context, {n}, dtype, place);
            if (in_place) result.view().copy_(operand.view());
            const std::int64_t bytes = kernels::dropout_flag_bytes(n);
            Tensor flags = Tensor::full(context, {bytes + 8}, 99, DType::u8);
            const DropoutArgs forward{.out = result.view().mutable_data(),
                                      .x = in_place ? result.view().data() : operand.view().data(),
                                      .flags = flags.mutable_data<std::uint8_t>(),
                                      .highest_kept = 0x7FFFFFFFu,
                                      .scale = 2};
            const std::uint64_t position = state.random_offset, seed = context.options().seed;
            dropout_list().run(state, {.dtype = dtype, .numel = n}, forward);
            std::string why;
            expect_same(result.read(why), expected(x, dtype, 0.5, seed, position));
            const std::vector<std::uint8_t> written = flags.to_vector<std::uint8_t>();
            for (std::int64_t i = 0; i < n; ++i)
              ASSERT_EQ(written[static_cast<std::size_t>(i / 4)] >> i % 4 & 1,
                        kept(seed, position, i, 0.5))
                  << i;
            for (std::int64_t i = bytes; i < bytes + 8; ++i)
              ASSERT_EQ(written[static_cast<std::size_t>(i)], 99) << "a byte past the flags";
            if (in_place)
              result.view().copy_(operand.view());
            else
              result.view().fill_(nan);
            DropoutArgs backward = forward;
            backward.flags = nullptr;
            backward.kept = flags.data<std::uint8_t>();
            dropout_list().run(state, {.dtype = dtype, .numel = n, .backward = true}, backward);
            expect_same(result.read(why), expected(x, dtype, 0.5, seed, position));
            EXPECT_EQ(why, "");
          }
  });
}

TEST(Dropout, FollowsTheMemoryOfAnyLayout) {
  on_every_device([](Context context) {
    const Tensor base = Tensor::normal(context, {2, 3, 4, 5});
    const auto seeded = [&](const Tensor& x) {
      context.seed(5);
      return dropout(x, 0.4).value();
    };
    const Tensor plain = seeded(base);
    // Dense views: the same elements in memory, dropped alike; the result lies like x.
    const Tensor permuted = base.permute({0, 2, 3, 1});
    EXPECT_EQ(seeded(permuted).layout(), permuted.layout());
    EXPECT_EQ(values_of(seeded(permuted)), values_of(plain.permute({0, 2, 3, 1})));
    // Gaps and repeats: as the row-major copy.
    for (const Tensor& view : {base.slice(3, 1, 4), base.slice(1, 0, 3, 2).permute({3, 2, 1, 0}),
                               base.slice(0, 1, 2).expand({7, 3, 4, 5})}) {
      SCOPED_TRACE(describe(view));
      EXPECT_TRUE(seeded(view).is_contiguous());
      EXPECT_EQ(values_of(seeded(view)), values_of(seeded(view.contiguous())));
    }
    EXPECT_EQ(dropout(Tensor::full(context, {}, 3), 0.5).shape(), Shape{});

    // A gradient that lies otherwise than the result.
    const Tensor dy = Tensor::normal(context, {2, 3, 4, 5});
    const auto gradient = [&](const Tensor& seed) {
      context.seed(5);
      Tape tape;
      const Var x = tape.leaf(base);
      tape.backward(dropout(x, 0.4), {.seed = seed, .retain = false});
      return values_of(tape.grad(x));
    };
    Tensor other = Tensor::empty_nhwc(context, dy.shape());
    other.copy_(dy);
    EXPECT_EQ(gradient(other), gradient(dy));
    const Tensor one = Tensor::full(context, {}, 2);
    EXPECT_EQ(gradient(one.expand(dy.shape())), gradient(Tensor::full(context, dy.shape(), 2)));
  });
}

TEST(Dropout, NotTrainingOrNoProbabilityGivesXItself) {
  on_every_device([](Context context) {
    Tape tape;
    const Var x = tape.leaf(Tensor::from<float>(context, {3}, {1, static_cast<float>(nan), -0.f}));
    context.seed(9);
    for (const Var& y : {dropout(x, 0), dropout(x, 0.5, false), dropout(x, 1, false)}) {
      EXPECT_EQ(y.value().data(), x.value().data());
      tape.backward(y, {.seed = Tensor::full(context, {3}, 1), .retain = false});
    }
    EXPECT_EQ(tape.size(), 1u);
    EXPECT_EQ(values_of(tape.grad(x)), Values(3, 3.0));
    const Tensor empty = Tensor::empty(context, {0, 4});
    EXPECT_EQ(dropout(empty, 0.5).shape(), empty.shape());
    // Nothing was drawn.
    const Values next = values_of(Tensor::uniform(context, {5}));
    context.seed(9);
    EXPECT_EQ(next, values_of(Tensor::uniform(context, {5})));
  });
}

TEST(Dropout, DroppedSpecialValuesAreProductsWithZero) {
  on_every_device([](const Context& context) {
    for (const DType dtype : float_types) {
      const Tensor x = make_tensor(context, {6}, {nan, inf, -inf, -1, -0.0, 2}, dtype);
      const Values y = values_of(dropout(x, 1));
      EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(y[2]));
      EXPECT_TRUE(y[3] == 0 && std::signbit(y[3]));
      EXPECT_TRUE(y[4] == 0 && std::signbit(y[4]));
      EXPECT_TRUE(y[5] == 0 && !std::signbit(y[5]));
      // Nothing is dropped at p = 2^-40, and 1 / (1 - p) is 1 in f32.
      if (dtype == DType::f64) continue;
      const Values all = values_of(dropout(x, 0x1p-40));
      EXPECT_TRUE(std::isnan(all[0]) && all[1] == inf && all[2] == -inf && all[3] == -1);
      EXPECT_TRUE(all[4] == 0 && std::signbit(all[4]) && all[5] == 2);
    }
  });
}

TEST(Dropout, KeepsTheRightShareIndependently) {
  on_every_device([](const Context& context) {
    constexpr std::int64_t n = 1 << 20;
    for (const double p : {0.01, 0.3, 0.5, 0.9}) {
      const Values y = values_of(dropout(Tensor::full(context, {n}, 1), p));
      const double sigma = std::sqrt(n * p * (1 - p));
      double kept_of[4] = {}, together = 0, all = 0;
      for (std::size_t i = 0; i < y.size(); ++i) {
        kept_of[i % 4] += y[i] != 0;
        all += y[i] != 0;
        together += i > 0 && y[i] != 0 && y[i - 1] != 0;
      }
      EXPECT_NEAR(all, n * (1 - p), 5 * sigma) << p;
      for (const double part : kept_of) EXPECT_NEAR(part, n / 4 * (1 - p), 5 * sigma / 2) << p;
      EXPECT_NEAR(together, n * (1 - p) * (1 - p), 5 * std::sqrt(n * (1 - p) * (1 - p))) << p;
    }
  });
}

TEST(Dropout, TheStreamIsTheContextsWhateverTheThreads) {
  const Values once = [] {
    ContextOptions options;
    options.threads = 1;
    const Context context(Device::cpu(), options);
    return values_of(dropout(Tensor::full(context, {100000}, 1), 0.5));
  }();
  ContextOptions options;
  options.threads = 3;
  on_every_device(
      [&](Context context) {
        const Tensor ones = Tensor::full(context, {100000}, 1);
        EXPECT_EQ(values_of(dropout(ones, 0.5)), once);
        EXPECT_NE(values_of(dropout(ones, 0.5)), once);
        context.seed(1);
        EXPECT_NE(values_of(dropout(ones, 0.5)), once);
        // A call moves the stream as a draw of as many values does.
        const Values after = values_of(Tensor::uniform(context, {5}));
        context.seed(1);
        (void)Tensor::uniform(context, {100000});
        EXPECT_EQ(values_of(Tensor::uniform(context, {5})), after);
      },
      options);
}

TEST(Dropout, KnownZeros) {
  on_every_device([](Context context) {
    context.seed(2);
    const Tensor zeros = Tensor::zeros(context, {100});
    EXPECT_TRUE(dropout(zeros, 0.5).value().known_zero());
    const Values next = values_of(dropout(Tensor::full(context, {100}, 1), 0.5));
    context.seed(2);
    (void)dropout(Tensor::full(context, {100}, 1), 0.5);
    EXPECT_EQ(values_of(dropout(Tensor::full(context, {100}, 1), 0.5)), next)
        << "what is known about x must not change later draws";

    context.seed(2);
    Tape tape;
    const Var x = tape.leaf(zeros);
    const Var y = dropout(x, 0.5);
    EXPECT_EQ(values_of(y), Values(100, 0.0));
    tape.backward(y, {.seed = Tensor::full(context, {100}, 1), .retain = true});
    context.seed(2);
    EXPECT_EQ(values_of(tape.grad(x)), values_of(dropout(Tensor::full(context, {100}, 1), 0.5)));
    Tape other;
    const Var z = other.leaf(Tensor::full(context, {4}, 1));
    other.backward(dropout(z, 0.5), {.seed = Tensor::zeros(context, {4}), .retain = false});
    EXPECT_EQ(values_of(other.grad(z)), Values(4, 0.0));
  });
}

TEST(Dropout, GradcheckAndMemory) {
  on_every_device([](Context context) {
    const Tensor x = Tensor::normal(context, {3, 7}, 0, 1, DType::f64);
    const auto check = gradcheck(
        [&](std::span<const Var> in) {
          context.seed(3);  // the same elements at each call
          return dropout(in[0] * in[0], 0.3);
        },
        {x});
    EXPECT_TRUE(check.passed) << check.message;
    Tape tape;
    const Var leaf = tape.leaf(Tensor::full(context, {1000}, 1));
    const Var y = dropout(leaf, 0.3);
    EXPECT_EQ(activation_memory(tape).total, 250u);
    // A retained tape drops the same elements again.
    const Tensor seed = Tensor::full(context, {1000}, 1);
    tape.backward(y, {.seed = seed, .retain = true});
    const Values once = values_of(tape.grad(leaf));
    EXPECT_EQ(once, values_of(y));
    (void)dropout(leaf.value(), 0.3);
    tape.backward(y, {.seed = seed, .retain = true});
    EXPECT_EQ(values_of(tape.grad(leaf)), values_of(affine(y.value(), 2)));
  });
}

TEST(Dropout, Errors) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::full(context, {2, 3}, 1);
    for (const double p : {-0.1, 1.1, inf, nan}) {
      expect_contains(message_of<ShapeError>([&] { (void)dropout(x, p); }), {"dropout", "[2, 3]"});
      EXPECT_THROW((void)dropout(x, p, false), ShapeError);
    }
    expect_contains(message_of<ShapeError>([&] { (void)dropout(x, 1.5); }), {"1.5"});
    EXPECT_THROW((void)dropout(Tensor::full(context, {2}, 1, DType::i64), 0.5), DTypeError);
    EXPECT_THROW((void)dropout(Tensor(), 0.5), DTypeError);
  });
}

// --- graphs -------------------------------------------------------------------------------------

/// Two dropouts and their gradient.
struct Step {
  explicit Step(const Context& context)
      : x(Tensor::normal(context, {1003})), seed(Tensor::full(context, {1003}, 1)) {}
  void forward() {
    tape = std::make_unique<Tape>();
    leaf = tape->leaf(x);
    y = dropout(dropout(leaf, 0.5) * 3.0, 0.25);
  }
  void backward() { tape->backward(y, {.seed = seed, .retain = false}); }
  std::vector<Values> results() const { return {values_of(y), values_of(tape->grad(leaf))}; }

  Tensor x, seed;
  std::unique_ptr<Tape> tape;
  Var leaf, y;
};

TEST(DropoutGraph, ReplaysDrawAnewAndTheirGradientsFollow) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  for (const bool one_graph : {true, false}) {
    SCOPED_TRACE(one_graph ? "one graph" : "two graphs");
    const Context eager_context(Device::cuda()), context(Device::cuda());
    Step eager(eager_context), captured(context);
    std::vector<Graph> graphs;
    if (one_graph) {
      graphs.push_back(Graph::capture(context, [&] {
        captured.forward();
        captured.backward();
      }));
    } else {
      graphs.push_back(Graph::capture(context, [&] { captured.forward(); }));
      graphs.push_back(Graph::capture(context, [&] { captured.backward(); }));
    }
    Values last;
    for (int i = 0; i < 5; ++i) {
      eager.forward();
      eager.backward();
      for (Graph& graph : graphs) graph.replay();
      const std::vector<Values> results = captured.results();
      EXPECT_EQ(results, eager.results()) << "replay " << i;
      EXPECT_NE(results[0], last);
      last = results[0];
      // Draws between the replays move both streams.
      EXPECT_EQ(values_of(Tensor::uniform(context, {3})),
                values_of(Tensor::uniform(eager_context, {3})));
    }
  }
}

}  // namespace
}  // namespace zerone
