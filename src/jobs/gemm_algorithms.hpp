/// GEMM algorithms chosen by timing (train.tune_gemm): agreed on by all ranks, stored in checkpoints, restored on
/// resume.
///
/// Timing is not repeatable, so its choice becomes part of the run: after the first step all ranks use the same
/// algorithm for the same kind of product, checkpoints store it, and a resumed run restores it. On another GPU or with
/// another version of the library that is impossible: the first step then times anew, and the run prints a note.
#pragma once

#include <string>
#include <vector>

#include "parallel/world.hpp"

namespace tessera::jobs {

/// What a checkpoint records of GEMM: the library, and the algorithms in use (kernels::gemm_algorithms).
struct GemmRecord {
  std::string library;
  std::vector<std::string> algorithms;
};
std::string text_of(const GemmRecord& record);
GemmRecord gemm_record_from(const std::string& text);

/// The environment variable that restores the earlier library's kernels, "OPENBLAS_CORETYPE=SkylakeX", where the two
/// are the same OpenBLAS with kernels for different processors; "" where they differ otherwise.
std::string environment_for(const std::string& library_before, const std::string& library_now);

/// Restores a checkpoint's algorithms on every rank or on none. Returns "" on success, else the reason: the first
/// rank's library or GPU for which they were not chosen. Collective; `algorithms` must be the same on every rank.
/// Throws parallel::AgreedError(Exit::files) if they cannot be parsed.
std::string adopt_gemm_algorithms(const std::vector<std::string>& algorithms, parallel::World& world);

/// Merges the algorithms of all ranks, one list per rank (empty: none chosen). Where several ranks chose for the same
/// kind of product, the lowest rank's choice counts.
/// Throws Failure(Exit::environment) if their libraries or GPUs differ.
std::vector<std::string> merged(const std::vector<std::vector<std::string>>& of_ranks);

/// Sets the merged algorithms of all ranks on every rank. Collective; throws parallel::AgreedError.
void agree_on_gemm_algorithms(parallel::World& world);

}  // namespace tessera::jobs
