/// The one file that looks at KOKKOS_VERSION: what 3.4.01 (Debian 12) and 5.x spell differently, under one name.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>

#if KOKKOS_VERSION < 30401
  #error "Tessera needs Kokkos 3.4.01 or later: install libtrilinos-kokkos-dev, or set -DTESSERA_FETCH_KOKKOS=ON"
#endif

/// Completely unrolls the loop that follows, whose bounds are constants.
#if defined(__CUDACC__) || defined(__clang__)
  #define TESSERA_UNROLL _Pragma("unroll")
#else
  #define TESSERA_UNROLL _Pragma("GCC unroll 16")
#endif

/// The same where only a device's compiler needs it: there it keeps private arrays in registers.
#if defined(__CUDACC__) || defined(__HIPCC__)
  #define TESSERA_UNROLL_ON_DEVICE _Pragma("unroll")
#else
  #define TESSERA_UNROLL_ON_DEVICE
#endif

/// Statements for devices only, placed before those for hosts: KOKKOS_IF_ON_DEVICE, or nothing where Kokkos has neither
/// that nor a device (Debian's).
#if KOKKOS_VERSION >= 30600
  #define TESSERA_ON_DEVICE(...) KOKKOS_IF_ON_DEVICE((__VA_ARGS__))
#else
  #define TESSERA_ON_DEVICE(...)
#endif

namespace tessera::kernels {

/// a * b + c, rounded once.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real fma(Real a, Real b, Real c) {
  if constexpr (sizeof(Real) == 4) {
    return __builtin_fmaf(a, b, c);
  } else {
    return __builtin_fma(a, b, c);
  }
}

#if KOKKOS_VERSION >= 30700
using Kokkos::cos;
using Kokkos::exp;
using Kokkos::fabs;
using Kokkos::log;
using Kokkos::sqrt;
#else
using Kokkos::Experimental::cos;
using Kokkos::Experimental::exp;
using Kokkos::Experimental::fabs;
using Kokkos::Experimental::log;
using Kokkos::Experimental::sqrt;
#endif

/// True where Kokkos calls the fence callbacks of a tool; a test that counts fences is vacuous elsewhere.
inline constexpr bool kFencesAreObservable = KOKKOS_VERSION >= 30500;

/// Whether KokkosBlas::gemm takes an execution instance as its first argument (since Kokkos Kernels 4.0).
inline constexpr bool kBlasTakesInstance = KOKKOS_VERSION >= 40000;

/// Host memory that a device copies from and to asynchronously; plain host memory where there is no device.
#ifdef KOKKOS_HAS_SHARED_HOST_PINNED_SPACE
using PinnedSpace = Kokkos::SharedHostPinnedSpace;
#else
static_assert(Kokkos::SpaceAccessibility<Kokkos::DefaultExecutionSpace, Kokkos::HostSpace>::accessible,
              "a device that cannot read host memory needs a Kokkos with SharedHostPinnedSpace");
using PinnedSpace = Kokkos::HostSpace;
#endif

/// How a team kernel gets more than 48 KiB of level-0 scratch on CUDA (kernels/cuda/large_scratch.hpp).
enum class LargeScratch { needs_opt_in, by_itself, unknown };
inline constexpr LargeScratch kLargeScratch = KOKKOS_VERSION >= 50200   ? LargeScratch::by_itself
                                              : KOKKOS_VERSION >= 50100 ? LargeScratch::unknown
                                              : KOKKOS_VERSION >= 50000 ? LargeScratch::needs_opt_in
                                                                        : LargeScratch::unknown;

}  // namespace tessera::kernels
