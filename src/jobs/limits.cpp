#include "jobs/limits.hpp"

#include <fmt/format.h>

#include <sys/mman.h>
#include <sys/resource.h>

#include <cstddef>
#include <optional>
#include <string>

#include "errors.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera::jobs {

namespace {

// Measured with Open MPI 4.1.4, OpenBLAS 0.3.21 and HDF5 1.10.8 on CPUs, from main on: one rank maps up to 334 MiB more
// beside its arena, four ranks 356 MiB each, and one rank opens 28 files. Without a launcher, Open MPI starts a daemon
// that shares files of 4 MiB with it.
constexpr std::size_t kMib = std::size_t{1} << 20;
constexpr std::size_t kLibraries = 448 * kMib;
constexpr std::size_t kBlasBuffer = 160 * kMib;  // one of 128 MiB for each thread
constexpr rlim_t kOpenFiles = 64;
constexpr rlim_t kDaemonFile = 4 * kMib;

/// The limit, unless there is none.
std::optional<rlim_t> limit_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

/// Whether this process can map that much writable memory: asks the system, so every limit counts.
bool can_map(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, bytes);
  return true;
}

/// The limits that leave too little memory, and the remedy.
std::string refusal() {
  std::string limits, remedy;
  const auto add = [&](decltype(RLIMIT_AS) resource, const char* command) {
    const auto limit = limit_of(resource);
    if (!limit) return;
    limits += fmt::format("{}`{} {}`", limits.empty() ? "" : " or ", command, *limit / 1024);
    remedy += fmt::format("{}`{} unlimited`", remedy.empty() ? "" : " and ", command);
  };
  add(RLIMIT_AS, "ulimit -v");
  add(RLIMIT_DATA, "ulimit -d");
  if (limits.empty()) return "the system allows less: end other programs, or relax vm.overcommit_memory";
  return fmt::format("{} leaves less: run {} first, or ask the scheduler for more memory", limits, remedy);
}

void require_room(std::size_t bytes, const char* who) {
  if (can_map(bytes)) return;
  throw Failure(Exit::out_of_memory, "{} may need {} MiB of address space beside the deck's arrays, and {}", who,
                bytes / kMib, refusal());
}

}  // namespace

void require_limits(bool has_launcher) {
  require_room(kLibraries, "MPI, BLAS and HDF5");
  if (const auto files = limit_of(RLIMIT_NOFILE); files && *files < kOpenFiles) {
    throw Failure(Exit::environment,
                  "MPI and HDF5 may need {} open files, but `ulimit -n {}` allows fewer: run `ulimit -n 1024` first",
                  kOpenFiles, *files);
  }
  if (const auto bytes = limit_of(RLIMIT_FSIZE); !has_launcher && bytes && *bytes < kDaemonFile) {
    throw Failure(Exit::environment,
                  "Open MPI needs files of {} KiB to start, but `ulimit -f {}` (in bash) allows less: run `ulimit -f "
                  "unlimited` first",
                  kDaemonFile / 1024, *bytes / 1024);
  }
}

void take_blas_buffer() {
  if constexpr (kernels::kIsHost<kernels::Device>) {  // cuBLAS reports what it cannot allocate
    require_room(kBlasBuffer * kernels::blas_threads(), "BLAS");
    kernels::warm_up_gemm();
  }
}

}  // namespace tessera::jobs
