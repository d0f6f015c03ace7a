#include "report.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string_view>

#include "commit.h"
#include "options.h"

namespace report {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

extern "C" void on_interrupt(int) {
  interrupt_seen = 1;
}

/// Display columns of UTF-8 text: continuation bytes take none.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? text + space : space + text;
}

void print_line(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  fmt::print("{}\n", line);
}

}  // namespace

std::string number(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size >= 1000) return fmt::format("{:.0f}", value);
  if (size >= 100) return fmt::format("{:.1f}", value);
  if (size >= 10) return fmt::format("{:.2f}", value);
  if (size >= 0.1 || size == 0) return fmt::format("{:.3f}", value);
  return fmt::format("{:.4f}", value);
}

std::string ratio(double numerator, double denominator) {
  if (!(numerator > 0) || !(denominator > 0)) return "-";
  const double value = numerator / denominator;
  return fmt::format("{:.{}f}x", value, value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

std::string small(double value) {
  return value == 0 ? "0" : fmt::format("{:.1e}", value);
}

std::string bytes(double count) {
  constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  for (; count >= 1000 && unit < 4; ++unit) count /= 1000;
  return unit == 0 ? fmt::format("{:.0f} B", count)
                   : fmt::format("{:.{}f} {}", count,
                                 count >= 100  ? 0
                                 : count >= 10 ? 1
                                               : 2,
                                 units[unit]);
}

void heading(const std::string& text) {
  fmt::print("\n{}\n{}\n", text, std::string(width_of(text), '-'));
}

void paragraph(const std::string& text) {
  std::string line = " ";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (width_of(line) + 1 + width_of(word) > page_width) {
      print_line(line);
      line = " ";
    }
    line += ' ' + word;
    at = end + 1;
  }
  print_line(line);
}

Table& Table::group(std::string text, int count) {
  groups_.push_back({std::move(text), count});
  return *this;
}

void Table::print() const {
  std::vector<std::size_t> widths;
  for (const std::string& column : columns_) widths.push_back(width_of(column));
  for (const auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));

  constexpr std::size_t gap = 2;
  // A group's columns are widened until its text fits.
  std::size_t at = 1;
  for (const Group& group : groups_) {
    const auto count = static_cast<std::size_t>(group.count);
    std::size_t span = (count - 1) * gap;
    for (std::size_t i = 0; i < count; ++i) span += widths[at + i];
    for (std::size_t i = 0; span < width_of(group.text); ++i, ++span) ++widths[at + i % count];
    at += count;
  }

  if (!groups_.empty()) {
    std::string line(2 + widths[0], ' ');
    at = 1;
    for (const Group& group : groups_) {
      const auto count = static_cast<std::size_t>(group.count);
      std::size_t span = (count - 1) * gap;
      for (std::size_t i = 0; i < count; ++i) span += widths[at + i];
      const std::size_t rest = span - width_of(group.text);
      // Rules on both sides show which columns belong together.
      const std::size_t left = rest / 2, right = rest - left;
      const auto rule = [](std::size_t n, bool leading) {
        if (n < 2) return std::string(n, ' ');
        return leading ? std::string(n - 1, '-') + ' ' : ' ' + std::string(n - 1, '-');
      };
      line += std::string(gap, ' ');
      line += group.text.empty() ? std::string(span, ' ')
                                 : rule(left, true) + group.text + rule(right, false);
      at += count;
    }
    print_line(line);
  }
  const auto print_cells = [&](const std::vector<std::string>& cells) {
    std::string line = "  ";
    for (std::size_t i = 0; i < cells.size(); ++i)
      line += (i ? std::string(gap, ' ') : "") + padded(cells[i], widths[i], i == 0);
    print_line(line);
  };
  print_cells(columns_);
  for (const auto& row : rows_) print_cells(row);
}

Progress::Progress(int total) : visible_(isatty(STDERR_FILENO) == 1), total_(total) {}

void Progress::step(const std::string& what) {
  ++done_;
  show(fmt::format("[{}/{}] {}", std::min(done_, total_), total_, what));
}

void Progress::show(const std::string& line) {
  if (!visible_) return;
  fmt::print(stderr, "\r\x1b[K{}", line.substr(0, page_width - 1));
  std::fflush(stderr);
}

void Progress::clear() {
  if (!visible_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

JsonFile::JsonFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::error_code error;
  if (std::filesystem::is_directory(path_, error))
    throw zerone::FileError(fmt::format("--json {}: is a directory", path_));
  partial_ = fmt::format("{}.{}.partial", path_, getpid());
  std::ofstream file(partial_, std::ios::trunc);
  if (!file) {
    partial_.clear();
    throw zerone::FileError(fmt::format("--json {}: cannot be written", path_));
  }
}

JsonFile::~JsonFile() {
  if (!partial_.empty() && !written_) std::remove(partial_.c_str());
}

void JsonFile::write(const nlohmann::json& value) {
  if (path_.empty()) return;
  std::ofstream file(partial_, std::ios::trunc);
  file << value.dump(1) << '\n';
  file.close();
  if (!file || std::rename(partial_.c_str(), path_.c_str()) != 0)
    throw zerone::FileError(fmt::format("--json {}: cannot be written", path_));
  written_ = true;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

namespace {

/// The command line of this process; the program without its folder.
std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string argument, text;
  while (std::getline(file, argument, '\0'))
    text += text.empty() ? std::filesystem::path(argument).filename().string() : " " + argument;
  return text;
}

#if defined(__clang__)
constexpr const char* compiler = __VERSION__;
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

}  // namespace

nlohmann::json machine(const std::vector<zerone::Device>& devices, int threads) {
  nlohmann::json result = {
      {"zerone", zerone::version()},       {"commit", commit},  {"compiler", compiler},
      {"command", command_line()},         {"date", utc_now()}, {"threads", threads},
      {"devices", nlohmann::json::array()}};
  result["cpu"] = zerone::Context(zerone::Device::cpu()).device_name();
  for (const zerone::Device device : devices)
    result["devices"].push_back({{"device", to_string(device)},
                                 {"name", zerone::Context(device).device_name()},
                                 {"libraries", zerone::library_versions(device)}});
  return result;
}

void print_machine(const nlohmann::json& machine) {
  const auto line = [](const std::string& name, const std::string& text) {
    fmt::print("  {:<9}{}\n", name, text);
  };
  line("machine",
       fmt::format("{}, {} thread{}", machine.at("cpu").get<std::string>(),
                   machine.at("threads").get<int>(), machine.at("threads") == 1 ? "" : "s"));
  for (const auto& device : machine.at("devices")) {
    const bool cpu = device.at("device") == "cpu";
    line(device.at("device").get<std::string>(),
         (cpu ? "" : device.at("name").get<std::string>() + "; ") +
             device.at("libraries").get<std::string>());
  }
}

Cost& Cost::operator+=(const Cost& other) {
  bytes += other.bytes;
  flops += other.flops;
  return *this;
}

Cost contraction_cost(double x, double w, double y, double macs, zerone::DType dtype) {
  return {(x + w + y) * static_cast<double>(size_of(dtype)), 2 * macs};
}

nlohmann::json ceilings(zerone::Device device, int threads, zerone::DType dtype,
                        const std::vector<std::string>& maths) {
  using zerone::Tensor;
  const bool gpu = device.is_cuda();
  zerone::Context context(device, {.threads = threads, .stream = nullptr});
  const auto best_seconds = [&](const std::function<void()>& work) {
    return 1e-3 * time_work(context, work, {.warmup = 2, .samples = 10}).min_ms;
  };
  nlohmann::json result;

  // Far larger than any cache; smaller where the memory does not hold two of them.
  for (std::int64_t bytes = std::int64_t{1} << (gpu ? 32 : 28); !result.contains("copy");
       bytes /= 2) {
    try {
      const Tensor from = Tensor::uniform(context, {bytes / 4});
      Tensor to = Tensor::empty_like(from);
      const double moved = 2 * static_cast<double>(bytes);
      result["copy"] = {{"bytes", moved},
                        {"bytes_per_second", moved / best_seconds([&] { to.copy_(from); })}};
    } catch (const zerone::OutOfMemoryError&) {
      if (bytes < (1 << 20)) throw;
    }
    context.empty_cache();
  }

  const std::int64_t side = gpu ? 8192 : 1024;
  const double flops = 2 * std::pow(static_cast<double>(side), 3);
  const Tensor x = Tensor::normal(context, {side, side}, 0, 1, dtype);
  const Tensor w = Tensor::normal(context, {side, side}, 0, 1, dtype);
  for (const std::string& math : maths) {
    const zerone::LinearParams params{.math = options::parse_math(math)};
    const auto product = [&] { (void)linear(x, w, {}, params).value(); };
    if (gpu) tune(context, product);
    result["matrix"][math] = {{"side", side}, {"flops_per_second", flops / best_seconds(product)}};
  }
  return result;
}

nlohmann::json to_json(const zerone::Timing& timing) {
  return {{"median_ms", timing.median_ms},
          {"min_ms", timing.min_ms},
          {"mean_ms", timing.mean_ms},
          {"trials", timing.samples_ms.size()}};
}

zerone::Timing summarize(std::vector<double> samples_ms) {
  zerone::Timing timing;
  timing.samples_ms = samples_ms;
  if (samples_ms.empty()) return timing;
  std::sort(samples_ms.begin(), samples_ms.end());
  const std::size_t n = samples_ms.size();
  timing.min_ms = samples_ms.front();
  timing.median_ms = (samples_ms[(n - 1) / 2] + samples_ms[n / 2]) / 2;
  timing.mean_ms =
      std::accumulate(samples_ms.begin(), samples_ms.end(), 0.0) / static_cast<double>(n);
  return timing;
}

void note_noise(const std::vector<zerone::Timing>& timings) {
  const auto noisy = std::count_if(timings.begin(), timings.end(), [](const zerone::Timing& t) {
    return t.median_ms > 1.5 * t.min_ms;
  });
  if (static_cast<std::size_t>(noisy) * 4 <= timings.size()) return;
  paragraph(fmt::format(
      "NOTE: the machine was busy: in {} of {} rows the median is more than 1.5 times the minimum. "
      "Run again when it is idle, or compare minima (--json).",
      noisy, timings.size()));
}

namespace {

/// "64->64 3x3" of a convolution, "128->128" of a pointwise contraction, else the problem as it is.
std::string short_problem(const zerone::Explanation& e) {
  long long n = 0, c = 0, h = 0, w = 0, k = 0, r = 0, s = 0;
  if (std::sscanf(e.problem.c_str(), "n%lld c%lld h%lld w%lld k%lld r%lld s%lld", &n, &c, &h, &w,
                  &k, &r, &s) == 7)
    return fmt::format("{}->{} {}x{}", c, k, r, s);
  if (e.op.starts_with("pointwise")) return e.problem.substr(0, e.problem.find(' '));
  return e.problem;
}

std::string without_device(const std::string& name) {
  const std::size_t dot = name.find('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

std::string short_reason(const zerone::Explanation& e) {
  std::string text;
  if (e.tuned) {
    for (const zerone::Candidate& c : e.candidates)
      if (c.microseconds > 0)
        text += fmt::format("{}{} {}", text.empty() ? "timed, us: " : ", ", without_device(c.name),
                            number(c.microseconds));
    return text;
  }
  for (const zerone::Candidate& c : e.candidates) {
    if (c.name == e.chosen) break;
    // Without an all-zero operand this row is never a choice: no news.
    if (c.name.ends_with(".constant")) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", without_device(c.name), c.reason);
  }
  return text;
}

}  // namespace

std::vector<Ran> what_ran(const std::vector<zerone::Explanation>& explanations) {
  std::vector<Ran> result;
  for (const zerone::Explanation& e : explanations) {
    Ran ran{e.op, short_problem(e), e.chosen, short_reason(e)};
    const auto same = std::find_if(result.begin(), result.end(), [&](const Ran& other) {
      return other.op == ran.op && other.problem == ran.problem && other.chosen == ran.chosen;
    });
    if (same == result.end())
      result.push_back(std::move(ran));
    else
      ++same->count;
  }
  return result;
}

void print_what_ran(const std::vector<std::pair<std::string, std::vector<Ran>>>& groups) {
  std::vector<std::pair<std::string, std::vector<Ran>>> merged;
  for (const auto& [label, lines] : groups) {
    const auto same = std::find_if(merged.begin(), merged.end(),
                                   [&](const auto& other) { return other.second == lines; });
    if (same == merged.end())
      merged.emplace_back(label, lines);
    else
      same->first += "; " + label;
  }
  const auto pass = [](const Ran& ran) { return ran.op.substr(ran.op.find('.') + 1); };
  const auto problem_text = [](const Ran& ran) {
    return ran.count > 1 ? fmt::format("{}x {}", ran.count, ran.problem) : ran.problem;
  };
  std::size_t op = 0, problem = 0, chosen = 0;
  for (const auto& [label, lines] : merged)
    for (const Ran& ran : lines) {
      op = std::max(op, pass(ran).size());
      problem = std::max(problem, problem_text(ran).size());
      chosen = std::max(chosen, ran.chosen.size());
    }
  for (const auto& [label, lines] : merged) {
    paragraph(label);
    for (const Ran& ran : lines) {
      std::string line = "    " + padded(pass(ran), op, true) + "  " +
                         padded(problem_text(ran), problem, true) + "  " +
                         padded(ran.chosen, chosen, true) + "  " + ran.why;
      if (width_of(line) > page_width) line = line.substr(0, page_width - 3) + "...";
      print_line(line);
    }
  }
}

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return interrupt_seen != 0;
}

}  // namespace report
