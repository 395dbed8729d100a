/// Work on a GPU that lasts until the host lets it go on.
#pragma once

#include "kernels/core/compat.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::parallel {

using Flag = Kokkos::View<int, kernels::PinnedSpace>;

/// Keeps the instance busy until the flag is set: for seconds, but not for ever. Enqueued like any kernel.
inline void hold_up(const kernels::Device& exec, const Flag& flag) {
  Kokkos::parallel_for(
      "hold up", Kokkos::RangePolicy<kernels::Device>(exec, 0, 1), KOKKOS_LAMBDA(int) {
        const volatile int* const is_set = flag.data();
        for (int polls = 0; *is_set == 0 && polls < 20'000'000;) ++polls;
      });
}

}  // namespace tessera::parallel
