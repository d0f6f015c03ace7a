#include <zerone/ops/weight_zeros.h>

#include <algorithm>

#include <zerone/core/context_state.h>
#include <zerone/ops/implementation.h>

namespace zerone {
namespace {

const WeightZerosBackend& backend(const Tensor& w) {
#if ZERONE_CUDA
  if (w.device().is_cuda()) return weight_zeros_cuda();
#else
  (void)w;
#endif
  return weight_zeros_cpu();
}

/// What was found out about one view of a weight, kept with its storage across versions.
struct Record {
  WeightZeros zeros;  // of `counted_version`
  std::uint64_t counted_version = ~std::uint64_t{0};
  std::uint64_t seen_version = ~std::uint64_t{0};
  std::shared_ptr<void> counting;  // a census under way, of `counting_version`
  std::uint64_t counting_version = 0;
};

enum class Kind : std::int64_t { record, mask, pack_forward, pack_backward_data };

/// Names what is derived from a view of a weight: two views of one storage must not meet.
std::uint64_t derived_key(const Tensor& w, const kernels::Conv2dShape& shape, Kind kind) {
  struct Key {
    kernels::Conv2dShape shape;
    std::int64_t offset, dtype, kind;
  } key{shape, w.offset(), static_cast<std::int64_t>(w.dtype()), static_cast<std::int64_t>(kind)};
  if (kind == Kind::record || kind == Kind::mask) {
    // The zeros depend on the weight alone.
    key.shape = {};
    key.shape.c_in = shape.c_in, key.shape.c_out = shape.c_out;
    key.shape.kh = shape.kh, key.shape.kw = shape.kw;
    key.shape.groups = shape.groups;
    key.shape.w_strides = shape.w_strides;
  }
  return detail::hash_bytes(key);
}

WeightZeros from_mask(const Tensor& w, const kernels::Conv2dShape& shape) {
  const std::shared_ptr<Storage>& mask = w.storage().fixed_zeros();
  const auto census = mask->derived<kernels::ZeroCensus>(derived_key(w, shape, Kind::mask), [&] {
    const Tensor view = Tensor::view_of(mask, w.offset(), w.layout(), DType::u8).to(DType::f32);
    kernels::Conv2dShape dense = shape;  // `view` may be denser than w
    for (int i = 0; i < 4; ++i) dense.w_strides[i] = view.layout().strides[i];
    return std::make_shared<kernels::ZeroCensus>(backend(w).count(view, dense));
  });
  return {true, true, *census};
}

}  // namespace

int WeightZeros::percent() const {
  if (!known) return -1;
  if (census.zeros == census.elements) return 100;
  const std::int64_t steps = (census.zeros * 40 + census.elements) / (2 * census.elements);
  return static_cast<int>(std::min<std::int64_t>(steps, 19)) * 5;
}

WeightZeros weight_zeros(const Tensor& w, const kernels::Conv2dShape& shape, bool wait) {
  Storage& storage = w.storage();
  const ContextState& state = storage.context().state();
  if (storage.tagged_zero()) return {true, false, {w.numel(), w.numel(), shape.c_out, shape.c_in}};
  const bool capturing = state.capture != nullptr;
  if (const auto& mask = storage.fixed_zeros()) {
    std::uint64_t version = 0;
    const bool counted = mask->last_derived(derived_key(w, shape, Kind::mask), &version) != nullptr;
    if (counted || !capturing) {
      const WeightZeros zeros = from_mask(w, shape);
      // Nobody looks at a weight that is all zero: on the CPU a user's own write is noticed below.
      if (state.device.is_cuda() || zeros.census.zeros < zeros.census.elements) return zeros;
    }
  }
  if (storage.external()) {
    if (!wait && state.device.is_cuda()) return {};
    return {true, false, backend(w).count(w, shape)};
  }

  const std::uint64_t key = derived_key(w, shape, Kind::record);
  std::uint64_t stored_version = 0;
  auto record = std::static_pointer_cast<Record>(storage.last_derived(key, &stored_version));
  if (!record) {
    if (capturing) return {};
    record = std::make_shared<Record>();
    storage.store_derived(key, record);
  }
  const std::uint64_t version = storage.version();
  if (record->counting && !capturing && backend(w).poll(record->counting, record->zeros.census)) {
    record->counting = nullptr;
    record->counted_version = record->counting_version;
    record->zeros.known = true;
  }
  if (record->counted_version == version) return record->zeros;
  if (capturing) return {};
  if (wait || !state.device.is_cuda()) {
    record->counting = nullptr;
    record->zeros = {true, false, backend(w).count(w, shape)};
    record->counted_version = version;
    return record->zeros;
  }
  const bool worth_counting =
      !record->zeros.known || record->zeros.census.zeros > 0 || record->seen_version == version;
  record->seen_version = version;
  if (!record->counting && worth_counting) {
    record->counting = backend(w).start_count(w, shape);
    record->counting_version = version;
  }
  return {};
}

Tensor packed_weight(const Tensor& w, const kernels::Conv2dShape& shape, kernels::ZeroSkipPass pass,
                     const WeightZeros& zeros) {
  const auto make = [&] {
    std::int64_t nonzeros = zeros.nonzeros();
    // A mask is a promise that a user's own write may break; the CUDA pack checks its bounds
    // itself.
    if (zeros.fixed && !w.device().is_cuda()) {
      const kernels::ZeroCensus census = backend(w).count(w, shape);
      nonzeros = std::max(nonzeros, census.elements - census.zeros);
    }
    const std::size_t bytes = backend(w).pack_bytes(shape, pass, nonzeros, w.dtype());
    auto pack = std::make_shared<Tensor>(Tensor::empty(
        w.context(), {static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1))}, DType::u8));
    backend(w).pack(shape, pass, w, nonzeros, pack->mutable_data());
    return pack;
  };
  const std::uint64_t key = derived_key(
      w, shape,
      pass == kernels::ZeroSkipPass::forward ? Kind::pack_forward : Kind::pack_backward_data);
  Storage& storage = w.storage();
  if (storage.context().state().capture) {
    // A pack made inside a capture is made again by each replay, and belongs to the graph alone.
    std::uint64_t version = 0;
    const auto packed = std::static_pointer_cast<Tensor>(storage.last_derived(key, &version));
    if (zeros.fixed || !packed || version != storage.version()) return *make();
    return *packed;
  }
  return *storage.derived<Tensor>(key, make);
}

void note_frozen(const Tensor& w, const WeightZeros& zeros) {
  const auto& capture = w.context().state().capture;
  if (capture && !zeros.fixed)
    capture->frozen.emplace_back(w.shared_storage(), w.storage().version());
}

}  // namespace zerone
