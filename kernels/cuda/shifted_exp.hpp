/// An exponential for softmaxes whose results have 16 bits.
#pragma once

#include "kernels/core/math.hpp"
#include "kernels/core/scalar.hpp"
#ifdef KOKKOS_ENABLE_CUDA
  #include "kernels/cuda/registers.hpp"
#endif

namespace tessera::kernels {

/// e^(x - offset) for results rounded to Scalar; 1 for x = offset. If Scalar has 16 bits, on a GPU it is the hardware's
/// power of two: relative error 2^-22 + |x - offset| 2^-23.
template <class Scalar>
struct ShiftedExp {
  using Real = Accum<Scalar>;
  Real offset;

  KOKKOS_FORCEINLINE_FUNCTION Real operator()(Real x) const {
#ifdef KOKKOS_ENABLE_CUDA
    if constexpr (sizeof(Scalar) == 2) {
      KOKKOS_IF_ON_DEVICE((return cuda::exp2_approx((x - offset) * kLog2e);))
    }
#endif
    return fast_exp(x - offset);
  }
};

}  // namespace tessera::kernels
