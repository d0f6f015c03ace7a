// The golden files of tests/reference.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <zerone/core/npy.h>
#include <zerone/core/tensor.h>

#include "support/compare.h"

namespace zerone::test {

inline std::string data_path(const std::string& name) {
  return std::string(ZERONE_TEST_DATA) + "/" + name;
}

inline Shape shape_of(const nlohmann::json& sizes) {
  const auto values = sizes.get<std::vector<std::int64_t>>();
  return Shape(std::span<const std::int64_t>(values));
}

/// One group: its cases, and the arrays that they point into.
class Golden {
 public:
  explicit Golden(const std::string& group) : group_(group) {
    std::ifstream file(data_path("reference/" + group + ".json"));
    if (!file) throw std::runtime_error("cannot read the golden file of " + group);
    document_ = nlohmann::json::parse(file);
  }

  const nlohmann::json& cases() const { return document_["cases"]; }
  const nlohmann::json& find(const std::string& name) const {
    for (const auto& entry : cases())
      if (entry["name"] == name) return entry;
    throw std::runtime_error("no golden case " + name);
  }

  static bool has(const nlohmann::json& entry, const char* name) {
    return entry["tensors"].contains(name);
  }
  static Shape shape(const nlohmann::json& entry, const std::string& name) {
    return shape_of(entry["tensors"][name]["shape"]);
  }
  std::vector<double> values(const nlohmann::json& entry, const std::string& name) {
    const auto& place = entry["tensors"][name];
    const std::vector<double>& all = array(place.value("file", group_ + ".npy"));
    const auto offset = place["offset"].get<std::ptrdiff_t>();
    const auto count = static_cast<std::ptrdiff_t>(shape(entry, name).numel());
    return {all.begin() + offset, all.begin() + offset + count};
  }
  Tensor tensor(const Context& context, const nlohmann::json& entry, const std::string& name,
                DType dtype = DType::f64) {
    return make_tensor(context, shape(entry, name), values(entry, name), dtype);
  }

 private:
  const std::vector<double>& array(const std::string& file) {
    std::vector<double>& values = arrays_[file];
    if (values.empty()) values = values_of(load_npy(Context(), data_path("reference/" + file)));
    return values;
  }

  std::string group_;
  nlohmann::json document_;
  std::map<std::string, std::vector<double>> arrays_;
};

/// The generated tensors of tests/reference/README.md.
inline std::uint32_t mix(std::uint32_t stream, std::uint32_t i) {
  std::uint32_t z = stream * 0x9e3779b9u + i;
  z = (z ^ (z >> 16)) * 0x85ebca6bu;
  z = (z ^ (z >> 13)) * 0xc2b2ae35u;
  return z ^ (z >> 16);
}

inline Tensor generated(const Context& context, const nlohmann::json& entry,
                        const std::string& name, DType dtype) {
  const auto& rule = entry["generated"][name];
  const Shape shape = shape_of(rule["shape"]);
  const auto stream = rule["stream"].get<std::uint32_t>();
  const auto scale = rule["scale"].get<double>();
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto steps = static_cast<int>(mix(stream, static_cast<std::uint32_t>(i)) % 257) - 128;
    values[i] = steps / 128.0 * scale;
  }
  return make_tensor(context, shape, values, dtype);
}

}  // namespace zerone::test
