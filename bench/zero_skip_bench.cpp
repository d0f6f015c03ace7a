// Suite zero_skip: zero-skipping rows and the automatic choice on every pattern of zeros, dense
// rows on random and on zero weights (their time does not depend on the pattern), over
// shapes/zero_skip.txt. What the rules choose is timed untuned: tuning would time every library
// plan again for each density.
#include "bench/conv_problem.h"
#include "bench/harness.h"

namespace zerone::bench {
namespace {

struct Pattern {
  std::string kind, fraction_text;
  double fraction = 0;
  std::string name() const { return kind + "_" + fraction_text; }
  int percent() const { return kind == "all" ? 100 : static_cast<int>(fraction * 20) * 5; }
  bool dense_row() const { return fraction == 0 || kind == "all"; }
};

std::vector<std::string> rows_of(const Setting& setting, const ConvProblem& problem,
                                 const std::string& pass, Mode mode, int percent) {
  if (pass == "backward_data")
    return accepting_rows(setting, conv2d_backward_data_list(),
                          describe(problem, Conv2dPass::backward_data, mode, percent));
  return accepting_rows(setting, conv2d_forward_list(),
                        describe(problem, Conv2dPass::forward, mode, percent));
}

bool looks_at_zeros(const std::string& row) {
  return row.ends_with(".zero_skip") || row.ends_with(".constant");
}

std::vector<Impl> impls_of(const Setting& setting, const ConvProblem& problem,
                           const Pattern& pattern, const std::string& pass, Mode mode) {
  const bool whole = pass == "forward_backward", exact = mode.math == Math::fp32;
  std::vector<Impl> impls;
  if (exact || pass == "forward")
    impls.push_back({.name = to_string(setting.device.type) + ".auto", .tune = false});
  for (const std::string& row : rows_of(setting, problem, pass, mode, pattern.percent())) {
    // Own rows multiply alike in every mode, and have no gradient of the weight.
    const bool wanted = looks_at_zeros(row) ? exact && !whole : pattern.dense_row();
    if (!wanted) continue;
    Impl impl = forced(row, conv2d_operations);
    if (looks_at_zeros(row)) impl.forced.pop_back();
    impls.push_back(impl);
  }
  return impls;
}

}  // namespace

void register_cases(const Setting& setting) {
  // shape: name n c_in c_out h w kh kw stride padding dilation groups    pattern: kind fraction
  std::vector<std::pair<std::string, ConvProblem>> problems;
  std::vector<Pattern> patterns;
  for (const std::vector<std::string>& fields : shape_lines(setting, "zero_skip")) {
    if (fields[0] == "pattern") {
      patterns.push_back({fields.at(1), fields.at(2), std::stod(fields.at(2))});
      continue;
    }
    std::vector<std::int64_t> v;
    for (std::size_t i = 2; i < 13; ++i) v.push_back(std::stoll(fields.at(i)));
    if (!setting.cuda() && v[0] > (setting.quick ? 1 : 8)) continue;
    ConvProblem problem{.n = v[0], .c_in = v[1], .c_out = v[2], .h = v[3], .w = v[4]};
    problem.kernel = {v[5], v[6]};
    problem.params.stride = v[7];
    problem.params.padding = v[8];
    problem.params.dilation = v[9];
    problem.params.groups = v[10];
    problems.emplace_back(fields.at(1), problem);
  }
  std::vector<Mode> modes{{}};
  if (setting.cuda()) modes.push_back({DType::f32, Math::tf32});
  for (const int threads : setting.threads)
    for (const auto& [name, problem] : problems)
      for (const Pattern& pattern : patterns)
        for (const Mode mode : modes)
          for (const std::string pass : {"forward", "backward_data", "forward_backward"})
            for (const Impl& impl : impls_of(setting, problem, pattern, pass, mode)) {
              const Cost cost = problem.cost(pass, mode);
              const bool lower = impl.forced.empty();
              add(setting, {.suite = "zero_skip",
                            .name = name + "." + pattern.name(),
                            .pass = pass,
                            .mode = mode,
                            .impl = impl,
                            .bytes = cost.bytes,
                            .flops = cost.flops,
                            .threads = threads,
                            .make = [=, name = name, problem = problem](const Context& context) {
                              return problem.workload(context, name, pass, mode, pattern.kind,
                                                      pattern.fraction, lower);
                            }});
            }
}

}  // namespace zerone::bench
