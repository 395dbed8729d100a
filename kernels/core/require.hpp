/// Preconditions of kernels: always on; the message contains the values that disagree.
#pragma once

#include <cstddef>
#include <cstdint>
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

namespace tessera::kernels {

/// Throws std::invalid_argument, with `rule` and both shapes, unless a View's first extents are these.
template <class View, class... Extents>
void require_shape(const char* rule, const View& view, Extents... wanted) {
  std::size_t i = 0;
  if ((... && (static_cast<std::int64_t>(view.extent(i++)) == static_cast<std::int64_t>(wanted)))) return;
  std::ostringstream is, must_be;
  i = 0;
  ((is << (i > 0 ? "," : "[") << view.extent(i), must_be << (i++ > 0 ? "," : "[") << wanted), ...);
  detail::refuse(rule, "shape", is.str() + "] instead of " + must_be.str() + "]");
}

}  // namespace tessera::kernels

/// TESSERA_REQUIRE(condition, "kernel: the rule", values...): throws std::invalid_argument if the rule is broken.
#define TESSERA_REQUIRE(condition, rule, ...)                                                            \
  do {                                                                                                   \
    if (!(condition)) ::tessera::kernels::detail::refuse(rule, #__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
