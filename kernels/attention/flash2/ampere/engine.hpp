/// Engine::mma for attention.cpp, in every build: its kernels, if the build has them.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/scalar.hpp"
#ifdef TESSERA_VENDOR_CUDA
  #include "kernels/attention/flash2/ampere/backward.hpp"
  #include "kernels/attention/flash2/ampere/forward.hpp"
#endif

namespace tessera::kernels {

template <class Exec, class Scalar>
struct AmpereEngine {
  static constexpr bool kHasKernels = false;
};

#ifdef TESSERA_VENDOR_CUDA
template <class Scalar>
requires(sizeof(Scalar) == 2) struct AmpereEngine<Kokkos::Cuda, Scalar> {
  static constexpr bool kHasKernels = true;
  using Forward = AmpereForward<Scalar>;
  using Backward = AmpereBackward<Scalar>;
};
#endif

}  // namespace tessera::kernels
