// Faults that users met in other libraries, as small cases. The ids stand in the tests' names.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>

#include "support/compare.h"
#include "support/operand.h"
#include "support/rows.h"

namespace zerone::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

/// Rows forced for the three passes, in conv2d's lists and in pointwise's; where a list has no row
/// of that name its own choice stands.
class ForcedRow {
 public:
  ForcedRow(const Context& context, const std::string& row) {
    if (row.empty()) return;
    add(context, conv2d_forward_list(), row);
    add(context, conv2d_backward_data_list(), row);
    add(context, conv2d_backward_weight_list(), row);
    add(context, pointwise_forward_list(), row);
    add(context, pointwise_backward_data_list(), row);
    add(context, pointwise_backward_weight_list(), row);
  }

 private:
  template <class List>
  void add(const Context& context, const List& list, const std::string& row) {
    for (const std::string& name : row_names(list, context))
      if (name == row) forces_.push_back(std::make_unique<ScopedForce>(context, list.op(), row));
  }
  std::vector<std::unique_ptr<ScopedForce>> forces_;
};

/// Whether the row that on_every_row has forced makes library plans, or may.
bool plans_are_costly = false;

/// `body(context, dtype)` on every device, automatically and with each row of both lists forced. A
/// row may turn a problem down only where may_reject() allows it.
void on_every_row(const std::function<void(const Context&, DType)>& body) {
  on_shared_devices([&](const Context& context) {
    std::vector<std::string> rows{""};
    for (const std::string& row : row_names(conv2d_forward_list(), context)) rows.push_back(row);
    const std::string own = to_string(context.device().type) + ".pointwise";
    const std::string blas = to_string(context.device().type) + ".cublas";
    rows.push_back(own);
    if (context.device().is_cuda()) rows.push_back(blas);
    for (const std::string& row : rows) {
      if (row.ends_with(".constant")) continue;
      for (const DType dtype : {DType::f32, DType::f64}) {
        SCOPED_TRACE((row.empty() ? "automatic" : row) + " " + to_string(dtype));
        const ForcedRow force(context, row);
        plans_are_costly = row.empty() || is_vendor(row);
        try {
          body(context, dtype);
        } catch (const SelectionError& error) {
          if (!is_partial(row)) ADD_FAILURE() << error.what();
        }
      }
    }
  });
}

std::vector<double> arange(std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  return values;
}

struct Results {
  std::vector<double> y, dx, dw;
};

/// conv2d with a gradient of ones.
Results run_conv2d(const Context& context, DType dtype, const Shape& x_shape,
                   const std::vector<double>& x, const Shape& w_shape, const std::vector<double>& w,
                   const Conv2dParams& params) {
  Tape tape;
  const Var leaf_x = tape.leaf(make_tensor(context, x_shape, x, dtype));
  const Var leaf_w = tape.leaf(make_tensor(context, w_shape, w, dtype));
  const Var y = conv2d(leaf_x, leaf_w, {}, params);
  tape.backward(sum(y));
  return {values_of(y), values_of(tape.grad(leaf_x)), values_of(tape.grad(leaf_w))};
}

using Values = std::vector<double>;

TEST(Handout, H01_BatchOfZeroImages) {
  on_every_row([](const Context& context, DType dtype) {
    for (const std::int64_t k : {3, 1}) {
      const std::int64_t out = 4 - k;
      Tape tape;
      const Var x = tape.leaf(Tensor::empty(context, {0, 3, 3, 3}, dtype));
      const Var w = tape.leaf(Tensor::full(context, {3, 3, k, k}, 2, dtype));
      const Var b = tape.leaf(Tensor::full(context, {3}, 1, dtype));
      const Var y = conv2d(x, w, b);
      EXPECT_EQ(y.shape(), (Shape{0, 3, out, out}));
      tape.backward(sum(y));
      ASSERT_TRUE(tape.grad(x).defined() && tape.grad(w).defined() && tape.grad(b).defined());
      EXPECT_EQ(tape.grad(x).shape(), (Shape{0, 3, 3, 3}));
      EXPECT_EQ(values_of(tape.grad(w)), Values(static_cast<std::size_t>(9 * k * k), 0.0));
      EXPECT_EQ(values_of(tape.grad(b)), Values(3, 0.0));
    }
  });
  // Nobody is asked to multiply nothing.
  on_shared_devices([](const Context& context) {
    const auto ran = explain(context, [&] {
      Tape tape;
      const Var x = tape.leaf(Tensor::empty(context, {0, 3, 3, 3}));
      const Var w = tape.leaf(Tensor::full(context, {3, 3, 3, 3}, 1));
      tape.backward(sum(conv2d(x, w)));
    });
    for (const Explanation& one : ran) EXPECT_FALSE(is_vendor(one.chosen)) << to_string(one);
  });
}

/// The kernel is larger than the padded image: the message names both sizes, the same everywhere.
TEST(Handout, H02_KernelLargerThanThePaddedInput) {
  std::vector<std::string> messages;
  on_shared_devices([&](const Context& context) {
    const Tensor x = Tensor::zeros(context, {32, 16, 1, 2});
    const Tensor w = Tensor::zeros(context, {32, 16, 1, 7});
    try {
      conv2d(x, w, {}, {.padding = {0, 0, 1, 1}, .math = {}});
      ADD_FAILURE() << "no error";
    } catch (const ShapeError& error) {
      std::string what = error.what();
      EXPECT_NE(what.find("is 4"), std::string::npos) << what;
      EXPECT_NE(what.find("is 7"), std::string::npos) << what;
      const std::string device = to_string(context.device());
      for (std::size_t at; (at = what.find(device)) != std::string::npos;)
        what.replace(at, device.size(), "DEVICE");
      messages.push_back(what);
    }
    // A dilated kernel counts with its holes; height as well as width.
    EXPECT_THROW(conv2d(Tensor::zeros(context, {1, 1, 4, 9}), Tensor::zeros(context, {1, 1, 3, 3}),
                        {}, {.dilation = 2, .math = {}}),
                 ShapeError);
    // The context is as good as before.
    EXPECT_EQ(conv2d(x, Tensor::zeros(context, {32, 16, 1, 2})).shape(), (Shape{32, 32, 1, 1}));
  });
  for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
}

TEST(Handout, H03_StridedConvThatNeverReadsTheLastRow) {
  on_every_row([](const Context& context, DType dtype) {
    const Results r = run_conv2d(context, dtype, {1, 1, 6, 6}, Values(36, 1), {1, 1, 3, 3},
                                 Values(9, 1), {.stride = 2, .math = {}});
    EXPECT_EQ(r.y, Values(4, 9));
    const Values c{1, 1, 2, 1, 1, 0};
    Values dx;
    for (const double row : c)
      for (const double column : c) dx.push_back(row * column);
    EXPECT_EQ(r.dx, dx);
    EXPECT_EQ(r.dw, Values(9, 4));
  });
}

TEST(Handout, H04_DepthwiseWithStride) {
  on_every_row([](const Context& context, DType dtype) {
    const Results r = run_conv2d(context, dtype, {1, 4, 4, 4}, arange(64), {4, 1, 3, 3}, arange(36),
                                 {.stride = 2, .padding = 1, .groups = 4, .math = {}});
    const auto part = [](const Values& v, int i, int size) {
      return Values(v.begin() + i * size, v.begin() + (i + 1) * size);
    };
    EXPECT_EQ(part(r.dw, 0, 9), (Values{5, 10, 12, 10, 20, 24, 18, 36, 40}));
    EXPECT_EQ(part(r.dw, 3, 9), (Values{53, 106, 108, 106, 212, 216, 114, 228, 232}));
    EXPECT_EQ(part(r.dx, 0, 16), (Values{4, 8, 4, 5, 8, 16, 8, 10, 4, 8, 4, 5, 7, 14, 7, 8}));
  });
}

TEST(Handout, H05_OneByOneWithStride) {
  on_every_row([](const Context& context, DType dtype) {
    const Results r = run_conv2d(context, dtype, {1, 2, 3, 3}, arange(18), {2, 2, 1, 1},
                                 {1, 10, 100, 1000}, {.stride = 2, .math = {}});
    EXPECT_EQ(r.y, (Values{90, 112, 156, 178, 9000, 11200, 15600, 17800}));
    EXPECT_EQ(r.dx, (Values{101, 0, 101, 0, 0, 0, 101, 0, 101,  //
                            1010, 0, 1010, 0, 0, 0, 1010, 0, 1010}));
    EXPECT_EQ(r.dw, (Values{16, 52, 16, 52}));
  });
}

TEST(Handout, H06_FourSidedPadding) {
  on_every_row([](const Context& context, DType dtype) {
    const auto y = [&](const Padding& padding) {
      return run_conv2d(context, dtype, {1, 1, 2, 2}, {1, 2, 3, 4}, {1, 1, 2, 2}, {1, 2, 3, 4},
                        {.padding = padding, .math = {}})
          .y;
    };
    EXPECT_EQ(y({0, 1, 0, 1}), (Values{30, 14, 11, 4}));
    EXPECT_EQ(y({1, 0, 1, 0}), (Values{4, 11, 14, 30}));
  });
}

/// A slice of a larger weight, at an offset or with gaps, equals a copy of it; its gradient lands
/// in its place.
TEST(Handout, H07_SliceOfAPointwiseWeight) {
  on_every_row([](const Context& context, DType dtype) {
    Random random(7);
    const Tensor whole =
        make_tensor(context, {8, 4, 1, 1}, random_values(random, 32, dtype, true), dtype);
    for (const bool rows : {true, false}) {
      const int axis = rows ? 0 : 1;
      const std::int64_t begin = rows ? 2 : 1, end = rows ? 5 : 3, c_in = rows ? 4 : 2;
      const std::int64_t c_out = rows ? 3 : 8;
      const Tensor x = make_tensor(context, {2, c_in, 3, 5},
                                   random_values(random, 2 * c_in * 15, dtype, true), dtype);
      for (const bool as_linear : {false, true}) {
        const auto apply = [&](const Var& in, const Var& w) {
          if (!as_linear) return conv2d(in, w);
          return permute(linear(permute(in, {0, 2, 3, 1}), reshape(w, {c_out, c_in})),
                         {0, 3, 1, 2});
        };
        // reshape() of a gapped weight is no view, so linear slices the matrix instead.
        if (as_linear && !rows) continue;
        Tape sliced, copied;
        const Var w = sliced.leaf(whole), x_a = sliced.leaf(x);
        const Var y_a = apply(x_a, slice(w, axis, begin, end));
        const Var w_copy = copied.leaf(whole.slice(axis, begin, end).contiguous());
        const Var x_b = copied.leaf(x);
        const Var y_b = apply(x_b, w_copy);
        EXPECT_EQ(values_of(y_a), values_of(y_b));
        sliced.backward(sum(y_a * y_a));
        copied.backward(sum(y_b * y_b));
        EXPECT_EQ(values_of(sliced.grad(x_a)), values_of(copied.grad(x_b)));
        Tensor expected = Tensor::zeros(context, {8, 4, 1, 1}, dtype);
        expected.slice(axis, begin, end).copy_(copied.grad(w_copy));
        EXPECT_EQ(values_of(sliced.grad(w)), values_of(expected));
      }
    }
  });
}

/// Where strides leave open how a tensor lies, every reading gives the same numbers.
TEST(Handout, H08_AmbiguousStrides) {
  on_every_row([](const Context& context, DType dtype) {
    Random random(8);
    const auto check = [&](const Shape& x_shape, const Shape& w_shape, const Padding& padding) {
      const Tensor x =
          make_tensor(context, x_shape, random_values(random, x_shape.numel(), dtype, true), dtype);
      const Tensor w =
          make_tensor(context, w_shape, random_values(random, w_shape.numel(), dtype, true), dtype);
      // The same elements under the strides that NHWC would give.
      const auto relabeled = [](const Tensor& t) {
        Layout layout = t.layout();
        layout.strides = {t.size(1) * t.size(2) * t.size(3), 1, t.size(3) * t.size(1), t.size(1)};
        return Tensor::view_of(t.contiguous_nhwc().shared_storage(), 0, layout, t.dtype());
      };
      Values expected[3];
      for (const bool x_nhwc : {false, true})
        for (const bool w_nhwc : {false, true}) {
          Tape tape;
          const Var leaf_x = tape.leaf(x_nhwc ? relabeled(x) : x);
          const Var leaf_w = tape.leaf(w_nhwc ? relabeled(w) : w);
          const Var y = conv2d(leaf_x, leaf_w, {}, {.padding = padding, .math = {}});
          tape.backward(sum(y * y));
          const Values actual[3] = {values_of(y), values_of(tape.grad(leaf_x)),
                                    values_of(tape.grad(leaf_w))};
          for (int i = 0; i < 3; ++i) {
            if (!x_nhwc && !w_nhwc) expected[i] = actual[i];
            EXPECT_EQ(actual[i], expected[i]) << "x " << x_nhwc << " w " << w_nhwc << " " << i;
          }
        }
    };
    const std::int64_t side = dtype == DType::f32 ? 100 : 20;
    check({1, 1, side, side}, {64, 1, 3, 3}, 1);
    check({2, 5, 1, 1}, {7, 5, 1, 1}, 0);
    check({2, 5, 1, 1}, {7, 5, 3, 3}, 1);
    check({3, 1, 1, 6}, {2, 1, 1, 1}, 0);
  });
}

/// More images than a grid's y or z axis holds.
TEST(Handout, H09_MoreThan65535Images) {
  on_every_row([](const Context& context, DType dtype) {
    if (dtype != DType::f32) return;
    const std::int64_t n = 65537;
    for (const std::int64_t k : {3, 1}) {
      const std::int64_t side = k == 3 ? 4 : 2, out = side - k + 1;
      const auto pixels = static_cast<std::size_t>(side * side);
      Values x;
      for (std::int64_t i = 0; i < n; ++i)
        x.insert(x.end(), pixels, static_cast<double>(1 + i % 7));
      const auto taps = static_cast<std::size_t>(k * k);
      const Results r =
          run_conv2d(context, dtype, {n, 1, side, side}, x, {1, 1, k, k}, Values(taps, 1), {});
      const auto per_image = static_cast<std::size_t>(out * out);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < r.y.size(); ++i)
        wrong += r.y[i] != static_cast<double>(taps) * static_cast<double>(1 + i / per_image % 7);
      EXPECT_EQ(wrong, 0u) << "y, kernel " << k;
      for (std::size_t i = 0; i < r.dx.size(); ++i) wrong += r.dx[i] != r.dx[i % pixels];
      EXPECT_EQ(wrong, 0u) << "dx, kernel " << k;
      double total = 0;
      for (std::int64_t i = 0; i < n; ++i) total += static_cast<double>(1 + i % 7);
      EXPECT_EQ(r.dw, Values(taps, total * static_cast<double>(per_image))) << "kernel " << k;
    }
  });
}

/// More than 2^31 elements: on a GPU, or with ZERONE_TEST_LARGE=1.
TEST(Handout, H09_MoreThanTwoBillionElements) {
  const char* large = std::getenv("ZERONE_TEST_LARGE");
  bool ran = false;
  on_shared_devices([&](const Context& context) {
    if (!context.device().is_cuda() && !(large && *large == '1')) return;
    const std::int64_t n = (std::int64_t{1} << 31) / 64 + 3;
    for (const std::int64_t k : {3, 1}) {
      for (const std::string& row : {std::string(), to_string(context.device().type) + ".zero_skip",
                                     to_string(context.device().type) + ".pointwise"}) {
        SCOPED_TRACE(fmt::format("kernel {} row {}", k, row));
        const ForcedRow force(context, row);
        try {
          Tensor x = Tensor::full(context, {n, 1, 8, 8}, 1, DType::f16);
          x.slice(0, n - 1, n).fill_(3);
          const Tensor w = Tensor::full(context, {1, 1, k, k}, 1, DType::f16);
          const Var y = conv2d(x, w, {}, {.padding = k / 2, .math = {}});
          const auto center = [&](std::int64_t image) {
            return y.value().slice(0, image, image + 1).slice(2, 4, 5).slice(3, 4, 5).item();
          };
          for (const std::int64_t image : {std::int64_t{0}, std::int64_t{65536}, n / 2, n - 2})
            EXPECT_EQ(center(image), static_cast<double>(k * k)) << image;
          EXPECT_EQ(center(n - 1), static_cast<double>(3 * k * k));
          ran = true;
        } catch (const OutOfMemoryError& error) {
          GTEST_SKIP() << error.what();
        } catch (const SelectionError&) {
        }
      }
    }
    Context(context).empty_cache();
  });
  if (!ran) GTEST_SKIP() << "needs a GPU or ZERONE_TEST_LARGE=1";
}

/// Views that start at an odd element: no wide access may assume more.
TEST(Handout, H10_ViewsAtOddElementOffsets) {
  on_every_row([](const Context& context, DType given) {
    Random random(10);
    const bool gpu = context.device().is_cuda();
    const bool few = gpu && plans_are_costly;
    for (const DType dtype : {given, DType::f16}) {
      if (dtype == DType::f16 && (!gpu || given != DType::f32)) continue;
      for (const std::int64_t count : {1, 2, 3, 5, 31, 33}) {
        if (few && count != 3 && count != 33) continue;
        const auto odd = [&](const Tensor& x) {
          Tensor buffer = Tensor::full(context, {1 + x.numel()}, 7, dtype);
          Tensor view = buffer.slice(0, 1, 1 + x.numel()).reshape(x.shape());
          view.copy_(x);
          return view;
        };
        const Tensor a =
            make_tensor(context, {count}, random_values(random, count, dtype, true), dtype);
        const Tensor b =
            make_tensor(context, {count}, random_values(random, count, dtype, true), dtype);
        EXPECT_EQ(values_of(odd(a)), values_of(a));
        EXPECT_EQ(values_of(odd(a).clone()), values_of(a));
        EXPECT_EQ(values_of(add(odd(a), odd(b))), values_of(add(a, b)));
        EXPECT_EQ(values_of(add(odd(a), b)), values_of(add(a, b)));
        EXPECT_EQ(values_of(relu(odd(a))), values_of(relu(a)));
        EXPECT_EQ(values_of(sum(odd(a))), values_of(sum(a)));
        for (const std::int64_t c : {1, 3, 5, 17}) {
          if (few && c != 3) continue;
          const Tensor x = make_tensor(context, {1, c, 1, count},
                                       random_values(random, c * count, dtype, true), dtype);
          for (const std::int64_t k : {1, 3}) {
            auto values = random_values(random, 4 * c * k, dtype, true);
            for (std::size_t i = 0; i < values.size(); i += 2) values[i] = 0;
            const Tensor w = make_tensor(context, {4, c, 1, k}, values, dtype);
            const Conv2dParams params{.padding = {0, k / 2}, .math = {}};
            Tape aligned, misaligned;
            const Var x_a = aligned.leaf(x), w_a = aligned.leaf(w);
            const Var x_m = misaligned.leaf(odd(x)), w_m = misaligned.leaf(odd(w));
            const Var y_a = conv2d(x_a, w_a, {}, params), y_m = conv2d(x_m, w_m, {}, params);
            EXPECT_EQ(values_of(y_m), values_of(y_a)) << c << " " << count << " " << k;
            aligned.backward(sum(y_a));
            misaligned.backward(sum(y_m));
            EXPECT_EQ(values_of(misaligned.grad(x_m)), values_of(aligned.grad(x_a)));
            EXPECT_EQ(values_of(misaligned.grad(w_m)), values_of(aligned.grad(w_a)));
          }
        }
      }
    }
  });
}

// --- H11: zeros and non-finite numbers ----------------------------------------------------------

/// y of the case's 1x1 convolution: w = [[1, 0], [0, 0]], channel 0 all 2, channel 1 NaN and Inf.
/// A 1x1 kernel beside a kernel of three taps, so that the convolution lists are met as well.
Values h11(const Context& context, std::int64_t k) {
  const Tensor x = make_tensor(context, {1, 2, 1, 2}, {2, 2, nan, inf}, DType::f32);
  Values w(static_cast<std::size_t>(4 * k), 0.0);
  w[static_cast<std::size_t>(k / 2)] = 1;
  return values_of(conv2d(x, make_tensor(context, {2, 2, 1, k}, w, DType::f32), {},
                          {.padding = {0, k / 2}, .math = {}}));
}

bool all_nan(const Values& values) {
  for (const double value : values)
    if (!std::isnan(value)) return false;
  return true;
}

TEST(Handout, H11_DenseRowsMultiplyZeroByNaN) {
  on_shared_devices([](const Context& context) {
    for (const std::int64_t k : {1, 3}) {
      const auto& rows = k == 1 ? row_names(pointwise_forward_list(), context)
                                : row_names(conv2d_forward_list(), context);
      const char* op = k == 1 ? "pointwise.forward" : "conv2d.forward";
      for (const std::string& row : rows) {
        if (row.ends_with(".constant") || row.ends_with(".zero_skip")) continue;
        const ScopedForce force(context, op, row);
        EXPECT_TRUE(all_nan(h11(context, k))) << row << " kernel " << k;
      }
    }
  });
}

TEST(Handout, H11_TheZeroSkipRowSkipsThem) {
  on_shared_devices([](const Context& context) {
    const ScopedForce force(context, "conv2d.forward",
                            to_string(context.device().type) + ".zero_skip");
    EXPECT_EQ(h11(context, 3), (Values{2, 2, 0, 0}));
  });
}

/// fast: skipped products count as zero. strict: as dense. Asked for, and never a surprise.
TEST(Handout, H11_ZeroSkipNumericsChoosesBetweenThem) {
  for (Context context : contexts({.zero_skip = ZeroSkip::force})) {
    SCOPED_TRACE(to_string(context.device()));
    EXPECT_EQ(h11(context, 3), (Values{2, 2, 0, 0})) << "fast";
    context.set_zero_skip_numerics(ZeroSkipNumerics::strict);
    EXPECT_TRUE(all_nan(h11(context, 3))) << "strict";
    context.set_zero_skip_numerics(ZeroSkipNumerics::fast);
    EXPECT_EQ(h11(context, 3), (Values{2, 2, 0, 0})) << "fast again";
    context.set_zero_skip(ZeroSkip::off);
    EXPECT_TRUE(all_nan(h11(context, 3))) << "off";
    // A 1x1 contraction has no row that skips.
    context.set_zero_skip(ZeroSkip::force);
    EXPECT_TRUE(all_nan(h11(context, 1)));
  }
}

TEST(Handout, NaNAndInfinityPropagate) {
  on_shared_devices([](const Context& context) {
    const auto expect = [](const Tensor& x, const Values& expected) {
      EXPECT_EQ(mismatch(values_of(x), expected, {}, {.dtype = DType::f64, .exact = true}), "");
    };
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      SCOPED_TRACE(to_string(dtype));
      // Long enough for wide code paths as well.
      for (const std::size_t repeats : {1, 17}) {
        Values a, relu_a, b, sums, products;
        for (std::size_t i = 0; i < repeats; ++i) {
          a.insert(a.end(), {nan, inf, -inf, 0, -1});
          relu_a.insert(relu_a.end(), {nan, inf, 0, 0, 0});
          b.insert(b.end(), {1, -inf, -inf, nan, inf});
          sums.insert(sums.end(), {nan, nan, -inf, nan, inf});
          products.insert(products.end(), {nan, -inf, inf, nan, -inf});
        }
        const Shape shape{static_cast<std::int64_t>(a.size())};
        const Tensor x = make_tensor(context, shape, a, dtype);
        const Tensor z = make_tensor(context, shape, b, dtype);
        expect(relu(x), relu_a);
        expect(add(x, z), sums);
        expect(mul(x, z), products);
        EXPECT_TRUE(std::isnan(values_of(sum(x))[0]));
      }
    }
  });
  // Dense convolution: NaN in x reaches every pixel under the kernel and no other.
  on_every_row([](const Context& context, DType dtype) {
    Values x(25, 1.0);
    x[12] = nan;
    const Results r = run_conv2d(context, dtype, {1, 1, 5, 5}, x, {1, 1, 3, 3}, Values(9, 1),
                                 {.padding = 1, .math = {}});
    for (std::size_t i = 0; i < 25; ++i) {
      const bool under = i / 5 >= 1 && i / 5 <= 3 && i % 5 >= 1 && i % 5 <= 3;
      EXPECT_EQ(std::isnan(r.y[i]), under) << i;
    }
    EXPECT_TRUE(all_nan(r.dw)) << "each tap meets the NaN";
  });
}

}  // namespace
}  // namespace zerone::test
