/// Storage types and the float arithmetic behind them.
///
/// `bfloat16` and `float16` are two bytes that convert to float and back (round to nearest even; a double is rounded to
/// float first). They have no arithmetic of their own, so no sum can run in 16 bits by accident. Kokkos' own `bhalf_t`
/// is an alias of float in builds without a device backend, which is why these exist.
///
///   Accum<Scalar>   the type a kernel computes and accumulates in: double for double, float for the rest
///   kEpsilon<S>     unit roundoff used to derive tolerances: distance from 1 to the next value
///   E<Scalar>(n)    in the `Error` lines of kernels: the error bound of a sum of n terms, eps<Scalar> +
///                   (8 + 2 sqrt(n)) eps<Accum<Scalar>>, where eps is kEpsilon. Tests check the kernels against these
///                   lines, with sums in double (tests/support/scalars.hpp).
///                   A factor sqrt(n) beside it is the size of a sum of n terms of either sign; of terms of one sign
///                   that is n.
#pragma once

#include <Kokkos_Macros.hpp>
#ifdef __CUDACC__
  #include <Kokkos_Core.hpp>
#endif

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "kernels/core/dtype.hpp"

/// On a GPU, returns from a conversion with the result of Kokkos' own 16-bit types, which use the GPU's instructions.
/// Elsewhere expands to nothing, and the arithmetic that follows converts.
#ifdef __CUDACC__
  #define TESSERA_CONVERT_ON_DEVICE(...) KOKKOS_IF_ON_DEVICE((__VA_ARGS__))
#else
  #define TESSERA_CONVERT_ON_DEVICE(...)
#endif

namespace tessera {

/// Brain float: 8 exponent bits, 7 fraction bits (the upper half of a float).
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  KOKKOS_INLINE_FUNCTION explicit bfloat16(float value) {
    TESSERA_CONVERT_ON_DEVICE(bits = Kokkos::bit_cast<std::uint16_t>(Kokkos::Experimental::cast_to_bhalf(value));
                              return;)
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);  // ties to even
    bits = static_cast<std::uint16_t>(is_nan ? (word >> 16) | 0x40u : rounded >> 16);
  }
  KOKKOS_INLINE_FUNCTION explicit bfloat16(double value) : bfloat16(static_cast<float>(value)) {}
  KOKKOS_INLINE_FUNCTION explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  KOKKOS_INLINE_FUNCTION explicit operator double() const { return static_cast<float>(*this); }
};

/// IEEE 754 binary16: 5 exponent bits, 10 fraction bits, subnormals kept, overflow becomes infinity.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  KOKKOS_INLINE_FUNCTION explicit float16(float value) {
    TESSERA_CONVERT_ON_DEVICE(bits = Kokkos::bit_cast<std::uint16_t>(Kokkos::Experimental::cast_to_half(value));
                              return;)
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (word >> 16) & 0x8000u;
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {  // NaN stays NaN
      bits = static_cast<std::uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
      bits = static_cast<std::uint16_t>(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {  // subnormal or zero: let float addition do the rounding at 2^-24
      const float shifted = std::bit_cast<float>(magnitude) + std::bit_cast<float>(0x3f000000u);
      bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    } else {
      const std::uint32_t rebased = magnitude - 0x38000000u;  // exponent bias 127 -> 15
      bits = static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
    }
  }
  KOKKOS_INLINE_FUNCTION explicit float16(double value) : float16(static_cast<float>(value)) {}
  KOKKOS_INLINE_FUNCTION explicit operator float() const {
    TESSERA_CONVERT_ON_DEVICE(
        return Kokkos::Experimental::cast_from_half<float>(Kokkos::bit_cast<Kokkos::Experimental::half_t>(bits));)
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x400u) {  // subnormal: value = magnitude * 2^-24
      const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
      return sign ? -value : value;
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
  KOKKOS_INLINE_FUNCTION explicit operator double() const { return static_cast<float>(*this); }
};

template <class Scalar>
using Accum = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;

template <class Scalar>
inline constexpr Dtype kDtype = std::is_same_v<Scalar, double>         ? Dtype::fp64
                                : std::is_same_v<Scalar, bfloat16>     ? Dtype::bf16
                                : std::is_same_v<Scalar, float16>      ? Dtype::fp16
                                : std::is_same_v<Scalar, std::int32_t> ? Dtype::int32
                                                                       : Dtype::fp32;

template <class Scalar>
inline constexpr std::string_view kScalarName = name_of(kDtype<Scalar>);

template <class Scalar>
inline constexpr double kEpsilon = kDtype<Scalar> == Dtype::fp64   ? 0x1p-52
                                   : kDtype<Scalar> == Dtype::fp32 ? 0x1p-23
                                   : kDtype<Scalar> == Dtype::fp16 ? 0x1p-10
                                                                   : 0x1p-7;

}  // namespace tessera
