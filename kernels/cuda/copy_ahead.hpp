/// Copies packets into a pad while the lane does other work.
///
///   for (...) copy_ahead(&pad[...], &from[...]);
///   close_batch();          // the copies since the last call (possibly none) form a batch
///   ...
///   wait_for_batches<1>();  // all of this lane's batches but the latest have landed
///
/// A lane waits for its own copies; it may read those of others after a barrier that follows their wait. Without an
/// instruction for it, the copy is done at once.
#pragma once

#include "kernels/core/packet.hpp"
#ifdef KOKKOS_ENABLE_CUDA
  #include "kernels/cuda/mma_sync.hpp"
#endif

namespace tessera::kernels {

template <class Scalar, int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void copy_ahead(Packet<Scalar, kWidth>* to, const Scalar* from) {
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (sizeof(Packet<Scalar, kWidth>) == 16) {
    KOKKOS_IF_ON_DEVICE((cuda::copy_16(cuda::shared_address(to), from); return;))
  }
#endif
  *to = load<kWidth>(from);
}

KOKKOS_FORCEINLINE_FUNCTION void close_batch() {
#ifdef KOKKOS_ENABLE_CUDA
  KOKKOS_IF_ON_DEVICE((cuda::commit_copies();))
#endif
}

template <int kUnderWay>
KOKKOS_FORCEINLINE_FUNCTION void wait_for_batches() {
#ifdef KOKKOS_ENABLE_CUDA
  KOKKOS_IF_ON_DEVICE((cuda::wait_for_copies<kUnderWay>();))
#endif
}

}  // namespace tessera::kernels
