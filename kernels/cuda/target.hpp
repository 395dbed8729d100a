/// The target of this build's kernels.
#pragma once

#include "kernels/core/target.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

#ifdef TESSERA_CUDA_ARCH
inline constexpr Target kBuiltTarget = gpu_target(TESSERA_CUDA_ARCH);
#else
inline constexpr Target kBuiltTarget{.is_host = false, .is_portable = true};
#endif

template <class Exec>
inline constexpr Target kTargetOf = kIsHost<Exec> ? kHostTarget : kBuiltTarget;

inline constexpr Target kHere = kTargetOf<Device>;

}  // namespace tessera::kernels
