#include <zerone/core/context.h>

#include <fmt/format.h>
#include <atomic>
#include <set>

#include <zerone/core/context_state.h>
#include <zerone/core/error.h>
#include <zerone/core/storage.h>
#include <zerone/kernels/cpu/threads.h>

namespace zerone {

std::string to_string(DeviceType type) {
  return type == DeviceType::cuda ? "cuda" : "cpu";
}

std::string to_string(Device device) {
  return device.is_cuda() ? fmt::format("cuda:{}", device.index) : "cpu";
}

#if !ZERONE_CUDA
int cuda_device_count() {
  return 0;
}
std::string why_no_cuda() {
  return "this build of zerone has no CUDA support";
}
#endif

Capture::~Capture() {
  for (auto& [owner, block] : kept) owner->release(block, {});
}

ContextState::ContextState(Device device_, const ContextOptions& options_)
    : device(device_), options(options_), stats(std::make_shared<MemoryStats>()) {
  static std::atomic<int> next_id{0};
  id = next_id++;
  if (options.threads < 0)
    throw ShapeError(fmt::format("[context] threads = {} is negative", options.threads));
  const std::vector<int> unusable = kernels::cpu::unusable_cpus(options.affinity);
  if (!unusable.empty())
    throw DeviceError(fmt::format("[context] affinity {{{}}}: CPU {} cannot be used here",
                                  fmt::join(options.affinity, ", "), fmt::join(unusable, ", ")));
  if (options.threads == 0)
    options.threads =
        options.affinity.empty()
            ? kernels::cpu::usable_threads()
            : static_cast<int>(
                  std::set<int>(options.affinity.begin(), options.affinity.end()).size());
#if ZERONE_CUDA
  if (device.is_cuda()) backend = make_cuda_backend(*this, device.index, options.stream);
#endif
  if (!device.is_cuda()) backend = make_cpu_backend(*this);
  if (!backend)
    throw DeviceError(
        fmt::format("[context] {} cannot be used: {}", to_string(device), why_no_cuda()));
  pool = std::make_shared<MemoryPool>(backend, stats);
}

ContextState::~ContextState() = default;

std::string ContextState::name() const {
  return fmt::format("context #{} on {}", id, to_string(device));
}

const char* version() {
  return ZERONE_VERSION_STRING;
}

Context::Context(Device device, const ContextOptions& options, int version_of_headers) {
  const int compatible = ZERONE_VERSION_MAJOR > 0 ? 10000 : 100;
  if (version_of_headers / compatible != ZERONE_VERSION / compatible)
    throw LibraryError(
        fmt::format("[context] compiled with the headers of zerone {}.{}.{}, but the "
                    "library is {}",
                    version_of_headers / 10000, version_of_headers / 100 % 100,
                    version_of_headers % 100, version()));
  state_ = std::make_shared<ContextState>(device, options);
}

Device Context::device() const {
  return state_->device;
}
const ContextOptions& Context::options() const {
  return state_->options;
}
std::string Context::name() const {
  return state_->name();
}
std::string Context::device_name() const {
  return state_->backend->device_name();
}

void Context::set_math(Math math) {
  state_->options.math = math;
}

void Context::set_deterministic(bool deterministic) {
  state_->options.deterministic = deterministic;
  ++state_->selection_epoch;
}

void Context::set_zero_skip(ZeroSkip mode) {
  state_->options.zero_skip = mode;
  ++state_->selection_epoch;
}

void Context::set_zero_skip_numerics(ZeroSkipNumerics numerics) {
  state_->options.zero_skip_numerics = numerics;
  ++state_->selection_epoch;
}

void Context::set_workspace_limit(std::size_t bytes) {
  state_->options.workspace_limit = bytes;
  ++state_->selection_epoch;
}

void Context::force(std::string_view op, std::string_view row) {
  if (row.empty())
    state_->forced.erase(std::string(op));
  else
    state_->forced.insert_or_assign(std::string(op), std::string(row));
  ++state_->selection_epoch;
}

ScopedForce::ScopedForce(Context context, std::string op, std::string_view row)
    : context_(std::move(context)), op_(std::move(op)) {
  const auto& forced = context_.state().forced;
  if (const auto it = forced.find(op_); it != forced.end()) saved_ = it->second;
  context_.force(op_, row);
}

void Context::seed(std::uint64_t seed, std::uint64_t position) {
  state_->options.seed = seed;
  state_->random_offset = position;
}
std::uint64_t Context::random_position() const {
  return state_->random_offset;
}

void Context::synchronize() {
  state_->backend->synchronize();
}
MemoryStats Context::memory() const {
  return *state_->stats;
}
void Context::reset_peak_memory() {
  state_->stats->peak_live = state_->stats->live;
}

void Context::empty_cache() {
  synchronize();
  state_->pool->empty_cache();
}

Scratch::Scratch(ContextState& state, std::size_t bytes) {
  if (bytes == 0) return;
  pool_ = state.current_pool_pointer();
  block_ = pool_->allocate(bytes);
}

Scratch::~Scratch() {
  if (block_.data) pool_->release(block_, {});
}

}  // namespace zerone
