/// Reductions over the kVectorLanes lanes of a team's thread, in a fixed order; all lanes get the result.
///
/// On GPUs these are direct exchanges between lanes. Kokkos' reduction over a thread's vector range does the same in a
/// loop whose length is known at run time only: in a memory-bound kernel that reduces once per row, that loop took a
/// fifth of the time.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/team.hpp"
#ifdef KOKKOS_ENABLE_CUDA
  #include "kernels/cuda/registers.hpp"
#endif

namespace tessera::kernels {

template <class Real, class Member>
KOKKOS_FORCEINLINE_FUNCTION Real max_over_lanes([[maybe_unused]] const Member& team, Real mine) {
#ifdef KOKKOS_ENABLE_CUDA
  KOKKOS_IF_ON_DEVICE((return cuda::warp_max(mine);))
#endif
  return join_lanes_of_thread<Kokkos::Max<Real>>(team, mine);
}

template <class Real, class Member>
KOKKOS_FORCEINLINE_FUNCTION Real sum_over_lanes([[maybe_unused]] const Member& team, Real mine) {
#ifdef KOKKOS_ENABLE_CUDA
  KOKKOS_IF_ON_DEVICE((return cuda::warp_sum(mine);))
#endif
  return join_lanes_of_thread<Kokkos::Sum<Real>>(team, mine);
}

/// The sum over the kGroup lanes of a thread, for teams whose threads have so many (a power of two up to kVectorLanes).
/// All lanes of the team must take part.
template <int kGroup, class Real, class Member>
KOKKOS_FORCEINLINE_FUNCTION Real sum_over_group([[maybe_unused]] const Member& team, Real mine) {
#ifdef KOKKOS_ENABLE_CUDA
  KOKKOS_IF_ON_DEVICE((return cuda::group_sum<kGroup>(mine);))
#endif
  Real sum;
  Kokkos::parallel_reduce(
      Kokkos::ThreadVectorRange(team, kGroup), [&](int, Real& value) { value += mine; }, sum);
  return sum;
}

}  // namespace tessera::kernels
