/// Legal values that this version or build does not support: refused by name, never replaced silently.
///
/// Values that this version does not support together are faults of the deck (exit 2). What the version supports but
/// the build lacks (CUDA, NCCL) is a fault of the environment (exit 3).
#pragma once

#include <string_view>

#include "config/settings.hpp"

namespace tessera::config {

/// Whether the kernel needs tensor cores, and what to write instead.
bool needs_tensor_cores(AttentionKernel kernel);
std::string_view without_tensor_cores(AttentionKernel kernel);

struct BuildFeatures {
  bool cuda = false;  // and TESSERA_VENDOR=ON
  bool nccl = false;
  bool ladder = true;  // kernels::has_ladder_kernels()
  std::string_view name = "this build";  // or "a build for CPUs", which --plan plans for
};

/// Throws Failure(Exit::environment), naming every key that needs what the build lacks.
void check_build(const Settings& settings, const BuildFeatures& build);

}  // namespace tessera::config
