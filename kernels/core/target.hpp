/// The kind of device that sizes are calculated for: this build's, or one that a plan names and this build has no code
/// for. Sizes of workspaces depend on it, on shapes and on dtypes only.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace tessera::kernels {

struct Target {
  bool is_host;
  int team_scratch_kib = 0;  // most scratch of a team of a tensor-core kernel [KiB]; 0: no such kernels
  bool has_wgmma = false;    // sm_90a
  bool is_portable = false;  // a GPU and a build of Kokkos alone, with nothing of the vendor's (TESSERA_VENDOR=OFF)

  /// Whether the build has the vendor's instructions, libraries and graphs.
  constexpr bool has_vendor_parts() const { return !is_host && !is_portable; }
};

inline constexpr Target kHostTarget{.is_host = true};

/// Most level-0 scratch that a team may ask for [bytes]; on a host as much as there is memory.
constexpr std::int64_t scratch_limit(const Target& target) {
  constexpr int kOfKokkos = 1024;                                      // of its own, at the start
  if (target.is_portable) return 48 * std::int64_t{1024} - kOfKokkos;  // more takes the vendor's call
  return target.team_scratch_kib > 0 ? target.team_scratch_kib * std::int64_t{1024} - kOfKokkos
                                     : std::numeric_limits<std::int64_t>::max();
}

/// NVIDIA GPUs of a compute capability, as nvcc spells it: "80", "90a". Source for the scratch: CUDA Programming Guide,
/// technical specifications per compute capability.
constexpr Target gpu_target(std::string_view capability) {
  const bool is_small = capability == "86" || capability == "89" || capability.starts_with("12");
  return {.is_host = false,
          .team_scratch_kib = capability == "80" || capability == "87" ? 163
                              : is_small                               ? 99
                                                                       : 227,
          .has_wgmma = capability.starts_with("90")};
}

}  // namespace tessera::kernels
