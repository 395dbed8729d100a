/// Sizes that must be multiples of something.
#pragma once

#include <Kokkos_Macros.hpp>

namespace tessera::kernels {

/// The least multiple of `multiple` that is not below `n`; neither is negative.
template <class Integer>
KOKKOS_INLINE_FUNCTION constexpr Integer round_up(Integer n, Integer multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace tessera::kernels
