// CUDA graphs: record a piece of work once, replay it with one launch.
#pragma once

#include <functional>
#include <memory>

#include <zerone/core/context.h>

namespace zerone {

/// Work captured on a CUDA context.
///
/// Graph::capture runs `work` once without executing anything on the device: tensors it makes get
/// their content at each replay(). Memory allocated meanwhile belongs to the graph and stays put.
/// Whatever the captured work reads from outside is kept alive. New inputs are given by copy_ into
/// the captured tensors; another shape is an error there.
///
/// Operations must have chosen their implementations before capture (run the work once eagerly);
/// otherwise the capture ends with an error that names the operation. Random numbers drawn in the
/// graph are new at each replay: a replay advances the context's stream as the eager work would.
///
/// A replay bumps the version of every storage that the graph writes. A graph whose implementation
/// was specialized to a weight's zeros refuses to replay (GraphError) once that weight was written.
class Graph {
 public:
  Graph() = default;
  /// Captures what `work` enqueues on a CUDA context. Throws GraphError, and leaves the context as
  /// it was, where something cannot be captured (a CPU context, a wait, an operation not run
  /// before).
  static Graph capture(const Context& context, const std::function<void()>& work);

  /// Enqueues the captured work on the context's stream.
  void replay();
  bool defined() const noexcept { return impl_ != nullptr; }  ///< whether it holds a capture

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace zerone
