/// Lion, a rule of weight_update.hpp:
///
///   update = sign(beta1 m + (1 - beta1) g),   sign(0) = 0
///   m = beta2 m + (1 - beta2) g
///
/// Source  Chen et al. 2023, arXiv:2302.06675, algorithm 2.
/// Error   E<Real>(1) per step: absolute for weights of about 1, of the larger of |m| and |g| for m; where beta1 m and
///         (1 - beta1) g cancel to within that, the sign may be another.
#pragma once

#include <string_view>

#include "kernels/core/compat.hpp"
#include "kernels/core/math.hpp"
#include "kernels/update_blocks.hpp"

namespace tessera::kernels {

struct Lion {
  static constexpr std::string_view kName = "lion";
  static constexpr const char* kLaunch = "tessera::lion::update";
  static constexpr std::string_view kMoments[] = {"m"};
  static constexpr bool kNeedsWholeMatrices = false;

  template <class Real>
  struct Factors {
    Real step;
    Real beta1, rest1, beta2, rest2;  // rest: 1 - beta
  };

  template <class Real>
  KOKKOS_INLINE_FUNCTION static Factors<Real> factors(const UpdateScalars& now, const Hyperparameters<Real>& by) {
    return {static_cast<Real>(now.learning_rate), static_cast<Real>(by.beta1), static_cast<Real>(1 - by.beta1),
            static_cast<Real>(by.beta2), static_cast<Real>(1 - by.beta2)};
  }

  template <class Real>
  KOKKOS_FORCEINLINE_FUNCTION static Real update(const Factors<Real>& by, Real g, Real (&moments)[1]) {
    auto& [m] = moments;
    const Real direction = kernels::fma(by.beta1, m, by.rest1 * g);
    m = kernels::fma(by.beta2, m, by.rest2 * g);
    return direction > 0 ? by.step : direction < 0 ? -by.step : direction;  // 0 and NaN stay what they are
  }
};

}  // namespace tessera::kernels
