/// The two macros on which all device code here is built.
///
///   TESSERA_DEVICE        a function that exists on the device only and is always inlined
///   TESSERA_HOPPER_CODE   defined while device code is compiled for sm_90a: the only target that has wgmma, setmaxnreg
///                         and the copy engine's tensor maps. Kernels that use them guard their body with it.
///
/// Only CUDA builds compile this folder, except the headers that test for CUDA themselves (portable, chain, scratch,
/// row_products, tile_scores): portable kernels include those, and other builds get the portable form. Each wrapper is
/// one instruction, or an idiom of a few, under a name that says what it is for; sources name instructions of NVIDIA's
/// PTX ISA (as of 9.0).
#pragma once

#include <cstdint>

#define TESSERA_DEVICE __device__ __forceinline__

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  #define TESSERA_HOPPER_CODE 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  #error \
      "build for sm_90a (-gencode=arch=compute_90a,code=sm_90a): plain sm_90 lacks wgmma, so Hopper would run no kernel"
#endif

namespace tessera::kernels::cuda {

/// An address in a block's shared memory, in bytes: PTX's .shared::cta window.
using SharedAddress = std::uint32_t;

TESSERA_DEVICE SharedAddress shared_address(const void* scratch) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(scratch));
}

/// TESSERA_HOPPER_CODE for host code: whether this build's target is sm_90a.
#ifdef __CUDA_ARCH_LIST__
inline constexpr int kTargets[] = {__CUDA_ARCH_LIST__};
inline constexpr bool kBuiltForHopper = kTargets[0] == 900;
#else
inline constexpr bool kBuiltForHopper = false;
#endif

inline constexpr int kWarpLanes = 32;
inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kWarpgroupLanes = 128;

}  // namespace tessera::kernels::cuda
