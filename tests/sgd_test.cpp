// Stochastic gradient descent: the golden ten steps, the host's arithmetic, and masks.
#include <cmath>

#include <zerone/core/views.h>

#include "support/compare.h"
#include "support/golden.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

using Values = std::vector<double>;

TEST(Sgd, GoldenTenSteps) {
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

/// Weights stay masked although momentum carries old gradients and decay would move them.
TEST(Sgd, H23_MaskedWeightsStayZeroUnderMomentum) {
  on_shared_devices([](const Context& context) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      for (const bool masked : {true, false}) {
        Parameter w(make_tensor(context, {2}, {1, 1}, dtype), "w");
        nn::Sgd sgd({w}, {.learning_rate = 0.1, .momentum = 0.9});
        w.grad() = make_tensor(context, {2}, {1, 1}, dtype);
        sgd.step();
        if (masked)
          w.set_mask(Tensor::from<std::uint8_t>(context, {2}, {1, 0}));
        else
          w.value().copy_(w.value() * make_tensor(context, {2}, {1, 0}, dtype));
        EXPECT_EQ(values_of(w.value())[1], 0);
        w.grad() = make_tensor(context, {2}, {1, 0}, dtype);
        sgd.step();
        EXPECT_NEAR(values_of(w.value())[0], 0.71, 1e-6);
        EXPECT_NEAR(values_of(w.value())[1], masked ? 0 : -0.09, masked ? 0 : 1e-6);
      }
      // Any number of steps, with decay and a gradient that does not know of the mask.
      Parameter w(make_tensor(context, {3}, {1, 2, 3}, dtype), "w");
      nn::Sgd sgd({w}, {.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01});
      w.grad() = make_tensor(context, {3}, {1, -1, 1}, dtype);
      sgd.step();
      w.set_mask(Tensor::from<std::uint8_t>(context, {3}, {0, 1, 0}));
      for (int step = 0; step < 50; ++step) {
        sgd.step();
        const Values values = values_of(w.value());
        ASSERT_EQ(values[0], 0) << step;
        ASSERT_EQ(values[2], 0) << step;
        ASSERT_NE(values[1], 0) << step;
      }
    }
  });
}

/// The row against the three fused multiply-adds of its description, bit for bit.
TEST(Sgd, RandomStepsOnEveryRow) {
  on_shared_devices([](const Context& context) {
    for (int index = 0; index < 120; ++index) {
      if (!case_wanted(index)) continue;
      Random random(7'000'000 + static_cast<std::uint64_t>(index));
      const bool gpu = context.device().is_cuda();
      const DType dtype = gpu ? random.pick({DType::f32, DType::f64, DType::bf16, DType::f16})
                              : random.pick({DType::f32, DType::f64});
      const Shape shape{random.integer(1, 9), random.integer(1, 33), random.integer(1, 5),
                        random.integer(1, 5)};
      const auto count = static_cast<std::size_t>(shape.numel());
      const bool with_momentum = random.chance(0.7), first = random.chance(0.3);
      const bool with_mask = random.chance(0.5);
      const double rate = 0.125, momentum = with_momentum ? 0.75 : 0;
      const double decay = random.chance(0.5) ? 0.0625 : 0;
      const Placement dense{
          .order = random.chance(0.3) ? std::vector<int>{0, 2, 3, 1} : std::vector<int>{},
          .offset = random.integer(0, 3),
          .tail = 8};
      const auto value = random_values(random, shape.numel(), dtype, false);
      const auto gradient = random_values(random, shape.numel(), dtype, false);
      const auto buffer = random_values(random, shape.numel(), dtype, false);
      std::vector<std::uint8_t> mask(count);
      for (auto& keep : mask) keep = random.chance(0.6);
      const Operand gradient_view(context, shape, dtype, random_placement(random, 4), gradient);
      Operand value_view(context, shape, dtype, dense, value);
      Operand buffer_view(context, shape, dtype, dense, buffer);
      Tensor mask_tensor = Tensor::empty_like(value_view.view().to(DType::u8));
      if (!dense.order.empty())
        mask_tensor = Tensor::from<std::uint8_t>(context, shape, mask).contiguous_nhwc();
      else
        mask_tensor = Tensor::from<std::uint8_t>(context, shape, mask);

      const auto fused = [&](double a, double b, double c) {
        return dtype == DType::f64
                   ? std::fma(a, b, c)
                   : static_cast<double>(std::fma(static_cast<float>(a), static_cast<float>(b),
                                                  static_cast<float>(c)));
      };
      Values wanted(count), wanted_buffer(count);
      for (std::size_t i = 0; i < count; ++i) {
        const double g = fused(decay, value[i], gradient[i]);
        const double v = with_momentum && !first ? fused(momentum, buffer[i], g) : g;
        wanted[i] = rounded(dtype, fused(-rate, v, value[i]));
        wanted_buffer[i] = rounded(dtype, v);
        if (with_mask && !mask[i]) wanted[i] = wanted_buffer[i] = 0;
      }
      const SgdDesc desc{dtype, with_momentum, with_mask, shape.numel()};
      for (const auto& row : sgd_list().rows()) {
        if (row.device != context.device().type) continue;
        kernels::SgdStep step{.value = mutable_view(value_view.view()),
                              .gradient = view(gradient_view.view()),
                              .learning_rate = rate,
                              .momentum = momentum,
                              .weight_decay = decay,
                              .first_step = first};
        if (with_momentum) step.momentum_buffer = buffer_view.view().mutable_data();
        if (with_mask) step.mask = mask_tensor.data();
        row.run(context.state(), desc, step, nullptr);
        std::string why;
        const std::string where = reproduction(index, to_string(desc) + " " + to_string(shape));
        EXPECT_EQ(mismatch(value_view.read(why), wanted, {}, exact_contract(DType::f64)), "")
            << row.name << "\n  " << where;
        if (with_momentum) {
          EXPECT_EQ(mismatch(buffer_view.read(why), wanted_buffer, {}, exact_contract(DType::f64)),
                    "")
              << row.name << " momentum\n  " << where;
        }
      }
    }
  });
}

TEST(Sgd, LeavesAloneWhatHasNoGradient) {
  on_shared_devices([](const Context& context) {
    Parameter used(make_tensor(context, {2}, {1, 2}, DType::f32), "used");
    Parameter unused(make_tensor(context, {2}, {3, 4}, DType::f32), "unused");
    nn::Sgd sgd({used, unused}, {.learning_rate = 0.5, .weight_decay = 0.5});
    used.grad() = make_tensor(context, {2}, {1, -1}, DType::f32);
    const std::uint64_t version = used.value().version();
    sgd.step();
    EXPECT_EQ(values_of(used.value()), (Values{0.25, 2}));
    EXPECT_EQ(values_of(unused.value()), (Values{3, 4}));
    EXPECT_GT(used.value().version(), version);
    sgd.zero_grad();
    EXPECT_FALSE(used.grad().defined());
    Parameter strided(Tensor::zeros(context, {4, 4}).slice(1, 0, 2), "strided");
    EXPECT_THROW(nn::Sgd({strided}, {}), ShapeError);
  });
}

}  // namespace
}  // namespace zerone::test
