#include <fmt/format.h>
#include <ostream>

#include <zerone/core/tensor.h>

namespace zerone {
namespace {

constexpr std::int64_t edge = 3;        // values shown at each end of a long axis
constexpr std::int64_t long_axis = 12;  // an axis longer than this is shortened

void print_axis(std::ostream& out, const Tensor& x, const std::vector<double>& values, int axis,
                std::int64_t offset, int indent) {
  if (axis == x.rank()) {
    out << fmt::format("{:.6g}", values[static_cast<std::size_t>(offset)]);
    return;
  }
  std::int64_t block = 1;
  for (int i = axis + 1; i < x.rank(); ++i) block *= x.size(i);
  const std::int64_t size = x.size(axis);
  const bool last = axis + 1 == x.rank();
  out << '[';
  for (std::int64_t i = 0; i < size; ++i) {
    if (i > 0) out << (last ? ", " : ",\n" + std::string(static_cast<std::size_t>(indent), ' '));
    if (size > long_axis && i == edge) {
      out << "...";
      i = size - edge - 1;
      continue;
    }
    print_axis(out, x, values, axis + 1, offset + i * block, indent + 1);
  }
  out << ']';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
  out << "Tensor(" << describe(x);
  if (x.defined() && x.numel() > 0) {
    const auto values = x.to(DType::f64).to_vector<double>();
    out << ",\n ";
    print_axis(out, x, values, 0, 0, 2);
  }
  return out << ')';
}

}  // namespace zerone
