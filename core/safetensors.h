// Safetensors files: named tensors behind a JSON header, the format that PyTorch models are
// exchanged in.
//
//   8 bytes   length of the header, little-endian
//   header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...},
//             and "__metadata__": {"key": "text", ...} if there is any
//   data      each tensor's elements, little-endian and row-major
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <zerone/core/tensor.h>

namespace zerone {

/// A tensor and what a file calls it.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// Free text that a file carries beside its tensors.
using FileMetadata = std::map<std::string, std::string>;

/// A file that is open for reading, its header read and checked: which tensors it holds is known
/// before any of them is loaded. One thread at a time.
class SafetensorsFile {
 public:
  /// A tensor of the file, not loaded.
  struct Entry {
    DType dtype{};
    Shape shape;
    std::uint64_t begin = 0;  // byte of the file
  };

  /// Throws FileError, which names the file and, where one is at fault, the tensor, unless
  ///   * the header is at most 100 MB and the JSON above, with no member more and no name twice;
  ///   * element types are F64, F32, BF16, F16, I64 or U8, and ranks at most 8;
  ///   * each tensor takes as many bytes as its shape and type say, and the tensors cover the data
  ///     without hole or overlap: a file that was cut short is noticed here.
  /// Memory is taken for the header only, and only if the file is as long as it claims.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }  ///< as given
  /// By name.
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  const FileMetadata& metadata() const { return metadata_; }  ///< empty if the file has none

  /// A row-major tensor on the context's device. FileError if there is no such name. The file's
  /// bytes pass through a small buffer on their way to a GPU and through none to the CPU.
  Tensor load(const Context&, std::string_view name);
  /// Overwrites `target`, of any strides; ShapeError or DTypeError unless shape and type are the
  /// file's. If reading fails half-way, what `target` holds is undefined.
  void load_into(Tensor target, std::string_view name);

 private:
  [[noreturn]] void fail(const std::string& what) const;
  const Entry& entry(std::string_view name) const;
  void read(Tensor& target, const Entry&, std::string_view name);

  std::string path_;
  std::ifstream file_;
  std::map<std::string, Entry, std::less<>> entries_;
  FileMetadata metadata_;
};

/// All tensors of a file, by name; errors as SafetensorsFile's.
std::vector<NamedTensor> load_safetensors(const Context&, const std::string& path);

/// Writes tensors of any device and strides. The bytes are those of the format's reference writer:
/// the header padded with spaces to a multiple of 8, tensors by falling alignment (I64, F64, F32,
/// BF16, F16, U8) and then by name, so that each lies aligned. The file appears under its name, on
/// the disk and whole, or not at all: an error leaves what was there before. Throws FileError, also
/// for a name that is listed twice, reserved ("__metadata__") or not UTF-8, and for an undefined
/// tensor.
/// @code
/// const NamedTensor saved[] = {{"weight", Tensor::normal(context, {4, 3})}};
/// save_safetensors(saved, "example.safetensors", {{"made by", "zerone"}});
/// SafetensorsFile file("example.safetensors");
/// const Tensor weight = file.load(context, "weight");
/// @endcode
void save_safetensors(std::span<const NamedTensor> tensors, const std::string& path,
                      const FileMetadata& metadata = {});

}  // namespace zerone
