/// Scratch-pad memory beyond what Kokkos grants by default.
#pragma once

#include <Kokkos_Core.hpp>

#ifdef TESSERA_VENDOR_CUDA
  #include "kernels/cuda/large_scratch.hpp"
#endif

namespace tessera::kernels {

/// Call before a team kernel's first launch if its level-0 pads may exceed 48 KiB: on a GPU it opts the kernel in, on a
/// host it does nothing. A pad larger than the device's fails at the launch with Kokkos' message.
template <class Functor, class Policy>
void allow_large_scratch() {
#ifdef TESSERA_VENDOR_CUDA
  if constexpr (std::is_same_v<typename Policy::execution_space, Kokkos::Cuda>) {
    cuda::enable_large_scratch<Functor, Policy>();
  }
#endif
}

}  // namespace tessera::kernels
