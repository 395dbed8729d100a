/// The two words that every file of device code here starts from.
///
///   TESSERA_DEVICE        a function that exists on the device only and is always inlined
///   TESSERA_HOPPER_CODE   defined while device code is compiled for sm_90a: the only target that has wgmma, setmaxnreg
///                         and the copy engine's tensor maps. Kernels that use them guard their body with it.
///
/// Only CUDA builds compile this folder. Each wrapper is one instruction, or one idiom of a few, under a name that says
/// what it is for; sources name instructions of NVIDIA's PTX ISA (as of 9.0).
#pragma once

#include <cstdint>

#define TESSERA_DEVICE __device__ __forceinline__

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  #define TESSERA_HOPPER_CODE 1
#endif

namespace tessera::kernels::cuda {

/// Where something lies in a block's shared memory, in bytes; what PTX calls an address in the .shared::cta window.
using SharedAddress = std::uint32_t;

TESSERA_DEVICE SharedAddress shared_address(const void* scratch) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(scratch));
}

inline constexpr int kWarpLanes = 32;
inline constexpr int kWarpgroupWarps = 4;
inline constexpr int kWarpgroupLanes = 128;

}  // namespace tessera::kernels::cuda
