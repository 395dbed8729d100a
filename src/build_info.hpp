/// What this binary was built from and how, refreshed at every build (cmake/BuildInfo.cmake).
///
/// Goes into `--version`, `--show-config` and the /info group of every file that a run writes. Pure strings: no MPI,
/// no Kokkos. Which BLAS answers is a question to the running process and so not here.
#pragma once

#include <string>

namespace tessera::build_info {

std::string version();     // "0.1.0"
std::string git_hash();    // 40 hex digits; outside of a git checkout TESSERA_COMMIT of the build, or "unknown"
bool is_dirty();           // tracked files differed from git_hash(); false when that is unknown
std::string compiler();    // "GNU 12.2.0"; of GPU builds "GNU 13.3.0, CUDA 13.0.48"
std::string flags();       // compile flags of our own code
std::string build_type();  // "RelWithDebInfo"
std::string kokkos();      // "3.4.1 (SERIAL)"; "unknown" where its configuration header was not found
std::string mpi();         // "MPI 3.1": the standard; the running library names itself

/// One line: "tessera 0.1.0 (git 1a2b3c4d5e6f, modified), GNU 12.2.0, RelWithDebInfo, Kokkos 3.4.1 (SERIAL)".
std::string summary();

}  // namespace tessera::build_info
