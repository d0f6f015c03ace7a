// Where data lives and work runs.
#pragma once

#include <cstdint>
#include <string>

namespace zerone {

/// Kinds of processors.
enum class DeviceType : std::uint8_t { cpu, cuda };

/// A processor: the host, or one CUDA device by index.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  static Device cpu() { return {}; }  ///< the host
  /// The CUDA device of this number, as the runtime counts the visible ones.
  static Device cuda(int index = 0) { return {DeviceType::cuda, index}; }
  bool is_cuda() const { return type == DeviceType::cuda; }  ///< whether it is a GPU
  bool operator==(const Device&) const = default;
};

/// "cpu", "cuda"
std::string to_string(DeviceType);
/// "cpu", "cuda:0"
std::string to_string(Device);

/// Usable CUDA devices: 0 in a CPU-only build, without a driver, or with none visible.
int cuda_device_count();
/// Why cuda_device_count() is 0; empty when it is not.
std::string why_no_cuda();

}  // namespace zerone
