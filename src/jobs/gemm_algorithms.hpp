/// GEMM algorithms chosen by timing (train.tune_gemm). Timing is not repeatable, so its choice becomes part of the run:
/// after the first step all ranks use the same algorithm per kind of GEMM, checkpoints store it, and a resumed run
/// restores it. With another GPU or library version, the first step times again, and the run prints a note.
#pragma once

#include <string>
#include <vector>

#include "parallel/world.hpp"

namespace tessera::jobs {

/// A checkpoint's record of GEMM: the library, and the algorithms in use (kernels::gemm_algorithms).
struct GemmRecord {
  std::string library;
  std::vector<std::string> algorithms;
};
std::string text_of(const GemmRecord& record);
GemmRecord gemm_record_from(const std::string& text);

/// What decides the last bits of a host's sums: kernels::gemm_library and, unless it is the build's, the level of our
/// own kernels: "... (OpenBLAS 0.3.21 ...); kernels v4".
std::string library_in_use();

/// All ranks take the lowest level that one of them has, so that replicas get the same bits. Collective.
/// Throws parallel::AgreedError(Exit::environment) if TESSERA_CPU_LEVEL asks for what is not there.
void agree_on_cpu_level(parallel::World& world);

/// The environment variables that restore the earlier of two library_in_use, "OPENBLAS_CORETYPE=SkylakeX" or
/// "TESSERA_CPU_LEVEL=v3", or both; "" if they are not the same OpenBLAS, nothing differs, or this processor lacks
/// AVX-512 and the earlier one had it.
std::string environment_for(const std::string& library_before, const std::string& library_now, bool has_avx512);
bool processor_has_avx512();

/// Restores a checkpoint's algorithms on every rank or on none. Returns "" on success, else the first rank's reason:
/// they were chosen for another library or GPU. Collective; `algorithms` must be the same on every rank.
/// Throws parallel::AgreedError(Exit::files) if they cannot be parsed.
std::string adopt_gemm_algorithms(const std::vector<std::string>& algorithms, parallel::World& world);

/// Merges the algorithms of all ranks, one list per rank (empty: none chosen). Where several ranks chose for the same
/// kind of product, the lowest rank's choice counts.
/// Throws Failure(Exit::environment) if their libraries or GPUs differ.
std::vector<std::string> merged(const std::vector<std::vector<std::string>>& of_ranks);

/// Sets the merged algorithms of all ranks on every rank; from here on none is timed. Collective; throws
/// parallel::AgreedError.
void agree_on_gemm_algorithms(parallel::World& world);

}  // namespace tessera::jobs
