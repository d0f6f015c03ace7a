// Tensors: making them, views, copies and casts, in-place writes, versions, known zeros, random
// numbers, printing.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/contexts.h"
#include "support/errors.h"

namespace zerone {
namespace {

using test::expect_contains;
using test::message_of;

using test::on_every_device;

constexpr DType every_dtype[] = {DType::f64, DType::f32, DType::bf16,
                                 DType::f16, DType::i64, DType::u8};

std::vector<double> iota_values(std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0.0);
  return values;
}

/// 0, 1, 2, ... in row-major order.
Tensor arange(const Context& context, const Shape& shape, DType dtype = DType::f32) {
  return Tensor::from<double>(context, shape, iota_values(shape.numel())).to(dtype);
}

std::vector<double> values_of(const Tensor& x) {
  return x.to(DType::f64).to_vector<double>();
}

// --- making -------------------------------------------------------------------------------------

TEST(Tensor, FromReadsRowMajorValues) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::from<float>(context, {2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(x.rank(), 2);
    EXPECT_EQ(x.shape(), (Shape{2, 3}));
    EXPECT_EQ(x.size(-1), 3);
    EXPECT_EQ(x.stride(0), 3);
    EXPECT_EQ(x.bytes(), 24u);
    EXPECT_TRUE(x.is_contiguous());
    EXPECT_EQ(x.context(), context);
    EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  });
}

TEST(Tensor, FromNamesCountAndShape) {
  const Context context;
  expect_contains(message_of<ShapeError>([&] {
                    Tensor::from<float>(context, {2, 3}, {1, 2, 3, 4, 5});
                  }),
                  {"5", "[2, 3]"});
}

TEST(Tensor, FullAndZerosInEveryType) {
  on_every_device([](const Context& context) {
    for (const DType dtype : every_dtype) {
      SCOPED_TRACE(to_string(dtype));
      EXPECT_EQ(values_of(Tensor::full(context, {3, 5}, 7, dtype)), std::vector<double>(15, 7.0));
      EXPECT_EQ(values_of(Tensor::zeros(context, {3, 5}, dtype)), std::vector<double>(15, 0.0));
      EXPECT_EQ(Tensor::empty(context, {3, 5}, dtype).bytes(), 15 * size_of(dtype));
    }
  });
}

TEST(Tensor, RankZeroHoldsOneElement) {
  on_every_device([](const Context& context) {
    Tensor x = Tensor::full(context, {}, 2.5);
    EXPECT_EQ(x.rank(), 0);
    EXPECT_EQ(x.numel(), 1);
    EXPECT_EQ(x.item(), 2.5);
    x.add_(x.clone());
    EXPECT_EQ(x.item(), 5.0);
    EXPECT_EQ(x.reshape({1, 1}).shape(), (Shape{1, 1}));
    EXPECT_EQ(values_of(x.expand({2, 2})), std::vector<double>(4, 5.0));
    EXPECT_EQ(x.permute({}).item(), 5.0);
    EXPECT_THROW((void)x.size(0), ShapeError);
    EXPECT_THROW((void)x.slice(0, 0, 1), ShapeError);
  });
}

TEST(Tensor, EmptyTensorsAreLegal) {
  on_every_device([](const Context& context) {
    Tensor x = Tensor::empty(context, {0, 3, 4});
    EXPECT_EQ(x.numel(), 0);
    EXPECT_TRUE(x.is_contiguous());
    x.fill_(1);
    x.copy_(Tensor::full(context, {3, 4}, 1));
    x.add_(Tensor::full(context, {1, 4}, 1));
    EXPECT_TRUE(x.to_vector<float>().empty());
    EXPECT_EQ(x.permute({2, 0, 1}).contiguous().shape(), (Shape{4, 0, 3}));
    EXPECT_EQ(x.reshape({12, 0}).shape(), (Shape{12, 0}));
    EXPECT_EQ(x.to(DType::f64).clone().dtype(), DType::f64);
    EXPECT_EQ(x.slice(1, 1, 1).numel(), 0);
    EXPECT_EQ(Tensor::full(context, {5}, 1).slice(0, 5, 5).numel(), 0);
    EXPECT_EQ(Tensor::uniform(context, {0}).numel(), 0);
    EXPECT_EQ(Tensor::from<float>(context, {0}, std::vector<float>{}).numel(), 0);
    EXPECT_THROW((void)x.item(), ShapeError);
    std::ostringstream text;
    text << x;
    expect_contains(text.str(), {"[0, 3, 4]"});
  });
}

TEST(Tensor, RankAboveTheLimitIsAnError) {
  const Context context;
  EXPECT_NO_THROW(Tensor::empty(context, {1, 1, 1, 1, 1, 1, 1, 2}));
  expect_contains(message_of<ShapeError>([&] {
                    Tensor::empty(context, {1, 1, 1, 1, 1, 1, 1, 1, 1});
                  }),
                  {"9", "8"});
  EXPECT_THROW((void)Tensor::empty(context, {4}).reshape({1, 1, 1, 1, 1, 1, 1, 1, 4}), ShapeError);
}

TEST(Tensor, SizesThatDoNotFitAreErrors) {
  on_every_device([](const Context& context) {
    constexpr std::int64_t big = std::int64_t{1} << 33;
    EXPECT_THROW(Tensor::empty(context, {big, big}), ShapeError);
    EXPECT_THROW(Tensor::empty(context, {big, big, 0}), ShapeError);
    EXPECT_THROW(Tensor::zeros(context, {big, big}), ShapeError);
    EXPECT_THROW(Tensor::empty(context, {-1, 2}), ShapeError);
    // The elements can be counted, their bytes cannot.
    for (const DType dtype : every_dtype) {
      EXPECT_THROW(Tensor::full(context, {std::int64_t{1} << 62}, 1, dtype), Error);
      EXPECT_THROW(Tensor::full(context, {std::int64_t{1} << 61}, 1, dtype), Error);
    }
    EXPECT_THROW((void)Tensor::full(context, {1}, 1).reshape({big, big, -1}), ShapeError);
    EXPECT_EQ(Tensor::full(context, {2}, 3).to_vector<float>(), (std::vector<float>{3, 3}));
  });
}

TEST(Tensor, UndefinedTensorsAreErrorsNotCrashes) {
  const Context context;
  Tensor undefined;
  EXPECT_FALSE(undefined.defined());
  Tensor x = Tensor::full(context, {2}, 1);
  EXPECT_THROW(x.copy_(undefined), Error);
  EXPECT_THROW(undefined.copy_(x), Error);
  EXPECT_THROW(x.add_(undefined), Error);
  EXPECT_THROW(undefined.fill_(1), Error);
  EXPECT_THROW((void)undefined.data(), Error);
  EXPECT_THROW((void)undefined.version(), Error);
  EXPECT_THROW((void)undefined.clone(), Error);
  EXPECT_THROW((void)undefined.to_vector<float>(), Error);
  EXPECT_EQ(describe(undefined), "undefined");
}

TEST(Tensor, NhwcLiesChannelsLast) {
  on_every_device([](const Context& context) {
    const Tensor x = Tensor::empty_nhwc(context, {2, 3, 4, 5});
    EXPECT_EQ(x.stride(1), 1);
    EXPECT_EQ(x.stride(3), 3);
    EXPECT_EQ(x.stride(2), 15);
    EXPECT_TRUE(x.is_dense());
    EXPECT_FALSE(x.is_contiguous());
    EXPECT_EQ(Tensor::empty_like(x).layout(), x.layout());
    const Tensor rows = arange(context, {2, 3, 4, 5});
    const Tensor nhwc = rows.contiguous_nhwc();
    EXPECT_EQ(nhwc.layout(), x.layout());
    EXPECT_EQ(values_of(nhwc), values_of(rows));
    EXPECT_EQ(nhwc.contiguous_nhwc().data(), nhwc.data());
    const Tensor grey = Tensor::uniform(context, {2, 1, 4, 5}), marked = grey.contiguous_nhwc();
    EXPECT_EQ(marked.data(), grey.data());
    EXPECT_EQ(marked.stride(1), 1);
    EXPECT_EQ(marked.to_vector<float>(), grey.to_vector<float>());
    EXPECT_THROW((void)Tensor::empty_nhwc(context, {2, 3, 4}), ShapeError);
  });
}

// --- views --------------------------------------------------------------------------------------

TEST(TensorViews, PermuteMovesNothing) {
  on_every_device([](const Context& context) {
    const Tensor x = arange(context, {2, 3, 4});
    const Tensor y = x.permute({2, 0, 1});
    EXPECT_EQ(y.shape(), (Shape{4, 2, 3}));
    EXPECT_EQ(y.data(), x.data());
    std::vector<double> expected;
    for (int c = 0; c < 4; ++c)
      for (int a = 0; a < 2; ++a)
        for (int b = 0; b < 3; ++b) expected.push_back(a * 12 + b * 4 + c);
    EXPECT_EQ(values_of(y), expected);
    EXPECT_EQ(values_of(y.contiguous()), expected);
    EXPECT_EQ(x.permute({-1, 0, -2}).layout(), y.layout());
    EXPECT_EQ(x.transpose(0, -1).shape(), (Shape{4, 3, 2}));
    EXPECT_TRUE(y.is_dense());
    EXPECT_FALSE(y.is_contiguous());
  });
  const Tensor x = Tensor::empty(Context(), {2, 3, 4});
  expect_contains(message_of<ShapeError>([&] { (void)x.permute({0, 1}); }), {"2", "[2, 3, 4]"});
  expect_contains(message_of<ShapeError>([&] { (void)x.permute({0, 1, 1}); }), {"1", "twice"});
  expect_contains(message_of<ShapeError>([&] { (void)x.permute({0, 1, 3}); }), {"3"});
}

TEST(TensorViews, ReshapeResolvesOneSize) {
  on_every_device([](const Context& context) {
    const Tensor x = arange(context, {2, 3, 4});
    EXPECT_EQ(x.reshape({6, -1}).shape(), (Shape{6, 4}));
    EXPECT_EQ(x.reshape({-1}).shape(), (Shape{24}));
    EXPECT_EQ(x.reshape({-1, 24}).shape(), (Shape{1, 24}));
    EXPECT_EQ(values_of(x.reshape({4, 6})), iota_values(24));
    EXPECT_EQ(x.reshape({4, 6}).data(), x.data());
  });
  const Tensor x = Tensor::empty(Context(), {2, 3, 4});
  expect_contains(message_of<ShapeError>([&] {
                    (void)x.reshape({5, 5});
                  }),
                  {"[2, 3, 4]", "[5, 5]"});
  expect_contains(message_of<ShapeError>([&] { (void)x.reshape({5, -1}); }), {"[2, 3, 4]", "5"});
  EXPECT_THROW((void)x.reshape({-1, -1}), ShapeError);
  EXPECT_THROW((void)x.reshape({-2, 12}), ShapeError);
}

TEST(TensorViews, ReshapeOfStridedTensors) {
  on_every_device([](const Context& context) {
    const Tensor x = arange(context, {4, 6, 5});
    // Axes that lie in memory like one axis can be merged and split again.
    const Tensor rows = x.slice(2, 1, 4);  // strides (30, 5, 1), sizes 4, 6, 3
    const Tensor merged = rows.reshape({24, 3});
    EXPECT_EQ(merged.data(), rows.data());
    EXPECT_EQ(values_of(merged), values_of(rows));
    EXPECT_EQ(values_of(rows.reshape({2, 12, 1, 3})), values_of(rows));
    EXPECT_EQ(values_of(x.permute({1, 0, 2}).reshape({2, 3, 4, 5})),
              values_of(x.permute({1, 0, 2})));
    EXPECT_EQ(values_of(x.expand({3, 4, 6, 5}).reshape({3, 24, 5})),
              values_of(x.expand({3, 4, 6, 5})));
    // Others cannot.
    expect_contains(message_of<ShapeError>([&] { (void)rows.reshape({72}); }),
                    {"[4, 6, 3]", "[72]", "contiguous"});
    EXPECT_THROW((void)x.permute({1, 0, 2}).reshape({24, 5}), ShapeError);
    EXPECT_THROW((void)x.permute({2, 1, 0}).reshape({-1}), ShapeError);
    EXPECT_EQ(values_of(rows.contiguous().reshape({72})), values_of(rows));
  });
}

TEST(TensorViews, SliceCountsNegativeBoundsFromTheEnd) {
  on_every_device([](const Context& context) {
    const Tensor x = arange(context, {10});
    EXPECT_EQ(values_of(x.slice(0, 2, 5)), (std::vector<double>{2, 3, 4}));
    EXPECT_EQ(values_of(x.slice(0, -3, 10)), (std::vector<double>{7, 8, 9}));
    EXPECT_EQ(values_of(x.slice(0, 1, -1, 3)), (std::vector<double>{1, 4, 7}));
    EXPECT_EQ(values_of(x.slice(-1, -4, -2)), (std::vector<double>{6, 7}));
    EXPECT_EQ(values_of(x.slice(0, 9, 10, std::numeric_limits<std::int64_t>::max())),
              (std::vector<double>{9}));
    EXPECT_EQ(values_of(x.slice(0, 2, 9).slice(0, 1, 5, 2)), (std::vector<double>{3, 5}));
    const Tensor grid = arange(context, {4, 5});
    EXPECT_EQ(values_of(grid.slice(1, 1, 3).slice(0, 1, 4, 2)),
              (std::vector<double>{6, 7, 16, 17}));
    Tensor part = grid.slice(0, 1, 2);
    part.fill_(-1);
    EXPECT_EQ(values_of(grid)[4], 4.0);
    EXPECT_EQ(values_of(grid)[5], -1.0);
    EXPECT_EQ(values_of(grid)[9], -1.0);
    EXPECT_EQ(values_of(grid)[10], 10.0);
  });
  const Tensor x = Tensor::empty(Context(), {10});
  expect_contains(message_of<ShapeError>([&] { (void)x.slice(0, 2, 11); }), {"2:11:1", "[10]"});
  EXPECT_THROW((void)x.slice(0, 5, 4), ShapeError);
  EXPECT_THROW((void)x.slice(0, -11, 4), ShapeError);
  EXPECT_THROW((void)x.slice(0, 0, 4, 0), ShapeError);
  EXPECT_THROW((void)x.slice(0, 0, 4, -1), ShapeError);
  EXPECT_THROW((void)x.slice(1, 0, 4), ShapeError);
}

TEST(TensorViews, ExpandRepeatsWithoutCopying) {
  on_every_device([](const Context& context) {
    const Tensor x = arange(context, {3, 1});
    const Tensor y = x.expand({2, 3, 4});
    EXPECT_EQ(y.data(), x.data());
    std::vector<double> expected;
    for (int a = 0; a < 2; ++a)
      for (int b = 0; b < 3; ++b) expected.insert(expected.end(), 4, b);
    EXPECT_EQ(values_of(y), expected);
    EXPECT_EQ(x.expand({0, 3, 1}).numel(), 0);
  });
  const Tensor x = Tensor::empty(Context(), {3, 1});
  expect_contains(message_of<ShapeError>([&] { (void)x.expand({2, 4}); }), {"[3, 1]", "[2, 4]"});
  EXPECT_THROW((void)x.expand({3}), ShapeError);
}

// --- from_blob ----------------------------------------------------------------------------------

TEST(FromBlob, ViewsTheCallersMemoryAndRunsTheDeleterOnce) {
  const Context context;
  std::vector<float> memory(20);
  std::iota(memory.begin(), memory.end(), 0.f);
  int deleted = 0;
  void* given = nullptr;
  {
    Tensor part;
    {
      const std::int64_t strides[] = {2, 5};
      Tensor x = Tensor::from_blob(context, memory.data() + 1, {2, 3}, DType::f32, strides,
                                   [&](void* data) { ++deleted, given = data; });
      EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 6, 11, 3, 8, 13}));
      EXPECT_EQ(x.data(), memory.data() + 1);
      part = x.slice(1, 1, 3);
      part.fill_(-1);
    }
    EXPECT_EQ(deleted, 0);
    EXPECT_EQ(memory[6], -1);
    EXPECT_EQ(memory[13], -1);
    EXPECT_EQ(memory[1], 1);
    EXPECT_EQ(memory[7], 7);
  }
  EXPECT_EQ(deleted, 1);
  EXPECT_EQ(given, memory.data() + 1);
}

TEST(FromBlob, OverlappingAndSpacedStridesRead) {
  const Context context;
  std::vector<double> memory{0, 1, 2, 3, 4, 5, 6};
  const std::int64_t window[] = {1, 1};
  const Tensor windows = Tensor::from_blob(context, memory.data(), {3, 2}, DType::f64, window);
  EXPECT_EQ(windows.to_vector<double>(), (std::vector<double>{0, 1, 1, 2, 2, 3}));
  const std::int64_t repeated[] = {0, 3};
  const Tensor repeat = Tensor::from_blob(context, memory.data(), {2, 3}, DType::f64, repeated);
  EXPECT_EQ(repeat.to_vector<double>(), (std::vector<double>{0, 3, 6, 0, 3, 6}));
}

TEST(FromBlob, BadArgumentsAreErrors) {
  const Context context;
  float memory[4] = {};
  const std::int64_t one[] = {1};
  const std::int64_t negative[] = {2, -1};
  expect_contains(message_of<ShapeError>([&] {
                    (void)Tensor::from_blob(context, memory, {2, 2}, DType::f32, one);
                  }),
                  {"1 strides", "[2, 2]"});
  EXPECT_THROW((void)Tensor::from_blob(context, memory, {2, 2}, DType::f32, negative), ShapeError);
  EXPECT_THROW((void)Tensor::from_blob(context, nullptr, {2, 2}, DType::f32), ShapeError);
  EXPECT_NO_THROW((void)Tensor::from_blob(context, nullptr, {0, 2}, DType::f32));
}

TEST(FromBlob, DeviceMemory) {
  on_every_device([](const Context& context) {
    Tensor owner = Tensor::full(context, {6}, 3);
    Tensor x = Tensor::from_blob(context, owner.mutable_data(), {2, 3}, DType::f32, {},
                                 [keep = owner](void*) {});
    x.add_(Tensor::full(context, {2, 3}, 1));
    EXPECT_EQ(owner.to_vector<float>(), std::vector<float>(6, 4.f));
  });
}

// --- copies and casts ---------------------------------------------------------------------------

TEST(TensorCopies, CastsBetweenEveryPairOfTypes) {
  on_every_device([](const Context& context) {
    const std::vector<double> values{0, 1, 2, 100, 127, 128};  // exact in every type
    const Tensor source = Tensor::from<double>(context, {2, 3}, values);
    for (const DType from : every_dtype)
      for (const DType into : every_dtype) {
        SCOPED_TRACE(to_string(from) + " to " + to_string(into));
        const Tensor x = source.to(from).to(into);
        EXPECT_EQ(x.dtype(), into);
        EXPECT_EQ(values_of(x), values);
      }
  });
}

TEST(TensorCopies, RoundsToNearestEven) {
  on_every_device([](const Context& context) {
    const float inf = std::numeric_limits<float>::infinity();
    const Tensor x = Tensor::from<float>(
        context, {6}, {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 65520.f, -inf, 0x1p-25f, 3.f * 0x1p-24f});
    const auto as_bf16 = values_of(x.to(DType::bf16));
    EXPECT_EQ(as_bf16[0], 1.0);
    EXPECT_EQ(as_bf16[1], 1 + 0x1p-6);
    EXPECT_EQ(as_bf16[3], -inf);
    const auto as_f16 = values_of(x.to(DType::f16));
    EXPECT_EQ(as_f16[0], 1 + 0x1p-8);
    EXPECT_EQ(as_f16[2], inf);
    EXPECT_EQ(as_f16[4], 0.0);
    EXPECT_EQ(as_f16[5], 3 * 0x1p-24);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const DType dtype : {DType::f64, DType::bf16, DType::f16})
      EXPECT_TRUE(std::isnan(values_of(Tensor::from<float>(context, {1}, {nan}).to(dtype))[0]));
  });
}

TEST(TensorCopies, ReadingAnotherTypeIsAnError) {
  const Tensor x = Tensor::full(Context(), {2}, 1);
  expect_contains(message_of<DTypeError>([&] { (void)x.data<double>(); }), {"f32", "f64"});
  EXPECT_THROW((void)x.to_vector<std::int64_t>(), DTypeError);
}

TEST(TensorCopies, CloneKeepsTheMemoryOrder) {
  on_every_device([](const Context& context) {
    const Tensor x = arange(context, {2, 3, 4}).permute({1, 2, 0});
    const Tensor y = x.clone();
    EXPECT_EQ(y.layout(), x.layout());
    EXPECT_NE(y.data(), x.data());
    EXPECT_EQ(values_of(y), values_of(x));
    const Tensor part = arange(context, {4, 4}).slice(1, 1, 3);
    EXPECT_TRUE(part.clone().is_contiguous());
    EXPECT_EQ(values_of(part.clone()), values_of(part));
  });
}

TEST(TensorCopies, CopyBroadcastsAndConverts) {
  on_every_device([](const Context& context) {
    Tensor x = Tensor::full(context, {2, 3}, 9, DType::f64);
    x.copy_(Tensor::from<float>(context, {3}, {1, 2, 3}));
    EXPECT_EQ(values_of(x), (std::vector<double>{1, 2, 3, 1, 2, 3}));
    x.copy_(Tensor::from<std::int64_t>(context, {2, 1}, {7, 8}));
    EXPECT_EQ(values_of(x), (std::vector<double>{7, 7, 7, 8, 8, 8}));
    x.copy_(Tensor::full(context, {}, 4));
    EXPECT_EQ(values_of(x), std::vector<double>(6, 4.0));
    x.permute({1, 0}).copy_(Tensor::from<double>(context, {3, 2}, {0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(values_of(x), (std::vector<double>{0, 2, 4, 1, 3, 5}));
    expect_contains(message_of<ShapeError>([&] { x.copy_(Tensor::full(context, {4}, 1)); }),
                    {"[4]", "[2, 3]"});
    EXPECT_THROW(x.copy_(Tensor::full(context, {2, 2, 3}, 1)), ShapeError);
    EXPECT_THROW(Tensor::full(context, {1, 3}, 0).copy_(x), ShapeError);
  });
}

TEST(TensorCopies, CopyBetweenContexts) {
  on_every_device([](const Context& here) {
    on_every_device([&](const Context& there) {
      // Dense and equal, another type, a strided source, a strided target, both.
      const Tensor x = arange(there, {4, 6});
      const std::vector<double> expected = iota_values(24);
      Tensor y = Tensor::full(here, {4, 6}, -1);
      y.copy_(x);
      EXPECT_EQ(values_of(y), expected);
      EXPECT_EQ(values_of(x.to(here)), expected);
      EXPECT_EQ(x.to(here).context(), here);
      Tensor wide = Tensor::full(here, {4, 6}, -1, DType::f64);
      wide.copy_(x);
      EXPECT_EQ(values_of(wide), expected);
      EXPECT_EQ(values_of(x.permute({1, 0}).to(here)), values_of(x.permute({1, 0})));
      Tensor columns = Tensor::full(here, {4, 8}, -1);
      columns.slice(1, 1, 7).copy_(x.slice(1, 0, 6));
      EXPECT_EQ(values_of(columns.slice(1, 1, 7)), expected);
      EXPECT_EQ(values_of(columns.slice(1, 0, 1)), std::vector<double>(4, -1.0));
      EXPECT_EQ(values_of(columns.slice(1, 7, 8)), std::vector<double>(4, -1.0));
      Tensor turned = Tensor::full(here, {6, 4}, -1).permute({1, 0});
      turned.copy_(x.slice(0, 0, 4));
      EXPECT_EQ(values_of(turned), expected);
      Tensor broadcast = Tensor::full(here, {3, 6}, -1);
      broadcast.copy_(x.slice(0, 1, 2).reshape({6}));
      EXPECT_EQ(values_of(broadcast.slice(0, 2, 3)), values_of(x.slice(0, 1, 2)));
      EXPECT_EQ(values_of(x.slice(0, 1, 3).slice(1, 2, 5).to(here)),
                values_of(x.slice(0, 1, 3).slice(1, 2, 5)));
      EXPECT_EQ(values_of(Tensor::zeros(there, {3}).to(here)), std::vector<double>(3, 0.0));
      EXPECT_EQ(Tensor::empty(there, {0, 3}).to(here).numel(), 0);
    });
  });
}

TEST(TensorCopies, LargeCopiesPassThroughStagingInParts) {
  on_every_device([](const Context& context) {
    const Context host;
    // 24 MiB and a bit: several staging buffers, the last one short.
    const std::int64_t count = (std::int64_t{24} << 18) + 12345;
    const Tensor x = Tensor::uniform(host, {count});
    EXPECT_EQ(x.to(context).to_vector<float>(), x.to_vector<float>());
  });
}

// --- in place -----------------------------------------------------------------------------------

TEST(TensorInPlace, AddBroadcasts) {
  on_every_device([](const Context& context) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(to_string(dtype));
      Tensor x = arange(context, {2, 3}, dtype);
      x.add_(Tensor::from<double>(context, {3}, {10, 20, 30}).to(dtype));
      EXPECT_EQ(values_of(x), (std::vector<double>{10, 21, 32, 13, 24, 35}));
      x.permute({1, 0}).add_(Tensor::from<double>(context, {1, 2}, {1, 2}).to(dtype));
      EXPECT_EQ(values_of(x), (std::vector<double>{11, 22, 33, 15, 26, 37}));
      x.add_(x);
      EXPECT_EQ(values_of(x), (std::vector<double>{22, 44, 66, 30, 52, 74}));
    }
    Tensor x = Tensor::full(context, {2, 3}, 1);
    expect_contains(message_of<ShapeError>([&] { x.add_(Tensor::full(context, {2}, 1)); }),
                    {"[2]", "[2, 3]"});
    EXPECT_THROW(x.add_(Tensor::full(context, {2, 2, 3}, 1)), ShapeError);
    expect_contains(
        message_of<DTypeError>([&] { x.add_(Tensor::full(context, {3}, 1, DType::f64)); }),
        {"f32", "f64"});
    EXPECT_EQ(values_of(x), std::vector<double>(6, 1.0));
  });
}

TEST(TensorInPlace, MixingContextsNamesBoth) {
  on_every_device([](const Context& here) {
    on_every_device([&](const Context& there) {
      if (here == there) return;
      Tensor x = Tensor::full(here, {2}, 1);
      const Tensor y = Tensor::full(there, {2}, 1);
      expect_contains(message_of<DeviceError>([&] { x.add_(y); }), {here.name(), there.name()});
      expect_contains(message_of<DeviceError>([&] { (void)add(x, y); }),
                      {"add", here.name(), there.name()});
      const Tensor image = Tensor::full(here, {1, 1, 3, 3}, 1);
      const Tensor weight = Tensor::full(there, {1, 1, 3, 3}, 1);
      expect_contains(message_of<DeviceError>([&] { (void)conv2d(image, weight); }),
                      {"conv2d", here.name(), there.name()});
      EXPECT_EQ(values_of(add(x, x).value()), (std::vector<double>{2, 2}));
    });
  });
}

TEST(TensorInPlace, EveryWriteBumpsTheVersion) {
  on_every_device([](const Context& context) {
    Tensor x = Tensor::full(context, {4, 4}, 1);
    const Tensor view = x.permute({1, 0}).slice(0, 1, 3);
    std::uint64_t version = x.version();
    const auto bumped = [&] {
      const bool is = x.version() > version;
      EXPECT_EQ(view.version(), x.version());
      version = x.version();
      return is;
    };
    x.fill_(2);
    EXPECT_TRUE(bumped());
    x.copy_(Tensor::full(context, {4, 4}, 3));
    EXPECT_TRUE(bumped());
    x.add_(Tensor::full(context, {4, 4}, 3));
    EXPECT_TRUE(bumped());
    (void)x.mutable_data();
    EXPECT_TRUE(bumped());
    x.mark_modified();
    EXPECT_TRUE(bumped());
    x.slice(0, 0, 1).fill_(0);  // through a view
    EXPECT_TRUE(bumped());
    (void)x.data();
    (void)x.to_vector<float>();
    (void)x.clone();
    (void)x.to(DType::f64);
    (void)add(x, x);
    EXPECT_FALSE(bumped());
  });
}

// --- known zeros --------------------------------------------------------------------------------

TEST(KnownZero, CostsNothingUntilRead) {
  on_every_device([](Context context) {
    context.synchronize();
    const MemoryStats before = context.memory();
    const Tensor x = Tensor::zeros(context, {1 << 10, 1 << 10});
    EXPECT_TRUE(x.known_zero());
    EXPECT_TRUE(x.slice(0, 1, 7).permute({1, 0}).known_zero());
    EXPECT_EQ(context.memory().live, before.live);
    EXPECT_EQ(context.memory().driver_calls, before.driver_calls);
    const std::vector<float> values = x.to_vector<float>();
    EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](float v) { return v == 0; }));
    EXPECT_GE(context.memory().live, before.live + x.bytes());
    EXPECT_TRUE(x.known_zero()) << "reading does not change the values";
  });
}

TEST(KnownZero, EndsWithAnyWrite) {
  on_every_device([](const Context& context) {
    {
      Tensor x = Tensor::zeros(context, {8});
      x.slice(0, 2, 4).fill_(5);
      EXPECT_FALSE(x.known_zero());
      EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{0, 0, 5, 5, 0, 0, 0, 0}));
    }
    {
      Tensor x = Tensor::zeros(context, {3});
      x.add_(Tensor::full(context, {3}, 2));
      EXPECT_FALSE(x.known_zero());
      EXPECT_EQ(x.to_vector<float>(), std::vector<float>(3, 2.f));
    }
    {
      Tensor x = Tensor::zeros(context, {3});
      x.copy_(Tensor::full(context, {3}, 2));
      EXPECT_FALSE(x.known_zero());
    }
    {
      Tensor x = Tensor::zeros(context, {3});
      (void)x.mutable_data();
      EXPECT_FALSE(x.known_zero());
      EXPECT_EQ(x.to_vector<float>(), std::vector<float>(3, 0.f));
    }
    {
      Tensor x = Tensor::zeros(context, {3});
      x.mark_modified();
      EXPECT_FALSE(x.known_zero());
    }
    EXPECT_FALSE(Tensor::full(context, {3}, 1).known_zero());
    EXPECT_FALSE(Tensor::empty(context, {3}).known_zero());
  });
}

TEST(KnownZero, DirtyMemoryIsCleared) {
  on_every_device([](const Context& context) {
    for (int i = 0; i < 3; ++i) {
      { const Tensor dirt = Tensor::full(context, {1000}, 7); }
      const Tensor x = Tensor::zeros(context, {1000});  // likely the same block
      EXPECT_EQ(x.to_vector<float>(), std::vector<float>(1000, 0.f));
    }
  });
}

TEST(KnownZero, PassesThroughOperations) {
  on_every_device([](const Context& context) {
    const Tensor zero = Tensor::zeros(context, {4, 3});
    const Tensor one = Tensor::full(context, {4, 3}, 1);
    EXPECT_TRUE(relu(zero).value().known_zero());
    EXPECT_TRUE(affine(zero, 3).value().known_zero());
    EXPECT_TRUE(add(zero, zero).value().known_zero());
    EXPECT_TRUE(sum(zero).value().known_zero());
    EXPECT_EQ(values_of(add(zero, one)), std::vector<double>(12, 1.0));
    EXPECT_EQ(values_of(affine(zero, 3, 2)), std::vector<double>(12, 2.0));
    EXPECT_EQ(values_of(mul(zero, one)), std::vector<double>(12, 0.0));
    EXPECT_EQ(values_of(sub(one, zero)), std::vector<double>(12, 1.0));
    // 0 * NaN is NaN.
    const Tensor nan = Tensor::full(context, {4, 3}, std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(std::isnan(values_of(mul(zero, nan))[5]));
    Tensor x = Tensor::full(context, {4, 3}, 2);
    const Tensor unread = Tensor::zeros(context, {1 << 20});
    Tensor wide = Tensor::full(context, {1 << 20}, 2);
    const std::size_t live = context.memory().live;
    wide.add_(unread);
    EXPECT_EQ(context.memory().live, live) << "the zeros were written out to be added";
    x.add_(zero);
    EXPECT_EQ(values_of(x), std::vector<double>(12, 2.0));
  });
}

TEST(KnownZero, MayOutliveItsContextHandle) {
  std::vector<Tensor> kept;
  for (Context& context : test::contexts()) kept.push_back(Tensor::zeros(context, {5}));
  for (const Tensor& x : kept) EXPECT_EQ(x.to_vector<float>(), std::vector<float>(5, 0.f));
}

// --- random numbers -----------------------------------------------------------------------------

TEST(Random, SameSeedSameBitsOnEveryDevice) {
  constexpr std::int64_t count = 10007;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    SCOPED_TRACE(to_string(dtype));
    std::vector<std::vector<double>> uniform, normal, later;
    ContextOptions options;
    options.seed = 42;
    for (Context& context : test::contexts(options)) {
      uniform.push_back(values_of(Tensor::uniform(context, {count}, -1, 3, dtype)));
      normal.push_back(values_of(Tensor::normal(context, {count}, 1, 2, dtype)));
      later.push_back(values_of(Tensor::uniform(context, {count}, -1, 3, dtype)));
      EXPECT_NE(uniform.back(), later.back()) << "the stream does not advance";
      context.seed(42);
      EXPECT_EQ(uniform.back(), values_of(Tensor::uniform(context, {count}, -1, 3, dtype)));
      EXPECT_EQ(normal.back(), values_of(Tensor::normal(context, {count}, 1, 2, dtype)));
      context.seed(43);
      EXPECT_NE(uniform.back(), values_of(Tensor::uniform(context, {count}, -1, 3, dtype)));
    }
    for (std::size_t i = 1; i < uniform.size(); ++i) {
      EXPECT_EQ(uniform[i], uniform[0]) << "CPU and GPU";
      EXPECT_EQ(normal[i], normal[0]) << "CPU and GPU";
      EXPECT_EQ(later[i], later[0]) << "CPU and GPU";
    }
  }
}

TEST(Random, GoesOnFromAPosition) {
  for (Context& context : test::contexts()) {
    context.seed(42);
    EXPECT_EQ(context.random_position(), 0u);
    (void)Tensor::normal(context, {1001});
    const std::uint64_t position = context.random_position();
    EXPECT_NE(position, 0u);
    const std::vector<float> next = Tensor::uniform(context, {77}).to_vector<float>();
    context.seed(7);
    (void)Tensor::uniform(context, {5});
    context.seed(42, position);
    EXPECT_EQ(context.random_position(), position);
    EXPECT_EQ(Tensor::uniform(context, {77}).to_vector<float>(), next) << context.name();
  }
}

TEST(Random, DoesNotDependOnThreads) {
  ContextOptions one, many;
  one.threads = 1;
  many.threads = 3;
  const Context a(Device::cpu(), one), b(Device::cpu(), many);
  EXPECT_EQ(Tensor::normal(a, {100003}).to_vector<float>(),
            Tensor::normal(b, {100003}).to_vector<float>());
}

TEST(Random, HasTheMomentsItShould) {
  constexpr std::int64_t count = 1 << 19;
  on_every_device([](const Context& context) {
    const auto uniform = values_of(Tensor::uniform(context, {count}, 2, 5));
    double mean = 0, square = 0;
    for (const double value : uniform) {
      ASSERT_GE(value, 2);
      ASSERT_LT(value, 5);
      mean += value / count;
      square += (value - 3.5) * (value - 3.5) / count;
    }
    EXPECT_NEAR(mean, 3.5, 0.006);      // 5 standard errors: 5 * 0.866 / sqrt(2^19)
    EXPECT_NEAR(square, 0.75, 0.0047);  // variance 9/12
    const auto normal = values_of(Tensor::normal(context, {count}, -1, 2));
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    std::int64_t within = 0;
    for (const double value : normal) {
      const double z = (value + 1) / 2;
      m1 += z / count, m2 += z * z / count, m3 += z * z * z / count, m4 += z * z * z * z / count;
      within += std::abs(z) < 1;
    }
    EXPECT_NEAR(m1, 0, 5 / std::sqrt(count));
    EXPECT_NEAR(m2, 1, 5 * std::sqrt(2.0 / count));
    EXPECT_NEAR(m3, 0, 5 * std::sqrt(15.0 / count));
    EXPECT_NEAR(m4, 3, 5 * std::sqrt(96.0 / count));
    EXPECT_NEAR(static_cast<double>(within) / count, 0.682689, 0.0033);
    // Neighbors are not correlated.
    double lag = 0;
    for (std::size_t i = 1; i < normal.size(); ++i)
      lag += (normal[i] + 1) * (normal[i - 1] + 1) / 4 / count;
    EXPECT_NEAR(lag, 0, 5 / std::sqrt(count));
  });
}

TEST(Random, UniformStaysBelowItsUpperBound) {
  on_every_device([](const Context& context) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const auto values = values_of(Tensor::uniform(context, {1 << 18}, 0, 1, dtype));
      EXPECT_LT(*std::max_element(values.begin(), values.end()), 1.0);
      EXPECT_GE(*std::min_element(values.begin(), values.end()), 0.0);
    }
  });
}

TEST(Random, IntegerTypesAreErrors) {
  on_every_device([](const Context& context) {
    EXPECT_THROW(Tensor::uniform(context, {4}, 0, 1, DType::i64), DTypeError);
    EXPECT_THROW(Tensor::normal(context, {4}, 0, 1, DType::u8), DTypeError);
  });
}

// --- printing -----------------------------------------------------------------------------------

TEST(Printing, ShowsWhatItIs) {
  on_every_device([](const Context& context) {
    const auto print = [](const Tensor& x) {
      std::ostringstream text;
      text << x;
      return text.str();
    };
    const Tensor x = arange(context, {2, 3});
    expect_contains(print(x),
                    {"f32", "[2, 3]", to_string(context.device()), "[0, 1, 2]", "[3, 4, 5]"});
    expect_contains(print(x.permute({1, 0})), {"strides (1, 3)", "[0, 3]", "[2, 5]"});
    expect_contains(describe(x.permute({1, 0})), {"f32 [3, 2] strides (1, 3) on "});
    const std::string long_text = print(arange(context, {1000}));
    expect_contains(long_text, {"0, 1, 2, ..., 997, 998, 999"});
    EXPECT_LT(long_text.size(), 200u);
    expect_contains(print(Tensor::full(context, {}, 1.5, DType::bf16)), {"bf16", "1.5"});
    expect_contains(print(arange(context, {3}, DType::i64)), {"i64", "[0, 1, 2]"});
    expect_contains(print(Tensor()), {"undefined"});
    EXPECT_LT(print(arange(context, {20, 20, 20})).size(), 6000u);
  });
}

TEST(Printing, Names) {
  EXPECT_EQ(to_string(DType::bf16), "bf16");
  EXPECT_EQ(to_string(Math::tf32), "tf32");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{1, 2}), "[1, 2]");
  EXPECT_EQ(to_string(Device::cuda(3)), "cuda:3");
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
}

}  // namespace
}  // namespace zerone
