// Contexts: the allocator and its counters, memory that runs out, threads, streams, options.
#include <dlfcn.h>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/contexts.h"
#include "support/errors.h"

#if defined(__SANITIZE_ADDRESS__)
// An allocation that is too large returns null, as it does without the sanitizer.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
#endif

namespace zerone {
namespace {

using test::expect_contains;
using test::message_of;

using test::on_every_device;

std::vector<double> values_of(const Tensor& x) {
  return x.to(DType::f64).to_vector<double>();
}

// --- the allocator ------------------------------------------------------------------------------

TEST(Memory, CountersFollowTensors) {
  on_every_device([](Context context) {
    const MemoryStats start = context.memory();
    {
      const Tensor x = Tensor::empty(context, {1 << 20});
      const MemoryStats one = context.memory();
      EXPECT_GE(one.live, start.live + (4u << 20));
      EXPECT_LE(one.live, start.live + (4u << 20) * 9 / 8);
      EXPECT_GE(one.reserved, one.live);
      EXPECT_GT(one.driver_calls, start.driver_calls);
      const Tensor view = x.slice(0, 0, 10);
      EXPECT_EQ(context.memory().live, one.live);
    }
    const MemoryStats freed = context.memory();
    EXPECT_EQ(freed.live, start.live);
    EXPECT_GE(freed.reserved, 4u << 20) << "the block is cached";
    EXPECT_GE(freed.peak_live, start.live + (4u << 20));
    context.reset_peak_memory();
    EXPECT_EQ(context.memory().peak_live, start.live);

    const std::size_t calls = context.memory().driver_calls;
    { const Tensor again = Tensor::empty(context, {1 << 20}); }
    EXPECT_EQ(context.memory().driver_calls, calls) << "served from the cache";

    context.empty_cache();
    EXPECT_EQ(context.memory().reserved, context.memory().live);
    EXPECT_GT(context.memory().driver_calls, calls);
  });
}

TEST(Memory, EmptyTensorsTakeNothing) {
  on_every_device([](const Context& context) {
    const MemoryStats before = context.memory();
    const Tensor x = Tensor::empty(context, {0, 5}), y = Tensor::zeros(context, {0});
    EXPECT_EQ(context.memory().live, before.live);
    EXPECT_EQ(context.memory().driver_calls, before.driver_calls);
  });
}

TEST(Memory, ExternalMemoryIsNotCounted) {
  const Context context;
  std::vector<float> memory(1000);
  const Tensor x = Tensor::from_blob(context, memory.data(), {1000}, DType::f32);
  EXPECT_EQ(context.memory().live, 0u);
}

TEST(Memory, LayoutCopiesAreCounted) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::full(context, {2, 3, 4, 5}, 1);
    const std::size_t before = context.memory().layout_copied;
    (void)x.contiguous();
    EXPECT_EQ(context.memory().layout_copied, before);
    (void)x.permute({0, 2, 3, 1}).contiguous();
    EXPECT_EQ(context.memory().layout_copied, before + 480);
    (void)x.contiguous_nhwc();
    EXPECT_EQ(context.memory().layout_copied, before + 960);
  });
}

/// A small network and its optimizer.
struct Training {
  explicit Training(const Context& context, std::int64_t channels = 4, std::int64_t kernel = 3)
      : x(Tensor::uniform(context, {2, 3, 8, 8}, -1, 1)) {
    net.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 3,
                                                       .out_channels = channels,
                                                       .kernel = kernel,
                                                       .padding = kernel / 2,
                                                       .activation = Activation::relu});
    net.emplace<nn::Conv2d>(
        context, nn::Conv2dOptions{.in_channels = channels, .out_channels = 5, .kernel = 1});
    optimizer = std::make_unique<nn::Sgd>(
        net.parameters(),
        nn::SgdOptions{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 1e-3});
    target = Tensor::uniform(context, {2, 5, 8, 8});
  }
  Tensor step() {
    optimizer->zero_grad();
    Tape tape;
    const Var loss = mean_square_error(net(tape.constant(x)), tape.constant(target));
    tape.backward(loss);
    optimizer->step();
    return loss;
  }
  std::vector<std::vector<double>> weights() const {
    std::vector<std::vector<double>> all;
    for (const Parameter& parameter : net.parameters()) all.push_back(values_of(parameter.value()));
    return all;
  }

  nn::Sequential net;
  std::unique_ptr<nn::Sgd> optimizer;
  Tensor x, target;
};

TEST(Memory, SteadyStateAsksTheDriverForNothing) {
  on_every_device([](Context context) {
    Training training(context);
    const double first = training.step().item();
    for (int i = 0; i < 5; ++i) training.step();
    context.synchronize();
    const MemoryStats before = context.memory();
    for (int i = 0; i < 100; ++i) training.step();
    context.synchronize();
    EXPECT_EQ(context.memory().driver_calls, before.driver_calls);
    EXPECT_EQ(context.memory().reserved, before.reserved);
    EXPECT_EQ(context.memory().live, before.live);
    EXPECT_EQ(context.memory().layout_copied, before.layout_copied);
    EXPECT_LT(training.step().item(), first);
  });
}

TEST(Memory, OutOfMemoryNamesBytesAndASmallerRetryWorks) {
  on_every_device([](Context context) {
    { const Tensor cached = Tensor::empty(context, {1 << 20}); }
    // Beyond the address space of any machine.
    const Shape absurd{std::int64_t{1} << 50};
    std::size_t wanted = 0;
    std::string text;
    try {
      (void)Tensor::empty(context, absurd);
      FAIL() << "2^52 bytes were given";
    } catch (const OutOfMemoryError& error) {
      wanted = error.bytes_wanted();
      text = error.what();
    }
    EXPECT_EQ(wanted, std::size_t{1} << 52);
    expect_contains(text, {std::to_string(wanted)});
    EXPECT_EQ(context.memory().reserved, context.memory().live) << "caches were given back first";
    EXPECT_THROW((void)Tensor::full(context, absurd, 1), OutOfMemoryError);
    EXPECT_THROW((void)Tensor::zeros(context, absurd).data(), OutOfMemoryError);
    const Tensor y = Tensor::full(context, {1 << 10}, 3);
    EXPECT_EQ(values_of(add(y, y))[1000], 6);
    Training training(context);
    EXPECT_TRUE(std::isfinite(training.step().item()));
  });
}

TEST(Memory, MoreThanTheDeviceHoldsIsOutOfMemory) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  const Context context(Device::cuda());
  const Tensor before = Tensor::full(context, {100}, 2);
  std::vector<Tensor> held;
  std::string text;
  try {
    for (int i = 0; i < 4096; ++i) held.push_back(Tensor::empty(context, {std::int64_t{1} << 30}));
    FAIL() << "16 TiB were given";
  } catch (const OutOfMemoryError& error) {
    text = error.what();
    EXPECT_GE(error.bytes_wanted(), std::size_t{4} << 30);
  }
  expect_contains(text, {"live", "reserved"});
  held.clear();
  EXPECT_EQ(values_of(add(before, Tensor::full(context, {100}, 1)))[99], 3);
}

TEST(Memory, TensorsMayOutliveTheContextHandle) {
  std::vector<Tensor> kept;
  std::vector<Parameter> parameters;
  for (const Context& context : test::contexts()) {
    kept.push_back(Tensor::full(context, {3, 3}, 2));
    Training training(context);
    training.step();
    for (const Parameter& parameter : training.net.parameters()) parameters.push_back(parameter);
  }
  for (const Tensor& x : kept) {
    EXPECT_EQ(values_of(mul(x, x)), std::vector<double>(9, 4.0));
    EXPECT_EQ(x.context().memory().live > 0, true);
    const Tensor more = Tensor::full(x.context(), {5}, 1);
    EXPECT_EQ(values_of(more), std::vector<double>(5, 1.0));
  }
  for (const Parameter& parameter : parameters)
    EXPECT_EQ(parameter.grad().shape(), parameter.value().shape());
}

// --- threads ------------------------------------------------------------------------------------

/// Bits of everything that `iterations` of convolution, forward and backward, make.
std::vector<std::vector<float>> convolve(Device device, std::int64_t kernel, std::int64_t channels,
                                         int iterations, int threads, const char* row = "") {
  ContextOptions options;
  options.seed = static_cast<std::uint64_t>(kernel);
  options.threads = threads;
  Context context(device, options);
  const std::string list = kernel == 1 ? "pointwise" : "conv2d";
  for (const char* pass : {".forward", ".backward_data", ".backward_weight"})
    context.force(list + pass, row);
  const Tensor x = Tensor::normal(context, {2, channels, 9, 9});
  const Tensor w = Tensor::normal(context, {6, channels, kernel, kernel});
  const Tensor b = Tensor::normal(context, {6});
  std::vector<std::vector<float>> all;
  for (int i = 0; i < iterations; ++i) {
    Tape tape;
    const Var vx = tape.leaf(x), vw = tape.leaf(w), vb = tape.leaf(b);
    const Var y = conv2d(vx, vw, vb, {.padding = kernel / 2, .math = {}});
    tape.backward(sum(y * y));
    if (i % 20 != 0) continue;
    all.push_back(y.value().to_vector<float>());
    for (const Var& leaf : {vx, vw, vb}) all.push_back(tape.grad(leaf).to_vector<float>());
  }
  return all;
}

TEST(Threads, H19_TwoContextsOnTwoThreadsEqualOne) {
  std::vector<Device> devices{Device::cpu()};
  if (cuda_device_count() > 0) devices.push_back(Device::cuda());
  for (const Device device : devices) {
    SCOPED_TRACE(to_string(device));
    constexpr int iterations = 200;
    const auto alone_a = convolve(device, 5, 3, iterations, 1);
    const auto alone_b = convolve(device, 1, 64, iterations, 2);
    for (const auto& [first, second] : {std::pair{device, device}, {Device::cpu(), device}}) {
      std::vector<std::vector<float>> a, b;
      std::string failure_a, failure_b;
      const auto guarded = [](std::string& failure, const std::function<void()>& body) {
        try {
          body();
        } catch (const std::exception& error) {
          failure = error.what();
        }
      };
      std::thread thread_a([&, where = first] {
        guarded(failure_a, [&] { a = convolve(where, 5, 3, iterations, 1); });
      });
      std::thread thread_b([&, where = second] {
        guarded(failure_b, [&] { b = convolve(where, 1, 64, iterations, 2); });
      });
      thread_a.join();
      thread_b.join();
      EXPECT_EQ(failure_a, "");
      EXPECT_EQ(failure_b, "");
      EXPECT_TRUE(first != device || a == alone_a);
      EXPECT_TRUE(b == alone_b);
    }
  }
}

TEST(Threads, AContextMayMoveToAnotherThread) {
  on_every_device([](const Context& context) {
    Training here(context);
    here.step();
    std::vector<double> seen;
    std::thread([&] {
      here.step();
      seen = values_of(here.x);
    }).join();
    EXPECT_EQ(seen, values_of(here.x));
    here.step();
  });
}

TEST(Threads, ResultsOfOwnRowsDoNotDependOnTheirNumber) {
  // oneDNN's do: it splits the sums of a weight gradient among its threads.
  for (const char* row : {"cpu.eigen", "cpu.reference"}) {
    SCOPED_TRACE(row);
    const auto one = convolve(Device::cpu(), 3, 8, 1, 1, row);
    EXPECT_TRUE(one == convolve(Device::cpu(), 3, 8, 1, 2, row));
    EXPECT_TRUE(one == convolve(Device::cpu(), 3, 8, 1, 5, row));
  }
  for (const char* row : {"cpu.pointwise", "cpu.eigen", "cpu.reference"}) {
    SCOPED_TRACE(row);
    const auto one = convolve(Device::cpu(), 1, 70, 1, 1, row);
    EXPECT_TRUE(one == convolve(Device::cpu(), 1, 70, 1, 2, row));
    EXPECT_TRUE(one == convolve(Device::cpu(), 1, 70, 1, 5, row));
  }
}

// --- devices and streams ------------------------------------------------------------------------

TEST(Devices, UnusableOnesAreErrorsWithTheCause) {
  const int count = cuda_device_count();
  EXPECT_EQ(count == 0, !why_no_cuda().empty());
  const std::string text = message_of<DeviceError>([] { Context context(Device::cuda(99)); });
  expect_contains(text, {"cuda:99"});
  if (count == 0) {
    expect_contains(text, {why_no_cuda()});
    expect_contains(message_of<DeviceError>([] { Context context(Device::cuda()); }),
                    {"cuda:0", why_no_cuda()});
  } else {
    expect_contains(text, {std::to_string(count)});
  }
  EXPECT_THROW(Context(Device::cuda(-1)), DeviceError);
  const Context cpu;  // still works
  EXPECT_EQ(values_of(Tensor::full(cpu, {2}, 1)), (std::vector<double>{1, 1}));
}

TEST(Devices, ContextsHaveNames) {
  on_every_device([](const Context& context) {
    EXPECT_FALSE(context.device_name().empty());
    expect_contains(context.name(), {"context #", to_string(context.device())});
    EXPECT_NE(context.name(), Context(context.device()).name());
    EXPECT_NE(context, Context(context.device()));
    const Context copy = context;
    EXPECT_EQ(copy, context);
    EXPECT_FALSE(library_versions(context.device()).empty());
  });
}

TEST(Streams, H18_MemoryReadByAnotherStreamIsNotReused) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  const Context a(Device::cuda()), b(Device::cuda());
  const std::int64_t count = 1 << 20;
  const Tensor big = Tensor::uniform(b, {2048, 2048});
  (void)linear(big, big);  // chooses an implementation
  Context(b).synchronize();
  for (int i = 0; i < 100; ++i) {
    Tensor copy = Tensor::empty(b, {count});
    {
      const Tensor t = Tensor::full(a, {count}, i);
      for (int k = 0; k < 3; ++k) (void)linear(big, big);  // stream b is busy for a while
      copy.copy_(t);
    }
    // The same size again: were the block handed out, the 7s would reach b's copy.
    const Tensor other = Tensor::full(a, {count}, -7);
    const std::vector<float> values = copy.to_vector<float>();
    for (const float value : values) ASSERT_EQ(value, i);
    ASSERT_EQ(other.to_vector<float>()[count - 1], -7);
  }
}

TEST(Streams, WritesAreOrderedAfterReadsOfAnotherStream) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  const Context a(Device::cuda()), b(Device::cuda());
  const std::int64_t count = 1 << 20;
  const Tensor big = Tensor::uniform(a, {2048, 2048});
  (void)linear(big, big);
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 3; ++k) (void)linear(big, big);  // stream a is busy for a while
    const Tensor t = Tensor::full(a, {count}, i);        // not there yet
    const std::vector<float> values = t.to(b).to_vector<float>();
    for (const float value : values) ASSERT_EQ(value, i);
  }
}

TEST(Streams, TheCallersStream) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  const Context owner(Device::cuda());  // makes the device's context current
  (void)Tensor::full(owner, {1}, 1).item();
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) GTEST_SKIP() << "libcuda.so.1 cannot be opened";
  using Create = int (*)(void**, unsigned);
  using OnStream = int (*)(void*);
  const auto create = reinterpret_cast<Create>(dlsym(driver, "cuStreamCreate"));
  const auto destroy = reinterpret_cast<OnStream>(dlsym(driver, "cuStreamDestroy_v2"));
  const auto query = reinterpret_cast<OnStream>(dlsym(driver, "cuStreamQuery"));
  ASSERT_TRUE(create && destroy && query);
  void* stream = nullptr;
  ASSERT_EQ(create(&stream, 1 /* non-blocking */), 0);
  {
    ContextOptions options;
    options.stream = stream;
    Context context(Device::cuda(), options);
    const Tensor x = Tensor::uniform(context, {2048, 2048});
    Tensor y;
    for (int i = 0; i < 20; ++i) y = linear(x, x).value();
    EXPECT_EQ(query(stream), 600) << "the work does not run on the caller's stream";  // not ready
    context.synchronize();
    EXPECT_EQ(query(stream), 0);
    Training training(context);
    EXPECT_TRUE(std::isfinite(training.step().item()));
  }
  // The stream is the caller's: still alive.
  EXPECT_EQ(query(stream), 0);
  EXPECT_EQ(destroy(stream), 0);
}

// --- options ------------------------------------------------------------------------------------

TEST(Options, AreKeptAndSet) {
  ContextOptions options;
  options.math = Math::strict;
  options.threads = 1;
  options.zero_skip = ZeroSkip::off;
  options.seed = 5;
  Context context(Device::cpu(), options);
  EXPECT_EQ(context.math(), Math::strict);
  EXPECT_EQ(context.threads(), 1);
  EXPECT_EQ(context.options().zero_skip, ZeroSkip::off);
  EXPECT_EQ(context.options().seed, 5u);
  context.set_math(Math::tf32);
  context.set_zero_skip(ZeroSkip::force);
  context.set_zero_skip_numerics(ZeroSkipNumerics::strict);
  context.set_deterministic(false);
  context.set_workspace_limit(1024);
  EXPECT_EQ(context.math(), Math::tf32);
  EXPECT_EQ(context.options().zero_skip, ZeroSkip::force);
  EXPECT_EQ(context.options().zero_skip_numerics, ZeroSkipNumerics::strict);
  EXPECT_FALSE(context.options().deterministic);
  EXPECT_EQ(context.options().workspace_limit, 1024u);
  EXPECT_GE(Context().threads(), 1);
  ContextOptions negative;
  negative.threads = -2;
  EXPECT_THROW(Context(Device::cpu(), negative), Error);
}

TEST(Options, ScopedMathRestores) {
  on_every_device([](const Context& context) {
    const Math before = context.math();
    {
      const ScopedMath outer(context, Math::strict);
      EXPECT_EQ(context.math(), Math::strict);
      try {
        const ScopedMath inner(context, Math::bf16);
        EXPECT_EQ(context.math(), Math::bf16);
        throw std::runtime_error("left");
      } catch (const std::runtime_error&) {
      }
      EXPECT_EQ(context.math(), Math::strict);
    }
    EXPECT_EQ(context.math(), before);
  });
}

TEST(Options, MathReachesTheDescriptor) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::full(context, {4, 8}, 1), w = Tensor::full(context, {3, 8}, 1);
    const ScopedMath scope(context, Math::tf32);
    const auto by_context = explain(context, [&] { (void)linear(x, w); });
    ASSERT_EQ(by_context.size(), 1u);
    expect_contains(by_context[0].problem, {"f32/tf32"});
    const auto by_call =
        explain(context, [&] { (void)linear(x, w, {}, {.activation = {}, .math = Math::strict}); });
    expect_contains(by_call.at(0).problem, {"f32/strict"});
  });
}

TEST(Options, ScopedForceRestores) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::full(context, {1, 2, 6, 6}, 1);
    const Tensor w = Tensor::full(context, {2, 2, 3, 3}, 1);
    const std::string reference = to_string(context.device().type) + ".reference";
    const auto chosen = [&] { return explain(context, [&] { (void)conv2d(x, w); }).at(0).chosen; };
    const std::string normal = chosen();
    EXPECT_NE(normal, reference);
    {
      const ScopedForce force(context, "conv2d.forward", reference);
      EXPECT_EQ(chosen(), reference);
    }
    EXPECT_EQ(chosen(), normal);
  });
}

TEST(Options, UnknownRowIsAnErrorThatListsTheKnown) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::full(context, {1, 2, 6, 6}, 1);
    const Tensor w = Tensor::full(context, {2, 2, 3, 3}, 1);
    const std::string device = to_string(context.device().type);
    const ScopedForce force(context, "conv2d.forward", "cpu.no_such_row");
    for (int i = 0; i < 2; ++i)  // the failure is not cached as a success
      expect_contains(message_of<SelectionError>([&] { (void)conv2d(x, w); }),
                      {"conv2d.forward", "cpu.no_such_row", device + ".reference",
                       device + ".zero_skip", device + ".constant"});
  });
  // A row of the other device does not exist here.
  const Context context;
  const ScopedForce force(context, "reduce", "cuda.reduce");
  EXPECT_THROW((void)sum(Tensor::full(context, {3}, 1)), SelectionError);
}

TEST(Options, ForcedRowThatRejectsGivesTheReason) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::full(context, {1, 2, 6, 6}, 1);
    const Tensor w = Tensor::full(context, {2, 2, 3, 3}, 1);
    const std::string row = to_string(context.device().type) + ".constant";
    {
      const ScopedForce force(context, "conv2d.forward", row);
      expect_contains(message_of<SelectionError>([&] { (void)conv2d(x, w); }),
                      {"conv2d.forward", row, "no operand is known to be all zero", "c2 h6 w6"});
    }
    EXPECT_EQ(values_of(conv2d(x, w))[0], 18) << "the context is usable afterwards";
  });
}

// --- profiling ----------------------------------------------------------------------------------

TEST(Profile, RangesAndWindowsAreHarmlessWithoutAProfiler) {
  const bool before = profiling();
  {
    const ProfileRange range("outer");
    const ProfileWindow window;
    EXPECT_TRUE(profiling());
    const ProfileRange inner("inner");
    on_every_device([](const Context& context) {
      Training training(context);
      EXPECT_TRUE(std::isfinite(training.step().item()));
    });
    set_profiling(false);  // ranges that are open still close
    {
      const ProfileWindow nested;
      EXPECT_TRUE(profiling());
    }
    EXPECT_FALSE(profiling());
  }
  EXPECT_EQ(profiling(), before);
  set_profiling(true);
  {
    const ProfileRange range("");
    set_profiling(false);
  }
  EXPECT_FALSE(profiling());
  set_profiling(before);
}

}  // namespace
}  // namespace zerone
