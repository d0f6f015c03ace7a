// What a factory of the vendor rows returns.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace zerone::vendor {

/// A built object, or the reason why there is none. The reason is a sentence that an `explain` may
/// print as it stands.
template <class T>
struct [[nodiscard]] Built {
  std::unique_ptr<T> value;
  std::string reason;

  Built(std::unique_ptr<T> built) : value(std::move(built)) {}
  Built(std::string why) : reason(std::move(why)) {}

  explicit operator bool() const { return value != nullptr; }
  T* operator->() const { return value.get(); }
  T& operator*() const { return *value; }
};

}  // namespace zerone::vendor
