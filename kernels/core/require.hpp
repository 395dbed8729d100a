/// Preconditions of kernels: always on; the message contains the values that disagree.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace tessera::kernels::detail {

template <class... Values>
[[noreturn]] void refuse(const char* rule, const char* names, const Values&... values) {
  std::ostringstream text;
  text << rule;
  if constexpr (sizeof...(Values) > 0) {
    text << " (" << names << " = ";
    const char* separator = "";
    ((text << separator << values, separator = ", "), ...);
    text << ')';
  }
  throw std::invalid_argument(text.str());
}

}  // namespace tessera::kernels::detail

/// TESSERA_REQUIRE(condition, "kernel: the rule", values...): throws std::invalid_argument if the rule is broken.
#define TESSERA_REQUIRE(condition, rule, ...)                                                            \
  do {                                                                                                   \
    if (!(condition)) ::tessera::kernels::detail::refuse(rule, #__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
