// Suite conv2d: every implementation that accepts, on dense weights, over shapes/conv2d.txt.
#include "bench/conv_problem.h"
#include "bench/harness.h"

namespace zerone::bench {
namespace {

/// name n c_in c_out h w kh kw stride_h stride_w pad_t pad_b pad_l pad_r dil_h dil_w groups layout
ConvProblem parse(const std::vector<std::string>& fields) {
  std::vector<std::int64_t> v;
  for (std::size_t i = 1; i < 17; ++i) v.push_back(std::stoll(fields.at(i)));
  ConvProblem problem{.n = v[0], .c_in = v[1], .c_out = v[2], .h = v[3], .w = v[4]};
  problem.kernel = {v[5], v[6]};
  problem.params.stride = {v[7], v[8]};
  problem.params.padding = {v[9], v[10], v[11], v[12]};
  problem.params.dilation = {v[13], v[14]};
  problem.params.groups = v[15];
  problem.nhwc = fields.at(17) == "nhwc";
  return problem;
}

std::vector<std::string> rows_of(const Setting& setting, const ConvProblem& problem,
                                 const std::string& pass, Mode mode) {
  constexpr int unknown = -1;
  if (pass == "forward")
    return accepting_rows(setting, conv2d_forward_list(),
                          describe(problem, Conv2dPass::forward, mode, unknown));
  if (pass == "backward_data")
    return accepting_rows(setting, conv2d_backward_data_list(),
                          describe(problem, Conv2dPass::backward_data, mode, unknown));
  return accepting_rows(setting, conv2d_backward_weight_list(),
                        describe(problem, Conv2dPass::backward_weight, mode, unknown));
}

}  // namespace

void register_cases(const Setting& setting) {
  for (const int threads : setting.threads)
    for (const std::vector<std::string>& fields : shape_lines(setting, "conv2d")) {
      const ConvProblem problem = parse(fields);
      if (!setting.cuda() && problem.n > (setting.quick ? 1 : 8)) continue;
      for (const Mode mode : peer_modes(setting))
        for (const std::string pass : {"forward", "backward_data", "backward_weight"})
          for (const std::string& row : rows_of(setting, problem, pass, mode)) {
            const Cost cost = problem.cost(pass, mode);
            add(setting, {.suite = "conv2d",
                          .name = fields[0],
                          .pass = pass,
                          .mode = mode,
                          .impl = forced(row, {"conv2d." + pass}),
                          .bytes = cost.bytes,
                          .flops = cost.flops,
                          .threads = threads,
                          .make = [=, name = fields[0]](const Context& context) {
                            return problem.workload(context, name, pass, mode, "scattered", 0,
                                                    false);
                          }});
          }
    }
}

}  // namespace zerone::bench
