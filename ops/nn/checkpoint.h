// Modules and training states in safetensors files.
#pragma once

#include <string>
#include <vector>

#include <zerone/core/safetensors.h>
#include <zerone/ops/nn/module.h>

namespace zerone::nn {

class Optimizer;

/// What goes into a file besides parameters and buffers.
struct SaveOptions {
  /// Also each parameter's mask, as a u8 tensor "<name>.mask".
  bool masks = true;
  FileMetadata metadata = {};
};

/// Writes all parameters and buffers under their path names, "0.weight", which are PyTorch's for an
/// equal nn.Sequential. Errors as save_safetensors'; like there, the old file stays if there is
/// one.
/// @code
/// nn::Linear layer(context, {.in_features = 4, .out_features = 2});
/// nn::save_module(layer, "example.safetensors");
/// nn::Linear other(context, {.in_features = 4, .out_features = 2});
/// nn::load_module(other, "example.safetensors");
/// @endcode
void save_module(const Module&, const std::string& path, const SaveOptions& = {});

/// What a file may lack.
struct LoadOptions {
  /// Missing and unexpected names are errors. If not, what is missing keeps its values and what is
  /// unexpected is ignored; shapes and types must fit all the same.
  bool strict = true;
};

/// What did not match, and the metadata.
struct LoadReport {
  std::vector<std::string> missing;     ///< names of the module that the file lacks
  std::vector<std::string> unexpected;  ///< names of the file that the module lacks
  FileMetadata metadata;
};

/// Copies a file's values into the existing tensors, on whatever device they are and however they
/// lie. Names, shapes and types are compared before the first value changes, and one FileError
/// lists every difference. (Only a disk that fails half-way leaves some values new and some old.)
///
/// A tensor "<name>.mask" becomes the mask of its parameter; a file without it leaves the
/// parameter's mask in force. Values outside the mask become 0, as they do whenever a mask is set.
/// A checkpoint serves as well: its optimizer is skipped, as is PyTorch's "num_batches_tracked".
LoadReport load_module(const Module&, const std::string& path, const LoadOptions& = {});

/// save_module, masks included, and the optimizer's state() under "optimizer/<name>": all that a
/// training needs to go on and be equal bit for bit, apart from random numbers.
void save_checkpoint(const Module&, const Optimizer&, const std::string& path,
                     const FileMetadata& metadata = {});

/// Fills module and optimizer in place as a strict load_module does, one FileError for both, and
/// returns the metadata. The optimizer is of the kind that was saved, over the same parameters; it
/// takes its learning rate from the file.
FileMetadata load_checkpoint(const Module&, Optimizer&, const std::string& path);

}  // namespace zerone::nn
