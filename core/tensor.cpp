#include <zerone/core/tensor.h>

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include <zerone/core/context_state.h>
#include <zerone/core/error.h>
#include <zerone/core/views.h>

namespace zerone {
namespace {

/// Row-major layout of `sizes` taken in the order of `axes` (outermost first).
Layout dense_layout(const Layout& sizes, std::span<const int> axes) {
  Layout layout = sizes;
  std::int64_t stride = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    layout.strides[*axis] = stride;
    stride *= std::max<std::int64_t>(layout.sizes[*axis], 1);
  }
  return layout;
}

/// Axes by decreasing stride; axes of size 1 keep their place among equals.
std::array<int, max_rank> memory_order(const Layout& layout) {
  std::array<int, max_rank> axes{};
  std::iota(axes.begin(), axes.end(), 0);
  std::stable_sort(axes.begin(), axes.begin() + layout.rank,
                   [&](int a, int b) { return layout.strides[a] > layout.strides[b]; });
  return axes;
}

bool same_values_as(const Layout& layout, const Layout& dense) {
  for (int i = 0; i < layout.rank; ++i)
    if (layout.sizes[i] > 1 && layout.strides[i] != dense.strides[i]) return false;
  return true;
}

Tensor make(const Context& context, const Layout& layout, DType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(layout.numel()) * size_of(dtype);
  return Tensor::view_of(std::make_shared<Storage>(context, bytes), 0, layout, dtype);
}

void expect_defined(const Tensor& x, const char* op) {
  if (!x.defined()) throw ShapeError(fmt::format("[{}] undefined tensor", op));
}

/// Throws if a write of distinct values cannot be seen whole: some elements share their memory.
void expect_distinct(const Tensor& x, const char* op) {
  for (int i = 0; i < x.rank(); ++i)
    if (x.layout().sizes[i] > 1 && x.layout().strides[i] == 0 && x.numel() > 0)
      throw ShapeError(
          fmt::format("[{}] cannot write an expanded view: {}; clone() it first", op, describe(x)));
}

/// `x` as an operand of a write to `out`, element by element: a copy of it if that write might
/// change elements of x before they are read.
Tensor apart_from(const Tensor& out, const Tensor& x) {
  const bool external = out.storage().external() && x.storage().external();
  if (!external && out.shared_storage() != x.shared_storage()) return x;
  const auto range = [external](const Tensor& t) {
    const auto size = static_cast<std::int64_t>(size_of(t.dtype()));
    const std::int64_t begin = external ? std::bit_cast<std::int64_t>(t.data()) : t.offset() * size;
    std::int64_t end = begin + size;
    for (int i = 0; i < t.rank(); ++i)
      end += (t.layout().sizes[i] - 1) * t.layout().strides[i] * size;
    return std::pair(begin, end);
  };
  const auto [out_begin, out_end] = range(out);
  const auto [x_begin, x_end] = range(x);
  if (out_end <= x_begin || x_end <= out_begin) return x;
  const bool same =
      out_begin == x_begin && out.dtype() == x.dtype() && same_values_as(out.layout(), x.layout());
  return same ? x : x.clone();
}

void expect_floating(DType dtype, const char* op) {
  if (!is_floating(dtype))
    throw DTypeError(
        fmt::format("[{}] makes floating-point tensors, not {}", op, to_string(dtype)));
}

}  // namespace

// --- making -------------------------------------------------------------------------------------

Tensor Tensor::view_of(std::shared_ptr<Storage> storage, std::int64_t offset, const Layout& layout,
                       DType dtype) {
  Tensor tensor;
  tensor.storage_ = std::move(storage);
  tensor.offset_ = offset;
  tensor.layout_ = layout;
  tensor.dtype_ = dtype;
  return tensor;
}

Tensor Tensor::empty(const Context& context, const Shape& shape, DType dtype) {
  return make(context, contiguous_layout(shape), dtype);
}

Tensor Tensor::zeros(const Context& context, const Shape& shape, DType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  return view_of(Storage::zeros(context, bytes), 0, contiguous_layout(shape), dtype);
}

Tensor Tensor::full(const Context& context, const Shape& shape, double value, DType dtype) {
  Tensor tensor = empty(context, shape, dtype);
  tensor.fill_(value);
  return tensor;
}

Tensor Tensor::uniform(const Context& context, const Shape& shape, double low, double high,
                       DType dtype) {
  expect_floating(dtype, "uniform");
  Tensor tensor = empty(context, shape, dtype);
  ContextState& state = context.state();
  state.backend->uniform(mutable_view(tensor), low, high);
  state.random_offset += static_cast<std::uint64_t>(tensor.numel());
  return tensor;
}

Tensor Tensor::normal(const Context& context, const Shape& shape, double mean, double stddev,
                      DType dtype) {
  expect_floating(dtype, "normal");
  Tensor tensor = empty(context, shape, dtype);
  ContextState& state = context.state();
  state.backend->normal(mutable_view(tensor), mean, stddev);
  state.random_offset += static_cast<std::uint64_t>(tensor.numel());
  return tensor;
}

Tensor Tensor::empty_like(const Tensor& x) {
  expect_defined(x, "empty_like");
  if (!x.is_dense()) return empty(x.context(), x.shape(), x.dtype());
  return make(x.context(), x.layout(), x.dtype());
}

Tensor Tensor::empty_nhwc(const Context& context, const Shape& shape, DType dtype) {
  if (shape.rank() != 4)
    throw ShapeError(fmt::format("[empty_nhwc] needs [n, c, h, w], got {}", to_string(shape)));
  constexpr std::array<int, 4> nhwc{0, 2, 3, 1};
  return make(context, dense_layout(contiguous_layout(shape), nhwc), dtype);
}

Tensor Tensor::from_host(const Context& context, const Shape& shape, DType dtype,
                         const void* values, std::size_t count) {
  if (static_cast<std::size_t>(shape.numel()) != count)
    throw ShapeError(fmt::format("[from] {} values for shape {}", count, to_string(shape)));
  Tensor tensor = empty(context, shape, dtype);
  if (count > 0) context.state().backend->upload(tensor.mutable_data(), values, tensor.bytes());
  return tensor;
}

Tensor Tensor::from_blob(const Context& context, void* data, const Shape& shape, DType dtype,
                         std::span<const std::int64_t> strides,
                         std::function<void(void*)> deleter) {
  Layout layout = contiguous_layout(shape);
  if (!strides.empty()) {
    if (static_cast<int>(strides.size()) != shape.rank())
      throw ShapeError(
          fmt::format("[from_blob] {} strides for shape {}", strides.size(), to_string(shape)));
    std::copy(strides.begin(), strides.end(), layout.strides.begin());
  }
  std::int64_t extent = shape.numel() == 0 ? 0 : 1;
  for (int i = 0; i < layout.rank; ++i) {
    if (layout.strides[i] < 0)
      throw ShapeError(fmt::format("[from_blob] negative stride {}", layout.strides[i]));
    std::int64_t reach = 0;
    if (extent > 0 && (__builtin_mul_overflow(layout.sizes[i] - 1, layout.strides[i], &reach) ||
                       __builtin_add_overflow(extent, reach, &extent)))
      throw ShapeError(fmt::format("[from_blob] stride {} of axis {} is too large for shape {}",
                                   layout.strides[i], i, to_string(shape)));
  }
  if (extent > std::numeric_limits<std::int64_t>::max() / 8)
    throw ShapeError(fmt::format("[from_blob] {} elements are more than memory can hold", extent));
  if (!data && extent > 0)
    throw ShapeError(fmt::format("[from_blob] null data for shape {}", to_string(shape)));
  auto storage = std::make_shared<Storage>(
      context, data, static_cast<std::size_t>(extent) * size_of(dtype), std::move(deleter));
  return view_of(std::move(storage), 0, layout, dtype);
}

// --- asking -------------------------------------------------------------------------------------

std::int64_t Tensor::size(int axis) const {
  return layout_.sizes[normalize_axis(axis, rank(), "size")];
}

std::int64_t Tensor::stride(int axis) const {
  return layout_.strides[normalize_axis(axis, rank(), "stride")];
}

Storage& Tensor::storage() const {
  expect_defined(*this, "tensor");
  return *storage_;
}

Context Tensor::context() const {
  return storage().context();
}
Device Tensor::device() const {
  return storage().context().device();
}

bool Tensor::is_contiguous() const noexcept {
  if (numel() == 0) return true;
  std::int64_t stride = 1;
  for (int i = layout_.rank - 1; i >= 0; --i) {
    if (layout_.sizes[i] > 1 && layout_.strides[i] != stride) return false;
    stride *= layout_.sizes[i];
  }
  return true;
}

bool Tensor::is_dense() const noexcept {
  if (numel() == 0) return true;
  std::int64_t stride = 1;
  const auto axes = memory_order(layout_);
  for (int i = layout_.rank - 1; i >= 0; --i) {
    const int axis = axes[i];
    if (layout_.sizes[axis] == 1) continue;
    if (layout_.strides[axis] != stride) return false;
    stride *= layout_.sizes[axis];
  }
  return true;
}

const void* Tensor::data() const {
  const void* base = storage().read();
  return static_cast<const std::byte*>(base) + offset_ * static_cast<std::int64_t>(size_of(dtype_));
}

void* Tensor::mutable_data() {
  void* base = storage().write();
  return static_cast<std::byte*>(base) + offset_ * static_cast<std::int64_t>(size_of(dtype_));
}

void Tensor::expect_dtype(DType dtype) const {
  if (dtype != dtype_)
    throw DTypeError(
        fmt::format("[data] the tensor holds {}, not {}", to_string(dtype_), to_string(dtype)));
}

// --- views --------------------------------------------------------------------------------------

Tensor Tensor::permute(std::initializer_list<int> axes) const {
  return permute(std::span<const int>(axes.begin(), axes.size()));
}

Tensor Tensor::permute(std::span<const int> axes) const {
  if (static_cast<int>(axes.size()) != rank())
    throw ShapeError(fmt::format("[permute] {} axes for {}", axes.size(), describe(*this)));
  Tensor result = *this;
  std::array<bool, max_rank> seen{};
  for (int i = 0; i < rank(); ++i) {
    const int axis = normalize_axis(axes[i], rank(), "permute");
    if (std::exchange(seen[axis], true))
      throw ShapeError(fmt::format("[permute] axis {} appears twice", axis));
    result.layout_.sizes[i] = layout_.sizes[axis];
    result.layout_.strides[i] = layout_.strides[axis];
  }
  return result;
}

Tensor Tensor::transpose(int axis_a, int axis_b) const {
  axis_a = normalize_axis(axis_a, rank(), "transpose");
  axis_b = normalize_axis(axis_b, rank(), "transpose");
  Tensor result = *this;
  std::swap(result.layout_.sizes[axis_a], result.layout_.sizes[axis_b]);
  std::swap(result.layout_.strides[axis_a], result.layout_.strides[axis_b]);
  return result;
}

Tensor Tensor::reshape(std::initializer_list<std::int64_t> sizes) const {
  std::vector<std::int64_t> resolved(sizes);
  std::int64_t known = 1, unknown = -1;
  for (std::size_t i = 0; i < resolved.size(); ++i) {
    if (resolved[i] != -1) {
      if (__builtin_mul_overflow(known, resolved[i], &known))
        throw ShapeError("[reshape] the number of elements does not fit in 63 bits");
    } else if (std::exchange(unknown, static_cast<std::int64_t>(i)) != -1) {
      throw ShapeError("[reshape] more than one size is -1");
    }
  }
  if (unknown >= 0) {
    if (known <= 0 || numel() % known != 0)
      throw ShapeError(
          fmt::format("[reshape] cannot make {} into sizes of product {}", describe(*this), known));
    resolved[unknown] = numel() / known;
  }
  return reshape(Shape(std::span<const std::int64_t>(resolved)));
}

Tensor Tensor::reshape(const Shape& shape) const {
  if (shape.numel() != numel())
    throw ShapeError(
        fmt::format("[reshape] cannot make {} into {}", describe(*this), to_string(shape)));
  Tensor result = *this;
  result.layout_ = contiguous_layout(shape);
  if (numel() == 0 || is_contiguous()) return result;
  // Split the old axes into runs that lie in memory like one axis, and fit new axes into each run.
  int old_axis = 0, new_axis = 0;
  while (old_axis < rank() || new_axis < shape.rank()) {
    int old_end = old_axis, new_end = new_axis;
    std::int64_t old_size = 1, new_size = 1;
    do {
      if (old_size <= new_size && old_end < rank())
        old_size *= layout_.sizes[old_end++];
      else
        new_size *= shape.begin()[new_end++];
    } while (old_size != new_size);
    while (old_end < rank() && layout_.sizes[old_end] == 1) ++old_end;
    while (new_end < shape.rank() && shape.begin()[new_end] == 1) ++new_end;
    std::int64_t stride = 1, run = 0;
    bool first = true;
    for (int i = old_end - 1; i >= old_axis; --i) {
      if (layout_.sizes[i] == 1) continue;
      if (first)
        stride = layout_.strides[i];
      else if (layout_.strides[i] != run)
        throw ShapeError(fmt::format("[reshape] {} cannot be viewed as {}; call contiguous() first",
                                     describe(*this), to_string(shape)));
      run = layout_.strides[i] * layout_.sizes[i];
      first = false;
    }
    for (int i = new_end - 1; i >= new_axis; --i) {
      result.layout_.strides[i] = stride;
      stride *= shape.begin()[i];
    }
    old_axis = old_end;
    new_axis = new_end;
  }
  return result;
}

Tensor Tensor::slice(int axis, std::int64_t begin, std::int64_t end, std::int64_t step) const {
  axis = normalize_axis(axis, rank(), "slice");
  const std::int64_t size = layout_.sizes[axis];
  const std::int64_t from = begin < 0 ? begin + size : begin;
  const std::int64_t to = end < 0 ? end + size : end;
  if (from < 0 || from > to || to > size || step < 1)
    throw ShapeError(
        fmt::format("[slice] {}:{}:{} of axis {} of {}", begin, end, step, axis, describe(*this)));
  Tensor result = *this;
  result.offset_ += from * layout_.strides[axis];
  const std::int64_t count = to == from ? 0 : (to - from - 1) / step + 1;
  result.layout_.sizes[axis] = count;
  if (count > 1) result.layout_.strides[axis] *= step;
  return result;
}

Tensor Tensor::expand(const Shape& shape) const {
  Tensor result = *this;
  result.layout_ = contiguous_layout(shape);
  const int added = shape.rank() - rank();
  bool fits = added >= 0;
  for (int i = 0; fits && i < shape.rank(); ++i) {
    const std::int64_t size = i < added ? 1 : layout_.sizes[i - added];
    fits = size == 1 || size == shape.begin()[i];
    result.layout_.strides[i] =
        size == 1 && shape.begin()[i] != 1 ? 0 : (i < added ? 0 : layout_.strides[i - added]);
  }
  if (!fits)
    throw ShapeError(
        fmt::format("[expand] cannot expand {} to {}", describe(*this), to_string(shape)));
  return result;
}

// --- copies -------------------------------------------------------------------------------------

Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  Tensor result = empty(context(), shape(), dtype_);
  result.copy_(*this);
  context().state().stats->layout_copied += result.bytes();
  return result;
}

Tensor Tensor::contiguous_nhwc() const {
  Tensor result = empty_nhwc(context(), shape(), dtype_);
  if (same_values_as(layout_, result.layout_))
    return view_of(storage_, offset_, result.layout_, dtype_);
  result.copy_(*this);
  context().state().stats->layout_copied += result.bytes();
  return result;
}

Tensor Tensor::clone() const {
  Tensor result = empty_like(*this);
  result.copy_(*this);
  return result;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  expect_defined(*this, "to");
  Tensor result = is_dense() ? make(context(), layout_, dtype) : empty(context(), shape(), dtype);
  result.copy_(*this);
  return result;
}

Tensor Tensor::to(const Context& target) const {
  if (target == context()) return *this;
  Tensor result = is_dense() ? make(target, layout_, dtype_) : empty(target, shape(), dtype_);
  result.copy_(*this);
  return result;
}

// --- in place -----------------------------------------------------------------------------------

void Tensor::copy_(const Tensor& source) {
  expect_defined(*this, "copy_");
  expect_defined(source, "copy_");
  if (source.shape() != shape()) {
    if (broadcast_shapes(source.shape(), shape(), "copy_") != shape())
      throw ShapeError(
          fmt::format("[copy_] cannot copy {} into {}", describe(source), describe(*this)));
    return copy_(source.expand(shape()));
  }
  if (numel() == 0) return;
  expect_distinct(*this, "copy_");
  ContextState& here = context().state();
  ContextState& there = source.context().state();
  if (&here == &there) {
    const Tensor x = apart_from(*this, source);
    here.backend->copy(mutable_view(*this), view(x));
    return;
  }
  // Across contexts bytes move as they lie: both sides dense, in the same order, of one type.
  const bool movable = is_dense() && source.dtype() == dtype_ &&
                       same_values_as(source.layout(), layout_) && source.is_dense();
  if (!movable) {
    Tensor staged = source;
    if (source.dtype() != dtype_ || !source.is_contiguous()) {
      staged = empty(source.context(), shape(), dtype_);
      staged.copy_(source);
    }
    if (is_contiguous()) return copy_(staged);
    Tensor landed = empty(context(), shape(), dtype_);
    landed.copy_(staged);
    return copy_(landed);
  }
  const void* from = source.data();
  void* into = mutable_data();
  if (!there.device.is_cuda()) {
    here.backend->upload(into, from, bytes());
  } else if (!here.device.is_cuda()) {
    there.backend->download(into, from, bytes());
  } else {
    here.backend->wait_event(there.backend->record_event());
    here.backend->copy_bytes(into, from, bytes());
    source.storage().add_foreign_use(here.backend->record_event());
  }
}

void Tensor::fill_(double value) {
  expect_defined(*this, "fill_");
  if (numel() == 0) return;
  context().state().backend->fill(mutable_view(*this), value);
}

void Tensor::add_(const Tensor& other) {
  require_same_context("add_", *this, other);
  if (other.dtype() != dtype_)
    throw DTypeError(fmt::format("[add_] {} and {}", describe(*this), describe(other)));
  if (broadcast_shapes(other.shape(), shape(), "add_") != shape())
    throw ShapeError(fmt::format("[add_] cannot add {} to {}", describe(other), describe(*this)));
  if (numel() == 0 || other.known_zero()) return;
  expect_distinct(*this, "add_");
  const Tensor expanded = apart_from(*this, other.expand(shape()));
  const kernels::ConstView x = view(expanded);
  context().state().backend->accumulate(mutable_view(*this), x);
}

// --- host ---------------------------------------------------------------------------------------

void Tensor::to_host(void* values, DType dtype) const {
  expect_dtype(dtype);
  if (numel() == 0) return;
  Tensor dense = *this;
  if (!is_contiguous()) {
    dense = empty(context(), shape(), dtype_);
    dense.copy_(*this);
  }
  context().state().backend->download(values, dense.data(), bytes());
}

double Tensor::item() const {
  expect_defined(*this, "item");
  if (numel() != 1)
    throw ShapeError(fmt::format("[item] needs one element, got {}", describe(*this)));
  return to(DType::f64).to_vector<double>()[0];
}

std::string describe(const Tensor& x) {
  if (!x.defined()) return "undefined";
  std::string text = fmt::format("{} {}", to_string(x.dtype()), to_string(x.shape()));
  if (!x.is_contiguous())
    text += fmt::format(" strides ({})", fmt::join(x.layout().strides.begin(),
                                                   x.layout().strides.begin() + x.rank(), ", "));
  return text + " on " + to_string(x.device());
}

void require_same_context(const char* op, const Tensor& a, const Tensor& b) {
  expect_defined(a, op);
  expect_defined(b, op);
  if (a.context() != b.context())
    throw DeviceError(
        fmt::format("[{}] operands live in {} and {}", op, a.context().name(), b.context().name()));
}

}  // namespace zerone
