// Tensor: a strided view of shared storage.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <zerone/core/context.h>
#include <zerone/core/half.h>
#include <zerone/core/shape.h>
#include <zerone/core/storage.h>

namespace zerone {

/// The DType of a C++ type.
template <class T>
struct dtype_of;
/// @cond
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<f16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
/// @endcond

/// A value handle: storage + offset + sizes + strides + element type. Copying a Tensor copies the
/// handle. permute, reshape, slice, expand and their like are views of the same storage; nothing
/// is copied unless a function says so. The strides decide the memory layout: an NHWC image batch
/// is a tensor of shape [N, C, H, W] whose channel stride is 1.
class Tensor {
 public:
  /// An undefined tensor; only defined() and assignment are allowed.
  Tensor() = default;

  /// Uninitialized.
  /// @code
  /// const Tensor x = Tensor::from<float>(context, {2, 3}, {1, 2, 3, 4, 5, 6});
  /// const Tensor column = x.slice(1, 0, 1);       // a view, [2, 1]
  /// const Tensor image = Tensor::normal(context, {8, 3, 32, 32}).contiguous_nhwc();
  /// const std::vector<float> values = x.transpose(0, 1).to_vector<float>();  // 1 4 2 5 3 6
  /// @endcode
  static Tensor empty(const Context&, const Shape&, DType = DType::f32);
  /// Known zero: costs nothing until the bytes are needed.
  static Tensor zeros(const Context&, const Shape&, DType = DType::f32);
  /// `value`, converted, everywhere.
  static Tensor full(const Context&, const Shape&, double value, DType = DType::f32);
  /// Uniform on [low, high) from the context's Philox stream; the same seed gives the same bits on
  /// CPU and GPU.
  static Tensor uniform(const Context&, const Shape&, double low = 0, double high = 1,
                        DType = DType::f32);
  /// Normally distributed, as repeatable as uniform().
  static Tensor normal(const Context&, const Shape&, double mean = 0, double stddev = 1,
                       DType = DType::f32);
  /// Uninitialized, of x's shape, type and (if x is dense) memory order.
  static Tensor empty_like(const Tensor& x);
  /// Uninitialized [n, c, h, w] whose memory order is NHWC.
  static Tensor empty_nhwc(const Context&, const Shape&, DType = DType::f32);
  /// Copies row-major host values; ShapeError unless there are as many as the shape says. @{
  template <class T>
  static Tensor from(const Context& context, const Shape& shape, std::span<const T> values) {
    return from_host(context, shape, dtype_of<T>::value, values.data(), values.size());
  }
  template <class T>
  static Tensor from(const Context& context, const Shape& shape, const std::vector<T>& values) {
    return from(context, shape, std::span<const T>(values));
  }
  template <class T>
  static Tensor from(const Context& context, const Shape& shape, std::initializer_list<T> values) {
    return from(context, shape, std::span<const T>(values.begin(), values.size()));
  }
  /// @}
  /// Views the caller's memory on the context's device: `data` is element (0, ..., 0), `strides`
  /// count elements (empty: row-major). `deleter(data)` runs when the last view is gone and must
  /// not throw. What is derived from external memory (packed weights, say) is never cached.
  static Tensor from_blob(const Context&, void* data, const Shape&, DType,
                          std::span<const std::int64_t> strides = {},
                          std::function<void(void*)> deleter = {});

  /// Whether there is a tensor behind the handle. @{
  bool defined() const noexcept { return storage_ != nullptr; }
  explicit operator bool() const noexcept { return defined(); }
  /// @}

  int rank() const noexcept { return layout_.rank; }  ///< number of axes
  /// Sizes, outermost axis first.
  Shape shape() const {
    return Shape(std::span<const std::int64_t>(layout_.sizes.data(), layout_.rank));
  }
  /// Negative axes count from the end.
  std::int64_t size(int axis) const;
  std::int64_t stride(int axis) const;                             ///< in elements
  const Layout& layout() const noexcept { return layout_; }        ///< sizes and strides
  std::int64_t numel() const noexcept { return layout_.numel(); }  ///< product of the sizes
  DType dtype() const noexcept { return dtype_; }                  ///< element type
  /// Of the elements, not of the storage.
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(numel()) * size_of(dtype_); }
  Context context() const;  ///< a handle of the one it was made in
  Device device() const;    ///< where its memory is
  /// Row-major without gaps.
  bool is_contiguous() const noexcept;
  /// Some permutation of the axes is row-major without gaps.
  bool is_dense() const noexcept;

  // Views.
  /// Axis i of the result is axis axes[i] of this tensor. @{
  Tensor permute(std::initializer_list<int> axes) const;
  Tensor permute(std::span<const int> axes) const;
  /// @}
  /// The two axes exchanged.
  Tensor transpose(int axis_a, int axis_b) const;
  /// One size may be -1. Throws ShapeError if the strides do not allow a view; contiguous() first.
  /// @{
  Tensor reshape(const Shape& shape) const;
  Tensor reshape(std::initializer_list<std::int64_t> sizes) const;
  /// @}
  /// Elements begin, begin + step, ... below end of one axis; negative bounds count from the end.
  Tensor slice(int axis, std::int64_t begin, std::int64_t end, std::int64_t step = 1) const;
  /// Axes of size 1 (or missing in front) repeated without copying; read-only in effect.
  Tensor expand(const Shape& shape) const;

  // Copies.
  /// This tensor if contiguous, else a row-major copy.
  Tensor contiguous() const;
  /// A copy of shape [n, c, h, w] whose memory order is NHWC, or a view if it is so already. Its
  /// channel stride is 1, for one channel, too: where sizes leave the order open, that tells.
  Tensor contiguous_nhwc() const;
  /// A copy in the same memory order, row-major if this tensor has gaps.
  Tensor clone() const;
  /// Converted, rounding to nearest even; this tensor itself if it has the type.
  Tensor to(DType) const;
  /// A copy in another context, device to device or through pinned host memory; a copy onto a GPU
  /// is asynchronous, a copy to the CPU is finished when this returns. This tensor itself if the
  /// context is the same.
  Tensor to(const Context&) const;

  // In place. Each bumps the storage's version.
  /// Broadcasts `source` and converts its type; it may live in another context, and may overlap
  /// this tensor. copy_ and add_ into an expanded view are ShapeErrors.
  void copy_(const Tensor& source);
  void fill_(double value);        ///< every element = value, converted
  void add_(const Tensor& other);  ///< += other, broadcast; of the same type and context

  // Bytes. Device memory is only for kernels; on the CPU the pointer can be read directly.
  // The address is that of element (0, ..., 0).
  const void* data() const;  ///< to read
  void* mutable_data();      ///< to write; bumps the version
  /// The same, typed: DTypeError unless T is the element type. @{
  template <class T>
  const T* data() const {
    expect_dtype(dtype_of<T>::value);
    return static_cast<const T*>(data());
  }
  template <class T>
  T* mutable_data() {
    expect_dtype(dtype_of<T>::value);
    return static_cast<T*>(mutable_data());
  }
  /// @}
  /// Says that memory reached through a kept pointer was written.
  void mark_modified() { storage().mark_modified(); }
  std::uint64_t version() const { return storage().version(); }  ///< the storage's count of writes
  /// All zero for certain, without looking at the data.
  bool known_zero() const { return storage().known_zero(); }

  /// Row-major values on the host; waits for the device. T must be the tensor's own type: to()
  /// first.
  template <class T>
  std::vector<T> to_vector() const {
    std::vector<T> values(static_cast<std::size_t>(numel()));
    to_host(values.data(), dtype_of<T>::value);
    return values;
  }
  /// The only element, converted.
  double item() const;

  /// The memory, and the place of element (0, ..., 0) in it, in elements. @{
  Storage& storage() const;
  const std::shared_ptr<Storage>& shared_storage() const noexcept { return storage_; }
  std::int64_t offset() const noexcept { return offset_; }
  /// @}

  /// A view of `storage` as given; no check that it fits.
  static Tensor view_of(std::shared_ptr<Storage> storage, std::int64_t offset, const Layout&,
                        DType);

 private:
  static Tensor from_host(const Context&, const Shape&, DType, const void* values,
                          std::size_t count);
  void to_host(void* values, DType) const;
  void expect_dtype(DType) const;

  std::shared_ptr<Storage> storage_;
  std::int64_t offset_ = 0;  // in elements
  Layout layout_;
  DType dtype_ = DType::f32;
};

/// Prints shape, type, device and, shortened where long, the values.
std::ostream& operator<<(std::ostream&, const Tensor&);
/// "f32 [2, 3] strides (3, 1) on cuda:0", for messages.
std::string describe(const Tensor&);

/// Throws unless both tensors are defined and share a context; the message names `op` and both.
void require_same_context(const char* op, const Tensor& a, const Tensor& b);

}  // namespace zerone
