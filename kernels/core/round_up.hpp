/// Division and rounding up to whole pieces; for the host, and for devices, which call constexpr functions too.
#pragma once

#include <type_traits>

namespace tessera::kernels {

/// n / piece, rounded up; at most 0 for a negative n. n + piece - 1 must fit the wider type.
template <class Integer, class Piece>
constexpr std::common_type_t<Integer, Piece> ceil_div(Integer n, Piece piece) {
  static_assert(std::is_signed_v<Integer> == std::is_signed_v<Piece>);
  return (n + (piece - 1)) / piece;  // n + piece alone may not fit
}

/// The smallest multiple of `multiple` that is at least `n`; neither is negative.
template <class Integer>
constexpr Integer round_up(Integer n, Integer multiple) {
  return ceil_div(n, multiple) * multiple;
}

}  // namespace tessera::kernels
