#include <zerone/core/storage.h>

#include <zerone/core/context_state.h>

namespace zerone {

Storage::Storage(Context context, std::size_t bytes) : context_(std::move(context)), bytes_(bytes) {
  made_in_ = context_.state().capture ? context_.state().capture->id : 0;
  allocate();
}

Storage::Storage(Context context, std::size_t bytes, ZeroTag)
    : context_(std::move(context)), bytes_(bytes), zero_version_(0), zero_pending_(true) {
  made_in_ = context_.state().capture ? context_.state().capture->id : 0;
  context_.state().pending_zeros.insert(this);
}

Storage::Storage(Context context, void* data, std::size_t bytes, std::function<void(void*)> deleter)
    : context_(std::move(context)),
      data_(data),
      bytes_(bytes),
      external_(true),
      deleter_(std::move(deleter)) {}

std::shared_ptr<Storage> Storage::zeros(Context context, std::size_t bytes) {
  return std::shared_ptr<Storage>(new Storage(std::move(context), bytes, ZeroTag{}));
}

Storage::~Storage() {
  if (zero_pending_) context_.state().pending_zeros.erase(this);
  if (external_) {
    if (deleter_) deleter_(data_);
  } else if (data_) {
    ContextState& state = context_.state();
    const Block block{data_, block_bytes_};
    if (state.capture && state.capture->pool != pool_)
      state.capture->kept.emplace_back(pool_, block);  // the graph may still read it
    else
      pool_->release(block, std::move(foreign_uses_));
  }
}

void Storage::allocate() {
  if (bytes_ == 0) return;
  pool_ = context_.state().current_pool_pointer();
  const Block block = pool_->allocate(bytes_);
  data_ = block.data;
  block_bytes_ = block.bytes;
}

bool Storage::known_zero() const {
  if (!tagged_zero()) return false;
  const Capture* capture = context_.state().capture.get();
  return !capture || capture->id == made_in_;
}

void Storage::materialize() {
  if (!zero_pending_) return;
  ContextState& state = context_.state();
  if (!data_) allocate();  // first: the zeros stay pending if there is no memory
  state.pending_zeros.erase(this);
  zero_pending_ = false;
  if (bytes_ == 0) return;
  const DType unit = bytes_ % 8 == 0 ? DType::f64 : DType::u8;  // wide stores where they fit
  const auto count = static_cast<std::int64_t>(bytes_ / size_of(unit));
  state.backend->fill({data_, {1, {count}, {1}}, unit}, 0);
  if (state.capture) state.capture->written.insert_or_assign(this, weak_from_this());
}

void Storage::set_known_zero() {
  ++version_;
  zero_pending_ = true;
  context_.state().pending_zeros.insert(this);
  if (external_)
    materialize();  // its owner reads it, and writes it, without asking
  else
    zero_version_ = version_;
}

const void* Storage::read() {
  if (zero_pending_) materialize();
  // What the graph itself allocates lives in its pool; the rest must not go away before the graph.
  if (const auto& capture = context_.state().capture; capture && capture->pool != pool_)
    capture->alive.emplace(this, shared_from_this());
  return data_;
}

void* Storage::write() {
  if (zero_pending_) materialize();
  ++version_;
  if (const auto& capture = context_.state().capture)
    capture->written.insert_or_assign(this, weak_from_this());
  return data_;
}

void Storage::mark_modified() {
  if (zero_pending_) materialize();
  ++version_;
}

std::shared_ptr<void> Storage::last_derived(std::uint64_t key, std::uint64_t* version) const {
  const auto it = derived_.find(key);
  if (it == derived_.end()) return nullptr;
  *version = it->second.version;
  return it->second.value;
}

void Storage::store_derived(std::uint64_t key, std::shared_ptr<void> value) {
  derived_[key] = {std::move(value), version_};
}

}  // namespace zerone
