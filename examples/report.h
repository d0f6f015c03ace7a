// What the experiment programs print and write: tables for people, JSON for programs, a progress
// line for those who wait.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <zerone/zerone.h>

namespace report {

inline constexpr int page_width = 100;

/// "12.3" with three to four significant digits, for milliseconds and per cents.
std::string number(double value);
/// "1.96x"; "-" if either is missing (0).
std::string ratio(double numerator, double denominator);
/// "2.1e-07", "0".
std::string small(double value);
/// "1.05 GB"
std::string bytes(double count);

/// A heading followed by a blank line's worth of air.
void heading(const std::string& text);
/// A paragraph, wrapped to the page and indented by two.
void paragraph(const std::string& text);

/// Columns as wide as their content: the first one to the left, the others to the right. A cell
/// of a `groups` line spans several columns.
class Table {
 public:
  explicit Table(std::vector<std::string> columns) : columns_(std::move(columns)) {}
  /// A line above the column names: text over `count` columns, from the second column on.
  Table& group(std::string text, int count);
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// An empty line.
  void gap() { rows_.emplace_back(); }
  void print() const;

 private:
  struct Group {
    std::string text;
    int count;
  };
  std::vector<std::string> columns_;
  std::vector<Group> groups_;
  std::vector<std::vector<std::string>> rows_;
};

/// One line on stderr that is rewritten in place; silent unless stderr is a terminal.
class Progress {
 public:
  explicit Progress(int total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  bool visible() const { return visible_; }
  void step(const std::string& what);
  void show(const std::string& line);
  void clear();

 private:
  bool visible_;
  int total_, done_ = 0;
};

/// A JSON file that appears under its name only when it is complete. Opened at construction, so
/// that a path that cannot be written is an error (zerone::FileError) before any work is done.
class JsonFile {
 public:
  /// An empty path writes nothing.
  explicit JsonFile(std::string path);
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;
  void write(const nlohmann::json& value);

 private:
  std::string path_, partial_;
  bool written_ = false;
};

/// "2026-12-01T14:20:05Z"
std::string utc_now();

/// Who measured: zerone with its commit and compiler, date, command, and for each device its model,
/// threads and library versions.
nlohmann::json machine(const std::vector<zerone::Device>& devices, int threads);
void print_machine(const nlohmann::json& machine);

/// What a pass has to do at least, if nothing is skipped: each operand read once, each result
/// written once; two FLOPs a multiply-add.
struct Cost {
  double bytes = 0, flops = 0;
  Cost& operator+=(const Cost& other);
};
/// A contraction, or one of its two gradients: x, w and y values, `macs` multiply-adds.
Cost contraction_cost(double x, double w, double y, double macs, zerone::DType dtype);

/// The machine's own limits, measured now, the best of several samples: bytes a second of a large
/// copy (read and written), and FLOPs a second of a large matrix product in each math mode.
nlohmann::json ceilings(zerone::Device device, int threads, zerone::DType dtype,
                        const std::vector<std::string>& maths);

/// Median, least, mean and number of the samples, all in milliseconds.
nlohmann::json to_json(const zerone::Timing& timing);
/// The statistics of samples taken in several visits.
zerone::Timing summarize(std::vector<double> samples_ms);

/// One distinct operation of an explanation, in short: "conv2d.forward  64->64  cpu.onednn", how
/// often it ran, and why others did not (or their times, if it was tuned).
struct Ran {
  std::string op, problem, chosen, why;
  int count = 1;
  bool operator==(const Ran&) const = default;
};
std::vector<Ran> what_ran(const std::vector<zerone::Explanation>& explanations);
/// Prints each group's label and one line an operation, cut at the page's width. Groups whose lines
/// are the same are printed once.
void print_what_ran(const std::vector<std::pair<std::string, std::vector<Ran>>>& groups);

/// A line about a busy machine, if the medians of many rows lie far above their minima.
void note_noise(const std::vector<zerone::Timing>& timings);

/// Time since construction.
class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// After install_interrupt_handler(), the first Ctrl-C makes interrupted() true; the second one
/// ends the program.
void install_interrupt_handler();
bool interrupted();

}  // namespace report
