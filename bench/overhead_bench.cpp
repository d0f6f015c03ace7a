// Suite overhead: eager wall time of experiment 1's network at batch 1, and what the host spends.
//   host_us_per_op      time to enqueue a step without waiting, over the network's operations
//   ops                 how many those are: 11 convolutions and 10 ReLUs, and as many gradients
//   host_us_per_run     the same time over what was run for them
//   runs                how many that is: a fused ReLU, forward or backward, is none of its own
//   driver_allocations  allocations and frees that reached the driver meanwhile
#include <algorithm>
#include <chrono>

#include "bench/harness.h"
#include "bench/network.h"

namespace zerone::bench {
namespace {

std::map<std::string, double> host_counters(const Context& given, const std::function<void()>& step,
                                            double ops) {
  Context context = given;
  const double runs = static_cast<double>(explain(context, step).size());
  context.synchronize();
  const std::size_t before = context.memory().driver_calls;
  std::vector<double> samples;
  for (int i = 0; i < 50; ++i) {
    const auto start = std::chrono::steady_clock::now();
    step();
    const auto end = std::chrono::steady_clock::now();
    samples.push_back(std::chrono::duration<double, std::micro>(end - start).count());
    context.synchronize();
  }
  const auto driver_calls = static_cast<double>(context.memory().driver_calls - before);
  std::nth_element(samples.begin(), samples.begin() + 25, samples.end());
  return {{"host_us_per_op", samples[25] / ops},
          {"ops", ops},
          {"host_us_per_run", samples[25] / runs},
          {"runs", runs},
          {"driver_allocations", driver_calls}};
}

}  // namespace

void register_cases(const Setting& setting) {
  const std::string device = to_string(setting.device.type);
  for (const int threads : setting.threads)
    for (const std::string pass : {"forward", "forward_backward"}) {
      const Cost cost = network_cost(1, pass, {});
      add(setting,
          {.suite = "overhead",
           .name = "experiment1_b1",
           .pass = pass,
           .mode = {},
           .impl = {.name = device + ".auto.eager", .eager = true},
           .bytes = cost.bytes,
           .flops = cost.flops,
           .threads = threads,
           .make =
               [=](const Context& context) {
                 return network_workload(context, 1, "kaiming", pass, {}, false);
               }},
          setting.cuda()
              ? MoreCounters([pass](const Context& context, const std::function<void()>& step) {
                  return host_counters(context, step, pass == "forward" ? 21 : 42);
                })
              : MoreCounters());
    }
}

}  // namespace zerone::bench
