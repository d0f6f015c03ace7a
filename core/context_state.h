// What Context and Storage share. Internal.
#pragma once

#include <any>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <zerone/core/backend.h>
#include <zerone/core/context.h>
#include <zerone/core/memory_pool.h>

namespace zerone {

class Storage;

/// What a capture in progress collects; owned by the Graph afterwards.
struct Capture {
  std::uint64_t id = 0;              // from 1, of this process
  std::shared_ptr<MemoryPool> pool;  // everything allocated meanwhile
  std::vector<std::pair<std::shared_ptr<MemoryPool>, Block>>
      kept;  // freed meanwhile, from elsewhere
  std::unordered_map<const Storage*, std::weak_ptr<Storage>> written;
  std::unordered_map<const Storage*, std::shared_ptr<Storage>> alive;
  /// Weights whose values were baked into the graph, at the version that was baked.
  std::vector<std::pair<std::shared_ptr<Storage>, std::uint64_t>> frozen;
  /// Library plans that the graph calls into.
  std::vector<std::shared_ptr<void>> plans;
  std::uint64_t random_start = 0, random_used = 0;
  ~Capture();
};

class ContextState : public std::enable_shared_from_this<ContextState> {
 public:
  ContextState(Device device, const ContextOptions& options);
  ~ContextState();

  Device device;
  ContextOptions options;
  int id = 0;
  std::uint64_t random_offset = 0;
  std::map<std::string, std::string, std::less<>> forced;
  /// Bumped when options that steer selection change; caches keyed by it start afresh.
  std::uint64_t selection_epoch = 0;
  bool tuning = false;

  std::shared_ptr<Backend> backend;
  std::shared_ptr<MemoryStats> stats;
  std::shared_ptr<MemoryPool> pool;
  std::unique_ptr<Capture> capture;  // while capturing
  /// Storages whose zeros are not written yet.
  std::unordered_set<Storage*> pending_zeros;

  std::string name() const;
  MemoryPool& current_pool() { return capture ? *capture->pool : *pool; }
  const std::shared_ptr<MemoryPool>& current_pool_pointer() {
    return capture ? capture->pool : pool;
  }

  /// One object of type T a context, made at first use: library handles, plan caches.
  template <class T, class... Args>
  T& extension(Args&&... args) {
    auto& slot = extensions_[std::type_index(typeid(T))];
    if (!slot) slot = std::make_shared<T>(std::forward<Args>(args)...);
    return *static_cast<T*>(slot.get());
  }

 private:
  std::unordered_map<std::type_index, std::shared_ptr<void>> extensions_;
};

/// Scratch memory for one operation, given back (in stream order) at the end of the scope.
class Scratch {
 public:
  Scratch(ContextState& state, std::size_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return block_.data; }

 private:
  std::shared_ptr<MemoryPool> pool_;
  Block block_;
};

}  // namespace zerone
