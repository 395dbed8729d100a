/// Unbiased random rounding to bfloat16, up or down: a sum that grows by less than half a unit in the last
/// place would stand still if it were rounded to nearest.
///
///   P(up) = (x - down) / (up - down)
///
/// Source  Gupta et al. 2015, arXiv:1502.02551, section 3.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// The lower 16 bits of `random` decide. Infinities and NaNs are preserved; finite numbers stay finite.
KOKKOS_INLINE_FUNCTION bfloat16 round_stochastically(float x, std::uint64_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  const std::uint32_t up = bits + static_cast<std::uint32_t>(random & 0xffffu);
  const bool overflows = (up & 0x7f800000u) == 0x7f800000u;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  bfloat16 rounded;
  rounded.bits = static_cast<std::uint16_t>(is_finite && !overflows ? up >> 16
                                            : is_nan                ? (bits >> 16) | 0x40u
                                                                    : bits >> 16);
  return rounded;
}

}  // namespace tessera::kernels
