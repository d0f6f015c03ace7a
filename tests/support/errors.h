// What errors say.
#pragma once

#include <exception>
#include <initializer_list>
#include <string>

#include <gtest/gtest.h>

namespace zerone::test {

/// The message of the E that `body` throws; empty, with a failure, if it throws nothing or another.
template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline void expect_contains(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is missing in: " << text;
}

}  // namespace zerone::test
