// CPU threads of contexts: how many run, on which CPUs, and that several contexts on several
// threads keep to what each was given.
#include <sched.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/core/context_state.h>
#include <zerone/kernels/cpu/parallel.h>
#include <zerone/zerone.h>

#include "support/errors.h"

namespace zerone {
namespace {

namespace fs = std::filesystem;
using kernels::cpu::cgroup_quota;
using kernels::cpu::parallel_for;
using test::expect_contains;
using test::message_of;

using Cpus = std::set<int>;

/// The CPUs that a thread may run on; 0 is the calling one.
Cpus cpus_of(pid_t thread = 0) {
  cpu_set_t set;
  Cpus cpus;
  if (sched_getaffinity(thread, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.insert(cpu);
  return cpus;
}

std::vector<pid_t> threads_of_process() {
  std::vector<pid_t> threads;
  for (const auto& entry : fs::directory_iterator("/proc/self/task"))
    threads.push_back(std::stoi(entry.path().filename()));
  return threads;
}

Context cpu_context(int threads, std::vector<int> affinity = {}) {
  return Context(Device::cpu(), {.threads = threads, .affinity = std::move(affinity)});
}

/// Forward and backward through every kind of CPU row: elementwise, reduction, linear, 1x1 and 3x3
/// convolution (`row` of each pass), zero-skip. Everything they gave, in order.
std::vector<float> train(Context context, const std::string& row) {
  for (const char* pass : {"forward", "backward_data", "backward_weight"})
    context.force(std::string("conv2d.") + pass, row);
  context.seed(5);
  std::vector<float> results;
  const auto keep = [&](const Tensor& x) {
    const std::vector<float> values = x.to_vector<float>();
    results.insert(results.end(), values.begin(), values.end());
  };
  const Tensor x = Tensor::normal(context, {4, 16, 24, 24});
  Tensor sparse = Tensor::zeros(context, {16, 16, 3, 3});
  Tensor some = sparse.reshape({-1}).slice(0, 0, sparse.numel(), 13);
  some.copy_(Tensor::normal(context, {some.numel()}));
  {
    const ScopedForce skip(context, "conv2d.forward", "cpu.zero_skip");
    keep(conv2d(x, sparse, {}, {.padding = 1}).value());
  }
  Tape tape;
  const Var w3 = tape.leaf(Tensor::normal(context, {16, 16, 3, 3}));
  const Var w1 = tape.leaf(Tensor::normal(context, {16, 16, 1, 1}));
  const Var w0 = tape.leaf(Tensor::normal(context, {16, 24}));
  Var y = relu(conv2d(tape.constant(x), w3, {}, {.padding = 1}));
  y = linear(relu(conv2d(y, w1)), w0);
  tape.backward(mean(y * y));
  keep(y.value());
  for (const Var& w : {w3, w1, w0}) keep(tape.grad(w));
  return results;
}

/// The rows of dense convolution that this build has, besides the reference.
std::vector<std::string> dense_rows() {
  const Context context;
  std::vector<std::string> rows;
  const Tensor x = Tensor::normal(context, {1, 2, 5, 5}), w = Tensor::normal(context, {2, 2, 3, 3});
  for (const Explanation& e : explain(context, [&] { (void)conv2d(x, w); }))
    for (const Candidate& candidate : e.candidates)
      if (candidate.name == "cpu.onednn" || candidate.name == "cpu.eigen")
        rows.push_back(candidate.name);
  return rows;
}

/// Own rows give the same bits on any number of threads; oneDNN sums in another order.
void expect_same(const std::string& row, const std::vector<float>& found,
                 const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  const float allowed = row == "cpu.onednn" ? 1e-5f * largest : 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], allowed) << row << ", value " << i;
}

// --- how many -----------------------------------------------------------------------------------

TEST(Threads, DefaultKeepsWithinTheAffinityMask) {
  const Cpus own = cpus_of();
  EXPECT_LE(Context().threads(), static_cast<int>(own.size()));
  EXPECT_GE(Context().threads(), 1);
  std::thread([&] {  // the mask that counts is that of the thread that makes the context
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(*own.begin(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(Context().threads(), 1);
    EXPECT_EQ(cpu_context(3).threads(), 3) << "what was asked for is what is given";
  })
      .join();
}

TEST(Threads, DefaultKeepsWithinCgroupQuotas) {
  const fs::path root = fs::path(testing::TempDir()) / "zerone_cgroups";
  fs::create_directories(root / "a/b");
  const auto write = [&](const char* group, const char* text) {
    std::ofstream(root / group / "cpu.max") << text;
  };
  const std::string top = root.string();
  EXPECT_EQ(cgroup_quota(top.c_str(), "/a/b"), 0) << "no such file";
  write("a/b", "max 100000\n");
  EXPECT_EQ(cgroup_quota(top.c_str(), "/a/b"), 0);
  write("a", "250000 100000\n");
  EXPECT_EQ(cgroup_quota(top.c_str(), "/a/b"), 3) << "2.5 CPUs, of a group further up";
  write("a/b", "50000 100000\n");
  EXPECT_EQ(cgroup_quota(top.c_str(), "/a/b"), 1);
  EXPECT_EQ(cgroup_quota(top.c_str(), "/a"), 3);
  write(".", "150000 50000\n");
  EXPECT_EQ(cgroup_quota(top.c_str(), "/"), 3);
  fs::remove_all(root);
}

TEST(Threads, MoreThanCpusGivesTheSame) {
  const int many = static_cast<int>(cpus_of().size()) + 3;
  for (const std::string& row : dense_rows())
    expect_same(row, train(cpu_context(many), row), train(cpu_context(1), row));
  std::atomic<int> team{0};
  parallel_for(many, many, 1, [&](std::int64_t, std::int64_t) { ++team; });
  EXPECT_EQ(team, many);
}

TEST(Threads, NegativeIsAnError) {
  expect_contains(message_of<ShapeError>([] { cpu_context(-2); }), {"threads = -2"});
}

// --- where --------------------------------------------------------------------------------------

TEST(Affinity, BadNumbersAreNamed) {
  const Cpus own = cpus_of();
  const int good = *own.begin();
  for (const int bad : {-1, 1023, 1024, 1 << 30}) {
    expect_contains(message_of<DeviceError>([&] {
                      cpu_context(2, {good, bad});
                    }),
                    {"[context]", "CPU " + std::to_string(bad) + " cannot be used"});
  }
  expect_contains(message_of<DeviceError>([] { cpu_context(0, {-7, 1022}); }), {"CPU -7, 1022"});
  EXPECT_EQ(cpus_of(), own) << "trying them changed nothing";
}

TEST(Affinity, DefaultIsOneThreadForEachCpu) {
  const Cpus own = cpus_of();
  const std::vector<int> all(own.begin(), own.end());
  EXPECT_EQ(cpu_context(0, all).threads(), static_cast<int>(own.size()));
  EXPECT_EQ(cpu_context(0, {all[0], all[0]}).threads(), 1);
  EXPECT_EQ(cpu_context(5, all).threads(), 5);
}

/// The masks of a team that works for `context`.
std::vector<Cpus> team_masks(const Context& context) {
  context.state().backend->activate();  // as every operation begins
  const int threads = context.threads();
  std::vector<Cpus> masks(static_cast<std::size_t>(threads));
  parallel_for(threads, threads, 1, [&](std::int64_t begin, std::int64_t, int worker) {
    masks[static_cast<std::size_t>(worker)] = cpus_of();
    EXPECT_EQ(begin, worker);
  });
  return masks;
}

TEST(Affinity, TeamsRunThereAndTheCallerComesBack) {
  const Cpus own = cpus_of();
  const Cpus first{*own.begin()}, last{*own.rbegin()};
  const Context on_first = cpu_context(3, {*own.begin()}),
                on_last = cpu_context(2, {*own.rbegin()});
  const Context anywhere = cpu_context(3);
  for (int round = 0; round < 3; ++round) {  // teams of one thread serve all three in turn
    EXPECT_EQ(team_masks(on_first), std::vector<Cpus>(3, first));
    EXPECT_EQ(cpus_of(), own);
    EXPECT_EQ(team_masks(on_last), std::vector<Cpus>(2, last));
    EXPECT_EQ(cpus_of(), own);
    EXPECT_EQ(team_masks(anywhere), std::vector<Cpus>(3, own));
    EXPECT_EQ(team_masks(anywhere), std::vector<Cpus>(3, own));
  }
}

/// Runs `body` on a thread of its own and gives the masks of those that it started.
std::vector<Cpus> masks_of_members(const std::function<void()>& body) {
  std::vector<Cpus> masks;
  std::thread([&] {
    const std::vector<pid_t> earlier = threads_of_process();
    body();
    for (const pid_t thread : threads_of_process())
      if (std::find(earlier.begin(), earlier.end(), thread) == earlier.end())
        masks.push_back(cpus_of(thread));
  }).join();
  return masks;
}

TEST(Affinity, HoldsInsideEveryRow) {
  const Cpus own = cpus_of();
  if (own.size() < 2) GTEST_SKIP() << "one CPU";
  const int cpu = *own.rbegin();
  for (const std::string& row : dense_rows()) {
    SCOPED_TRACE("row " + row);
    const std::vector<Cpus> masks = masks_of_members([&] {
      train(cpu_context(3, {cpu}), row);
      EXPECT_EQ(cpus_of(), own);
    });
    EXPECT_EQ(masks, std::vector<Cpus>(2, Cpus{cpu}));
  }
}

TEST(Affinity, ResultsDoNotDependOnIt) {
  for (const std::string& row : dense_rows()) {
    const Context pinned = cpu_context(3, {*cpus_of().begin()});
    EXPECT_EQ(train(pinned, row), train(cpu_context(3), row)) << row;
  }
}

// --- several contexts, several threads ----------------------------------------------------------

/// The most threads that the process had at once while this lives, its own not counted. Members of
/// a team that was ended linger until they get a processor, so only threads of some age count.
class ThreadCount {
 public:
  ThreadCount() : sampler_([this] { sample(); }) {}
  ~ThreadCount() { stop(); }
  int stop() {
    done_ = true;
    if (sampler_.joinable()) sampler_.join();
    return most_;
  }

 private:
  void sample() {
    std::map<pid_t, int> ages;  // in samples
    while (!done_) {
      std::map<pid_t, int> now;
      for (const pid_t thread : threads_of_process()) now[thread] = ages[thread] + 1;
      ages = std::move(now);
      const auto old = std::count_if(ages.begin(), ages.end(),
                                     [](const auto& thread) { return thread.second >= 30; });
      most_ = std::max(most_.load(), static_cast<int>(old) - 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  }
  std::atomic<bool> done_ = false;
  std::atomic<int> most_ = 0;
  std::thread sampler_;
};

TEST(Threads, NeverMoreThanAskedFor) {
  for (const int threads : {1, 2, 5})
    for (const std::string& row : dense_rows())
      std::thread([&] {
        const int before = static_cast<int>(threads_of_process().size());
        ThreadCount count;
        for (int i = 0; i < 60; ++i) train(cpu_context(threads), row);
        EXPECT_LE(count.stop(), before + threads - 1) << row << ", " << threads << " threads";
      }).join();
}

TEST(Threads, ContextsOnThreadsOfTheirOwn) {
  for (const std::string& row : dense_rows()) {
    const std::vector<float> expected = train(cpu_context(1), row);
    const int before = static_cast<int>(threads_of_process().size());
    ThreadCount count;
    std::vector<std::thread> users;
    const std::vector<int> last{*cpus_of().rbegin()};
    for (const int threads : {1, 2, 3, 4})
      users.emplace_back([&, threads] {
        const Context context = cpu_context(threads, threads % 2 == 0 ? last : std::vector<int>());
        for (int i = 0; i < 40; ++i) expect_same(row, train(context, row), expected);
      });
    for (std::thread& user : users) user.join();
    EXPECT_LE(count.stop(), before + 1 + 2 + 3 + 4) << row;
  }
}

TEST(Threads, ContextsThatTakeTurnsOnOneThread) {
  for (const std::string& row : dense_rows())
    std::thread([&] {
      const std::vector<float> expected = train(cpu_context(1), row);
      const int before = static_cast<int>(threads_of_process().size());
      ThreadCount count;
      const Context few = cpu_context(2), many = cpu_context(4);
      for (int i = 0; i < 30; ++i) {
        expect_same(row, train(few, row), expected);
        expect_same(row, train(many, row), expected);
      }
      EXPECT_LE(count.stop(), before + 3) << row;
    }).join();
}

}  // namespace
}  // namespace zerone
