// Walking the implementation lists.
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/contexts.h"

namespace zerone::test {

/// One context a device, shared by all tests of a program (making one takes long on a GPU).
inline const std::vector<Context>& shared_contexts() {
  static const auto& all = *new std::vector<Context>(contexts());
  return all;
}

template <class Body>
void on_shared_devices(Body&& body) {
  for (const Context& context : shared_contexts()) {
    SCOPED_TRACE("on " + to_string(context.device()));
    body(context);
  }
}

inline std::string reference_row(const Context& context) {
  return to_string(context.device().type) + ".reference";
}

inline bool is_vendor(std::string_view row) {
  return row.find(".cudnn") != row.npos || row.ends_with(".cublas") || row.ends_with(".onednn");
}

/// Names of a list's rows for the context's device; ZERONE_TEST_ROWS=own leaves out the vendors',
/// which sanitizers of our kernels have no use for.
template <class List>
std::vector<std::string> row_names(const List& list, const Context& context) {
  const char* const wanted = std::getenv("ZERONE_TEST_ROWS");
  const bool own = wanted && std::string_view(wanted) == "own";
  std::vector<std::string> names;
  for (const auto& row : list.rows())
    if (row.device == context.device().type && !(own && is_vendor(row.name)))
      names.emplace_back(row.name);
  return names;
}

/// Rows that take some problems only, and say why not the others.
inline bool is_partial(std::string_view row) {
  return is_vendor(row) || row.ends_with(".direct");
}

/// The row for the weight gradient beside a row of the other passes, which may have none.
inline std::string weight_partner(const std::string& row, const Context& context) {
  return row.ends_with(".zero_skip") ? reference_row(context) : row;
}

/// Rows that sum in float, one FMA after another or close to it: exact on small integers in every
/// mode. A library may use other types and transforms where the mode or the type lets it.
inline bool sums_exactly(std::string_view row, DType dtype, Math math) {
  if (!is_vendor(row)) return true;
  return row.ends_with(".onednn") && dtype == DType::f32 &&
         (math == Math::fp32 || math == Math::strict);
}

/// Whether a row of ours may turn a problem down at all.
inline bool may_reject(std::string_view row, DType dtype) {
  if (is_partial(row) || row.ends_with(".constant")) return true;
  if (row.ends_with(".reference") || !row.starts_with("cpu.")) return false;
  return dtype == DType::f16 || dtype == DType::bf16;
}

/// How often each row ran, so that a sweep can show that none went untested.
class RowCounts {
 public:
  void add(const std::string& op, const std::string& row) { ++counts_[op + "/" + row]; }
  template <class List>
  void expect_every_row(const List& list, const Context& context, int at_least = 1) const {
    for (const std::string& row : row_names(list, context)) {
      const auto it = counts_.find(std::string(list.op()) + "/" + row);
      const int count = it == counts_.end() ? 0 : it->second;
      fmt::print("  {:<42} {} cases\n", std::string(list.op()) + "/" + row, count);
      EXPECT_GE(count, at_least) << list.op() << "/" << row << " went untested";
    }
  }

 private:
  std::map<std::string, int> counts_;
};

/// Runs `work` with the row forced. False, with the reason, where the row rejects the problem; a
/// test failure where it must not.
template <class Work>
bool run_forced(const Context& context, const char* op, const std::string& row, DType dtype,
                bool must_run, Work&& work) {
  const ScopedForce force(context, op, row);
  try {
    work();
    return true;
  } catch (const SelectionError& error) {
    if (must_run || !may_reject(row, dtype))
      ADD_FAILURE() << op << "/" << row << " rejects: " << error.what();
    return false;
  }
}

}  // namespace zerone::test
