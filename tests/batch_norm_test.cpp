// Batch normalization against f64 arithmetic on the host, PyTorch's golden files, and its contract.
#include <cmath>
#include <fstream>
#include <sstream>

#include <zerone/core/views.h>
#include <zerone/ops/batch_norm.h>

#include "support/compare.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using Values = std::vector<double>;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// A problem and all its operands, row-major; empty channel values: undefined.
struct Problem {
  Shape shape;
  bool training = true;
  double momentum = 0.1, eps = 1e-5;
  Values x{}, dy{}, weight{}, bias{}, running_mean{}, running_var{};

  std::size_t channels() const { return static_cast<std::size_t>(shape[1]); }
  std::size_t inner() const {
    std::size_t n = 1;
    for (int i = 2; i < shape.rank(); ++i) n *= static_cast<std::size_t>(shape[i]);
    return n;
  }
  std::size_t channel(std::size_t i) const { return i / inner() % channels(); }
  double count() const { return static_cast<double>(x.size()) / static_cast<double>(channels()); }
};

/// Everything that the operation computes, and the sizes of what was added up on the way.
struct Expected {
  Values mean, var, running_mean, running_var, y, dx, dweight, dbias;
  Values y_size, dx_size, dweight_size, dbias_size;
};

Expected on_host(const Problem& p) {
  const std::size_t channels = p.channels(), count = p.x.size();
  const double n = p.count();
  const auto of = [](const Values& values, std::size_t c, double missing) {
    return values.empty() ? missing : values[c];
  };
  Expected e;
  for (Values* values : {&e.mean, &e.var, &e.dweight, &e.dbias, &e.dweight_size, &e.dbias_size})
    values->assign(channels, 0.0);
  for (Values* values : {&e.y, &e.dx, &e.y_size, &e.dx_size}) values->assign(count, 0.0);
  std::vector<long double> mean(channels), squares(channels), sum_dy(channels), sum_dy_x(channels);
  for (std::size_t i = 0; i < count; ++i) mean[p.channel(i)] += p.x[i];
  for (long double& value : mean) value /= static_cast<long double>(n);
  for (std::size_t i = 0; i < count; ++i) {
    const long double d = p.x[i] - mean[p.channel(i)];
    squares[p.channel(i)] += d * d;
  }
  for (std::size_t c = 0; c < channels; ++c) {
    e.mean[c] = static_cast<double>(mean[c]);
    e.var[c] = static_cast<double>(squares[c]) / n;
  }
  e.running_mean = p.running_mean;
  e.running_var = p.running_var;
  for (std::size_t c = 0; c < channels; ++c) {
    if (!p.training) {
      e.mean[c] = p.running_mean[c];
      e.var[c] = p.running_var[c];
    } else if (!p.running_mean.empty()) {
      e.running_mean[c] += p.momentum * (e.mean[c] - e.running_mean[c]);
      e.running_var[c] += p.momentum * (e.var[c] * n / (n - 1) - e.running_var[c]);
    }
  }
  const auto inv = [&](std::size_t c) { return 1 / std::sqrt(e.var[c] + p.eps); };
  const auto rough = [&](std::size_t i) {
    const std::size_t c = p.channel(i);
    return inv(c) * (std::abs(p.x[i]) + std::abs(e.mean[c])) + 1;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t c = p.channel(i);
    const double xhat = (p.x[i] - e.mean[c]) * inv(c);
    e.y[i] = xhat * of(p.weight, c, 1) + of(p.bias, c, 0);
    e.y_size[i] = std::abs(of(p.weight, c, 1)) * rough(i) + std::abs(of(p.bias, c, 0));
    sum_dy_x[c] += p.dy[i] * xhat;
    sum_dy[c] += p.dy[i];
    e.dweight_size[c] += std::abs(p.dy[i]) * rough(i);
    e.dbias_size[c] += std::abs(p.dy[i]);
  }
  e.dweight.assign(sum_dy_x.begin(), sum_dy_x.end());
  e.dbias.assign(sum_dy.begin(), sum_dy.end());
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t c = p.channel(i);
    const double scale = of(p.weight, c, 1) * inv(c);
    const double xhat = (p.x[i] - e.mean[c]) * inv(c);
    e.dx[i] = scale * p.dy[i];
    e.dx_size[i] = std::abs(scale * p.dy[i]);
    if (!p.training) continue;
    e.dx[i] -= scale * (e.dbias[c] + xhat * e.dweight[c]) / n;
    e.dx_size[i] += std::abs(scale) * (e.dbias_size[c] + rough(i) * e.dweight_size[c]) / n;
  }
  return e;
}

/// Accumulated in the compute type, stored once in `dtype`.
Contract contract_of(DType dtype, DType compute, double of_sum) {
  Contract contract{.dtype = dtype, .of_sum = of_sum * unit(compute)};
  if (size_of(dtype) == 2) {
    contract.of_value = 1.001 * unit(dtype);
    contract.floor = dtype == DType::f16 ? 0x1p-24 : 0x1p-120;
  }
  return contract;
}

DType compute_type(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

Values random_channels(Random& random, const Problem& p, DType dtype, double least) {
  Values values(p.channels());
  for (double& value : values) value = rounded(dtype, least + std::abs(random.normal()));
  return values;
}

Problem random_problem(Random& random, const Shape& shape, DType dtype, DType channel_dtype) {
  Problem p{.shape = shape};
  p.training = random.chance(0.6) && shape.numel() / shape[1] > 1;
  p.momentum = random.pick({0.1, 0.5, 1.0});
  p.eps = random.pick({1e-5, 1e-2});
  p.x = random_values(random, shape.numel(), dtype, false);
  p.dy = random_values(random, shape.numel(), dtype, false);
  for (std::size_t i = 0; i < p.x.size(); ++i)  // channels of different mean and spread
    p.x[i] = rounded(dtype, p.x[i] * (1 + static_cast<double>(p.channel(i) % 3)) +
                                static_cast<double>(p.channel(i) % 5));
  if (random.chance(0.8)) {
    p.weight = random_channels(random, p, channel_dtype, 0.1);
    p.weight[0] = -p.weight[0];
  }
  if (random.chance(0.8)) p.bias = random_channels(random, p, channel_dtype, -0.5);
  if (!p.training || random.chance(0.8)) {
    p.running_mean = random_channels(random, p, channel_dtype, -0.5);
    p.running_var = random_channels(random, p, channel_dtype, 0.2);
  }
  return p;
}

/// Memory that is handed out next holds NaN.
void poison(const Context& context, const Problem& p, DType dtype) {
  std::vector<Tensor> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(Tensor::full(context, p.shape, nan, dtype));
  for (int i = 0; i < 8; ++i) blocks.push_back(Tensor::full(context, {p.shape[1]}, nan, dtype));
}

struct Actual {
  Values y{}, dx{}, dweight{}, dbias{}, running_mean{}, running_var{};
};

/// A vector of channels that may be a strided view; undefined if there are no values.
Operand channel_operand(const Context& context, const Problem& p, DType dtype, bool strided,
                        const Values& values) {
  if (values.empty()) return {};
  Placement place;
  if (strided) place = {.before = {1}, .after = {0}, .step = {2}, .offset = 1};
  return Operand(context, {p.shape[1]}, dtype, place, values);
}

Actual run(const Context& context, const Problem& p, DType dtype, DType channel_dtype,
           const Placement& x_place, const Placement& dy_place, bool strided_channels) {
  const auto channels = [&](const Values& values) {
    return channel_operand(context, p, channel_dtype, strided_channels, values);
  };
  const Operand x(context, p.shape, dtype, x_place, p.x);
  const Operand dy(context, p.shape, dtype, dy_place, p.dy);
  const Operand weight = channels(p.weight), bias = channels(p.bias);
  Operand running_mean = channels(p.running_mean), running_var = channels(p.running_var);
  poison(context, p, dtype);
  Tape tape;
  const Var x_leaf = tape.leaf(x.view());
  const Var w_leaf = p.weight.empty() ? Var() : tape.leaf(weight.view());
  const Var b_leaf = p.bias.empty() ? Var() : tape.leaf(bias.view());
  const Var y = batch_norm(x_leaf, w_leaf, b_leaf, running_mean.view(), running_var.view(),
                           {.training = p.training, .momentum = p.momentum, .eps = p.eps});
  for (int axis = 0; axis < p.shape.rank(); ++axis)
    EXPECT_TRUE(!x.view().is_dense() || p.shape[axis] == 1 ||
                y.value().stride(axis) == x.view().stride(axis));
  poison(context, p, dtype);
  tape.backward(y, {.seed = dy.view()});
  Actual actual{.y = values_of(y), .dx = values_of(tape.grad(x_leaf))};
  if (w_leaf.defined()) actual.dweight = values_of(tape.grad(w_leaf));
  if (b_leaf.defined()) actual.dbias = values_of(tape.grad(b_leaf));
  if (!p.running_mean.empty()) {
    actual.running_mean = values_of(running_mean.view());
    actual.running_var = values_of(running_var.view());
  }
  return actual;
}

void compare(const Actual& actual, const Expected& expected, const Problem& p, DType dtype,
             DType channel_dtype, const std::string& where) {
  const DType compute = compute_type(dtype);
  const double sums = 8 + 2 * std::sqrt(p.count());
  const auto check = [&](const char* what, const Values& got, const Values& wanted,
                         const Values& size, const Contract& contract) {
    EXPECT_EQ(mismatch(got, wanted, size, contract), "") << what << "\n  " << where;
  };
  check("y", actual.y, expected.y, expected.y_size, contract_of(dtype, compute, 16));
  check("dx", actual.dx, expected.dx, expected.dx_size, contract_of(dtype, compute, 16));
  const Contract of_channels = contract_of(channel_dtype, compute, sums);
  if (!p.weight.empty())
    check("dweight", actual.dweight, expected.dweight, expected.dweight_size, of_channels);
  if (!p.bias.empty())
    check("dbias", actual.dbias, expected.dbias, expected.dbias_size, of_channels);
  if (p.running_mean.empty()) return;
  Values mean_size(p.channels()), var_size(p.channels());
  for (std::size_t c = 0; c < p.channels(); ++c) {
    mean_size[c] =
        std::abs(p.running_mean[c]) + std::abs(expected.mean[c]) + std::sqrt(expected.var[c]);
    var_size[c] = p.running_var[c] + 2 * expected.var[c];
  }
  Contract of_statistics = contract_of(channel_dtype, compute, 16);
  if (!p.training) of_statistics = exact_contract(channel_dtype);
  check("running_mean", actual.running_mean, expected.running_mean, mean_size, of_statistics);
  check("running_var", actual.running_var, expected.running_var, var_size, of_statistics);
}

void expect_same_bits(const Actual& a, const Actual& b, const std::string& where) {
  const auto same = [&](const char* what, const Values& one, const Values& other) {
    EXPECT_EQ(mismatch(one, other, {}, exact_contract(DType::f64)), "")
        << what << " has other bits\n  " << where;
  };
  same("y", a.y, b.y);
  same("dx", a.dx, b.dx);
  same("dweight", a.dweight, b.dweight);
  same("dbias", a.dbias, b.dbias);
  same("running_mean", a.running_mean, b.running_mean);
  same("running_var", a.running_var, b.running_var);
}

/// Every row against the host, twice.
void check_everywhere(const Context& context, int index, const std::string& name, Random& random,
                      const Shape& shape, const Placement& x_place, const Placement& dy_place) {
  const DType dtype = random.pick({DType::f32, DType::f32, DType::f64, DType::bf16, DType::f16});
  const DType channel_dtype = random.chance(0.5) ? dtype : compute_type(dtype);
  const bool strided = random.chance(0.2);
  const Problem p = random_problem(random, shape, dtype, channel_dtype);
  const Expected expected = on_host(p);
  const std::string where = reproduction(
      index, fmt::format("{} {} channels {}{} {} {} x {} dy {}", name, to_string(dtype),
                         to_string(channel_dtype), strided ? " strided" : "", to_string(shape),
                         p.training ? "training" : "evaluation", x_place.text(), dy_place.text()));
  for (const std::string& row : row_names(batch_norm_forward_list(), context)) {
    const ScopedForce forward(context, "batch_norm.forward", row);
    const ScopedForce backward(context, "batch_norm.backward", row);
    const Actual actual = run(context, p, dtype, channel_dtype, x_place, dy_place, strided);
    compare(actual, expected, p, dtype, channel_dtype, row + " " + where);
    expect_same_bits(actual, run(context, p, dtype, channel_dtype, x_place, dy_place, strided),
                     row + " " + where);
  }
}

TEST(BatchNorm, ListedShapesOnEveryRow) {
  std::ifstream file(data_path("shapes/batch_norm.txt"));
  std::vector<std::pair<std::string, Shape>> problems;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name, layout;
    fields >> name >> layout;
    std::vector<std::int64_t> sizes;
    for (std::int64_t size; fields >> size;) sizes.push_back(size);
    problems.emplace_back(name + " " + layout, Shape(std::span<const std::int64_t>(sizes)));
  }
  ASSERT_GE(problems.size(), 18u);
  on_shared_devices([&](const Context& context) {
    int index = 0;
    for (const auto& [name, shape] : problems) {
      Placement place;
      if (name.ends_with(" nhwc")) {
        place.order.push_back(0);
        for (int axis = 2; axis < shape.rank(); ++axis) place.order.push_back(axis);
        place.order.push_back(1);
      }
      for (int repeat = 0; repeat < 4; ++repeat, ++index) {
        if (!case_wanted(index)) continue;
        Random random(9'000'000 + static_cast<std::uint64_t>(index));
        const Placement dy_place = repeat == 3 ? row_major() : place;
        check_everywhere(context, index, name, random, shape, place, dy_place);
      }
    }
  });
}

TEST(BatchNorm, RandomViewsOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 250; ++index) {
      if (!case_wanted(index)) continue;
      Random random(9'500'000 + static_cast<std::uint64_t>(index));
      std::vector<std::int64_t> sizes(static_cast<std::size_t>(random.integer(2, 5)));
      const std::int64_t longest = sizes.size() == 2 ? 90 : sizes.size() == 3 ? 20 : 8;
      for (std::int64_t& size : sizes) size = random.integer(1, longest);
      const Shape shape{std::span<const std::int64_t>(sizes)};
      const Placement x_place = random_placement(random, shape.rank());
      const Placement dy_place = random_placement(random, shape.rank());
      check_everywhere(context, index, "random", random, shape, x_place, dy_place);
    }
  });
}

TEST(BatchNorm, ThreadsDoNotChangeABit) {
  for (const char* layout : {"nchw", "nhwc"}) {
    const bool nhwc = layout[1] == 'h';
    const Placement place = nhwc ? channels_last() : row_major();
    Random random(9'900'000);
    Problem p = random_problem(random, {5, 6, 70, 60}, DType::f32, DType::f32);
    p.training = true;
    std::vector<Actual> results;
    for (const int threads : {1, 2, 5}) {
      ContextOptions options;
      options.threads = threads;
      results.push_back(
          run(Context(Device::cpu(), options), p, DType::f32, DType::f32, place, place, false));
    }
    expect_same_bits(results[0], results[1], layout);
    expect_same_bits(results[0], results[2], layout);
  }
}

/// Error of mean and biased var, in units of u S and u var; besides, the mean is rounded once, in
/// f64 at each join.
void check_statistics(const Context& context, bool nhwc, const Values& x, DType dtype,
                      double allowed_mean, double allowed_var, const std::string& what) {
  const auto count = static_cast<std::int64_t>(x.size());
  Values interleaved(x.size() * 4);
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t c = 0; c < 4; ++c) {
      const std::size_t at = nhwc ? 4 * i + c : c * x.size() + i;
      interleaved[at] = c == 1 ? -x[i] : x[i];
    }
  const Tensor flat = make_tensor(context, {count * 4}, interleaved, dtype);
  const Tensor images =
      nhwc ? flat.reshape({1, count, 1, 4}).permute({0, 3, 1, 2}) : flat.reshape({1, 4, count, 1});
  long double sum = 0, squares = 0;
  for (const double value : x) sum += value;
  const long double exact = sum / static_cast<long double>(count);
  for (const double value : x) squares += (value - exact) * (value - exact);
  const double mean = static_cast<double>(exact);
  const double var = static_cast<double>(squares) / static_cast<double>(count);
  Tensor running_mean = Tensor::zeros(context, {4}, dtype);
  Tensor running_var = Tensor::zeros(context, {4}, dtype);
  batch_norm(images, Var(), Var(), running_mean, running_var, {.momentum = 1});
  const double u = unit(dtype),
               unbiased = var * static_cast<double>(count) / static_cast<double>(count - 1);
  const Values means = values_of(running_mean), vars = values_of(running_var);
  for (std::size_t c = 0; c < 4; ++c) {
    const double sign = c == 1 ? -1 : 1;
    const double roundings = dtype == DType::f64 ? 16 : 1.5;
    const double mean_error = std::abs(means[c] - sign * mean);
    EXPECT_LE(mean_error, allowed_mean * u * std::sqrt(var) + roundings * u * std::abs(mean))
        << what << (nhwc ? " nhwc" : " nchw") << " channel " << c;
    const double var_error = std::abs(vars[c] - unbiased) / (u * unbiased);
    EXPECT_LE(var_error, allowed_var) << what << (nhwc ? " nhwc" : " nchw") << " channel " << c;
  }
}

TEST(BatchNorm, StatisticsFarFromZeroStayExact) {
  on_shared_devices([](const Context& context) {
    Random random(9'910'000);
    for (const bool nhwc : {false, true}) {
      for (const double center : {0.0, 1e3, 1e5}) {
        Values x(1'000'000);
        for (double& value : x) value = rounded(DType::f32, center + random.normal());
        check_statistics(context, nhwc, x, DType::f32, 16, 16, fmt::format("center {}", center));
      }
      // The worst case of the contract: outliers where a shift might be taken from.
      Values x(100'000, 1000);
      for (double& value : x) value = rounded(DType::f32, 1000 + random.normal());
      for (std::size_t i = 0; i < 4096; ++i) x[i] = 0;
      check_statistics(context, nhwc, x, DType::f32, 600, 4500, "zeros first");
      Values y(60'000);
      for (double& value : y) value = 1e3 + random.normal();
      check_statistics(context, nhwc, y, DType::f64, 100, 100, "f64");
    }
  });
}

TEST(BatchNorm, Gradcheck) {
  on_shared_devices([](const Context& context) {
    Random random(9'920'000);
    const auto normals = [&](const Shape& shape) {
      return make_tensor(context, shape, random_values(random, shape.numel(), DType::f64, false));
    };
    for (const bool training : {true, false})
      for (const bool nhwc : {false, true}) {
        Tensor x = normals({3, 4, 2, 3});
        if (nhwc) x = x.contiguous_nhwc();
        const BatchNormParams params{.training = training, .eps = 1e-2};
        const Tensor given_mean = normals({4});
        const Tensor given_var = make_tensor(context, {4}, {0.5, 1, 2, 0.3});
        const auto function = [&](std::span<const Var> in) {
          Tensor mean = given_mean.clone(), var = given_var.clone();
          return batch_norm(in[0], in.size() > 1 ? in[1] : Var(), in.size() > 2 ? in[2] : Var(),
                            mean, var, params);
        };
        for (const std::vector<Tensor>& inputs :
             {std::vector<Tensor>{x}, {x, normals({4})}, {x, normals({4}), normals({4})}}) {
          const GradcheckResult result = gradcheck(function, inputs);
          EXPECT_TRUE(result.passed) << (training ? "training " : "evaluation ") << inputs.size()
                                     << " inputs: " << result.message;
        }
      }
  });
}

TEST(BatchNorm, Golden) {
  Golden golden("batch_norm");
  on_shared_devices([&](const Context& context) {
    for (const auto& entry : golden.cases()) {
      Problem p{.shape = Golden::shape(entry, "x")};
      p.training = entry["params"]["training"].get<bool>();
      p.momentum = entry["params"]["momentum"].get<double>();
      p.eps = entry["params"]["eps"].get<double>();
      const auto values = [&](const char* name) {
        return Golden::has(entry, name) ? golden.values(entry, name) : Values();
      };
      p.x = values("x"), p.dy = values("gy");
      p.weight = values("weight"), p.bias = values("bias");
      p.running_mean = values("running_mean"), p.running_var = values("running_var");
      Expected expected = on_host(p);  // for the sizes
      expected.y = values("y"), expected.dx = values("dx");
      expected.dweight = values("dweight"), expected.dbias = values("dbias");
      expected.running_mean = values("new_running_mean");
      expected.running_var = values("new_running_var");
      for (const DType dtype : {DType::f64, DType::f32})
        for (const bool nhwc : {false, true}) {
          if (nhwc && p.shape.rank() != 4) continue;
          const Placement place = nhwc ? channels_last() : row_major();
          const Actual actual = run(context, p, dtype, dtype, place, place, false);
          compare(actual, expected, p, dtype, dtype,
                  fmt::format("{} {}", entry["name"].get<std::string>(), to_string(dtype)));
        }
    }
  });
}

TEST(BatchNorm, SpecialValues) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64})
      for (const bool nhwc : {false, true}) {
        // Channels: ordinary, one infinity, one NaN, constant.
        Tensor x = make_tensor(context, {4, 4, 1, 1},
                               {1, 1, 1, 5, 2, infinity, 2, 5,  //
                                3, infinity, nan, 5, 4, 4, 4, 5},
                               dtype);
        if (nhwc) x = x.reshape({1, 4, 4, 1}).permute({0, 2, 1, 3});
        Tensor mean = Tensor::zeros(context, {4}, dtype),
               var = Tensor::full(context, {4}, 1, dtype);
        Tape tape;
        const Var leaf = tape.leaf(x);
        const Var y = batch_norm(leaf, Var(), Var(), mean, var);
        const Values means = values_of(mean), vars = values_of(var);
        EXPECT_NEAR(means[0], 0.25, 1e-6);
        for (const std::size_t c : {1u, 2u})
          EXPECT_TRUE(std::isnan(means[c]) && std::isnan(vars[c])) << c;
        EXPECT_NEAR(means[3], 0.5, 1e-6);
        EXPECT_NEAR(vars[3], 0.9, 1e-6);
        tape.backward(y, {.seed = Tensor::full(context, x.shape(), 1, dtype)});
        const Tensor dx = tape.grad(leaf);
        const auto channel = [](const Tensor& t, std::int64_t c) {
          return values_of(t.slice(1, c, c + 1));
        };
        for (const std::int64_t c : {1, 2})
          for (const Tensor& t : {y.value(), dx})
            for (const double value : channel(t, c)) EXPECT_TRUE(std::isnan(value));
        for (const double value : channel(y, 3)) EXPECT_EQ(value, 0);
        for (const double value : channel(y, 0)) EXPECT_TRUE(std::isfinite(value));
        // Evaluation: each element by itself, signs of zeros and of infinities kept.
        Tensor zero = Tensor::zeros(context, {2}, dtype),
               one = Tensor::full(context, {2}, 1, dtype);
        const Tensor v =
            make_tensor(context, {3, 2}, {-0.0, infinity, 0.0, -infinity, nan, 1}, dtype);
        const Values out = values_of(batch_norm(v, Var(), Var(), zero, one, {.training = false}));
        EXPECT_TRUE(out[0] == 0 && std::signbit(out[0]));
        EXPECT_TRUE(out[2] == 0 && !std::signbit(out[2]));
        EXPECT_EQ(out[1], infinity);
        EXPECT_EQ(out[3], -infinity);
        EXPECT_TRUE(std::isnan(out[4]));
        EXPECT_TRUE(std::isfinite(out[5]));
        // Its gradient does not see x.
        Tape second;
        const Var infinite = second.leaf(v);
        second.backward(batch_norm(infinite, Var(), Var(), zero, one, {.training = false}),
                        {.seed = make_tensor(context, {3, 2}, {-0.0, 1, 2, 3, 4, 5}, dtype)});
        const Values gradient = values_of(second.grad(infinite));
        EXPECT_TRUE(gradient[0] == 0 && std::signbit(gradient[0]));
        for (std::size_t i = 1; i < 6; ++i) EXPECT_NEAR(gradient[i], static_cast<double>(i), 1e-4);
      }
  });
}

TEST(BatchNorm, EmptyImages) {
  on_shared_devices([](const Context& context) {
    for (const Shape& shape : {Shape{0, 3, 4, 4}, Shape{2, 3, 0, 4}, Shape{2, 0, 4, 4}})
      for (const bool training : {true, false}) {
        Tensor mean = Tensor::full(context, {shape[1]}, 2), var = mean.clone();
        Tape tape;
        const Var x = tape.leaf(Tensor::empty(context, shape));
        const Var w = tape.leaf(Tensor::full(context, {shape[1]}, nan));
        const Var y = batch_norm(x, w, Var(), mean, var, {.training = training});
        EXPECT_EQ(y.shape(), shape);
        tape.backward(y, {.seed = Tensor::empty(context, shape)});
        EXPECT_EQ(tape.grad(x).shape(), shape);
        const auto channels = static_cast<std::size_t>(shape[1]);
        EXPECT_EQ(values_of(tape.grad(w)), Values(channels, 0.0));
        EXPECT_EQ(values_of(mean), Values(channels, 2.0));
        EXPECT_EQ(values_of(var), Values(channels, 2.0));
      }
  });
}

TEST(BatchNorm, KnownZeroInput) {
  on_shared_devices([](const Context& context) {
    Tensor mean = Tensor::zeros(context, {3}), var = Tensor::zeros(context, {3});
    const Tensor x = Tensor::zeros(context, {2, 3, 4});
    const Tensor b = make_tensor(context, {3}, {1, 2, 3}, DType::f32);
    const Values y = values_of(batch_norm(x, Var(), b, mean, var));
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], static_cast<double>(i / 4 % 3 + 1));
    EXPECT_EQ(values_of(var), Values(3, 0.0));
    EXPECT_FALSE(var.known_zero()) << "it was written";
  });
}

TEST(BatchNorm, VersionsAndWhatBackwardNeeds) {
  on_shared_devices([](const Context& context) {
    Random random(9'930'000);
    Tensor mean = Tensor::zeros(context, {3}), var = Tensor::full(context, {3}, 1);
    const Tensor x =
        make_tensor(context, {4, 3}, random_values(random, 12, DType::f32, false), DType::f32);
    const std::uint64_t before = var.version();
    Tape tape;
    const Var leaf = tape.leaf(x);
    const Var y = batch_norm(leaf, Var(), Var(), mean, var, {.training = false});
    EXPECT_EQ(var.version(), before) << "evaluation writes nothing";
    batch_norm(x, Var(), Var(), mean, var);
    EXPECT_GT(var.version(), before);
    // The gradient is that of the statistics that evaluation saw.
    tape.backward(y, {.seed = Tensor::full(context, {4, 3}, 1)});
    for (const double value : values_of(tape.grad(leaf))) EXPECT_NEAR(value, 1, 1e-5);
    Tape second;
    Tensor changed = x.clone();
    const Var other = second.leaf(changed);
    const Var z = batch_norm(other, Var(), Var(), mean, var);
    changed.fill_(0);
    const std::string text = message_of<AutogradError>([&] {
      second.backward(z, {.seed = Tensor::full(context, {4, 3}, 1)});
    });
    expect_contains(text, {"batch_norm", "its input"});
  });
}

TEST(BatchNorm, Errors) {
  on_shared_devices([](const Context& context) {
    Tensor none, mean = Tensor::zeros(context, {3}), var = mean.clone();
    Tensor four = Tensor::zeros(context, {4}), wide = Tensor::zeros(context, {3}, DType::f64);
    const Tensor x = Tensor::zeros(context, {2, 3, 4, 4});
    const auto fails = [&]<class E>(E*, const Tensor& in, const Var& w, Tensor& m, Tensor& v,
                                    bool training, std::initializer_list<std::string> parts) {
      expect_contains(
          message_of<E>([&] { batch_norm(in, w, Var(), m, v, {.training = training}); }), parts);
    };
    const auto shape = static_cast<ShapeError*>(nullptr);
    const auto dtype = static_cast<DTypeError*>(nullptr);
    fails(shape, Tensor::zeros(context, {1, 3}), Var(), mean, var, true,
          {"batch_norm", "more than one value", "[1, 3]"});
    fails(shape, Tensor::zeros(context, {1, 3, 1, 1}), Var(), none, none, true, {"[1, 3, 1, 1]"});
    fails(shape, Tensor::zeros(context, {3}), Var(), mean, var, true, {"batch_norm", "[3]"});
    fails(shape, Tensor::zeros(context, {1, 3, 1, 1, 1, 2}), Var(), mean, var, true, {"[N, C"});
    fails(shape, x, four, mean, var, true, {"weight", "[4]", "[2, 3, 4, 4]", "[3]"});
    fails(shape, x, Var(), mean, four, true, {"running_var", "[4]"});
    fails(shape, x, Var(), none, none, false, {"running_mean", "training=false"});
    fails(shape, x, Var(), mean, none, true, {"only running_mean"});
    fails(dtype, x, wide, none, none, true, {"weight", "f64", "f32"});
    fails(dtype, Tensor::zeros(context, {2, 3}, DType::i64), Var(), none, none, true,
          {"batch_norm", "i64"});
    Tensor half = Tensor::zeros(context, {3}, DType::f16);
    fails(dtype, Tensor::zeros(context, {2, 3}, DType::f16), half, mean, var, true,
          {"running_mean", "f32", "weight", "f16"});
    const Context other;
    Tensor elsewhere = Tensor::zeros(other, {3});
    EXPECT_THROW(batch_norm(x, Var(), Var(), elsewhere, elsewhere), DeviceError);
    EXPECT_EQ(values_of(mean), Values(3, 0.0)) << "nothing was written";
  });
}

TEST(BatchNorm, GraphReplaysUpdateRunningStatistics) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  const Context context(Device::cuda());
  Random random(9'940'000);
  const Shape shape{8, 6, 5, 7};
  const Values values = random_values(random, shape.numel(), DType::f32, false);
  const Tensor x = make_tensor(context, shape, values, DType::f32);
  const Tensor w = Tensor::full(context, {6}, 2), dy = x.clone();
  Tensor mean = Tensor::zeros(context, {6}), var = Tensor::full(context, {6}, 1);
  Tensor eager_mean = mean.clone(), eager_var = var.clone(), y, dx;
  const auto step = [&](Tensor& m, Tensor& v) {
    Tape tape;
    const Var leaf = tape.leaf(x);
    const Var out = batch_norm(leaf, w, Var(), m, v);
    tape.backward(out, {.seed = dy});
    y = out.value();
    dx = tape.grad(leaf);
  };
  for (int i = 0; i < 4; ++i) step(eager_mean, eager_var);
  const Values eager_y = values_of(y), eager_dx = values_of(dx);
  step(mean, var);
  Graph graph = Graph::capture(context, [&] { step(mean, var); });
  const std::uint64_t version = mean.version();
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_GE(mean.version(), version + 3);
  EXPECT_EQ(values_of(mean), values_of(eager_mean));
  EXPECT_EQ(values_of(var), values_of(eager_var));
  EXPECT_EQ(values_of(y), eager_y);
  EXPECT_EQ(values_of(dx), eager_dx);
}

}  // namespace
}  // namespace zerone::test
