// Implementation lists: how an operation finds the code that runs it.
//
// Each pass of an operation has a descriptor (sizes, strides, types, parameters; no pointers) and
// an ordered list of implementations. The first one that neither rejects nor declines runs, is
// kept in the context's cache under the descriptor, and stays until options change: results
// repeat. The reference implementation is last and never rejects.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <zerone/core/context_state.h>
#include <zerone/core/profile.h>
#include <zerone/core/tensor.h>
#include <zerone/ops/selection.h>

namespace zerone {

/// What an implementation prepares once for a descriptor.
class Plan {
 public:
  virtual ~Plan() = default;
  virtual std::size_t scratch_bytes() const { return 0; }
  virtual std::string detail() const { return {}; }
  /// Enough for `make_plan` to make the same plan again, across processes.
  virtual std::string token() const { return {}; }
};

/// One way to run a pass. `Desc` provides hash(), ==, and to_string(desc). A descriptor that
/// carries hints about the data (a weight's zeros) also provides without_hints(): a selection that
/// the hints do not change serves with and without them, so a plan made with them is found by a
/// capture, which has none.
template <class Desc, class Args>
struct Implementation {
  const char* name;
  DeviceType device;
  /// Empty if the problem can be run; otherwise why not.
  std::string (*reject)(const Desc&);
  /// Empty unless another implementation is expected to be faster; then why. Null never declines.
  std::string (*decline)(const Desc&) = nullptr;
  /// Makes the plan that run() gets, from an earlier plan's token if that is not empty. While
  /// tuning it may time candidates on `args`, overwriting the results. Null, with the reason, if
  /// the problem turns out not to be supported.
  std::unique_ptr<Plan> (*make_plan)(ContextState&, const Desc&, const Args&,
                                     const std::string& token, std::string& reason) = nullptr;
  void (*run)(ContextState&, const Desc&, const Args&, Plan*);
};

template <class Desc>
std::string accept_all(const Desc&) {
  return {};
}

namespace detail {

/// Where explanations go while explain() runs, and choices loaded by load_plans.
struct SelectionLog {
  std::vector<Explanation>* sink = nullptr;
  struct Choice {
    std::string row, token;
    bool tuned = false;
  };
  std::unordered_map<std::string, Choice> chosen;  // by op + problem, for save_plans
  std::unordered_map<std::string, Choice> loaded;
};

[[noreturn]] void throw_no_row(const char* op, const std::string& row, DeviceType device,
                               std::span<const Candidate> rows);
[[noreturn]] void throw_forced_rejects(const char* op, const std::string& row,
                                       const std::string& problem, const std::string& reason);
[[noreturn]] void throw_unplanned_capture(const char* op, const std::string& problem);
bool is_reference(std::string_view name);
/// Whether rounding can be told from an error in a result of this type.
bool comparable(const Tensor& result);
/// Empty if `result` is `expected` up to the rounding of `math`, or `expected` is undefined.
std::string disagreement(const Tensor& result, const Tensor& expected, Math math);

/// Hash of an object that has no padding.
template <class T>
std::size_t hash_bytes(const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  static_assert(sizeof(T) % sizeof(std::uint64_t) == 0);
  std::uint64_t words[sizeof(T) / sizeof(std::uint64_t)];
  std::memcpy(words, &value, sizeof(T));
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (std::uint64_t word : words) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace detail

/// The implementations of one pass of one operation, for all devices.
template <class Desc, class Args>
class ImplementationList {
 public:
  using Row = Implementation<Desc, Args>;

  ImplementationList(const char* op, std::initializer_list<std::span<const Row>> parts) : op_(op) {
    for (const std::span<const Row> part : parts)
      rows_.insert(rows_.end(), part.begin(), part.end());
    for (const Row& row : rows_) ranges_.push_back(std::string(op) + "/" + row.name);
  }

  const char* op() const { return op_; }
  std::span<const Row> rows() const { return rows_; }

  void run(ContextState& state, const Desc& desc, const Args& args) const {
    Cache& cache = state.extension<Cache>();
    if (cache.epoch != state.selection_epoch) {
      cache.selected.clear();
      cache.epoch = state.selection_epoch;
    }
    auto it = cache.selected.find(desc);
    if (it == cache.selected.end() && !state.tuning && share_without_hints(cache, state, desc))
      it = cache.selected.find(desc);
    if (it == cache.selected.end() || (state.tuning && !it->second.explanation.tuned)) {
      it = cache.selected.insert_or_assign(desc, select(state, desc, args)).first;
      offer_without_hints(cache, desc, it->second);
      it = cache.selected.find(desc);
    }
    const Selected& selected = it->second;
    if (state.capture && selected.plan) state.capture->plans.push_back(selected.plan);
    state.backend->activate();
    {
      const ProfileRange range(ranges_[selected.row].c_str());
      rows_[selected.row].run(state, desc, args, selected.plan.get());
    }
    if (auto* sink = state.extension<detail::SelectionLog>().sink)
      sink->push_back(selected.explanation);
  }

 private:
  struct Selected {
    std::size_t row = 0;
    std::shared_ptr<Plan> plan;  // shared with the graphs that captured it
    Explanation explanation;
  };
  struct Hash {
    std::size_t operator()(const Desc& desc) const { return desc.hash(); }
  };
  struct Cache {
    std::uint64_t epoch = 0;
    std::unordered_map<Desc, Selected, Hash> selected;
  };

  /// Whether the hints let a row run that is out of the question without them.
  bool hints_matter(const ContextState& state, const Desc& desc, const Desc& bare) const {
    for (const Row& row : rows_)
      if (row.device == state.device.type && !row.reject(bare).empty() &&
          row.reject(desc).empty() && (!row.decline || row.decline(desc).empty()))
        return true;
    return false;
  }

  /// Takes over what was selected for the same problem without hints, unless they matter.
  bool share_without_hints(Cache& cache, const ContextState& state, const Desc& desc) const {
    if constexpr (requires { desc.without_hints(); }) {
      const auto bare = desc.without_hints();
      if (!bare || state.forced.contains(std::string_view(op_))) return false;
      const auto it = cache.selected.find(*bare);
      if (it == cache.selected.end() || hints_matter(state, desc, *bare)) return false;
      Selected shared = it->second;
      for (Candidate& candidate : shared.explanation.candidates)
        for (const Row& row : rows_)
          if (candidate.name == row.name && row.device == state.device.type && row.decline &&
              row.reject(desc).empty() && candidate.name != shared.explanation.chosen)
            candidate.reason = row.decline(desc);
      shared.explanation.problem = to_string(desc);
      cache.selected.emplace(desc, std::move(shared));
      return true;
    }
    return false;
  }

  /// Lets the problem without hints find the same selection, if its row can run that.
  void offer_without_hints(Cache& cache, const Desc& desc, const Selected& selected) const {
    if constexpr (requires { desc.without_hints(); }) {
      const auto bare = desc.without_hints();
      if (bare && rows_[selected.row].reject(*bare).empty() &&
          (!cache.selected.contains(*bare) || selected.explanation.tuned))
        cache.selected.insert_or_assign(*bare, Selected(selected));
    }
  }

  /// Plans one row; false with the reason if it cannot run the problem.
  bool prepare(ContextState& state, const Desc& desc, const Args& args, std::size_t row,
               const std::string& token, Selected& selected, std::string& reason) const {
    reason = rows_[row].reject(desc);
    if (!reason.empty()) return false;
    selected.row = row;
    selected.plan = nullptr;
    if (!rows_[row].make_plan) return true;
    if (state.capture) detail::throw_unplanned_capture(op_, to_string(desc));
    selected.plan = rows_[row].make_plan(state, desc, args, token, reason);
    if (!selected.plan && reason.empty()) reason = "no plan";
    return selected.plan != nullptr;
  }

  Selected select(ContextState& state, const Desc& desc, const Args& args) const {
    state.backend->activate();
    Selected selected;
    Explanation& explanation = selected.explanation;
    explanation.op = op_;
    explanation.problem = to_string(desc);
    auto& log = state.extension<detail::SelectionLog>();
    const std::string key = explanation.op + " " + explanation.problem;

    std::string wanted, token;
    const auto forced = state.forced.find(std::string_view(op_));
    const auto loaded = log.loaded.find(key);
    if (forced != state.forced.end()) {
      wanted = forced->second;
    } else if (loaded != log.loaded.end() && !state.tuning) {
      wanted = loaded->second.row;
      token = loaded->second.token;
      explanation.tuned = loaded->second.tuned;
    }
    if (!wanted.empty())
      choose_named(state, desc, args, wanted, token, forced != state.forced.end(), selected);
    else if (state.tuning && has_choice(state.device.type))
      choose_fastest(state, desc, args, selected);
    else
      choose_first(state, desc, args, selected);
    if (wanted.empty()) explanation.tuned = state.tuning;

    explanation.chosen = rows_[selected.row].name;
    if (selected.plan) {
      explanation.scratch_bytes = selected.plan->scratch_bytes();
      explanation.detail = selected.plan->detail();
    }
    log.chosen[key] = {explanation.chosen, selected.plan ? selected.plan->token() : "",
                       explanation.tuned};
    return selected;
  }

  void choose_named(ContextState& state, const Desc& desc, const Args& args,
                    const std::string& wanted, const std::string& token, bool forced,
                    Selected& selected) const {
    std::vector<Candidate> known;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].device != state.device.type) continue;
      std::string reason = forced ? "another row is forced" : "a loaded plan names another row";
      if (rows_[row].name == wanted) {
        if (!prepare(state, desc, args, row, token, selected, reason))
          detail::throw_forced_rejects(op_, wanted, selected.explanation.problem, reason);
        reason.clear();
      }
      known.push_back({rows_[row].name, reason, 0});
    }
    selected.explanation.candidates = known;
    if (known.empty() || rows_[selected.row].name != wanted)
      detail::throw_no_row(op_, wanted, state.device.type, known);
  }

  /// Where there is one row, nothing is timed: work that accumulates (an optimizer's) stays right.
  bool has_choice(DeviceType device) const {
    return std::count_if(rows_.begin(), rows_.end(),
                         [device](const Row& row) { return row.device == device; }) > 1;
  }

  void choose_first(ContextState& state, const Desc& desc, const Args& args,
                    Selected& selected) const {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].device != state.device.type) continue;
      std::string reason;
      if (rows_[row].decline) reason = rows_[row].reject(desc);
      if (reason.empty() && rows_[row].decline) reason = rows_[row].decline(desc);
      const bool chosen = reason.empty() && prepare(state, desc, args, row, {}, selected, reason);
      selected.explanation.candidates.push_back({rows_[row].name, chosen ? "" : reason, 0});
      if (chosen) return;
    }
    detail::throw_no_row(op_, "", state.device.type, selected.explanation.candidates);
  }

  /// What candidates on a GPU must reproduce, so that no wrong library engine is ever pinned.
  /// Undefined where it is not asked for: arguments without result(), 16-bit types.
  Tensor reference_result(ContextState& state, const Desc& desc, const Args& args) const {
    if constexpr (requires { args.result(); })
      for (const Row& row : rows_)
        if (state.device.is_cuda() && row.device == state.device.type &&
            detail::is_reference(row.name) && detail::comparable(args.result())) {
          row.run(state, desc, args, nullptr);
          return args.result().clone();
        }
    return {};
  }

  void choose_fastest(ContextState& state, const Desc& desc, const Args& args,
                      Selected& best) const {
    double best_us = 0;
    std::vector<Candidate>& candidates = best.explanation.candidates;
    std::size_t best_candidate = 0;
    const Tensor expected = reference_result(state, desc, args);
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].device != state.device.type) continue;
      candidates.push_back({rows_[row].name, "", 0});
      std::string& reason = candidates.back().reason;
      const bool found = best_us > 0;
      if (found && detail::is_reference(rows_[row].name)) {
        reason = "reference rows are not timed";
        continue;
      }
      Selected trial;
      if (!prepare(state, desc, args, row, {}, trial, reason)) continue;
      const auto once = [&] { rows_[row].run(state, desc, args, trial.plan.get()); };
      const double us = std::max(state.backend->device_us(once), 1e-3);  // a row may launch nothing
      if constexpr (requires { args.result(); })
        if (reason = detail::disagreement(args.result(), expected, desc.math); !reason.empty())
          continue;
      candidates.back().microseconds = us;
      reason = "slower";
      if (found && us >= best_us) continue;
      best_us = us;
      best_candidate = candidates.size() - 1;
      best.row = trial.row;
      best.plan = std::move(trial.plan);
    }
    if (best_us <= 0) detail::throw_no_row(op_, "", state.device.type, candidates);
    candidates[best_candidate].reason.clear();
    best.explanation.tuned = true;
  }

  const char* op_;
  std::vector<Row> rows_;
  std::vector<std::string> ranges_;  // NVTX names, "conv2d.forward/cuda.cudnn"
};

}  // namespace zerone
