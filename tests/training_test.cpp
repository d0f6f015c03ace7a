// What stands around an optimizer: schedules, gradient clipping, loss scaling and initial values.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/compare.h"
#include "support/errors.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using Values = std::vector<double>;

constexpr double inf = std::numeric_limits<double>::infinity();
const double nan = std::nan("");

TEST(Schedule, GoldenRates) {
  Golden golden("training");
  int cases = 0;
  for (const auto& entry : golden.cases()) {
    if (entry["name"] != "step" && entry["name"] != "cosine") continue;
    ++cases;
    const auto& given = entry["params"];
    const auto rates = entry["rates"].get<Values>();
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const auto step = static_cast<std::int64_t>(i);
      double rate = 0;
      if (entry["name"] == "step")
        rate = nn::StepSchedule{.learning_rate = 0.3,
                                .period = given["period"].get<std::int64_t>(),
                                .factor = given["factor"].get<double>()}(step);
      else
        rate = nn::CosineSchedule{.learning_rate = 0.3,
                                  .steps = given["steps"].get<std::int64_t>(),
                                  .minimum = given["minimum"].get<double>(),
                                  .warm_up = given["warm_up"].get<std::int64_t>(),
                                  .warm_up_factor = given["factor"].get<double>()}(step);
      EXPECT_NEAR(rate, rates[i], 1e-14) << given.dump() << " step " << i;
    }
  }
  EXPECT_EQ(cases, 3);
}

TEST(Schedule, Errors) {
  EXPECT_THROW((void)nn::StepSchedule{}(-1), ShapeError);
  EXPECT_THROW((void)nn::StepSchedule{.period = 0}(1), ShapeError);
  EXPECT_THROW((void)nn::CosineSchedule{}(-1), ShapeError);
  EXPECT_THROW((void)nn::CosineSchedule{.steps = 0}(1), ShapeError);
  EXPECT_THROW((void)nn::CosineSchedule{.warm_up = -1}(1), ShapeError);
}

/// Parameters with these gradients; what their values are does not matter.
std::vector<Parameter> with_gradients(std::initializer_list<Tensor> gradients) {
  std::vector<Parameter> parameters;
  for (const Tensor& gradient : gradients) {
    parameters.emplace_back(Tensor::zeros(gradient.context(), gradient.shape(), gradient.dtype()));
    parameters.back().grad() = gradient.clone();
  }
  return parameters;
}

TEST(ClipGradients, Golden) {
  Golden golden("training");
  int cases = 0;
  on_shared_devices([&](const Context& context) {
    for (const auto& entry : golden.cases()) {
      if (entry["name"] != "clip") continue;
      ++cases;
      for (const DType dtype : {DType::f64, DType::f32}) {
        const double tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
        const double limit = entry["limit"].get<double>();
        for (const bool by_norm : {true, false}) {
          const auto parameters = with_gradients({golden.tensor(context, entry, "grad0", dtype),
                                                  golden.tensor(context, entry, "grad1", dtype),
                                                  golden.tensor(context, entry, "grad2", dtype)});
          if (by_norm) {
            const Tensor norm = nn::clip_grad_norm(parameters, limit);
            EXPECT_EQ(norm.shape(), Shape{});
            EXPECT_NEAR(norm.item(), entry["norm"].get<double>(), 10 * tolerance);
          } else {
            nn::clip_grad_value(parameters, limit);
          }
          for (std::size_t i = 0; i < 3; ++i) {
            const Values wanted =
                golden.values(entry, (by_norm ? "by_norm" : "by_value") + std::to_string(i));
            const Values actual = values_of(parameters[i].grad());
            ASSERT_EQ(actual.size(), wanted.size());
            for (std::size_t k = 0; k < wanted.size(); ++k)
              EXPECT_NEAR(actual[k], wanted[k], tolerance);
          }
        }
      }
    }
  });
  EXPECT_GE(cases, 2);
}

TEST(ClipGradients, RandomListsOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 80; ++index) {
      if (!case_wanted(index)) continue;
      Random random(8'000'000 + static_cast<std::uint64_t>(index));
      const bool many = random.chance(0.2);
      const auto count =
          static_cast<std::size_t>(many ? random.integer(100, 300) : random.integer(1, 4));
      std::vector<Operand> operands;
      std::vector<Values> given;
      std::vector<DType> types;
      std::vector<kernels::GradientTensor> tensors;
      double squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        types.push_back(random.pick({DType::f32, DType::f64, DType::bf16, DType::f16}));
        const std::int64_t size = many                 ? random.integer(0, 7)
                                  : random.chance(0.6) ? random.integer(1, 300)
                                                       : random.integer(10'000, 70'000);
        given.push_back(random_values(random, size, types[i], false));
        for (const double value : given[i]) squares += value * value;
        operands.emplace_back(context, Shape{size}, types[i],
                              Placement{.offset = random.integer(0, 5), .tail = 8}, given[i]);
        tensors.push_back({operands[i].view().mutable_data(), size, types[i]});
      }
      const std::string where = reproduction(index, fmt::format("gradients of {} tensors", count));
      for (const auto& row : gradient_list().rows()) {
        if (row.device != context.device().type) continue;
        const auto run = [&](const GradientDesc& desc, GradientArgs args) {
          args.tensors = tensors;
          row.run(context.state(), desc, args, nullptr);
        };
        const auto expect = [&](auto&& function) {
          for (std::size_t i = 0; i < count; ++i) {
            for (double& value : given[i]) value = rounded(types[i], function(value));
            std::string why;
            ASSERT_EQ(mismatch(operands[i].read(why), given[i], {}, exact_contract(DType::f64)), "")
                << row.name << " tensor " << i << "\n  " << where;
          }
        };
        Values norms;
        for (int repeat = 0; repeat < 2; ++repeat) {
          Tensor result = Tensor::full(context, {3}, nan, DType::f64);
          run({GradientOp::norm},
              {.norm = static_cast<kernels::GradientNorm*>(result.mutable_data()), .limit = 0.5});
          const Values found = values_of(result);
          EXPECT_NEAR(found[0], std::sqrt(squares), 1e-13 * std::sqrt(squares)) << where;
          EXPECT_EQ(found[1], std::min(1.0, 0.5 / (found[0] + 1e-6))) << where;
          EXPECT_EQ(found[2], 0) << where;
          norms.push_back(found[0]);
        }
        EXPECT_EQ(norms[0], norms[1]) << "a second run gives other bits\n  " << where;
        Tensor factor = Tensor::full(context, {}, 1, DType::f64);
        run({GradientOp::scale}, {.number = factor.data<double>()});
        expect([](double value) { return value; });
        factor.fill_(0.25);
        run({GradientOp::scale}, {.number = factor.data<double>()});
        expect([](double value) { return value * 0.25; });
        run({GradientOp::clamp}, {.limit = 0.125});
        expect([](double value) { return std::clamp(value, -0.125, 0.125); });
      }
    }
  });
}

TEST(ClipGradients, SpecialValues) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      SCOPED_TRACE(to_string(dtype));
      const auto clipped = [&](const Values& values, double limit, double* norm) {
        const auto parameters = with_gradients({make_tensor(context, {2}, values, dtype)});
        *norm = nn::clip_grad_norm(parameters, limit).item();
        return values_of(parameters[0].grad());
      };
      double norm = 0;
      Values left = clipped({inf, 1}, 1, &norm);
      EXPECT_EQ(norm, inf);
      EXPECT_TRUE(std::isnan(left[0]));
      EXPECT_EQ(left[1], 0);
      left = clipped({nan, 1}, 1, &norm);
      EXPECT_TRUE(std::isnan(norm) && std::isnan(left[0]) && std::isnan(left[1]));
      left = clipped({0, -0.0}, 1, &norm);
      EXPECT_EQ(norm, 0);
      EXPECT_TRUE(std::signbit(left[1]));
      // Largest finite values neither overflow the sum nor hide a factor.
      const double large = dtype == DType::f16 ? 60000 : dtype == DType::f64 ? 0x1p500 : 0x1p127;
      left = clipped({large, large}, large, &norm);
      EXPECT_NEAR(norm / large, std::sqrt(2), 0.01);
      EXPECT_NEAR(left[0] / large, std::sqrt(0.5), 0.01);

      const auto parameters =
          with_gradients({make_tensor(context, {5}, {nan, inf, -inf, -0.0, 0.25}, dtype)});
      nn::clip_grad_value(parameters, 2);
      left = values_of(parameters[0].grad());
      EXPECT_TRUE(std::isnan(left[0]));
      EXPECT_EQ((Values{left.begin() + 1, left.end()}), (Values{2, -2, 0, 0.25}));
      EXPECT_TRUE(std::signbit(left[3]));
    }
  });
}

TEST(ClipGradients, NoneEmptyKnownZeroAndStrided) {
  on_shared_devices([](const Context& context) {
    const Parameter none(Tensor::zeros(context, {3}), "none");
    EXPECT_EQ(nn::clip_grad_norm(std::vector{none}, 1).item(), 0);
    EXPECT_FALSE(none.grad().defined());
    const Parameter empty(Tensor::zeros(context, {0}), "empty");
    empty.grad() = Tensor::zeros(context, {0});
    const Parameter zero(Tensor::zeros(context, {4}), "zero");
    zero.grad() = Tensor::zeros(context, {4});
    const Parameter strided(Tensor::zeros(context, {2}), "strided");
    const Tensor whole = make_tensor(context, {2, 2}, {3, 100, 4, 100}, DType::f32);
    strided.grad() = whole.slice(1, 0, 1).reshape({2});
    const std::vector<Parameter> all{none, empty, zero, strided};
    EXPECT_EQ(nn::clip_grad_norm(all, 1).item(), 5);
    EXPECT_NEAR(values_of(strided.grad())[0], 0.6, 1e-5);
    EXPECT_NEAR(values_of(strided.grad())[1], 0.8, 1e-5);
    EXPECT_EQ(values_of(whole), (Values{3, 100, 4, 100})) << "a view's base was scaled";
    EXPECT_EQ(values_of(zero.grad()), Values(4, 0.0));
    EXPECT_THROW(nn::clip_grad_norm({}, 1), ShapeError);
    EXPECT_THROW(nn::clip_grad_norm(all, -1), ShapeError);
    EXPECT_THROW(nn::clip_grad_value(all, nan), ShapeError);
    EXPECT_THROW(nn::scale_grad(all, Tensor::zeros(context, {})), DTypeError);
  });
}

// --- loss scaling -------------------------------------------------------------------------------

TEST(LossScaler, GoldenSteps) {
  Golden golden("training");
  const auto& entry = golden.find("loss_scaler");
  const auto& given = entry["params"];
  on_shared_devices([&](const Context& context) {
    for (const bool explicitly : {false, true}) {
      const Parameter w(golden.tensor(context, entry, "start", DType::f32), "w");
      const Tensor factors = golden.tensor(context, entry, "factors", DType::f32);
      const Values trace = golden.values(entry, "trace");
      nn::Sgd sgd({w}, {.learning_rate = given["lr"].get<double>(),
                        .momentum = given["momentum"].get<double>()});
      nn::LossScaler scaler(context, {.initial_scale = given["scale"].get<double>(),
                                      .interval = given["interval"].get<std::int64_t>()});
      for (int step = 0; step < 20; ++step) {
        sgd.zero_grad();
        Tape tape;
        const Var loss =
            sum(tape.parameter(w) * tape.constant(factors.slice(0, step, step + 1).reshape({6})));
        tape.backward(scaler.scale(loss));
        if (explicitly) {
          scaler.unscale(sgd);
          EXPECT_THROW(scaler.unscale(sgd), ShapeError);
          EXPECT_EQ(values_of(w.grad())[0], values_of(factors.slice(0, step, step + 1))[0]);
        }
        scaler.step(sgd);
        EXPECT_EQ(scaler.current_scale(), entry["scales"][static_cast<std::size_t>(step)])
            << "after step " << step;
        const Values values = values_of(w.value());
        for (std::size_t i = 0; i < 6; ++i)
          ASSERT_NEAR(values[i], trace[static_cast<std::size_t>(step) * 6 + i], 2e-6)
              << "after step " << step;
      }
    }
  });
}

TEST(LossScaler, ASkippedStepChangesNothing) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Parameter w(make_tensor(context, {3}, {1, 2, 3}, dtype), "w");
      nn::AdamW adam({w});
      nn::LossScaler scaler(context);
      const auto everything = [&] {
        std::vector<Values> all{values_of(w.value())};
        for (const NamedTensor& state : adam.state()) all.push_back(values_of(state.tensor));
        return all;
      };
      w.grad() = make_tensor(context, {3}, {1, 1, 1}, dtype);
      scaler.step(adam);
      const auto before = everything();
      EXPECT_EQ(scaler.current_scale(), 65536);
      for (const double bad : {inf, -inf, nan}) {
        w.grad() = make_tensor(context, {3}, {1, bad, 1}, dtype);
        scaler.step(adam);
        EXPECT_EQ(everything(), before);
      }
      EXPECT_EQ(scaler.current_scale(), 8192);
      w.grad() = make_tensor(context, {3}, {1, 1, 1}, dtype);
      scaler.step(adam);
      EXPECT_NE(everything(), before);
    }
  });
}

TEST(LossScaler, AnF16LossFindsItsScale) {
  on_shared_devices([](const Context& context) {
    const Parameter w(make_tensor(context, {2}, {0.5, 0.5}, DType::f16), "w");
    nn::Sgd sgd({w}, {.learning_rate = 0.5});
    nn::LossScaler scaler(context);
    const Tensor slope = make_tensor(context, {2}, {0x1p-20, 0.25}, DType::f16);
    const auto step = [&] {
      sgd.zero_grad();
      Tape tape;
      tape.backward(scaler.scale(sum(tape.parameter(w) * tape.constant(slope))));
      scaler.step(sgd);
    };
    step();
    EXPECT_EQ(scaler.current_scale(), 32768);
    EXPECT_EQ(values_of(w.value()), (Values{0.5, 0.5}));
    step();
    EXPECT_EQ(scaler.current_scale(), 32768);
    EXPECT_EQ(values_of(w.value())[1], 0.375);
    EXPECT_EQ(values_of(sgd.state()[1].tensor)[0], 0.5 - 0x1p-21) << "the small gradient is lost";
  });
}

TEST(LossScaler, GrowthStopsAtFloat) {
  on_shared_devices([](const Context& context) {
    const Parameter w(Tensor::zeros(context, {1}), "w");
    nn::Sgd sgd({w}, {});
    nn::LossScaler scaler(context, {.initial_scale = 0x1p126, .interval = 1});
    for (int step = 0; step < 4; ++step) {
      w.grad() = Tensor::full(context, {1}, 1);
      scaler.step(sgd);
    }
    EXPECT_EQ(scaler.current_scale(), 0x1p127);
  });
}

TEST(LossScaler, StateAndErrors) {
  on_shared_devices([](const Context& context) {
    const Parameter w(Tensor::zeros(context, {1}), "w");
    nn::Sgd sgd({w}, {});
    nn::LossScaler scaler(context, {.initial_scale = 8, .interval = 3});
    const auto good_step = [&](nn::LossScaler& on) {
      w.grad() = Tensor::full(context, {1}, 1);
      on.step(sgd);
    };
    good_step(scaler);
    good_step(scaler);
    nn::LossScaler restored(context, {.interval = 3});
    std::vector<NamedTensor> saved;
    for (const NamedTensor& state : scaler.state())
      saved.push_back({state.name, state.tensor.to(Context()).clone()});
    restored.load_state(saved);
    EXPECT_EQ(restored.current_scale(), 8);
    good_step(restored);
    EXPECT_EQ(restored.current_scale(), 16);
    saved.pop_back();
    EXPECT_THROW(restored.load_state(saved), ShapeError);
    EXPECT_THROW(nn::LossScaler(context, {.initial_scale = 0}), ShapeError);
    EXPECT_THROW(nn::LossScaler(context, {.growth = 1}), ShapeError);
    EXPECT_THROW(nn::LossScaler(context, {.backoff = 1}), ShapeError);
    EXPECT_THROW(nn::LossScaler(context, {.interval = 0}), ShapeError);
    EXPECT_THROW(scaler.scale(Tensor::zeros(context, {}, DType::i64)), DTypeError);
  });
}

// --- initial values -----------------------------------------------------------------------------

TEST(Initialize, Xavier) {
  on_shared_devices([](const Context& context) {
    const Parameter w(Tensor::zeros(context, {64, 32, 3, 5}), "w");
    const double fans = 32 * 15 + 64 * 15, count = 64 * 32 * 15;
    const auto moments = [&] {
      double total = 0, squares = 0, largest = 0;
      for (const double value : values_of(w.value())) {
        total += value;
        squares += value * value;
        largest = std::max(largest, std::abs(value));
      }
      EXPECT_NEAR(total / count, 0, 4 * std::sqrt(2 / fans / count));
      EXPECT_NEAR(squares / count, 2 / fans, 0.05 * 2 / fans);
      return largest;
    };
    nn::initialize(w, nn::Init::xavier_uniform);
    const double bound = std::sqrt(6 / fans);
    EXPECT_LE(moments(), bound * (1 + 1e-6));
    EXPECT_GE(moments(), 0.99 * bound);
    nn::initialize(w, nn::Init::xavier_normal);
    EXPECT_GT(moments(), 1.5 * bound);
    const Parameter vector(Tensor::zeros(context, {10}), "vector");
    nn::initialize(vector, nn::Init::xavier_uniform);
    for (const double value : values_of(vector.value()))
      EXPECT_LE(std::abs(value), std::sqrt(6.0 / 11) * (1 + 1e-6));
  });
}

}  // namespace
}  // namespace zerone::test
