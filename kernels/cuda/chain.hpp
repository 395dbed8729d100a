/// Chained launches: a kernel starts while its predecessor still runs, and waits before it touches what that one reads
/// or writes.
///
///   let_successor_start();      // the next kernel's teams may take the places that this one's leave free
///   ... loads of what no kernel of the chain writes: weights ...
///   wait_for_predecessor();     // the kernels before have ended, and what they wrote is visible
///   ... everything else ...
///
/// Launches are chained only by a graph whose edges say so (train/graph.hpp). In any other launch the kernel before has
/// ended when this one starts, and both calls do nothing; so they do on GPUs before sm_90, and on hosts.
///
/// A wait covers only the predecessor. It covers all earlier kernels if each of them waits as well: every lane before
/// it touches memory that another kernel of the chain writes, or reads afterwards; and in every kernel at least one
/// lane, so that none can end before its predecessor.
///
/// Source  PTX ISA: griddepcontrol.
#pragma once

#include "kernels/cuda/portable.hpp"

namespace tessera::kernels {

#ifdef TESSERA_VENDOR_CUDA
namespace cuda {

TESSERA_DEVICE void launch_dependents() {
  #if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  #endif
}
TESSERA_DEVICE void wait_for_grids() {
  #if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  #endif
}

}  // namespace cuda
#endif

/// Whether this build's kernels wait: all its targets have the instruction.
inline constexpr bool kKernelsWait =
#if defined(TESSERA_VENDOR_CUDA) && defined(__CUDA_ARCH_LIST__)
    [] {
      for (const int target : {__CUDA_ARCH_LIST__}) {
        if (target < 900) return false;
      }
      return true;
    }();
#else
    false;
#endif

KOKKOS_FORCEINLINE_FUNCTION void let_successor_start() { TESSERA_ON_CUDA(cuda::launch_dependents();) }

KOKKOS_FORCEINLINE_FUNCTION void wait_for_predecessor() { TESSERA_ON_CUDA(cuda::wait_for_grids();) }

}  // namespace tessera::kernels
