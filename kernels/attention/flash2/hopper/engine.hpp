/// Engine::wgmma as attention.cpp sees it in every build, with its kernels if the build has them.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/scalar.hpp"
#ifdef TESSERA_VENDOR_CUDA
  #include "kernels/attention/flash2/hopper/backward.hpp"
  #include "kernels/attention/flash2/hopper/forward.hpp"
  #include "kernels/cuda/device.hpp"
  #include "kernels/cuda/target.hpp"
#endif

namespace tessera::kernels {

template <class Exec, class Scalar>
struct HopperEngine {
  static constexpr bool kHasKernels = false;
};

#ifdef TESSERA_VENDOR_CUDA
template <class Scalar>
requires(sizeof(Scalar) == 2) struct HopperEngine<Kokkos::Cuda, Scalar> {
  static constexpr bool kHasKernels = cuda::kBuiltForHopper;
  static_assert(kHasKernels == kBuiltTarget.has_wgmma, "TESSERA_CUDA_ARCH is not what nvcc compiles for");
  using Forward = HopperForward<Scalar>;
  using Backward = HopperBackward<Scalar>;
};
#endif

}  // namespace tessera::kernels
