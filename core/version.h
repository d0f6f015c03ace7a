// zerone's own version.
#pragma once

#define ZERONE_VERSION_MAJOR 0
#define ZERONE_VERSION_MINOR 1
#define ZERONE_VERSION_PATCH 0

namespace zerone {

/// "0.1.0"
inline const char* version() {
  return "0.1.0";
}

}  // namespace zerone
