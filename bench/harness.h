// What all benchmarks share: options, contexts, the check before the time, and the timing itself.
//
// A benchmark is one row "<suite>/<case>/<pass>/<impl>/<storage>/<math>", named as the rows of
// peers_pytorch.py, with the counters median_ms, min_ms, bytes, flops, max_error and tuned. GPU
// rows are CUDA-graph replays between two events; CPU and .eager rows are wall time up to a sync.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <zerone/zerone.h>

namespace zerone::bench {

struct Setting {
  Device device;
  std::vector<int> threads;  // CPU; one entry on a GPU
  bool quick = false;        // fewer samples and cases
  bool full = false;         // the *_full.txt shape files
  bool cold = false;         // a row with cold caches beside each warm one
  bool reference = false;    // rows of the reference implementations
  double budget_ms = 0;      // of timed work a row
  double tune_seconds = 0;   // in all; later rows run what the selection rules choose

  bool cuda() const { return device.is_cuda(); }
};

/// Storage type and arithmetic of a row.
struct Mode {
  DType storage = DType::f32;
  Math math = Math::fp32;
};
/// The modes of the peers: fp32, tf32 and 16-bit storage on a GPU; fp32 on the CPU.
std::vector<Mode> peer_modes(const Setting& setting);
/// Largest max|err| / max|ref| of a right result after one contraction in this mode.
double tolerance_of(Mode mode);

using Tensors = std::vector<Tensor>;

/// A tensor that the timed work reads.
struct Operand {
  Tensor tensor;
  /// Entries of axis 0 that the check needs; 0: all of it, always.
  std::int64_t checked = 0;
  /// A gradient that the work starts from: the check zeroes it past `checked`, so that sums over
  /// the batch are those of the checked part.
  bool seed = false;
};

struct Workload {
  std::vector<Operand> operands;
  /// A function of the operands alone, so that the reference runs it in its own context, in f64.
  std::function<Tensors(const Tensors&)> compute;
  std::vector<std::int64_t> checked;  // per result, as in Operand
  /// Workloads of one binary with equal text have equal reference results; empty: like no other.
  std::string same_values;
  double tolerance = 1e-5;
  /// Check the work on the checked part alone: for results that no seed steers.
  bool check_part_alone = false;
};

/// How a context chooses implementations.
struct Impl {
  std::string name;  // the row's, e.g. "cuda.cudnn.nhwc"
  ZeroSkip zero_skip = ZeroSkip::automatic;
  std::vector<std::pair<std::string, std::string>> forced = {};  // (operation, row)
  bool tune = true;
  bool eager = false;
};
/// `row` for each of the operations.
Impl forced(std::string row, const std::vector<std::string>& operations);
/// Names of a conv2d's and a pointwise contraction's operations.
extern const std::vector<std::string> conv2d_operations, pointwise_operations;

struct Case {
  std::string suite, name, pass;
  Mode mode;
  Impl impl;
  double bytes = 0, flops = 0;
  int threads = 0;  // CPU
  std::function<Workload(const Context&)> make = {};
};

/// Counters of a row beside the common ones, measured on its prepared work.
using MoreCounters =
    std::function<std::map<std::string, double>(const Context&, const std::function<void()>&)>;

/// Registers a row, and its cold twin if asked for.
void add(const Setting& setting, Case row, const MoreCounters& more = {});

/// Each binary's own: registers its rows.
void register_cases(const Setting& setting);

// --- costs and data, as in peers_pytorch.py ------------------------------------------------------

struct Cost {
  double bytes = 0, flops = 0;
};
/// Each operand read once, each result written once.
Cost contraction_cost(double x, double w, double y, double macs, std::string_view pass, Mode mode);

/// Normal values that depend on shape and seed only.
Tensor normal(const Context& context, const Shape& shape, DType dtype, std::uint64_t seed);
/// Normal values in the memory order of `like`.
Tensor normal_like(const Tensor& like, std::uint64_t seed);
/// Kaiming-normal weight [c_out, c_in, kh, kw] with zeros: scattered, filter, channel, block or
/// all, and the fraction of them.
Tensor conv_weight(const Context& context, const Shape& shape, DType dtype, std::uint64_t seed,
                   std::string_view pattern, double fraction);

/// Fields of each line of bench/shapes/<name>.txt, or of its _full twin.
std::vector<std::vector<std::string>> shape_lines(const Setting& setting, const std::string& name);

/// The device's rows of a list that accept the problem.
template <class List, class Desc>
std::vector<std::string> accepting_rows(const Setting& setting, const List& list,
                                        const Desc& desc) {
  std::vector<std::string> names;
  for (const auto& row : list.rows()) {
    const bool is_reference = std::string_view(row.name).ends_with(".reference");
    if (row.device == setting.device.type && (setting.reference || !is_reference) &&
        row.reject(desc).empty())
      names.emplace_back(row.name);
  }
  return names;
}

/// x with its channel axis last, a view.
Tensor channels_last(const Tensor& x, int axis);
/// dx, dw, db of y = w x + b, as the library's gradient runs them; x and dy carry their channels on
/// `axis`, w is [c_out, c_in].
Tensors pointwise_gradients(const Tensor& x, const Tensor& w, const Tensor& dy, int axis, Math math,
                            bool data, bool weight);

}  // namespace zerone::bench
