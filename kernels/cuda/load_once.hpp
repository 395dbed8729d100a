/// Reading what is read once and not written by the kernel or beside it: weights.
///
///   load_once<kWidth>(from)   a packet, which leaves no copy in the multiprocessor's own cache
///   fetch_ahead(from, n)      n bytes, both a multiple of 16, will be read: they may come to the shared cache. A hint
///
/// Packets of other than 16 bytes are ordinary loads, and without an instruction for it nothing is fetched ahead.
///
/// Source  PTX ISA: ld.global.nc (cache eviction hints), cp.async.bulk.prefetch.
#pragma once

#include "kernels/core/packet.hpp"
#ifdef KOKKOS_ENABLE_CUDA
  #include "kernels/cuda/device.hpp"
#endif

namespace tessera::kernels {

#ifdef KOKKOS_ENABLE_CUDA
namespace cuda {

/// Volatile, so that it stays before a wait that follows (kernels/cuda/chain.hpp).
TESSERA_DEVICE uint4 load_16_once(const void* from) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

TESSERA_DEVICE void prefetch_bytes(const void* from, std::uint32_t bytes) {
  #if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
  #endif
}

}  // namespace cuda
#endif

template <int kWidth, class Scalar>
KOKKOS_FORCEINLINE_FUNCTION Packet<Scalar, kWidth> load_once(const Scalar* from) {
#ifdef KOKKOS_ENABLE_CUDA
  if constexpr (sizeof(Packet<Scalar, kWidth>) == 16) {
    KOKKOS_IF_ON_DEVICE((return Kokkos::bit_cast<Packet<Scalar, kWidth>>(cuda::load_16_once(from));))
  }
#endif
  return load<kWidth>(from);
}

KOKKOS_FORCEINLINE_FUNCTION void fetch_ahead([[maybe_unused]] const void* from, [[maybe_unused]] int bytes) {
#ifdef KOKKOS_ENABLE_CUDA
  KOKKOS_IF_ON_DEVICE((cuda::prefetch_bytes(from, static_cast<std::uint32_t>(bytes));))
#endif
}

}  // namespace tessera::kernels
