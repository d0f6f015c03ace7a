// Looks at a tape: what stands on it, what it keeps in memory, and where values stop being finite.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <zerone/autograd/tape.h>

namespace zerone {

/// Memory held for the backward pass, in bytes. A storage counts whole, however small the view of
/// it that is kept, and once: at the first entry that keeps it, so the entries add up to the total.
/// Parameters' values do not count, nor known zeros that are not in memory yet, nor what backward
/// has released.
struct ActivationMemory {
  std::vector<std::size_t> entries;  ///< as many as tape.size()
  std::size_t total = 0;
};
/// What the tape keeps by now.
ActivationMemory activation_memory(const Tape& tape);

/// A table with a line an entry, in the order of execution: index, operation ("leaf", or the name
/// of the parameter), inputs (- where no gradient is wanted), shape, type and the bytes it keeps as
/// activation_memory() counts them, "released" once backward has dropped them.
std::string to_string(const Tape& tape);
/// The same as a graph in Graphviz' language: dot -Tsvg.
std::string to_dot(const Tape& tape);

/// What counts as a fault.
enum class NonFinite {
  nan,  ///< NaN alone: for networks that use infinities
  nan_or_inf
};

/// From here on throws AutogradError as soon as an entry of the tape is not finite: forward, naming
/// the entry that is about to be recorded, in the order of execution; backward, in reverse, naming
/// the entry whose gradient function made the value and the input it made it for. Index, operation,
/// shape, type and the first such element are told. Each value is copied to the host: for finding
/// faults, not inside a graph capture. A tape without it does no work for it.
/// @code
/// Tape tape;
/// find_nan(tape);
/// const Var x = tape.leaf(Tensor::full(context, {2}, 4));
/// try {
///   log(x - 4.5);  // AutogradError: entry 2, log
/// } catch (const AutogradError& error) {
///   const std::string what = error.what();
/// }
/// const std::size_t bytes = activation_memory(tape).total;
/// @endcode
void find_nan(Tape& tape, NonFinite what = NonFinite::nan_or_inf);

}  // namespace zerone
