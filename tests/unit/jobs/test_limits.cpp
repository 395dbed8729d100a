/// Limits of a process are refused before a library that does not survive them starts. How the program ends under them:
/// tests/runs/test_limits.py.
#include "jobs/limits.hpp"

#include <gmock/gmock.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "kernels/core/tensor.hpp"
#include "kernels/gemm/openblas.hpp"
#include "unit/io/scratch.hpp"

namespace tessera::jobs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// While it lives, no descriptor from `files` on can be opened.
class OpenFilesLimit {
 public:
  explicit OpenFilesLimit(rlim_t files) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{files, before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~OpenFilesLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFilesLimit(const OpenFilesLimit&) = delete;
  OpenFilesLimit& operator=(const OpenFilesLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(Limits, without_any_all_is_well) {
  EXPECT_NO_THROW(require_limits(false));
  EXPECT_NO_THROW(take_blas_buffer());
}

TEST(Limits, few_open_files_are_refused) {
  const OpenFilesLimit few(63);
  EXPECT_THAT(test::failure_of([] { require_limits(true); }, Exit::environment),
              AllOf(HasSubstr("`ulimit -n 63`"), HasSubstr("`ulimit -n 1024`")));
}

TEST(Limits, small_files_are_refused_where_mpi_starts_a_daemon) {
  const test::FileSizeLimit small((4 << 20) - 1024);
  EXPECT_NO_THROW(require_limits(true));
  EXPECT_THAT(test::failure_of([] { require_limits(false); }, Exit::environment),
              AllOf(HasSubstr("`ulimit -f 4095`"), HasSubstr("`ulimit -f unlimited`")));
}

#ifndef __SANITIZE_ADDRESS__  // it takes terabytes of address space
TEST(Limits, openblas_maps_a_buffer_for_every_thread) {
  if (kernels::openblas::description() == "not OpenBLAS") GTEST_SKIP() << "another BLAS";
  const auto mapped_bytes = [] {
    std::ifstream maps("/proc/self/maps");
    std::uint64_t bytes = 0, from = 0, to = 0;
    char dash = 0;
    for (std::string line; std::getline(maps, line);) {
      std::istringstream(line) >> std::hex >> from >> dash >> to;
      bytes += to - from;
    }
    return bytes;
  };
  kernels::openblas::map_buffers(1);
  const std::uint64_t one = mapped_bytes();
  kernels::openblas::map_buffers(3);
  const std::uint64_t three = mapped_bytes();
  EXPECT_GE(three, one + 2 * (std::uint64_t{32} << 20));  // each is of 128 MiB in Debian's
  kernels::openblas::map_buffers(3);
  EXPECT_LT(mapped_bytes(), three + (1 << 20));
}

TEST(Limits, little_address_space_is_refused) {
  const test::AddressSpaceLimit small(std::int64_t{400} << 20);
  EXPECT_THAT(test::failure_of([] { require_limits(true); }, Exit::out_of_memory),
              AllOf(HasSubstr("448 MiB"), HasSubstr("`ulimit -v unlimited`")));
}

TEST(Limits, blas_is_not_asked_for_a_buffer_that_does_not_fit) {
  if (!kernels::kIsHost<kernels::Device>) GTEST_SKIP() << "cuBLAS reports it itself";
  const test::AddressSpaceLimit small(std::int64_t{100} << 20);
  EXPECT_THAT(test::failure_of(take_blas_buffer, Exit::out_of_memory), HasSubstr("`ulimit -v unlimited`"));
}
#endif

}  // namespace
}  // namespace tessera::jobs
