#include "kernels/core/cpu_level.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace tessera::kernels {
namespace {

bool has_v4() {
#ifdef TESSERA_CPU_LEVELS
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

std::atomic<CpuLevel>& level_in_use() {
  static std::atomic<CpuLevel> level = cpu_level_for(std::getenv("TESSERA_CPU_LEVEL"));
  return level;
}

}  // namespace

std::string_view name_of(CpuLevel level) { return level == CpuLevel::v4 ? "v4" : ""; }

CpuLevel cpu_level_for(const char* asked) {
  const std::string_view name = asked != nullptr ? asked : "";
  if (name != "" && name != "v3" && name != "v4") {
    throw std::invalid_argument("TESSERA_CPU_LEVEL is \"" + std::string(name) + "\", not v3 or v4");
  }
  if (name == "v4" && !has_v4()) {
    throw std::invalid_argument("TESSERA_CPU_LEVEL is v4, which this processor or build does not have: unset it");
  }
  return name != "v3" && has_v4() ? CpuLevel::v4 : CpuLevel::build;
}

CpuLevel cpu_level() { return level_in_use(); }

void set_cpu_level(CpuLevel level) { level_in_use() = level; }

}  // namespace tessera::kernels
