// Optimizers: PyTorch's steps, the host's arithmetic bit for bit, masks, master weights, state in
// files, and steps in graphs.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include <zerone/core/views.h>

#include "support/compare.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using Values = std::vector<double>;
using Factory = std::function<std::unique_ptr<nn::Optimizer>(std::vector<Parameter>)>;

std::unique_ptr<nn::Optimizer> make_optimizer(const nlohmann::json& entry,
                                              std::vector<Parameter> parameters) {
  const auto& given = entry["params"];
  const double rate = entry["rates"][0].get<double>();
  const double momentum = given.value("momentum", 0.0);
  const double beta1 = given.contains("betas") ? given["betas"][0].get<double>() : 0.9;
  const double beta2 = given.contains("betas") ? given["betas"][1].get<double>() : 0.999;
  const double epsilon = given.value("eps", 1e-8);
  if (entry["name"] == "sgd")
    return std::make_unique<nn::Sgd>(
        std::move(parameters), nn::SgdOptions{.learning_rate = rate,
                                              .momentum = momentum,
                                              .weight_decay = given.value("weight_decay", 0.0),
                                              .nesterov = given.value("nesterov", false)});
  if (entry["name"] == "adam")
    return std::make_unique<nn::Adam>(
        std::move(parameters), nn::AdamOptions{.learning_rate = rate,
                                               .beta1 = beta1,
                                               .beta2 = beta2,
                                               .epsilon = epsilon,
                                               .weight_decay = given.value("weight_decay", 0.0)});
  return std::make_unique<nn::AdamW>(
      std::move(parameters), nn::AdamWOptions{.learning_rate = rate,
                                              .beta1 = beta1,
                                              .beta2 = beta2,
                                              .epsilon = epsilon,
                                              .weight_decay = given.value("weight_decay", 0.01)});
}

std::vector<std::pair<std::string, Factory>> every_optimizer() {
  using Parameters = std::vector<Parameter>;
  return {
      {"sgd",
       [](Parameters p) {
         return std::make_unique<nn::Sgd>(
             std::move(p), nn::SgdOptions{.learning_rate = 0.1, .weight_decay = 0.01});
       }},
      {"nesterov",
       [](Parameters p) {
         return std::make_unique<nn::Sgd>(
             std::move(p),
             nn::SgdOptions{
                 .learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
       }},
      {"adam",
       [](Parameters p) {
         return std::make_unique<nn::Adam>(
             std::move(p), nn::AdamOptions{.learning_rate = 0.1, .weight_decay = 0.01});
       }},
      {"adamw",
       [](Parameters p) {
         return std::make_unique<nn::AdamW>(std::move(p), nn::AdamWOptions{.learning_rate = 0.1});
       }},
  };
}

Tensor of_step(const Tensor& all, int step) {
  return all.slice(0, step, step + 1)
      .reshape(Shape(
          std::span(all.layout().sizes).subspan(1, static_cast<std::size_t>(all.rank() - 1))));
}

TEST(Optimizer, GoldenSteps) {
  Golden golden("training");
  int cases = 0;
  on_shared_devices([&](const Context& context) {
    for (const auto& entry : golden.cases()) {
      if (!entry.contains("idle")) continue;
      ++cases;
      for (const DType dtype : {DType::f64, DType::f32}) {
        SCOPED_TRACE(entry["name"].get<std::string>() + " " + entry["params"].dump() + " " +
                     to_string(dtype));
        const double tolerance = dtype == DType::f64 ? 1e-13 : 2e-5;
        const auto idle = entry["idle"].get<std::vector<int>>();
        std::vector<Parameter> parameters;
        for (const char* which : {"a", "b"})
          parameters.emplace_back(
              golden.tensor(context, entry, std::string("start_") + which, dtype), which);
        parameters[1].set_mask(golden.tensor(context, entry, "mask_b").to(DType::u8));
        const auto optimizer = make_optimizer(entry, parameters);
        const Tensor grads[] = {golden.tensor(context, entry, "grads_a", dtype),
                                golden.tensor(context, entry, "grads_b", dtype)};
        const Tensor trace[] = {golden.tensor(context, entry, "trace_a"),
                                golden.tensor(context, entry, "trace_b")};
        for (int step = 0; step < trace[0].size(0); ++step) {
          optimizer->set_learning_rate(entry["rates"][static_cast<std::size_t>(step)]);
          for (std::size_t i = 0; i < 2; ++i)
            if (i == 0 || std::find(idle.begin(), idle.end(), step) == idle.end())
              parameters[i].grad() = of_step(grads[i], step);
          optimizer->step();
          optimizer->zero_grad();
          for (std::size_t i = 0; i < 2; ++i) {
            const Values wanted = values_of(of_step(trace[i], step));
            const Values actual = values_of(parameters[i].value());
            for (std::size_t k = 0; k < wanted.size(); ++k)
              ASSERT_NEAR(actual[k], wanted[k], tolerance) << "step " << step << " element " << k;
          }
        }
      }
    }
  });
  EXPECT_GE(cases, 20);
}

/// A network of two convolutions under Sgd.
TEST(Optimizer, GoldenTenStepsOfANetwork) {
  Golden golden("networks");
  const auto& entry = golden.find("sgd_ten_steps");
  const auto& given = entry["params"];
  on_shared_devices([&](const Context& context) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      SCOPED_TRACE(to_string(dtype));
      const double tolerance = dtype == DType::f64 ? 1e-12 : 2e-5;
      std::vector<Parameter> parameters;
      for (const char* name : {"w0", "b0", "w1", "b1"})
        parameters.emplace_back(generated(context, entry, name, dtype), name);
      const Values mask_values = golden.values(entry, "mask");
      std::vector<std::uint8_t> mask(mask_values.size());
      for (std::size_t i = 0; i < mask.size(); ++i) {
        mask[i] = mask_values[i] != 0;
        EXPECT_EQ(mask[i], mix(1547, static_cast<std::uint32_t>(i)) % 10 == 0);
      }
      parameters[2].set_mask(
          Tensor::from<std::uint8_t>(context, Golden::shape(entry, "mask"), mask));
      const Tensor x = generated(context, entry, "x", dtype);
      const Tensor target = generated(context, entry, "target", dtype);
      nn::Sgd sgd(parameters, {.learning_rate = given["lr"].get<double>(),
                               .momentum = given["momentum"].get<double>(),
                               .weight_decay = given["weight_decay"].get<double>()});
      const Conv2dParams params{.padding = 1, .math = {}};
      for (const auto& step : entry["steps"]) {
        Tape tape;
        const Var in = tape.constant(x);
        const Var hidden = relu(conv2d(in, in.with(parameters[0]), in.with(parameters[1]), params));
        const Var y = conv2d(hidden, in.with(parameters[2]), in.with(parameters[3]), params);
        const Var loss = mean_square_error(y, target);
        EXPECT_NEAR(values_of(loss)[0], step["loss"].get<double>(), tolerance);
        tape.backward(loss);
        sgd.step();
        sgd.zero_grad();
        double sum = 0, squares = 0;
        for (const Parameter& parameter : parameters)
          for (const double value : values_of(parameter.value())) {
            sum += value;
            squares += value * value;
          }
        EXPECT_NEAR(sum, step["sum"].get<double>(), 30 * tolerance);
        EXPECT_NEAR(squares, step["sum_of_squares"].get<double>(), 30 * tolerance);
      }
      for (std::size_t i = 0; i < 4; ++i) {
        const std::string name = "final_" + parameters[i].name();
        const Values wanted = golden.values(entry, name), actual = values_of(parameters[i].value());
        for (std::size_t k = 0; k < wanted.size(); ++k)
          ASSERT_NEAR(actual[k], wanted[k], tolerance) << name << " element " << k;
      }
      const Values w1 = values_of(parameters[2].value());
      for (std::size_t i = 0; i < w1.size(); ++i)
        if (!mask[i]) {
          ASSERT_EQ(w1[i], 0) << i;
          ASSERT_FALSE(std::signbit(w1[i])) << i;
        }
    }
  });
}

/// What a step makes of one element, with the roundings that optimizer_formulas.h promises.
template <class C>
struct Host {
  kernels::OptimizerStep step;
  C rate, scale, root_correction;
  double learning_rate;

  C run(C value, C gradient, C& first, C& second) const {
    const auto c = [](double number) { return static_cast<C>(number); };
    C g = scale * gradient;
    if (step.decoupled_decay)
      value *= c(1 - learning_rate * step.weight_decay);
    else if (step.weight_decay != 0)
      g = std::fma(c(step.weight_decay), value, g);
    if (step.rule == kernels::OptimizerRule::sgd) {
      if (step.momentum == 0) return std::fma(-rate, g, value);
      first = std::fma(c(step.momentum), first, g);
      return std::fma(-rate, step.nesterov ? std::fma(c(step.momentum), first, g) : first, value);
    }
    first = std::fma(c(1 - step.beta1), g - first, first);
    const C part = c(1 - step.beta2) * g;
    second = std::fma(c(step.beta2), second, part * g);
    const C divisor = std::fma(std::sqrt(second), root_correction, c(step.epsilon));
    return std::fma(-rate, first / divisor, value);
  }
};

/// One tensor of a random problem, with what a step has to make of it.
struct Problem {
  Operand value, gradient, first, second, master, clock;
  Tensor mask;
  Values values, gradients, firsts, seconds, masters;
  std::vector<std::uint8_t> masks;
  double steps = 0;
};

template <class C>
void expect_step(const Context& context, Random& random, DType dtype, const std::string& where) {
  const bool adam = random.chance(0.5), many = random.chance(0.15), skips = random.chance(0.1);
  const bool momentum = random.chance(0.6), scaled = random.chance(0.5);
  const double rate = random.pick({0.125, 0.3}), scale = 0.25;
  kernels::OptimizerStep step{
      .rule = adam ? kernels::OptimizerRule::adam : kernels::OptimizerRule::sgd,
      .dtype = dtype,
      .nesterov = momentum && random.chance(0.4),
      .decoupled_decay = adam && random.chance(0.5),
      .momentum = momentum ? random.pick({0.75, 0.9}) : 0,
      .beta1 = 0.9,
      .beta2 = 0.99,
      .epsilon = 1e-3,
      .weight_decay = random.chance(0.5) ? 0.0625 : 0};
  const Tensor rate_number = Tensor::full(context, {}, rate, DType::f64);
  const Tensor scale_number = Tensor::full(context, {}, scale, DType::f64);
  const Tensor skip_number = Tensor::full(context, {}, skips ? 1 : 0, DType::f64);
  step.learning_rate = rate_number.data<double>();
  if (scaled) step.gradient_scale = scale_number.data<double>();
  if (skips || random.chance(0.3)) step.skip = skip_number.data<double>();

  const DType wide = std::is_same_v<C, double> ? DType::f64 : DType::f32;
  std::vector<Problem> problems(
      static_cast<std::size_t>(many ? random.integer(50, 130) : random.integer(1, 3)));
  std::vector<kernels::OptimizerTensor> tensors;
  for (Problem& p : problems) {
    const std::int64_t count = many                 ? random.integer(0, 9)
                               : random.chance(0.7) ? random.integer(1, 600)
                                                    : random.integer(4000, 20000);
    const auto place = [&] {
      return Placement{.offset = random.chance(0.5) ? 0 : random.integer(0, 5), .tail = 8};
    };
    p.values = random_values(random, count, dtype, false);
    p.gradients = random_values(random, count, dtype, false);
    p.firsts = random_values(random, count, wide, false);
    p.seconds = absolute(random_values(random, count, wide, false));
    p.value = Operand(context, {count}, dtype, place(), p.values);
    p.gradient = Operand(context, {count}, dtype, place(), p.gradients);
    kernels::OptimizerTensor tensor{.value = p.value.view().mutable_data(),
                                    .gradient = p.gradient.view().data(),
                                    .count = count};
    if (adam || momentum) {
      p.first = Operand(context, {count}, wide, place(), p.firsts);
      tensor.first = p.first.view().mutable_data();
    }
    if (adam) {
      p.steps = static_cast<double>(random.integer(0, 1000));
      p.second = Operand(context, {count}, wide, place(), p.seconds);
      p.clock = Operand(context, {3}, DType::f64, {}, {p.steps, 0, 0});
      tensor.second = p.second.view().mutable_data();
      tensor.clock = static_cast<kernels::OptimizerClock*>(p.clock.view().mutable_data());
    }
    if (size_of(dtype) == 2 && random.chance(0.7)) {
      for (const double value : p.values)  // most round to the value, some do not
        p.masters.push_back(rounded(DType::f32, value * (1 + 0x1p-13 * random.normal())));
      p.master = Operand(context, {count}, DType::f32, place(), p.masters);
      tensor.master = p.master.view().mutable_data<float>();
    }
    if (random.chance(0.4)) {
      for (std::int64_t i = 0; i < count; ++i) p.masks.push_back(random.chance(0.6));
      const std::int64_t before = random.integer(0, 3);
      Tensor padded = Tensor::full(context, {before + count}, 7, DType::u8);
      p.mask = padded.slice(0, before, before + count);
      p.mask.copy_(Tensor::from<std::uint8_t>(context, {count}, p.masks));
      tensor.mask = p.mask.data<std::uint8_t>();
    }
    tensors.push_back(tensor);
  }

  for (const auto& row : optimizer_list().rows()) {
    if (row.device != context.device().type) continue;
    row.run(context.state(), {step.rule, dtype, 1, 1}, {step, tensors}, nullptr);
    for (Problem& p : problems) {
      Host<C> host{step, static_cast<C>(rate), static_cast<C>(scaled ? scale : 1), C(0), rate};
      if (adam) {
        const Values clock = values_of(p.clock.view());
        const bool advances = !skips && !p.values.empty();
        ASSERT_EQ(clock[0], p.steps + (advances ? 1 : 0)) << where;
        if (advances) {
          EXPECT_NEAR(clock[1] * (1 - std::pow(step.beta1, clock[0])), 1, 1e-14) << where;
          EXPECT_NEAR(clock[2] * std::sqrt(1 - std::pow(step.beta2, clock[0])), 1, 1e-14) << where;
        }
        host.rate = static_cast<C>(rate * clock[1]);
        host.root_correction = static_cast<C>(clock[2]);
      }
      for (std::size_t i = 0; i < p.values.size() && !skips; ++i) {
        C first = static_cast<C>(p.firsts[i]), second = static_cast<C>(p.seconds[i]);
        C value = static_cast<C>(p.values[i]);
        if (!p.masters.empty() && rounded(dtype, p.masters[i]) == p.values[i])
          value = static_cast<C>(p.masters[i]);
        value = host.run(value, static_cast<C>(p.gradients[i]), first, second);
        if (!p.masks.empty() && p.masks[i] == 0) value = first = second = 0;
        p.values[i] = rounded(dtype, static_cast<double>(value));
        p.firsts[i] = static_cast<double>(first);
        p.seconds[i] = static_cast<double>(second);
        if (!p.masters.empty()) p.masters[i] = static_cast<double>(value);
      }
      const auto compare = [&](const Operand& operand, const Values& wanted, const char* what) {
        std::string why;
        if (operand.view().defined()) {
          EXPECT_EQ(mismatch(operand.read(why), wanted, {}, exact_contract(DType::f64)), "")
              << row.name << " " << what << "\n  " << where;
        }
      };
      compare(p.value, p.values, "value");
      compare(p.first, p.firsts, "first");
      compare(p.second, p.seconds, "second");
      compare(p.master, p.masters, "master");
    }
  }
}

TEST(Optimizer, RandomStepsOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 300; ++index) {
      if (!case_wanted(index)) continue;
      Random random(7'000'000 + static_cast<std::uint64_t>(index));
      const DType dtype = random.pick({DType::f32, DType::f64, DType::bf16, DType::f16});
      const std::string where = reproduction(index, "optimizer " + to_string(dtype));
      if (dtype == DType::f64)
        expect_step<double>(context, random, dtype, where);
      else
        expect_step<float>(context, random, dtype, where);
    }
  });
}

TEST(Optimizer, ThreadsDoNotMatter) {
  std::vector<std::vector<Values>> results;
  for (const int threads : {1, 3}) {
    const Context context(Device::cpu(), {.threads = threads});
    std::vector<Parameter> parameters;
    for (const std::int64_t size : {100'001, 3, 70'000})
      parameters.emplace_back(Tensor::normal(context, {size}), std::to_string(size));
    nn::Adam adam(parameters, {});
    results.emplace_back();
    for (int step = 0; step < 5; ++step) {
      for (const Parameter& p : parameters) p.grad() = Tensor::normal(context, p.value().shape());
      results.back().push_back(values_of(nn::clip_grad_norm(parameters, 1)));
      adam.step();
    }
    for (const Parameter& p : parameters) results.back().push_back(values_of(p.value()));
  }
  EXPECT_EQ(results[0], results[1]);
}

/// Weights stay masked although momentum carries old gradients and decay would move them.
TEST(Optimizer, H23_MaskedWeightsStayZero) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      for (const auto& [name, make] : every_optimizer()) {
        SCOPED_TRACE(name + " " + to_string(dtype));
        Parameter w(make_tensor(context, {3}, {1, 2, -3}, dtype), "w");
        const auto optimizer = make({w});
        const Tensor gradient = make_tensor(context, {3}, {1, -1, 1}, dtype);
        w.grad() = gradient;
        optimizer->step();  // leaves momentum everywhere
        w.set_mask(Tensor::from<std::uint8_t>(context, {3}, {0, 1, 0}));
        for (int step = 0; step < 20; ++step) {
          w.grad() = gradient;  // does not know of the mask
          optimizer->step();
          const Values values = values_of(w.value());
          ASSERT_NE(values[1], 2) << step;
          for (const std::size_t i : {0u, 2u}) {
            ASSERT_EQ(values[i], 0) << step;
            ASSERT_FALSE(std::signbit(values[i])) << step;
          }
        }
        for (const NamedTensor& state : optimizer->state()) {
          if (state.tensor.numel() != 3) continue;
          const Values values = values_of(state.tensor);
          EXPECT_EQ(values[0], 0) << state.name;
          EXPECT_EQ(values[2], 0) << state.name;
          EXPECT_NE(values[1], 0) << state.name;
        }
      }
    }
    // Without a mask the momentum moves them.
    Parameter w(make_tensor(context, {2}, {1, 1}, DType::f32), "w");
    nn::Sgd sgd({w}, {.learning_rate = 0.1, .momentum = 0.9});
    w.grad() = make_tensor(context, {2}, {1, 1}, DType::f32);
    sgd.step();
    w.value().copy_(w.value() * make_tensor(context, {2}, {1, 0}, DType::f32));
    w.grad() = make_tensor(context, {2}, {1, 0}, DType::f32);
    sgd.step();
    EXPECT_NEAR(values_of(w.value())[0], 0.71, 1e-6);
    EXPECT_NEAR(values_of(w.value())[1], -0.09, 1e-6);
  });
}

TEST(Optimizer, LeavesAloneWhatHasNoGradient) {
  on_shared_devices([](const Context& context) {
    Parameter used(make_tensor(context, {2}, {1, 2}, DType::f32), "used");
    Parameter unused(make_tensor(context, {2}, {3, 4}, DType::f32), "unused");
    nn::Sgd sgd({used, unused, used}, {.learning_rate = 0.5, .weight_decay = 0.5});
    EXPECT_EQ(sgd.parameters().size(), 2u);
    used.grad() = make_tensor(context, {2}, {1, -1}, DType::f32);
    const std::uint64_t version = used.value().version(), kept = unused.value().version();
    sgd.step();
    EXPECT_EQ(values_of(used.value()), (Values{0.25, 2}));
    EXPECT_EQ(values_of(unused.value()), (Values{3, 4}));
    EXPECT_GT(used.value().version(), version);
    EXPECT_EQ(unused.value().version(), kept);
    sgd.zero_grad();
    EXPECT_FALSE(used.grad().defined());
  });
}

TEST(Optimizer, AnyLayout) {
  on_shared_devices([](const Context& context) {
    const Shape shape{2, 3, 4, 5};
    const Tensor start = Tensor::normal(context, shape), slope = Tensor::normal(context, shape);
    std::vector<std::uint8_t> keep(120, 1);
    for (std::size_t i = 0; i < keep.size(); i += 3) keep[i] = 0;
    const Tensor mask = Tensor::from<std::uint8_t>(context, shape, keep);
    for (const auto& [name, make] : every_optimizer()) {
      SCOPED_TRACE(name);
      std::vector<Values> results;
      for (const bool value_nhwc : {false, true})
        for (const bool gradient_nhwc : {false, true}) {
          Parameter w(value_nhwc ? start.contiguous_nhwc().clone() : start.clone(), "w");
          w.set_mask(mask);
          const auto optimizer = make({w});
          for (int step = 0; step < 3; ++step) {
            w.grad() = gradient_nhwc ? slope.contiguous_nhwc() : slope;
            optimizer->step();
          }
          results.push_back(values_of(w.value()));
        }
      for (const Values& result : results) EXPECT_EQ(result, results[0]);
      // A broadcast gradient, and none that is known to be zero.
      Parameter w(start.clone(), "w");
      const auto optimizer = make({w});
      w.grad() = Tensor::full(context, {1}, 2).expand(shape);
      optimizer->step();
      EXPECT_NE(values_of(w.value()), values_of(start));
      w.grad() = Tensor::zeros(context, shape);
      optimizer->step();
      EXPECT_TRUE(std::isfinite(sum(w.value()).value().item()));
    }
  });
}

TEST(Optimizer, SpecialValues) {
  on_shared_devices([](const Context& context) {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      SCOPED_TRACE(to_string(dtype));
      Parameter w(make_tensor(context, {5}, {inf, -0.0, 1, 1, nan}, dtype), "w");
      nn::Sgd sgd({w}, {.learning_rate = 0.5, .momentum = 0.5});
      w.grad() = make_tensor(context, {5}, {1, -0.0, nan, -inf, 0}, dtype);
      sgd.step();
      const Values values = values_of(w.value());
      EXPECT_EQ(values[0], inf) << "no decay: 0 * Inf adds nothing";
      EXPECT_EQ(values[1], 0);
      EXPECT_TRUE(std::isnan(values[2]));
      EXPECT_EQ(values[3], inf);
      EXPECT_TRUE(std::isnan(values[4]));
      // Adam divides Inf by Inf, as PyTorch's does.
      Parameter v(make_tensor(context, {3}, {1, 1, 1}, dtype), "v");
      nn::Adam adam({v}, {.learning_rate = 0.5});
      v.grad() = make_tensor(context, {3}, {inf, 0, 2}, dtype);
      adam.step();
      EXPECT_TRUE(std::isnan(values_of(v.value())[0]));
      EXPECT_EQ(values_of(v.value())[1], 1);
      EXPECT_NEAR(values_of(v.value())[2], 0.5, 0x1p-8);
    }
  });
}

// --- master weights -----------------------------------------------------------------------------

TEST(MasterWeights, HoldTheRoundedF32Result) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const auto& [name, make] : every_optimizer()) {
        SCOPED_TRACE(name + " " + to_string(dtype));
        const Tensor start = Tensor::normal(context, {1000}).to(dtype);
        Parameter narrow(start.clone(), "w"), wide(start.to(DType::f32), "w");
        const auto one = make({narrow}), other = make({wide});
        for (int step = 0; step < 10; ++step) {
          const Tensor gradient = Tensor::normal(context, {1000}).to(dtype);
          narrow.grad() = gradient;
          wide.grad() = gradient.to(DType::f32);
          one->step();
          other->step();
        }
        EXPECT_EQ(values_of(narrow.value()), values_of(wide.value().to(dtype)));
        for (const NamedTensor& state : one->state())
          if (state.name == "w.master") {
            EXPECT_EQ(values_of(state.tensor), values_of(wide.value()));
          }
      }
    }
  });
}

TEST(MasterWeights, SmallStepsAddUp) {
  on_shared_devices([](const Context& context) {
    for (const bool master : {true, false}) {
      Parameter w(make_tensor(context, {1}, {1}, DType::bf16), "w");
      nn::Sgd sgd({w}, {.learning_rate = 1, .master_weights = master});
      w.grad() = make_tensor(context, {1}, {0x1p-11}, DType::bf16);
      for (int step = 0; step < 64; ++step) sgd.step();
      EXPECT_EQ(values_of(w.value())[0], master ? 1 - 0x1p-5 : 1);
    }
  });
}

TEST(MasterWeights, FollowWhoeverWritesTheParameter) {
  on_shared_devices([](const Context& context) {
    Parameter w(make_tensor(context, {3}, {1, 2, 3}, DType::f16), "w");
    nn::Sgd sgd({w}, {.learning_rate = 0.25});
    w.grad() = make_tensor(context, {3}, {1, 1, 1}, DType::f16);
    sgd.step();
    w.value().copy_(make_tensor(context, {3}, {10, 1.75, 0}, DType::f16));
    sgd.step();
    EXPECT_EQ(values_of(w.value()), (Values{9.75, 1.5, -0.25}));
  });
}

// --- state --------------------------------------------------------------------------------------

TEST(OptimizerState, NamesAndShapes) {
  on_shared_devices([](const Context& context) {
    const auto names_of = [](const nn::Optimizer& optimizer) {
      std::vector<std::string> names;
      for (const NamedTensor& state : optimizer.state()) names.push_back(state.name);
      return names;
    };
    using Names = std::vector<std::string>;
    const Parameter w(Tensor::zeros(context, {2, 3}), "0.weight");
    const Parameter b(Tensor::zeros(context, {3}, DType::bf16));
    EXPECT_EQ(names_of(nn::Sgd({w}, {})), Names{"learning_rate"});
    EXPECT_EQ(
        names_of(nn::Sgd({w, b}, {.momentum = 0.5})),
        (Names{"learning_rate", "0.weight.momentum_buffer", "1.momentum_buffer", "1.master"}));
    nn::AdamW adam({w});
    EXPECT_EQ(names_of(adam),
              (Names{"learning_rate", "0.weight.exp_avg", "0.weight.exp_avg_sq", "0.weight.step"}));
    w.set_name("renamed");
    EXPECT_EQ(adam.state()[1].name, "0.weight.exp_avg");
    EXPECT_EQ(adam.state()[1].tensor.shape(), (Shape{2, 3}));
    EXPECT_EQ(adam.state()[3].tensor.shape(), Shape{});
    w.grad() = Tensor::full(context, {2, 3}, 1);
    adam.step();
    adam.step();
    EXPECT_EQ(adam.state()[3].tensor.item(), 2);
    const Parameter twin(Tensor::zeros(context, {3}), "same"), other(twin.value(), "same");
    expect_contains(message_of<ShapeError>([&] {
                      (void)nn::Adam({twin, other}).state();
                    }),
                    {"same.exp_avg"});
  });
}

TEST(OptimizerState, AContinuationEqualsBitForBit) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      for (const auto& [name, make] : every_optimizer()) {
        SCOPED_TRACE(name + " " + to_string(dtype));
        std::vector<Tensor> gradients;
        for (int step = 0; step < 8; ++step)
          gradients.push_back(Tensor::normal(context, {50}).to(dtype));
        Parameter w(Tensor::normal(context, {50}).to(dtype), "w");
        const auto optimizer = make({w});
        const auto steps = [&](nn::Optimizer& on, const Parameter& p, int begin, int end) {
          for (int step = begin; step < end; ++step) {
            p.grad() = gradients[static_cast<std::size_t>(step)];
            on.step();
          }
        };
        steps(*optimizer, w, 0, 3);
        optimizer->set_learning_rate(0.0625);
        // Through the host, as a file would.
        const Context host;
        std::vector<NamedTensor> saved;
        for (const NamedTensor& state : optimizer->state())
          saved.push_back({state.name, state.tensor.to(host).clone()});
        Parameter copy(w.value().clone(), "w");
        const auto restored = make({copy});
        EXPECT_NE(restored->learning_rate(), 0.0625);
        std::reverse(saved.begin(), saved.end());
        restored->load_state(saved);
        EXPECT_EQ(restored->learning_rate(), 0.0625);
        steps(*optimizer, w, 3, 8);
        steps(*restored, copy, 3, 8);
        EXPECT_EQ(values_of(copy.value()), values_of(w.value()));
      }
    }
  });
}

TEST(OptimizerState, WhatDoesNotFitIsNamedAndChangesNothing) {
  on_shared_devices([](const Context& context) {
    const Parameter w(Tensor::full(context, {2}, 1), "w");
    nn::Sgd sgd({w}, {.momentum = 0.5});
    const Tensor rate = Tensor::full(context, {}, 7, DType::f64);
    const auto load = [&](std::vector<NamedTensor> state) { sgd.load_state(state); };
    expect_contains(message_of<ShapeError>([&] {
                      load({{"learning_rate", rate}});
                    }),
                    {"sgd", "w.momentum_buffer", "missing"});
    expect_contains(message_of<ShapeError>([&] {
                      load({{"learning_rate", rate}, {"v.momentum_buffer", Tensor()}});
                    }),
                    {"v.momentum_buffer"});
    expect_contains(
        message_of<ShapeError>([&] {
          load({{"learning_rate", rate}, {"w.momentum_buffer", Tensor::zeros(context, {3})}});
        }),
        {"[3]", "[2]"});
    expect_contains(message_of<DTypeError>([&] {
                      load({{"learning_rate", rate},
                            {"w.momentum_buffer", Tensor::zeros(context, {2}, DType::f64)}});
                    }),
                    {"f64", "f32"});
    EXPECT_EQ(sgd.learning_rate(), 0.01);
    EXPECT_EQ(sgd.state()[0].tensor.item(), 0.01);
  });
}

TEST(Optimizer, Errors) {
  on_shared_devices([](const Context& context) {
    const Parameter w(Tensor::full(context, {2, 2}, 1), "w");
    const Parameter strided(Tensor::zeros(context, {4, 4}).slice(1, 0, 2), "strided");
    expect_contains(message_of<ShapeError>([&] { nn::Sgd({strided}, {}); }), {"strided"});
    EXPECT_THROW(nn::Sgd({Parameter()}, {}), ShapeError);
    EXPECT_THROW(nn::Sgd({}, {}), ShapeError);
    EXPECT_THROW(nn::Sgd({Parameter(Tensor::zeros(context, {2}, DType::i64))}, {}), DTypeError);
    EXPECT_THROW(nn::Sgd({w, Parameter(Tensor::zeros(Context(), {2}))}, {}), DeviceError);
    EXPECT_THROW(nn::Sgd({w}, {.learning_rate = -1}), ShapeError);
    EXPECT_THROW(nn::Sgd({w}, {.learning_rate = std::nan("")}), ShapeError);
    EXPECT_THROW(nn::Sgd({w}, {.momentum = -0.5}), ShapeError);
    EXPECT_THROW(nn::Sgd({w}, {.nesterov = true}), ShapeError);
    EXPECT_THROW(nn::Adam({w}, {.beta2 = 1}), ShapeError);
    EXPECT_THROW(nn::AdamW({w}, {.weight_decay = -0.1}), ShapeError);
    nn::Adam adam({w});
    EXPECT_THROW(adam.set_learning_rate(-1), ShapeError);
    w.grad() = Tensor::zeros(context, {4});
    expect_contains(message_of<ShapeError>([&] { adam.step(); }), {"adam", "'w'", "[2, 2]", "[4]"});
    w.grad() = Tensor::zeros(context, {2, 2}, DType::f64);
    EXPECT_THROW(adam.step(), DTypeError);
    w.grad() = Tensor::full(context, {2, 2}, 1);
    EXPECT_THROW(adam.step({.skip = Tensor::zeros(context, {})}), DTypeError);
    EXPECT_THROW(adam.step({.gradient_scale = Tensor::full(Context(), {}, 1, DType::f64)}),
                 DeviceError);
    w.value() = Tensor::full(context, {4}, 1);
    w.grad() = Tensor::full(context, {4}, 1);
    expect_contains(message_of<ShapeError>([&] { adam.step(); }), {"state", "[2, 2]"});
  });
}

TEST(Optimizer, SkipAndScaleAreReadOnTheDevice) {
  on_shared_devices([](const Context& context) {
    Parameter w(make_tensor(context, {1}, {1}, DType::f32), "w");
    nn::Sgd sgd({w}, {.learning_rate = 0.5});
    Tensor scale = Tensor::full(context, {1}, 0.25, DType::f64);
    Tensor skip = Tensor::full(context, {}, 1, DType::f64);
    w.grad() = make_tensor(context, {1}, {2}, DType::f32);
    sgd.step({scale, skip});
    EXPECT_EQ(values_of(w.value()), Values{1});
    skip.fill_(0);
    sgd.step({scale, skip});
    EXPECT_EQ(values_of(w.value()), Values{0.75});
    sgd.step();
    EXPECT_EQ(values_of(w.value()), Values{-0.25});
  });
}

TEST(Optimizer, ManyParametersAsOneByOne) {
  on_shared_devices([](const Context& context) {
    for (const auto& [name, make] : every_optimizer()) {
      SCOPED_TRACE(name);
      std::vector<Parameter> together, alone;
      for (std::int64_t i = 0; i < 120; ++i) {
        const Tensor start = Tensor::normal(context, {i * i % 97 * (i % 10 == 0 ? 300 : 1)})
                                 .to(i % 3 == 0 ? DType::bf16 : DType::f32);
        for (auto* list : {&together, &alone}) {
          list->emplace_back(start.clone(), std::to_string(i));
          list->back().grad() = (start * 0.5).value();
        }
      }
      make(together)->step();
      for (const Parameter& parameter : alone) make({parameter})->step();
      for (std::size_t i = 0; i < alone.size(); ++i)
        ASSERT_EQ(values_of(together[i].value()), values_of(alone[i].value())) << i;
    }
  });
}

// --- graphs -------------------------------------------------------------------------------------

/// A small network whose second weight is masked, and its optimizer; the same seed, the same bits.
struct Training {
  Training(Context context, const Factory& make, DType dtype) {
    context.seed(11);
    net.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = 3,
                                                       .out_channels = 8,
                                                       .kernel = 3,
                                                       .activation = Activation::relu,
                                                       .dtype = dtype});
    net.emplace<nn::Conv2d>(context,
                            nn::Conv2dOptions{.in_channels = 8, .out_channels = 4, .dtype = dtype});
    std::vector<std::uint8_t> mask(32, 1);
    for (std::size_t i = 0; i < mask.size(); i += 2) mask[i] = 0;
    net.parameters()[2].set_mask(Tensor::from<std::uint8_t>(context, {4, 8, 1, 1}, mask));
    x = Tensor::normal(context, {2, 3, 8, 8}).to(dtype);
    target = Tensor::normal(context, {2, 4, 6, 6}).to(dtype);
    optimizer = make(net.parameters());
    scaler = std::make_unique<nn::LossScaler>(
        context, nn::LossScalerOptions{.initial_scale = 1024, .interval = 4});
  }
  void step() {
    optimizer->zero_grad();
    Tape tape;
    const Var loss = mean_square_error(net(tape.constant(x)), tape.constant(target));
    tape.backward(scaler->scale(loss));
    scaler->unscale(*optimizer);
    (void)nn::clip_grad_norm(optimizer->parameters(), 0.5);
    scaler->step(*optimizer);
  }
  std::vector<Values> values() const {
    std::vector<Values> all{{scaler->current_scale()}};
    for (const Parameter& parameter : net.parameters()) all.push_back(values_of(parameter.value()));
    for (const NamedTensor& state : optimizer->state()) all.push_back(values_of(state.tensor));
    return all;
  }

  nn::Sequential net;
  Tensor x, target;
  std::unique_ptr<nn::Optimizer> optimizer;
  std::unique_ptr<nn::LossScaler> scaler;
};

TEST(Optimizer, TrainsWithClippingAndLossScaling) {
  on_shared_devices([](const Context& context) {
    for (const auto& [name, make] : every_optimizer()) {
      SCOPED_TRACE(name);
      Training one(context, make, DType::f32), other(context, make, DType::f32);
      one.optimizer->set_learning_rate(0.01);
      other.optimizer->set_learning_rate(0.01);
      const auto loss = [&] {
        return mean_square_error(one.net(one.x), one.target).value().item();
      };
      const double first = loss();
      for (int step = 0; step < 20; ++step) {
        one.step();
        other.step();
      }
      EXPECT_LT(loss(), first);
      EXPECT_EQ(one.values(), other.values()) << "steps do not repeat";
      EXPECT_EQ(one.scaler->current_scale(), 1024 * 32) << "grows at every fourth step";
    }
  });
}

TEST(OptimizerGraph, ReplaysEqualEagerStepsUnderASchedule) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU: " << why_no_cuda();
  const nn::CosineSchedule schedule{.learning_rate = 0.05, .steps = 30, .warm_up = 3};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [name, make] : every_optimizer()) {
      SCOPED_TRACE(name + " " + to_string(dtype));
      const Context context(Device::cuda());
      Training eager(context, make, dtype), replayed(context, make, dtype);
      {  // plans the operations; the first optimizer step is in the graph
        nn::LossScaler scaler(context);
        Tape tape;
        tape.backward(scaler.scale(mean_square_error(replayed.net(tape.constant(replayed.x)),
                                                     tape.constant(replayed.target))));
        replayed.optimizer->zero_grad();
      }
      Graph graph = Graph::capture(context, [&] { replayed.step(); });
      EXPECT_EQ(eager.values(), replayed.values()) << "capture ran the work";
      for (int step = 0; step < 30; ++step) {
        for (Training* training : {&eager, &replayed})
          training->optimizer->set_learning_rate(schedule(step));
        if (step == 12) {  // an overflow: both skip
          const Tensor infinite = Tensor::full(context, eager.x.shape(), 1e38).to(dtype);
          eager.x.copy_(infinite);
          replayed.x.copy_(infinite);
        } else if (step == 13) {
          const Tensor tame = Tensor::normal(context, eager.x.shape()).to(dtype);
          eager.x.copy_(tame);
          replayed.x.copy_(tame);
        }
        eager.step();
        if (step % 7 == 5)
          replayed.step();  // an eager step among the replays
        else
          graph.replay();
        ASSERT_EQ(eager.values(), replayed.values()) << "after step " << step;
      }
      const Values masked = values_of(replayed.net.parameters()[2].value());
      for (std::size_t i = 0; i < masked.size(); i += 2) EXPECT_EQ(masked[i], 0);
      EXPECT_TRUE(std::isfinite(masked[1]));
    }
  }
}

}  // namespace
}  // namespace zerone::test
