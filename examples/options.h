// Command lines of the programs: options that they share, devices, errors.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <zerone/zerone.h>

namespace options {

/// A value that does not go with the rest; the text names the option and the legal values.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Results that do not agree with the reference.
class Disagreement : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What all programs take.
struct Common {
  std::string device = "auto";
  int threads = 0;
  std::string dtype = "f32";
  std::uint64_t seed = 1;
  std::string json;
  bool profile = false;
  std::optional<bool> tune;  // unset: on the GPU only
};

/// What those that time passes take beside it.
struct Timed : Common {
  int trials = 0;
  double time_budget = 0;
  std::string input;
};

/// Adds the shared options, except --device; `common` gives the defaults.
void add_common(CLI::App& app, Common& common);
/// Adds all of these.
void add_timed(CLI::App& app, Timed& timed);

zerone::DType parse_dtype(const std::string& name);
/// "native", the label of 16-bit storage, is the default mode: f32 alone is governed by it.
zerone::Math parse_math(const std::string& name);
inline const std::vector<std::string> math_names{"strict", "fp32", "tf32", "bf16", "fp16"};

/// The devices to run on: for "auto" every device there is, with a line on stdout for one that is
/// left out. `cpu_takes_it` is false if the options ask for something that only a GPU does, and
/// `what` names it ("--dtype bf16"). Throws UsageError where a device was asked for by name.
std::vector<zerone::Device> choose_devices(const Common& common, bool cpu_takes_it,
                                           const std::string& what);

/// A floating-point .npy file with finite values; `expected` says in words which shapes fit.
zerone::Tensor load_input(const zerone::Context& context, const std::string& path,
                          zerone::DType dtype,
                          const std::function<bool(const zerone::Shape&)>& fits,
                          const std::string& expected);

/// Parses and runs. Exit status: the body's; 1 for a disagreement or a failure, 2 for bad options,
/// 130 if interrupted.
int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& body);

}  // namespace options
