// Tensors that lie in memory as a test wants them, between guard elements.
#pragma once

#include <array>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <zerone/core/tensor.h>

#include "support/random.h"

namespace zerone::test {

/// Where the elements of a tensor lie: axes in memory order (outermost first; empty: row-major),
/// per axis the elements cut off before and after and the step between two, then whole elements
/// before (which misaligns) and after everything.
struct Placement {
  std::vector<int> order{};
  std::vector<std::int64_t> before{}, after{}, step{};
  std::int64_t offset = 0, tail = 0;
  bool external = false;  // through Tensor::from_blob

  std::string text() const {
    std::string text = order.empty() ? "row-major" : fmt::format("order{}", order);
    if (!before.empty()) text += fmt::format(" cut{}{}", before, after);
    if (!step.empty()) text += fmt::format(" step{}", step);
    if (offset || tail) text += fmt::format(" guards {}+{}", offset, tail);
    return text + (external ? " external" : "");
  }
};

inline Placement row_major() {
  return {};
}
inline Placement channels_last() {
  return {.order = {0, 2, 3, 1}};
}

/// Row-major, channels-last, any order, cut out of a larger tensor, stepped, misaligned, external:
/// every kind of view of `rank` axes.
inline Placement random_placement(Random& random, int rank) {
  Placement placement;
  const auto n = static_cast<std::size_t>(rank);
  const double kind = random.real();
  if (kind < 0.35) {
    if (rank == 4 && kind < 0.2) placement.order = channels_last().order;
  } else if (kind < 0.5) {
    for (int i = 0; i < rank; ++i) placement.order.push_back(i);
    for (std::size_t i = n; i > 1; --i)
      std::swap(
          placement.order[i - 1],
          placement.order[static_cast<std::size_t>(random.integer(0, static_cast<int>(i) - 1))]);
  } else if (kind < 0.75) {
    if (rank == 4 && random.chance(0.4)) placement.order = channels_last().order;
    placement.before.assign(n, 0), placement.after.assign(n, 0), placement.step.assign(n, 1);
    for (std::size_t i = 0; i < n; ++i) {
      if (random.chance(0.5)) placement.before[i] = random.integer(0, 2);
      if (random.chance(0.5)) placement.after[i] = random.integer(0, 2);
      if (random.chance(0.15)) placement.step[i] = 2;
    }
  }
  if (random.chance(0.5)) placement.offset = random.pick<std::int64_t>({1, 2, 3, 4, 8, 16});
  if (random.chance(0.7)) placement.tail = 16;
  placement.external = random.chance(0.15);
  return placement;
}

/// A view with its whole buffer, of which every element outside the view is a guard.
class Operand {
 public:
  Operand() = default;
  /// `values` row-major; the guards are NaN, so that reading one shows.
  Operand(const Context& context, const Shape& shape, DType dtype, const Placement& placement,
          const std::vector<double>& values)
      : Operand(context, shape, dtype, placement, std::numeric_limits<double>::quiet_NaN()) {
    fill(values);
  }
  /// For results: the elements are NaN, the guards 96.
  static Operand result(const Context& context, const Shape& shape, DType dtype,
                        const Placement& placement) {
    Operand operand(context, shape, dtype, placement, 96);
    operand.fill(std::vector<double>(static_cast<std::size_t>(shape.numel()),
                                     std::numeric_limits<double>::quiet_NaN()));
    return operand;
  }

  Tensor& view() { return view_; }
  const Tensor& view() const { return view_; }

  /// The view's values, row-major; "why" says which guard was overwritten, if any was.
  std::vector<double> read(std::string& why) const {
    std::vector<double> all = values_of_buffer();
    std::vector<double> values;
    values.reserve(places_.size());
    for (const std::size_t place : places_) values.push_back(all[place]);
    for (const std::size_t place : places_) all[place] = guard_;
    for (std::size_t i = 0; i < all.size() && why.empty(); ++i)
      if (all[i] != guard_ && !std::isnan(guard_))
        why = fmt::format("guard element {} of {} was overwritten with {}", i, all.size(), all[i]);
    return values;
  }

 private:
  Operand(const Context& context, const Shape& shape, DType dtype, const Placement& p, double guard)
      : guard_(guard) {
    const auto rank = static_cast<std::size_t>(shape.rank());
    std::vector<std::int64_t> whole(rank), strides(rank);
    const auto at = [](const std::vector<std::int64_t>& v, std::size_t i, std::int64_t otherwise) {
      return v.empty() ? otherwise : v[i];
    };
    for (std::size_t i = 0; i < rank; ++i)
      whole[i] =
          at(p.before, i, 0) + shape[static_cast<int>(i)] * at(p.step, i, 1) + at(p.after, i, 0);
    std::int64_t total = 1, first = p.offset;
    for (std::size_t i = rank; i-- > 0;) {
      const std::size_t axis = p.order.empty() ? i : static_cast<std::size_t>(p.order[i]);
      strides[axis] = total;
      total *= whole[axis];
    }
    for (std::size_t i = 0; i < rank; ++i) {
      first += at(p.before, i, 0) * strides[i];
      strides[i] *= at(p.step, i, 1);
    }
    if (shape.numel() == 0) first = 0;
    buffer_ = Tensor::empty(context, {p.offset + total + p.tail}, dtype);
    Layout layout;
    layout.rank = shape.rank();
    for (std::size_t i = 0; i < rank; ++i) {
      layout.sizes[i] = shape[static_cast<int>(i)];
      layout.strides[i] = strides[i];
    }
    if (p.external && shape.numel() > 0) {
      auto* bytes = static_cast<unsigned char*>(buffer_.mutable_data());
      view_ = Tensor::from_blob(context, bytes + static_cast<std::size_t>(first) * size_of(dtype),
                                shape, dtype, strides, [keep = buffer_](void*) {});
    } else {
      view_ = Tensor::view_of(buffer_.shared_storage(), first, layout, dtype);
    }
    const auto count = static_cast<std::size_t>(shape.numel());
    places_.reserve(count);
    std::array<std::int64_t, max_rank> index{};
    for (std::size_t k = 0; k < count; ++k) {
      std::int64_t place = first;
      for (std::size_t i = 0; i < rank; ++i) place += index[i] * strides[i];
      places_.push_back(static_cast<std::size_t>(place));
      for (std::size_t i = rank; i-- > 0;) {
        if (++index[i] < layout.sizes[i]) break;
        index[i] = 0;
      }
    }
  }

  void fill(const std::vector<double>& values) {
    std::vector<double> all(static_cast<std::size_t>(buffer_.numel()), guard_);
    for (std::size_t i = 0; i < places_.size(); ++i) all[places_[i]] = values[i];
    buffer_.copy_(Tensor::from<double>(buffer_.context(), buffer_.shape(), all));
  }
  std::vector<double> values_of_buffer() const {
    return buffer_.to(DType::f64).to_vector<double>();
  }

  double guard_ = 0;
  Tensor buffer_, view_;
  std::vector<std::size_t> places_;  // of the view's elements, row-major, in the buffer
};

}  // namespace zerone::test
