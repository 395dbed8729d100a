/// Master weights: the weights that the optimizer updates, in fp32 (fp64) whatever the compute dtype, beside the
/// working copy that the model reads.
///
///   compute dtype   working copy   master            together
///   fp32, fp64      the weights    -                 4, 8 bytes a weight
///   fp16            rounded        fp32              6
///   bf16            upper half     lower half        4: a bfloat16 is the upper half of a float
///   bf16            the weights    none              2: updates round stochastically
///
/// A float is split so that its upper half is the nearest bfloat16 (ties away from zero) and no bit is lost:
/// bits = upper * 2^16 + lower, the lower half as a signed number.
#pragma once

#include <bit>
#include <type_traits>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Storage type of the master; for bf16 its 16 bits are not a bfloat16 but the lower half of a float.
template <class Scalar>
using MasterWord = std::conditional_t<std::is_same_v<Scalar, bfloat16>, bfloat16, Accum<Scalar>>;

struct FloatHalves {
  bfloat16 upper, lower;
};

KOKKOS_INLINE_FUNCTION FloatHalves cut(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const std::uint32_t upper = is_nan ? (bits >> 16) | 0x40u : (bits + 0x8000u) >> 16;
  FloatHalves halves;
  halves.upper.bits = static_cast<std::uint16_t>(upper);
  halves.lower.bits = static_cast<std::uint16_t>(bits - (upper << 16));
  return halves;
}

KOKKOS_INLINE_FUNCTION float join(bfloat16 upper, bfloat16 lower) {
  const auto signed_lower =
      static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<std::int16_t>(lower.bits)));
  return std::bit_cast<float>((static_cast<std::uint32_t>(upper.bits) << 16) + signed_lower);
}

template <class Exec, class Scalar>
struct MasterWeights {
  using Real = Accum<Scalar>;
  static constexpr bool kIsOneArray = std::is_same_v<Scalar, Real>;  // working copy and master are one array
  static constexpr bool kAreHalves = std::is_same_v<Scalar, bfloat16>;

  Vector<Scalar, Exec> working;             // [n]
  Vector<MasterWord<Scalar>, Exec> master;  // [n]  the array `working` if kIsOneArray; bf16: empty, or lower halves

  KOKKOS_INLINE_FUNCTION Real operator()(std::int64_t i) const {
    if constexpr (kAreHalves) {
      return master.data() ? join(working(i), master(i)) : static_cast<Real>(working(i));
    } else {
      return master(i);
    }
  }
  KOKKOS_INLINE_FUNCTION void set(std::int64_t i, Real value) const {
    if constexpr (kAreHalves) {
      const FloatHalves halves = cut(value);
      working(i) = halves.upper;
      if (master.data()) master(i) = halves.lower;
    } else {
      master(i) = value;
      if constexpr (!kIsOneArray) working(i) = static_cast<Scalar>(value);
    }
  }
};

/// Unbiased random rounding to bfloat16, up or down: a sum that grows by less than half a unit in the last place would
/// stand still if it were rounded to nearest.
///
///   P(up) = (x - down) / (up - down)
///
/// The lower 16 bits of `random` decide. Infinities and NaNs are preserved; finite numbers stay finite.
/// Source  Gupta et al. 2015, arXiv:1502.02551, section 3.
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
