/// Algorithms of matrix products that were chosen by time (train.tune_gemm), agreed on by all ranks and kept for
/// resumes.
///
/// Timing is not repeatable, so what it chose becomes part of the run: after the first step every rank takes the same
/// choice for the same kind of product, a checkpoint keeps it, and a resumed run takes it up again. On another GPU or
/// with another version of the library it cannot: there the first step chooses anew, and the run says so.
#pragma once

#include <string>
#include <vector>

#include "parallel/world.hpp"

namespace tessera::jobs {

/// What a checkpoint says of products: which library made them, and the algorithms in use (kernels::gemm_algorithms).
struct GemmRecord {
  std::string library;
  std::vector<std::string> algorithms;
};
GemmRecord gemm_in_use();
std::string text_of(const GemmRecord& record);
GemmRecord gemm_record_from(const std::string& text);

/// What in the environment makes this process' library the one that was, "OPENBLAS_CORETYPE=SkylakeX": an OpenBLAS that
/// took its kernels for another processor. "" where more than that has changed.
std::string environment_for(const std::string& library_before, const std::string& library_now);

/// Makes a checkpoint's algorithms those in use, on every rank or on none. "" when it could, else why not: the first
/// rank's library or GPU that they were not chosen with. Collective, and every rank hands in the same. Throws
/// CollectiveFailure(Exit::files) where they cannot be read.
std::string adopt_gemm_algorithms(const std::vector<std::string>& algorithms, parallel::World& world);

/// The algorithms of all ranks as one list: where several ranks chose for one kind of product, the first one's choice.
/// Throws Failure(Exit::environment) where their libraries or GPUs differ. One list per rank; empty: that one has none.
std::vector<std::string> merged(const std::vector<std::vector<std::string>>& of_ranks);

/// Every rank takes the merged algorithms of all. Collective; throws CollectiveFailure.
void agree_on_gemm_algorithms(parallel::World& world);

}  // namespace tessera::jobs
