// Caching, stream-ordered memory. Internal.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <zerone/core/backend.h>
#include <zerone/core/context.h>

namespace zerone {

struct Block {
  void* data = nullptr;
  std::size_t bytes = 0;  // rounded up to its size class
};

/// Blocks of one context. A freed block is handed out again at once: everything in a context runs
/// on its one stream, so the next user is ordered after the last. Blocks that another stream still
/// reads wait until that stream's event has passed. Sizes are rounded to eight classes a doubling
/// (at most 12.5 % waste), and a class is one free list, so steady work never asks the driver.
///
/// A captured graph has a pool of its own, alive as long as the graph or any tensor in it.
class MemoryPool {
 public:
  explicit MemoryPool(std::shared_ptr<Backend> backend, std::shared_ptr<MemoryStats> stats);
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Throws OutOfMemoryError after giving cached blocks back and trying again.
  Block allocate(std::size_t bytes);
  void release(Block block, std::vector<Event> foreign_uses) noexcept;
  void empty_cache() noexcept;

 private:
  struct Deferred {
    Block block;
    std::vector<Event> events;
  };
  void collect_deferred() noexcept;
  void put_back(Block block) noexcept;

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<MemoryStats> stats_;  // shared by all pools of a context
  std::vector<std::vector<void*>> free_;
  std::vector<Deferred> deferred_;
};

}  // namespace zerone
