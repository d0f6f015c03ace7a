#include <zerone/core/shape.h>

#include <fmt/format.h>
#include <algorithm>
#include <limits>

#include <zerone/core/error.h>

namespace zerone {

Shape::Shape(std::initializer_list<std::int64_t> sizes)
    : Shape(std::span<const std::int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const std::int64_t> sizes) {
  if (sizes.size() > max_rank)
    throw ShapeError(
        fmt::format("[shape] rank {} is above the limit of {}", sizes.size(), max_rank));
  std::int64_t numel = 1;
  for (std::int64_t size : sizes) {
    if (size < 0) throw ShapeError(fmt::format("[shape] negative size {}", size));
    if (__builtin_mul_overflow(numel, std::max<std::int64_t>(size, 1), &numel))
      throw ShapeError("[shape] the number of elements does not fit in 63 bits");
    sizes_[rank_++] = size;
  }
  // Neither do the bytes of the widest type overflow then.
  if (numel > std::numeric_limits<std::int64_t>::max() / 8)
    throw ShapeError(fmt::format("[shape] {} elements are more than memory can hold", numel));
}

std::int64_t Shape::operator[](int axis) const {
  return sizes_[normalize_axis(axis, rank_, "shape")];
}

std::int64_t Shape::numel() const noexcept {
  std::int64_t n = 1;
  for (std::int64_t size : *this) n *= size;
  return n;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

std::string to_string(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
  }
  return "?";
}

std::string to_string(Math math) {
  switch (math) {
    case Math::strict: return "strict";
    case Math::fp32: return "fp32";
    case Math::tf32: return "tf32";
    case Math::bf16: return "bf16";
    case Math::fp16: return "fp16";
  }
  return "?";
}

Layout contiguous_layout(const Shape& shape) {
  Layout layout;
  layout.rank = shape.rank();
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    layout.sizes[i] = shape.begin()[i];
    layout.strides[i] = stride;
    stride *= std::max<std::int64_t>(layout.sizes[i], 1);
  }
  return layout;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op) {
  const int rank = std::max(a.rank(), b.rank());
  std::array<std::int64_t, max_rank> sizes{};
  for (int i = 1; i <= rank; ++i) {
    const std::int64_t size_a = i <= a.rank() ? a[-i] : 1;
    const std::int64_t size_b = i <= b.rank() ? b[-i] : 1;
    if (size_a != size_b && size_a != 1 && size_b != 1)
      throw ShapeError(
          fmt::format("[{}] cannot broadcast {} with {}", op, to_string(a), to_string(b)));
    sizes[rank - i] = size_a == 1 ? size_b : size_a;
  }
  return Shape(std::span<const std::int64_t>(sizes.data(), rank));
}

int normalize_axis(int axis, int rank, const char* op) {
  if (axis < -rank || axis >= rank)
    throw ShapeError(fmt::format("[{}] axis {} is out of range for rank {}", op, axis, rank));
  return axis < 0 ? axis + rank : axis;
}

}  // namespace zerone
