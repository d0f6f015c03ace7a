#include "options.h"

#include <fmt/format.h>
#include <cmath>
#include <thread>

#include "report.h"

namespace options {

using zerone::Device;

void add_common(CLI::App& app, Common& common) {
  app.add_option("--threads", common.threads, "CPU threads; 0 takes all that the process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  app.add_option("--dtype", common.dtype, "Storage type; 16-bit types run on the GPU only")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  app.add_option("--seed", common.seed, "Seed of all random numbers")
      ->type_name("UINT")
      ->capture_default_str();
  app.add_option("--json", common.json, "Write the results to this file")->type_name("FILE");
  app.add_flag("--profile", common.profile,
               "Run a few steps inside a profiler window, with NVTX ranges, and take no times");
  app.add_flag_callback(
      "--tune", [&common] { common.tune = true; },
      "Time every implementation once and keep the fastest (default on a GPU)");
  app.add_flag_callback(
      "--no-tune", [&common] { common.tune = false; },
      "Choose implementations by rules (default on the CPU)");
}

void add_timed(CLI::App& app, Timed& timed) {
  app.add_option("--device", timed.device,
                 "Where to run: auto takes the CPU and the first GPU, if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda", "both"}))
      ->capture_default_str();
  add_common(app, timed);
  app.add_option("--trials", timed.trials, "Most timed passes a row")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str();
  app.add_option(
         "--time-budget", timed.time_budget,
         "Seconds of timing a device, shared by its rows; fewer trials are taken if need be")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  app.add_option("--input", timed.input, "Take the input from this file instead of random numbers")
      ->type_name("FILE.npy");
}

zerone::DType parse_dtype(const std::string& name) {
  if (name == "bf16") return zerone::DType::bf16;
  if (name == "f16") return zerone::DType::f16;
  return zerone::DType::f32;
}

zerone::Math parse_math(const std::string& name) {
  if (name == "strict") return zerone::Math::strict;
  if (name == "tf32") return zerone::Math::tf32;
  if (name == "bf16") return zerone::Math::bf16;
  if (name == "fp16") return zerone::Math::fp16;
  return zerone::Math::fp32;
}

std::vector<Device> choose_devices(const Common& common, bool cpu_takes_it,
                                   const std::string& what) {
  const bool gpu = zerone::cuda_device_count() > 0;
  const bool wants_gpu = common.device == "cuda" || common.device == "both";
  if (wants_gpu && !gpu)
    throw UsageError(fmt::format("--device {}: no GPU can be used: {}; legal here: auto, cpu",
                                 common.device, zerone::why_no_cuda()));
  const bool wants_cpu = common.device == "cpu" || common.device == "both";
  if (!cpu_takes_it && (wants_cpu || !gpu))
    throw UsageError(fmt::format(
        "{}: runs on a GPU only, and --device is {}{}; the CPU takes "
        "--dtype f32 with --math fp32",
        what, common.device, gpu ? "" : " (no GPU can be used: " + zerone::why_no_cuda() + ")"));
  const bool use_cpu = common.device != "cuda" && cpu_takes_it;
  const bool use_gpu = common.device != "cpu" && gpu;
  if (common.device == "auto" && !gpu) fmt::print("CPU only: {}.\n", zerone::why_no_cuda());
  if (common.device == "auto" && !cpu_takes_it)
    fmt::print("GPU only: {} does not run on the CPU.\n", what);
  if (use_cpu && use_gpu) return {Device::cpu(), Device::cuda()};
  if (use_gpu) return {Device::cuda()};
  return use_cpu ? std::vector<Device>{Device::cpu()} : std::vector<Device>{};
}

zerone::Tensor load_input(const zerone::Context& context, const std::string& path,
                          zerone::DType dtype,
                          const std::function<bool(const zerone::Shape&)>& fits,
                          const std::string& expected) {
  const zerone::Context host{Device::cpu()};
  const zerone::Tensor x = zerone::load_npy(host, path);
  if (!zerone::is_floating(x.dtype()))
    throw UsageError(
        fmt::format("--input {}: holds {}; legal: f64, f32, f16", path, to_string(x.dtype())));
  if (!fits(x.shape()))
    throw UsageError(
        fmt::format("--input {}: has shape {}; legal: {}", path, to_string(x.shape()), expected));
  for (const double value : x.to(zerone::DType::f64).to_vector<double>())
    if (!std::isfinite(value))
      throw UsageError(
          fmt::format("--input {}: holds NaN or infinity; legal: finite values", path));
  return x.to(dtype).contiguous().to(context);
}

namespace {

/// The line of --help about the option that a message names.
std::string about(const CLI::App& app, const std::string& message) {
  const CLI::Option* found = nullptr;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name(false, true);
    const std::string longest =
        name.substr(name.rfind("--") == std::string::npos ? 0 : name.rfind("--"));
    const std::size_t at = message.find(longest);
    if (at == std::string::npos) continue;
    const char next = at + longest.size() < message.size() ? message[at + longest.size()] : ' ';
    if (next == '-' || (next >= 'a' && next <= 'z')) continue;
    found = option;
  }
  if (!found) return {};
  return fmt::format("  {} {}\n      {}\n", found->get_name(false, true), found->get_type_name(),
                     found->get_description());
}

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& body) {
  app.get_formatter()->column_width(36);
  app.option_defaults()->always_capture_default();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "error: {}\n{}", error.what(), about(app, error.what()));
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
      std::string names;
      for (const CLI::Option* option : app.get_options())
        names += (names.empty() ? "" : ", ") + option->get_name();
      fmt::print(stderr, "legal options: {}\n", names);
    }
    fmt::print(stderr, "--help tells more.\n");
    return 2;
  }
  report::install_interrupt_handler();
  try {
    body();
  } catch (const UsageError& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  } catch (const Disagreement& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: {}\nNo times are reported.\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
  if (report::interrupted()) {
    fmt::print(stderr, "interrupted\n");
    return 130;
  }
  return 0;
}

}  // namespace options
