#include <zerone/ops/nn/checkpoint.h>

#include <fmt/format.h>
#include <set>
#include <string_view>
#include <utility>

#include <zerone/core/error.h>
#include <zerone/ops/nn/optimizer.h>

namespace zerone::nn {
namespace {

constexpr std::string_view optimizer_prefix = "optimizer/";  // no path name has a slash

/// PyTorch's batch normalization counts its batches; nothing here depends on it.
constexpr std::string_view pytorch_counter = "num_batches_tracked";

std::string mask_name(const Parameter& parameter) {
  return parameter.name() + ".mask";
}

std::vector<NamedTensor> tensors_of(const Module& module, bool masks) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : module.parameters()) {
    tensors.push_back({parameter.name(), parameter.value()});
    if (masks && parameter.mask().defined())
      tensors.push_back({mask_name(parameter), parameter.mask()});
  }
  for (NamedTensor& buffer : module.buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

std::vector<NamedTensor> tensors_of(const Optimizer& optimizer) {
  std::vector<NamedTensor> tensors = optimizer.state();
  for (NamedTensor& tensor : tensors) tensor.name.insert(0, optimizer_prefix);
  return tensors;
}

/// What a file has beside what is wanted of it; all differences are found before any is reported.
class Comparison {
 public:
  explicit Comparison(const SafetensorsFile& file) : file_(file) {}

  void expect(const std::string& name, const Tensor& tensor) {
    if (!compare(name, tensor.shape(), tensor.dtype())) missing.push_back(name);
  }
  void expect(const Module& module) {
    for (const Parameter& parameter : module.parameters()) {
      expect(parameter.name(), parameter.value());
      compare(mask_name(parameter), parameter.value().shape(), DType::u8);
    }
    for (const NamedTensor& buffer : module.buffers()) expect(buffer.name, buffer.tensor);
  }

  /// To be called once, after all the expectations.
  void finish(const char* op, bool strict, std::string_view skipped_prefix = {}) {
    for (const auto& [name, entry] : file_.entries())
      if (!expected_.contains(name) && !name.ends_with(pytorch_counter) &&
          (skipped_prefix.empty() || !name.starts_with(skipped_prefix)))
        unexpected.push_back(name);
    std::string faults;
    const auto list = [&faults](const char* title, const std::vector<std::string>& items) {
      if (!items.empty()) faults += fmt::format("\n  {}: {}", title, fmt::join(items, ", "));
    };
    if (strict) list("missing", missing);
    if (strict) list("unexpected", unexpected);
    list("of another shape or type", misfits_);
    if (!faults.empty())
      throw FileError(
          fmt::format("[{}] {} does not fit; nothing was changed{}", op, file_.path(), faults));
  }

  std::vector<std::string> missing, unexpected;

 private:
  /// Whether the file has the name at all.
  bool compare(const std::string& name, const Shape& shape, DType dtype) {
    expected_.insert(name);
    const auto found = file_.entries().find(name);
    if (found == file_.entries().end()) return false;
    const auto& [has_dtype, has_shape, begin] = found->second;
    if (has_shape != shape || has_dtype != dtype)
      misfits_.push_back(fmt::format("'{}' is {} {}, not {} {}", name, to_string(has_dtype),
                                     to_string(has_shape), to_string(dtype), to_string(shape)));
    return true;
  }

  const SafetensorsFile& file_;
  std::set<std::string> expected_;
  std::vector<std::string> misfits_;
};

/// Copies what the file has.
void fill(const Module& module, SafetensorsFile& file) {
  for (const Parameter& parameter : module.parameters()) {
    const std::string mask = mask_name(parameter);
    if (file.entries().contains(parameter.name()))
      file.load_into(parameter.value(), parameter.name());
    if (file.entries().contains(mask))
      parameter.set_mask(file.load(parameter.value().context(), mask));
    else if (parameter.mask().defined())
      parameter.set_mask(parameter.mask());
  }
  for (const auto& [name, tensor] : module.buffers())
    if (file.entries().contains(name)) file.load_into(tensor, name);
}

}  // namespace

void save_module(const Module& module, const std::string& path, const SaveOptions& options) {
  save_safetensors(tensors_of(module, options.masks), path, options.metadata);
}

LoadReport load_module(const Module& module, const std::string& path, const LoadOptions& options) {
  SafetensorsFile file(path);
  Comparison comparison(file);
  comparison.expect(module);
  comparison.finish("load_module", options.strict, optimizer_prefix);
  fill(module, file);
  return {std::move(comparison.missing), std::move(comparison.unexpected), file.metadata()};
}

void save_checkpoint(const Module& module, const Optimizer& optimizer, const std::string& path,
                     const FileMetadata& metadata) {
  std::vector<NamedTensor> tensors = tensors_of(module, true);
  for (NamedTensor& tensor : tensors_of(optimizer)) tensors.push_back(std::move(tensor));
  save_safetensors(tensors, path, metadata);
}

FileMetadata load_checkpoint(const Module& module, Optimizer& optimizer, const std::string& path) {
  SafetensorsFile file(path);
  const std::vector<NamedTensor> state = tensors_of(optimizer);
  Comparison comparison(file);
  comparison.expect(module);
  for (const auto& [name, tensor] : state) comparison.expect(name, tensor);
  comparison.finish("load_checkpoint", true);
  fill(module, file);
  for (const auto& [name, tensor] : state) file.load_into(tensor, name);
  const std::string rate = std::string(optimizer_prefix) + "learning_rate";
  optimizer.set_learning_rate(file.load(Context(), rate).item());
  return file.metadata();
}

}  // namespace zerone::nn
