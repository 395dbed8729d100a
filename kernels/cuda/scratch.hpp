/// Scratch-pad memory beyond what Kokkos grants by itself.
#pragma once

#include <Kokkos_Core.hpp>

#ifdef KOKKOS_ENABLE_CUDA
  #include "kernels/cuda/large_scratch.hpp"
#endif

namespace tessera::kernels {

/// Call before a team kernel's first launch when its level-0 pads may exceed 48 KiB: a GPU wants the kernel opted in,
/// a host asks for nothing. A pad that exceeds what the device has fails at the launch with Kokkos' own message.
template <class Functor, class Policy>
void allow_large_scratch() {
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (std::is_same_v<typename Policy::execution_space, Kokkos::Cuda>) {
    cuda::enable_large_scratch<Functor, Policy>();
  }
#endif
}

}  // namespace tessera::kernels
