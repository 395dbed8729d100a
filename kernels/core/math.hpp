/// Elementary functions that vectorise in loops: no branches, no library calls.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/scalar.hpp"

namespace tessera::kernels {

/// 1 / ln 2 and ln 2: e^x is 2 to the power of kLog2e x.
template <class Real = float>
inline constexpr Real kLog2e = std::numbers::log2e_v<Real>;
template <class Real = float>
inline constexpr Real kLn2 = std::numbers::ln2_v<Real>;

/// e^x. For float within 1.1 ulp of the exact value (measured over [-80, 80]; on a GPU 2 ulp); results below 1.65e-38
/// become 0, e^-inf = 0, results above the largest float become inf, NaN stays NaN. For double the library function.
///
/// x = n ln2 + r with |r| <= ln2/2 and e^x = 2^n e^r; e^r = 1 + r + r^2 q(r), where q is the degree-4 minimax
/// polynomial for the relative error of the whole (3.1e-9, fitted by iteratively reweighted least squares).
/// ln2 is subtracted in two parts by fused multiply-adds, which the compiler may not reassociate.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real fast_exp(Real x) {
  TESSERA_ON_DEVICE(return exp(x);)  // without a branch there (2 ulp)
  if constexpr (std::is_same_v<Real, double>) {
    return exp(x);
  } else {
    // Beyond these bounds the power of two below is 0, or the product overflows. A select at the end instead would let
    // the compiler branch around the polynomial, and a loop with a branch does not vectorise.
    constexpr float kGivesZero = -87.5f, kGivesInfinity = 89.0f;
    const float clamped = x < kGivesZero ? kGivesZero : (x > kGivesInfinity ? kGivesInfinity : x);
    const float rounded = clamped * kLog2e<> + 126.5f;                     // positive, or NaN
    const int biased = static_cast<int>(rounded > 0.0f ? rounded : 0.0f);  // truncation rounds n
    const float n = static_cast<float>(biased) - 126.0f;
    float r = __builtin_fmaf(n, -0.693359375f, clamped);
    r = __builtin_fmaf(n, 2.12194440e-4f, r);
    float q = 1.381446607e-3f;
    q = __builtin_fmaf(q, r, 8.368780836e-3f);
    q = __builtin_fmaf(q, r, 4.166839272e-2f);
    q = __builtin_fmaf(q, r, 1.666651964e-1f);
    q = __builtin_fmaf(q, r, 4.999999404e-1f);
    const float e_r = __builtin_fmaf(q, r * r, r) + 1.0f;
    const float half_power = std::bit_cast<float>(biased << 23);  // 2^(n-1): n itself can be 128; 0 where biased is
    return e_r * half_power * 2.0f;
  }
}

/// 2^x, by the library of the device or the host; 2^-inf = 0.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real exp2(Real x) {
  TESSERA_ON_DEVICE(return Kokkos::exp2(x);)
  return std::exp2(x);
}

/// The larger of two numbers; a NaN in b loses, on GPUs one in a, too.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real larger(Real a, Real b) {
  TESSERA_ON_DEVICE(return Kokkos::fmax(a, b);)  // one instruction
  return b > a ? b : a;
}

/// What an online softmax subtracts from scores: their maximum, or 0 where none was seen (the maximum is -inf), so that
/// every exponential is 0.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real finite_top(Real top) {
  return top == Real(-HUGE_VAL) ? Real(0) : top;
}

}  // namespace tessera::kernels
