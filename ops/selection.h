// Which implementation of an operation runs, and why.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <zerone/core/context.h>

namespace zerone {

/// One implementation that was looked at.
struct Candidate {
  std::string name;         ///< "cuda.cudnn"
  std::string reason;       ///< why it did not run; empty for the one that did
  double microseconds = 0;  ///< measured by tune(); 0 if it was not timed
};

/// One operation that ran.
struct Explanation {
  std::string op;       ///< "conv2d.forward"
  std::string problem;  ///< sizes, layout, types, parameters
  std::string chosen;   ///< name of the implementation that ran
  std::string detail;   ///< what it says of itself, e.g. a library's engine
  std::size_t scratch_bytes = 0;
  std::size_t copied_bytes = 0;  ///< bytes re-laid out before it could run; 0 for every shipped row
  bool tuned = false;
  std::vector<Candidate> candidates;  ///< in the order in which they were considered
};

std::string to_string(const Explanation&);  ///< a few lines, for people

/// Runs `work` and tells, for each operation with a choice of implementations, what ran and why.
/// @code
/// const Tensor x = Tensor::normal(context, {2, 8, 6, 6}), w = Tensor::normal(context, {8, 8, 3,
/// 3}); std::string text; for (const Explanation& e : explain(context, [&] { conv2d(x, w); })) text
/// += to_string(e);
/// @endcode
std::vector<Explanation> explain(const Context&, const std::function<void()>& work);

/// Runs `work`, timing every implementation that accepts each new problem (library plans
/// included), and pins the fastest. Changes no result beyond rounding: on a GPU, an f32 or f64
/// convolution or pointwise result is compared with the reference row's first, and one that is
/// wrong is never pinned. Reference implementations are not timed. Outputs are written several
/// times; accumulating work should not be tuned.
void tune(const Context&, const std::function<void()>& work);

/// Writes what was chosen in this context, tuned or not, as JSON, keyed by device and library
/// versions. Throws FileError.
void save_plans(const Context&, const std::string& path);
/// Makes later selections follow a file of save_plans. Throws FileError if it cannot be read or
/// was made on another device or with other library versions.
void load_plans(const Context&, const std::string& path);

/// Versions of what the implementations on a device call: "CUDA runtime 13.0, driver 13.0, cuDNN
/// 9.19.0, cuBLAS 13.1", or the CPU libraries.
std::string library_versions(const Device&);

}  // namespace zerone
