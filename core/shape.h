// Sizes of a tensor, outermost axis first.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include <zerone/kernels/types.h>

namespace zerone {

/// Up to max_rank (8) non-negative sizes; rank 0 is a scalar. No heap.
class Shape {
 public:
  Shape() = default;
  /// Throws ShapeError for a negative size, or more sizes than max_rank. @{
  Shape(std::initializer_list<std::int64_t> sizes);
  explicit Shape(std::span<const std::int64_t> sizes);
  /// @}

  int rank() const noexcept { return rank_; }  ///< number of axes
  /// Size of an axis; negative axes count from the end. Throws ShapeError out of range.
  std::int64_t operator[](int axis) const;
  std::int64_t numel() const noexcept;  ///< product of the sizes; 1 for a scalar
  /// The sizes, outermost first. @{
  const std::int64_t* begin() const noexcept { return sizes_.data(); }
  const std::int64_t* end() const noexcept { return sizes_.data() + rank_; }
  /// @}
  bool operator==(const Shape&) const = default;

 private:
  int rank_ = 0;
  std::array<std::int64_t, max_rank> sizes_{};
};

std::string to_string(const Shape&);  ///< "[2, 3]"
std::string to_string(DType);         ///< "bf16"
std::string to_string(Math);          ///< "tf32"

/// Row-major layout of a shape.
Layout contiguous_layout(const Shape&);
/// The shape NumPy broadcasting gives; throws ShapeError naming `op` and both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);
/// `axis` in [-rank, rank) mapped to [0, rank); throws ShapeError naming `op`.
int normalize_axis(int axis, int rank, const char* op);

}  // namespace zerone
