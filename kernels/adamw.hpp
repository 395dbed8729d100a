/// AdamW, a rule of weight_update.hpp:
///
///   m = beta1 m + (1 - beta1) g,      v = beta2 v + (1 - beta2) g^2
///   update = 1 / bias1 * m / (sqrt(v) / sqrt(bias2) + eps),   bias_k = 1 - beta_k^step
///
/// Source  Loshchilov & Hutter 2019, arXiv:1711.05101, Alg. 2, in the arrangement of torch.optim.AdamW.
/// Error   E<Real>(1) per step (kernels/core/scalar.hpp): absolute for weights of about 1; of the larger of |m| and |g|
///         for m; relative for v.
#pragma once

#include <string_view>

#include "kernels/core/compat.hpp"
#include "kernels/core/math.hpp"
#include "kernels/update_blocks.hpp"

namespace tessera::kernels {

struct Adamw {
  static constexpr std::string_view kName = "adamw";
  static constexpr const char* kLaunch = "tessera::adamw::update";
  static constexpr std::string_view kMoments[] = {"m", "v"};
  static constexpr bool kNeedsWholeMatrices = false;

  template <class Real>
  struct Factors {
    Real step, root_scale, eps;
    Real beta1, rest1, beta2, rest2;  // rest: 1 - beta
  };

  template <class Real>
  KOKKOS_INLINE_FUNCTION static Factors<Real> factors(const UpdateScalars& now, const Hyperparameters<Real>& by) {
    return {static_cast<Real>(now.learning_rate / now.bias1),
            static_cast<Real>(1.0 / kernels::sqrt(now.bias2)),
            by.eps,
            static_cast<Real>(by.beta1),
            static_cast<Real>(1 - by.beta1),
            static_cast<Real>(by.beta2),
            static_cast<Real>(1 - by.beta2)};
  }

  template <class Real>
  KOKKOS_FORCEINLINE_FUNCTION static Real update(const Factors<Real>& by, Real g, Real (&moments)[2]) {
    auto& [m, v] = moments;
    m = kernels::fma(by.beta1, m, by.rest1 * g);
    v = kernels::fma(by.beta2, v, by.rest2 * g * g);
    return by.step * m / kernels::fma(kernels::sqrt(v), by.root_scale, by.eps);
  }
};

}  // namespace tessera::kernels
