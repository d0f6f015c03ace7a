#include <zerone/ops/vendor/handles.h>

#include <fmt/format.h>

#include <zerone/core/cuda_context.h>

namespace zerone::vendor {
namespace {

template <class Handle>
struct Slot {
  bool tried = false;
  std::unique_ptr<Handle> handle;
  std::string reason;
};

template <class Handle, class Create>
Handle* get(ContextState& state, std::string& reason, Create&& create) {
  auto& slot = state.extension<Slot<Handle>>();
  if (!slot.tried) {
    state.backend->activate();
    Built<Handle> built = create();
    slot.handle = std::move(built.value);
    slot.reason = std::move(built.reason);
    slot.tried = true;
  }
  if (!slot.handle) reason = slot.reason;
  return slot.handle.get();
}

}  // namespace

CudnnHandle* cudnn_handle(ContextState& state, std::string& reason) {
  return get<CudnnHandle>(state, reason, [&] { return CudnnHandle::create(cuda_stream(state)); });
}

CublasHandles* cublas_handles(ContextState& state, std::string& reason) {
  return get<CublasHandles>(state, reason,
                            [&] { return CublasHandles::create(cuda_stream(state), nullptr, 0); });
}

std::string cuda_library_versions() {
  int runtime = 0, driver = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaDriverGetVersion(&driver);
  (void)load_cudnn();
  const std::size_t cublas = cublasLtGetVersion();
  return fmt::format("CUDA runtime {}.{}, driver {}.{}, cuDNN {}, cuBLAS {}.{}.{}", runtime / 1000,
                     runtime % 1000 / 10, driver / 1000, driver % 1000 / 10, cudnn_version_text(),
                     cublas / 10000, cublas / 100 % 100, cublas % 100);
}

}  // namespace zerone::vendor
