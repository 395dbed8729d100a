/// More than 48 KiB of level-0 scratch for a team kernel on CUDA.
///
///   using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<384, 1>>;
///   enable_large_scratch<MyKernel, Policy>();
///   Kokkos::parallel_for("...", Policy(exec, teams, 12, 32).set_scratch_size(0, Kokkos::PerTeam(bytes)), *this);
///
/// A GPU grants a block more than 48 KiB of shared memory only to a kernel that has been opted in. Kokkos 5.0 neither
/// opts its kernels in nor accepts a larger request (kokkos issue 4093); 5.2 does both (pull request 9012). For 5.0
/// this header does two things: it raises the limit that Kokkos checks, for the process, and it opts in the one kernel
/// of Functor and Policy. A forgotten kernel fails at its launch with "requested too large team size", never silently.
///
/// Call it before the kernel type's first launch, when Kokkos stores the kernel's attributes. Later calls only test a
/// flag. May be called from any thread.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>

#include "kernels/core/compat.hpp"
#include "kernels/cuda/check.hpp"

namespace tessera::kernels::cuda {

/// Bytes to request for a block of `bytes` aligned to `alignment`, wherever the scratch starts (a multiple of 8); the
/// block is team_scratch(0).get_shmem_aligned(bytes, alignment).
constexpr std::size_t aligned_scratch_bytes(std::size_t bytes, std::size_t alignment) { return bytes + alignment - 8; }

template <class Functor, class Policy>
void enable_large_scratch() {
  static_assert(
      kLargeScratch != LargeScratch::unknown,
      "scratch above 48 KiB is known to work with Kokkos 5.0 (by the opt-in here) and from 5.2 on (by itself): "
      "use one of these, or check what this version needs and say so in kernels/core/compat.hpp");
  if constexpr (kLargeScratch == LargeScratch::needs_opt_in) {
    [[maybe_unused]] static const bool is_enabled = [] {
      cudaDeviceProp& limits = Kokkos::Impl::CudaInternal::m_deviceProp;
      limits.sharedMemPerBlock = limits.sharedMemPerBlockOptin;
      using Driver = Kokkos::Impl::ParallelFor<Functor, Policy>;
      using Launch = Kokkos::Impl::CudaParallelLaunch<Driver, typename Policy::launch_bounds>;
      const auto kernel = reinterpret_cast<const void*>(Launch::get_kernel_func());
      cudaFuncAttributes attributes;
      check(cudaFuncGetAttributes(&attributes, kernel),
            "large scratch: the device has no code of this kernel (was it built for another architecture?)");
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(limits.sharedMemPerBlockOptin - attributes.sharedSizeBytes)),
            "large scratch: cannot opt the kernel in");
      return true;
    }();
  }
}

}  // namespace tessera::kernels::cuda
