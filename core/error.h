// Error types. Every error names the operation, the sizes that clash and the call's parameters.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace zerone {

/// Base of everything zerone throws. After any error the context and the device stay usable.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Sizes, strides, axes or parameters that do not fit together.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// An element type an operation does not take.
class DTypeError : public Error {
 public:
  using Error::Error;
};

/// No such device, no usable GPU, or operands that live in different contexts.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// The device or host refused memory, after cached blocks were given back. A smaller request may
/// succeed afterwards.
class OutOfMemoryError : public Error {
 public:
  /// `bytes_wanted` is the size of the request that failed.
  OutOfMemoryError(const std::string& what, std::size_t bytes_wanted)
      : Error(what), bytes_wanted_(bytes_wanted) {}
  std::size_t bytes_wanted() const noexcept { return bytes_wanted_; }  ///< size of the request

 private:
  std::size_t bytes_wanted_;
};

/// A CUDA runtime call or a kernel launch failed.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// cuDNN, cuBLAS or another library is missing, of the wrong version, or failed.
class LibraryError : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be read or written, or whose content is malformed.
class FileError : public Error {
 public:
  using Error::Error;
};

/// Misuse of the tape: released buffers, a stale saved tensor, a Var whose tape is gone.
class AutogradError : public Error {
 public:
  using Error::Error;
};

/// A forced implementation that rejects the problem, or no such implementation.
class SelectionError : public Error {
 public:
  using Error::Error;
};

/// Misuse of graph capture and replay.
class GraphError : public Error {
 public:
  using Error::Error;
};

}  // namespace zerone
