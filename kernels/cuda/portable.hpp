/// What a GPU has an instruction for and any other device does by ordinary code: portable kernels call these.
///
/// Source  PTX ISA: ld.global.nc (cache eviction hints), cp.async, cp.async.bulk.prefetch, ex2.approx, shfl.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/math.hpp"
#include "kernels/core/packet.hpp"
#include "kernels/core/team.hpp"

/// Statements for CUDA's devices only, placed before the portable ones; nothing in other builds.
#ifdef TESSERA_VENDOR_CUDA
  #include "kernels/cuda/mma_sync.hpp"
  #include "kernels/cuda/registers.hpp"
  #define TESSERA_ON_CUDA(...) KOKKOS_IF_ON_DEVICE((__VA_ARGS__))
#else
  #define TESSERA_ON_CUDA(...)
#endif

namespace tessera::kernels {

// --- reductions over the kVectorLanes lanes of a team's thread, in a fixed order; all lanes get the result ----------
//
// Kokkos' reduction over a thread's vector range does the same in a loop whose length is known at run time only: in a
// memory-bound kernel that reduces once per row, that loop took a fifth of the time.

template <class Real, class Member>
KOKKOS_FORCEINLINE_FUNCTION Real max_over_lanes([[maybe_unused]] const Member& team, Real mine) {
  TESSERA_ON_CUDA(return cuda::warp_max(mine);)
  return join_lanes_of_thread<Kokkos::Max<Real>>(team, mine);
}

template <class Real, class Member>
KOKKOS_FORCEINLINE_FUNCTION Real sum_over_lanes([[maybe_unused]] const Member& team, Real mine) {
  TESSERA_ON_CUDA(return cuda::warp_sum(mine);)
  return join_lanes_of_thread<Kokkos::Sum<Real>>(team, mine);
}

/// The sum over the kGroup lanes of a thread, for teams whose threads have so many (a power of two up to kVectorLanes).
/// All lanes of the team must take part.
template <int kGroup, class Real, class Member>
KOKKOS_FORCEINLINE_FUNCTION Real sum_over_group([[maybe_unused]] const Member& team, Real mine) {
  TESSERA_ON_CUDA(return cuda::group_sum<kGroup>(mine);)
  Real sum;
  Kokkos::parallel_reduce(
      Kokkos::ThreadVectorRange(team, kGroup), [&](int, Real& value) { value += mine; }, sum);
  return sum;
}

// --- an exponential for softmaxes whose results have 16 bits --------------------------------------------------------

/// e^(x - offset) for results rounded to Scalar; 1 for x = offset. If Scalar has 16 bits, on a GPU it is the hardware's
/// power of two: relative error 2^-22 + |x - offset| 2^-23.
template <class Scalar>
struct ShiftedExp {
  using Real = Accum<Scalar>;
  Real offset;

  KOKKOS_FORCEINLINE_FUNCTION Real operator()(Real x) const {
    if constexpr (sizeof(Scalar) == 2) {
      TESSERA_ON_CUDA(return cuda::exp2_approx((x - offset) * kLog2e<>);)
    }
    return fast_exp(x - offset);
  }
};

// --- copies into a pad while the lane does other work ---------------------------------------------------------------
//
//   for (...) copy_ahead(&pad[...], &from[...]);
//   close_batch();          // the copies since the last call (possibly none) form a batch
//   ...
//   wait_for_batches<1>();  // all of this lane's batches but the latest have landed
//
// A lane waits for its own copies; it may read those of others after a barrier that follows their wait. Without an
// instruction for it, the copy is done at once.

template <class Scalar, int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void copy_ahead(Packet<Scalar, kWidth>* to, const Scalar* from) {
  if constexpr (sizeof(Packet<Scalar, kWidth>) == 16) {
    TESSERA_ON_CUDA(cuda::copy_16(cuda::shared_address(to), from); return;)
  }
  *to = load<kWidth>(from);
}

KOKKOS_FORCEINLINE_FUNCTION void close_batch() { TESSERA_ON_CUDA(cuda::commit_copies();) }

template <int kUnderWay>
KOKKOS_FORCEINLINE_FUNCTION void wait_for_batches() {
  TESSERA_ON_CUDA(cuda::wait_for_copies<kUnderWay>();)
}

// --- reading weights: data read once, and written neither by the kernel nor while it runs ---------------------------

#ifdef TESSERA_VENDOR_CUDA
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

/// A packet, which leaves no copy in the multiprocessor's own cache if it has 16 bytes.
template <int kWidth, class Scalar>
KOKKOS_FORCEINLINE_FUNCTION Packet<Scalar, kWidth> load_once(const Scalar* from) {
  if constexpr (sizeof(Packet<Scalar, kWidth>) == 16) {
    TESSERA_ON_CUDA(return Kokkos::bit_cast<Packet<Scalar, kWidth>>(cuda::load_16_once(from));)
  }
  return load<kWidth>(from);
}

/// A hint: n bytes, both address and n multiples of 16, will be read, and may come to the shared cache.
KOKKOS_FORCEINLINE_FUNCTION void fetch_ahead([[maybe_unused]] const void* from, [[maybe_unused]] int bytes) {
  TESSERA_ON_CUDA(cuda::prefetch_bytes(from, static_cast<std::uint32_t>(bytes));)
}

}  // namespace tessera::kernels
