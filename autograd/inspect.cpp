#include <zerone/autograd/inspect.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_set>

#include <zerone/core/error.h>

namespace zerone {
namespace {

int count_of(const Tape& tape) {
  return static_cast<int>(tape.size());
}

/// What the entries are called: parameters by their names.
std::vector<std::string> names_of(const Tape& tape) {
  std::vector<std::string> names;
  for (int i = 0; i < count_of(tape); ++i) names.emplace_back(tape.entry(i).op);
  for (const auto& [index, parameter] : tape.parameters())
    if (index >= 0)
      names[static_cast<std::size_t>(index)] =
          parameter.name().empty() ? "parameter" : parameter.name();
  return names;
}

/// As it may stand between quotes in Graphviz' language.
std::string quoted(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string kept_by(const Tape& tape, const ActivationMemory& memory, int index) {
  const Tape::Entry& entry = tape.entry(index);
  if (!entry.node) return entry.leaf ? "" : "released";
  return fmt::format("{}", memory.entries[static_cast<std::size_t>(index)]);
}

/// Bits of the exponent of a float type; all are set in infinities and NaN alone.
std::uint64_t exponent_bits(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x7FF0000000000000u;
    case DType::f32: return 0x7F800000u;
    case DType::bf16: return 0x7F80u;
    case DType::f16: return 0x7C00u;
    default: return 0;
  }
}

/// Row-major position of the first element that is not finite; -1 if there is none.
template <class Bits>
std::int64_t find(const void* data, std::int64_t count, DType dtype, NonFinite what) {
  const auto exponent = static_cast<Bits>(exponent_bits(dtype));
  const auto magnitude = static_cast<Bits>(~Bits{0} >> 1);
  const Bits* const begin = static_cast<const Bits*>(data);
  const Bits* const end = begin + count;
  const Bits* const found = std::find_if(begin, end, [&](Bits bits) {
    const auto size = static_cast<Bits>(bits & magnitude);
    return what == NonFinite::nan ? size > exponent : size >= exponent;
  });
  return found == end ? -1 : found - begin;
}

class NanFinder final : public TapeObserver {
 public:
  NanFinder(const Tape& tape, NonFinite what) : tape_(tape), what_(what) {}

  void recorded(int index, const char* op, const Tensor& value) override {
    if (const std::string fault = describe_fault(value); !fault.empty())
      throw AutogradError(fmt::format("[find_nan] forward: entry {} ({}) is {}: {}", index, op,
                                      describe(value), fault));
  }

  void contributed(int from, int to, const Tensor& sum) override {
    const std::string fault = describe_fault(sum);
    if (fault.empty()) return;
    const std::string maker =
        from < 0 ? "the seed" : fmt::format("entry {} ({})", from, tape_.entry(from).op);
    throw AutogradError(
        fmt::format("[find_nan] backward: {} made the gradient of entry {} ({}) {}: {}", maker, to,
                    tape_.entry(to).op, describe(sum), fault));
  }

 private:
  /// Empty if all is well.
  std::string describe_fault(const Tensor& x) const {
    if (!is_floating(x.dtype()) || x.known_zero()) return {};
    const Tensor values = x.to(host_).contiguous();
    const void* const data = values.data();
    const std::int64_t count = values.numel();
    std::int64_t at = -1;
    switch (size_of(x.dtype())) {
      case 8: at = find<std::uint64_t>(data, count, x.dtype(), what_); break;
      case 4: at = find<std::uint32_t>(data, count, x.dtype(), what_); break;
      default: at = find<std::uint16_t>(data, count, x.dtype(), what_); break;
    }
    if (at < 0) return {};
    std::vector<std::int64_t> place(static_cast<std::size_t>(x.rank()));
    Tensor element = values;
    std::int64_t rest = at;
    for (int axis = x.rank() - 1; axis >= 0; --axis) {
      const std::int64_t i = rest % x.size(axis);
      place[static_cast<std::size_t>(axis)] = i;
      element = element.slice(axis, i, i + 1);
      rest /= x.size(axis);
    }
    return fmt::format("element [{}] is {}", fmt::join(place, ", "), element.item());
  }

  const Tape& tape_;
  NonFinite what_;
  Context host_{Device::cpu()};
};

}  // namespace

ActivationMemory activation_memory(const Tape& tape) {
  std::unordered_set<const Storage*> counted;
  for (const auto& [index, parameter] : tape.parameters())
    counted.insert(&parameter.value().storage());
  ActivationMemory memory;
  memory.entries.assign(tape.size(), 0);
  for (int i = 0; i < count_of(tape); ++i) {
    if (!tape.entry(i).node) continue;
    std::size_t& bytes = memory.entries[static_cast<std::size_t>(i)];
    tape.entry(i).node->for_each_saved([&](const Tensor& kept) {
      const Storage& storage = kept.storage();
      if (!storage.zero_pending() && counted.insert(&storage).second) bytes += storage.bytes();
    });
    memory.total += bytes;
  }
  return memory;
}

std::string to_string(const Tape& tape) {
  const std::vector<std::string> names = names_of(tape);
  const ActivationMemory memory = activation_memory(tape);
  std::vector<std::array<std::string, 6>> rows{
      {"entry", "op", "inputs", "shape", "type", "bytes kept"}};
  for (int i = 0; i < count_of(tape); ++i) {
    const Tape::Entry& entry = tape.entry(i);
    std::vector<std::string> inputs;
    for (const int input : tape.inputs(i))
      inputs.push_back(input < 0 ? "-" : std::to_string(input));
    rows.push_back({std::to_string(i), names[static_cast<std::size_t>(i)],
                    fmt::format("{}", fmt::join(inputs, " ")), to_string(entry.shape),
                    to_string(entry.dtype), kept_by(tape, memory, i)});
  }
  std::array<std::size_t, 6> widths{};
  for (const auto& row : rows)
    for (std::size_t k = 0; k < row.size(); ++k) widths[k] = std::max(widths[k], row[k].size());
  std::string text;
  for (const auto& row : rows)
    text += fmt::format("{:>{}}  {:<{}}  {:<{}}  {:<{}}  {:<{}}  {:>{}}\n", row[0], widths[0],
                        row[1], widths[1], row[2], widths[2], row[3], widths[3], row[4], widths[4],
                        row[5], widths[5]);
  return text + fmt::format("{} entries keep {} bytes\n", tape.size(), memory.total);
}

std::string to_dot(const Tape& tape) {
  const std::vector<std::string> names = names_of(tape);
  const ActivationMemory memory = activation_memory(tape);
  std::string text = "digraph tape {\n  node [shape=box];\n";
  for (int i = 0; i < count_of(tape); ++i) {
    const Tape::Entry& entry = tape.entry(i);
    std::string label = fmt::format("{} {}\\n{} {}", i, quoted(names[static_cast<std::size_t>(i)]),
                                    to_string(entry.dtype), to_string(entry.shape));
    if (!entry.leaf)
      label += fmt::format("\\n{}{}", kept_by(tape, memory, i), entry.node ? " bytes" : "");
    text += fmt::format("  n{} [label=\"{}\"{}];\n", i, label,
                        entry.leaf ? ", style=filled, fillcolor=lightgray" : "");
    for (const int input : tape.inputs(i))
      if (input >= 0) text += fmt::format("  n{} -> n{};\n", input, i);
  }
  return text + "}\n";
}

void find_nan(Tape& tape, NonFinite what) {
  tape.observe(std::make_unique<NanFinder>(tape, what));
}

}  // namespace zerone
