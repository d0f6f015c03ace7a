#include <zerone/core/cuda_context.h>
#include <zerone/kernels/cuda/zero_skip.h>
#include <zerone/ops/weight_zeros.h>

namespace zerone {
namespace {

/// A census on its way to the host.
struct Counting {
  kernels::ZeroCensus* result = nullptr;  // pinned
  Event done;
  ContextState* state = nullptr;
  ~Counting() { (void)cudaFreeHost(result); }
};

std::shared_ptr<void> start_count(const Tensor& w, const kernels::Conv2dShape& shape) {
  ContextState& state = w.context().state();
  state.backend->activate();
  auto counting = std::make_shared<Counting>();
  counting->state = &state;
  void* pinned = nullptr;
  check_cuda(cudaMallocHost(&pinned, sizeof(kernels::ZeroCensus)), "zero census");
  counting->result = static_cast<kernels::ZeroCensus*>(pinned);
  const Scratch result(state, sizeof(kernels::ZeroCensus));
  const Scratch scratch(state, kernels::cuda::zero_census_workspace_bytes(shape));
  const cudaStream_t stream = cuda_stream(state);
  check_cuda(kernels::cuda::zero_census(shape, w.data(), w.dtype(),
                                        static_cast<kernels::ZeroCensus*>(result.data()),
                                        scratch.data(), stream),
             "zero census");
  check_cuda(cudaMemcpyAsync(counting->result, result.data(), sizeof(kernels::ZeroCensus),
                             cudaMemcpyDeviceToHost, stream),
             "zero census");
  counting->done = state.backend->record_event();
  return counting;
}

bool poll(const std::shared_ptr<void>& pending, kernels::ZeroCensus& census) {
  const auto& counting = *static_cast<const Counting*>(pending.get());
  if (!counting.state->backend->finished(counting.done)) return false;
  census = *counting.result;
  return true;
}

kernels::ZeroCensus count(const Tensor& w, const kernels::Conv2dShape& shape) {
  const auto pending = start_count(w, shape);
  w.context().synchronize();
  return *static_cast<const Counting*>(pending.get())->result;
}

}  // namespace

const WeightZerosBackend& weight_zeros_cuda() {
  static constexpr WeightZerosBackend backend{
      .count = count,
      .start_count = start_count,
      .poll = poll,
      .pack_bytes = kernels::cuda::zero_skip_pack_bytes,
      .pack = [](const kernels::Conv2dShape& shape, kernels::ZeroSkipPass pass, const Tensor& w,
                 std::int64_t nonzeros, void* pack) {
        ContextState& state = w.context().state();
        check_cuda(kernels::cuda::zero_skip_pack(shape, pass, w.data(), w.dtype(), nonzeros, pack,
                                                 cuda_stream(state)),
                   "zero_skip pack");
      }};
  return backend;
}

}  // namespace zerone
