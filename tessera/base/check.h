// Assertions about the program itself. A failed check is a programmer's error: it prints where and why, and aborts, in
// every build. Bad input is never a check: it is a Status (status.h).
//
// This header is C++20, so that device code may include it.
#pragma once

#include <string>

namespace tessera::base {

// Logs "check failed: <expression> at <file>:<line>: <message>" to standard error and aborts.
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& message = {});

}  // namespace tessera::base

// TESSERA_CHECK(condition) or TESSERA_CHECK(condition, std::string message); the message is evaluated only on failure.
#define TESSERA_CHECK(condition, ...)                                                           \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::tessera::base::check_failed(#condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
