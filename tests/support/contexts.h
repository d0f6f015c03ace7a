// The devices that tests run on.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/zerone.h>

namespace zerone::test {

/// One context a device that this machine has: always the CPU, and the first GPU if there is one.
inline std::vector<Context> contexts(const ContextOptions& options = {}) {
  std::vector<Context> all;
  all.emplace_back(Device::cpu(), options);
  if (cuda_device_count() > 0) all.emplace_back(Device::cuda(), options);
  return all;
}

/// Runs `body(context)` on every device, with the device in the failure message.
template <class Body>
void on_every_device(Body&& body, const ContextOptions& options = {}) {
  for (const Context& context : contexts(options)) {
    SCOPED_TRACE("on " + to_string(context.device()));
    body(context);
  }
}

}  // namespace zerone::test
