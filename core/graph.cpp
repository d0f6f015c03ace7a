#include <zerone/core/graph.h>

#include <fmt/format.h>
#include <atomic>
#include <utility>

#include <zerone/core/context_state.h>
#include <zerone/core/error.h>
#include <zerone/core/storage.h>

namespace zerone {

struct Graph::Impl {
  Context context;
  std::unique_ptr<Capture> capture;
  std::shared_ptr<void> executable;
};

Graph Graph::capture(const Context& context, const std::function<void()>& work) {
  ContextState& state = context.state();
  if (state.capture) throw GraphError(fmt::format("[graph] {} is capturing already", state.name()));
  while (!state.pending_zeros.empty()) (*state.pending_zeros.begin())->materialize();

  auto impl = std::make_shared<Impl>(Impl{context, nullptr, nullptr});
  state.backend->begin_capture();
  state.capture = std::make_unique<Capture>();
  static std::atomic<std::uint64_t> captures{0};
  state.capture->id = ++captures;
  state.capture->pool = std::make_shared<MemoryPool>(state.backend, state.stats);
  state.capture->random_start = state.random_offset;
  try {
    work();
    while (!state.pending_zeros.empty()) (*state.pending_zeros.begin())->materialize();
    Capture& capture = *state.capture;
    for (const auto& [storage, version] : capture.frozen)
      if (const auto it = capture.written.find(storage.get());
          it != capture.written.end() && it->second.lock() == storage)
        throw GraphError(
            "[graph] the work writes a weight whose zeros it skips; give the parameter a mask, or "
            "set ZeroSkip::off for the capture");
    capture.random_used = state.random_offset - capture.random_start;
    state.random_offset = capture.random_start;  // nothing was drawn yet
    impl->executable = state.backend->end_capture(true);
    impl->capture = std::move(state.capture);
  } catch (...) {
    state.random_offset = state.capture ? state.capture->random_start : state.random_offset;
    try {
      (void)state.backend->end_capture(false);
    } catch (const Error&) {
    }
    state.capture.reset();
    throw;
  }
  Graph graph;
  graph.impl_ = std::move(impl);
  return graph;
}

void Graph::replay() {
  if (!impl_) throw GraphError("[graph] replay of an empty graph");
  ContextState& state = impl_->context.state();
  if (state.capture) throw GraphError("[graph] replay inside a capture");
  Capture& capture = *impl_->capture;
  for (const auto& [storage, version] : capture.frozen)
    if (storage->version() != version)
      throw GraphError(
          "[graph] a weight changed whose zeros were skipped at capture; capture again, or set "
          "ZeroSkip::off for the capture");
  state.backend->replay(impl_->executable.get(), capture.random_used > 0, state.random_offset);
  state.random_offset += capture.random_used;
  for (const auto& [key, storage] : capture.written)
    if (const auto alive = storage.lock()) ++alive->version_;
}

}  // namespace zerone
