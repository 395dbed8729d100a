/// The instructions that kernels which gain from AVX-512 run with: those of the build (x86-64-v3), or x86-64-v4, chosen
/// at start. One program serves both.
///
/// The body of such a kernel is a template of its level, and the work tag of the policy picks one. operator() for the
/// level V4 has its instructions in an attribute, TESSERA_V4, that also pulls whatever the body calls into it. So only
/// functions whose signature names V4 contain AVX-512, and the linker has no second version of anything to mix up: a
/// test of the program's instructions holds it to that.
///
/// Order      wider vectors add in another order: the levels differ in last bits. Ranks of a run agree on the lowest.
/// Memory     pads are sized for the widest vectors at every level, so that plans do not depend on it.
/// Limits     fp32 only: 16-bit formats and fp64 on CPUs are for equivalence. GPU builds and builds for x86-64-v4
///            have nothing to choose.
#pragma once

#include <string_view>

#if defined(TESSERA_CPU_LEVELS)
  #define TESSERA_V4 \
    __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,prefer-vector-width=512"), flatten))
#endif

namespace tessera::kernels {

/// Bytes of a vector register, and rows of a tile product's block, whose accumulators fill about two thirds of the
/// registers: 6 x 2 of 16, 10 x 2 of 32.
struct V3 {
  static constexpr int kVectorBytes = 32, kRowBlock = 6;
};
struct V4 {
  static constexpr int kVectorBytes = 64, kRowBlock = 10;
};
#ifdef __AVX512F__
using BuildLevel = V4;
#else
using BuildLevel = V3;
#endif

enum class CpuLevel : int { build, v4 };

/// The name in records: "v4"; "" for the build's, which its flags tell.
std::string_view name_of(CpuLevel level);

/// The best that build and processor have, or what TESSERA_CPU_LEVEL asks for: "v3" or "v4"; null or "": the best.
/// Throws std::invalid_argument if it asks for another, or for one that build or processor lack.
CpuLevel cpu_level_for(const char* asked);

/// What kernels run with: the last one set, at first cpu_level_for the environment. Set it between launches.
CpuLevel cpu_level();
void set_cpu_level(CpuLevel level);

}  // namespace tessera::kernels
