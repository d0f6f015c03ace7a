#include <zerone/core/memory_pool.h>

#include <fmt/format.h>
#include <algorithm>
#include <bit>

#include <zerone/core/error.h>

namespace zerone {
namespace {

// Eight classes a doubling, from 512 bytes: class 8*e + m holds blocks of 2^e * (8 + m) / 8 bytes.
constexpr std::size_t min_bytes = 512;
constexpr int classes = 64 * 8;

int size_class(std::size_t bytes) {
  bytes = std::max(bytes, min_bytes);
  const int exponent = std::bit_width(bytes) - 1;
  const std::size_t step = std::size_t{1} << (exponent - 3);
  const std::size_t steps = (bytes - (std::size_t{1} << exponent) + step - 1) / step;  // 0..8
  return exponent * 8 + static_cast<int>(steps);
}

std::size_t class_bytes(int index) {
  const int exponent = index / 8;
  return (std::size_t{1} << exponent) + (index % 8) * (std::size_t{1} << (exponent - 3));
}

}  // namespace

MemoryPool::MemoryPool(std::shared_ptr<Backend> backend, std::shared_ptr<MemoryStats> stats)
    : backend_(std::move(backend)), stats_(std::move(stats)), free_(classes) {}

MemoryPool::~MemoryPool() {
  for (Deferred& deferred : deferred_) put_back(deferred.block);  // deallocate waits for the device
  deferred_.clear();
  empty_cache();
}

Block MemoryPool::allocate(std::size_t bytes) {
  if (!deferred_.empty()) collect_deferred();
  if (bytes > (std::size_t{1} << 62))
    throw OutOfMemoryError(fmt::format("[allocate] {} bytes asked for", bytes), bytes);
  const int index = size_class(bytes);
  const std::size_t rounded = class_bytes(index);
  std::vector<void*>& list = free_[index];
  void* data = nullptr;
  if (!list.empty()) {
    data = list.back();
    list.pop_back();
  } else {
    data = backend_->allocate(rounded);
    ++stats_->driver_calls;
    if (!data) {
      empty_cache();
      data = backend_->allocate(rounded);
      ++stats_->driver_calls;
    }
    if (!data)
      throw OutOfMemoryError(
          fmt::format("[allocate] out of memory: {} bytes wanted, {} free on the device; this "
                      "context holds {} live and {} reserved bytes",
                      rounded, backend_->free_memory(), stats_->live, stats_->reserved),
          rounded);
    stats_->reserved += rounded;
  }
  stats_->live += rounded;
  stats_->peak_live = std::max(stats_->peak_live, stats_->live);
  return {data, rounded};
}

void MemoryPool::put_back(Block block) noexcept {
  free_[size_class(block.bytes)].push_back(block.data);
}

void MemoryPool::release(Block block, std::vector<Event> foreign_uses) noexcept {
  stats_->live -= block.bytes;
  if (foreign_uses.empty())
    put_back(block);
  else
    deferred_.push_back({block, std::move(foreign_uses)});
}

void MemoryPool::collect_deferred() noexcept {
  std::erase_if(deferred_, [this](const Deferred& deferred) {
    for (const Event& event : deferred.events)
      if (!backend_->finished(event)) return false;
    put_back(deferred.block);
    return true;
  });
}

void MemoryPool::empty_cache() noexcept {
  for (int index = 0; index < classes; ++index) {
    for (void* data : free_[index]) {
      backend_->deallocate(data);
      ++stats_->driver_calls;
      stats_->reserved -= class_bytes(index);
    }
    free_[index].clear();
  }
}

}  // namespace zerone
