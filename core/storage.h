// Shared, versioned bytes on one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <zerone/core/context.h>

namespace zerone {

struct Block;
class MemoryPool;

/// Memory that tensors view. Every write bumps the version, so whatever was derived from the
/// content (saved tensors, packed weights) can tell that it is stale.
///
/// A storage can be *known zero*: all its bytes are 0 and, until someone needs them, not even
/// allocated. Reading or writing it through data() writes the zeros first.
class Storage : public std::enable_shared_from_this<Storage> {
 public:
  /// Uninitialized memory from the context's allocator.
  Storage(Context context, std::size_t bytes);
  /// The caller's memory; `deleter` runs when the last tensor is gone.
  Storage(Context context, void* data, std::size_t bytes, std::function<void(void*)> deleter);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  /// Known zeros: no memory yet.
  static std::shared_ptr<Storage> zeros(Context context, std::size_t bytes);

  const Context& context() const { return context_; }  ///< whose allocator it is from
  std::size_t bytes() const { return bytes_; }         ///< size
  std::uint64_t version() const { return version_; }   ///< count of writes
  bool external() const { return external_; }          ///< the caller's memory

  /// The bytes to read. Written first, where they are zeros that are pending.
  const void* read();
  /// The bytes to write; bumps the version.
  void* write();
  /// Bumps the version.
  void mark_modified();

  /// While its context captures a graph, only what the graph itself made is known: anything else
  /// may be written between replays.
  bool known_zero() const;
  /// Zero at this version, capture or not: for those who note the dependency (note_frozen).
  bool tagged_zero() const { return zero_version_ == version_; }
  /// The zeros are known but not in memory yet.
  bool zero_pending() const { return zero_pending_; }
  /// Writes zeros that are pending.
  void materialize();
  /// Declares that every byte is 0, in place of writing them. Not for external memory, whose owner
  /// may look at it without asking.
  void set_known_zero();

  /// Keeps this memory from being reused before `event` (of another stream) has passed.
  void add_foreign_use(std::shared_ptr<void> event) { foreign_uses_.push_back(std::move(event)); }

  /// A value derived from the content, made by `make` at most once a version and key. External
  /// memory can change without notice, so there it is made anew at each call.
  template <class T, class Make>
  std::shared_ptr<T> derived(std::uint64_t key, Make&& make) {
    if (external_) return make();
    Derived& slot = derived_[key];
    if (!slot.value || slot.version != version_) {
      slot.value = make();
      slot.version = version_;
    }
    return std::static_pointer_cast<T>(slot.value);
  }
  /// The value under `key` and the version it was made at, whatever the current version; null if
  /// none was made.
  std::shared_ptr<void> last_derived(std::uint64_t key, std::uint64_t* version) const;
  /// Keeps `value` under `key` as derived from the current version.
  void store_derived(std::uint64_t key, std::shared_ptr<void> value);

  /// Says that elements stay 0 wherever the mask in `mask_storage` (u8, in the same order) is 0,
  /// whatever the version.
  void set_fixed_zeros(std::shared_ptr<Storage> mask_storage) {
    fixed_zeros_ = std::move(mask_storage);
  }
  /// The storage of that mask, or null.
  const std::shared_ptr<Storage>& fixed_zeros() const { return fixed_zeros_; }

 private:
  struct ZeroTag {};
  Storage(Context context, std::size_t bytes, ZeroTag);
  void allocate();
  friend class Graph;

  struct Derived {
    std::shared_ptr<void> value;
    std::uint64_t version = 0;
  };

  Context context_;
  std::shared_ptr<MemoryPool> pool_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0, block_bytes_ = 0;
  std::uint64_t version_ = 0;
  std::uint64_t zero_version_ = ~std::uint64_t{0};
  bool zero_pending_ = false;
  bool external_ = false;
  std::uint64_t made_in_ = 0;  // id of the capture during which it was made, if any
  std::function<void(void*)> deleter_;
  std::vector<std::shared_ptr<void>> foreign_uses_;
  std::unordered_map<std::uint64_t, Derived> derived_;
  std::shared_ptr<Storage> fixed_zeros_;
};

}  // namespace zerone
