/// main of tests that run on several ranks: MPI and Kokkos around GoogleTest.
///
/// Rank 0 prints GoogleTest's output; every rank prints its own failures, with its number. All ranks return the worst
/// result of any rank. An exception that escapes a test ends all ranks at once: the others would wait for that rank in
/// their next collective until ctest's time-out.
#include <gtest/gtest.h>
#include <mpi.h>

#include <Kokkos_Core.hpp>

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>

#include "support/sanitizers.hpp"
#include "support/shared_gpu.hpp"

#ifdef __SANITIZE_ADDRESS__
  #include <sanitizer/lsan_interface.h>
#endif

namespace {

class RankPrinter : public ::testing::EmptyTestEventListener {
 public:
  explicit RankPrinter(int rank) : rank_(rank) {}

 private:
  void OnTestStart(const ::testing::TestInfo& test) override {
    name_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestPartResult(const ::testing::TestPartResult& part) override {
    if (!part.failed()) return;
    std::ostringstream text;  // one write, so that ranks do not interleave within a message
    text << "[rank " << rank_ << "] " << name_ << " failed at " << (part.file_name() ? part.file_name() : "?") << ':'
         << part.line_number() << '\n';
    if (rank_ > 0) text << part.message() << '\n';  // rank 0's message is printed by GoogleTest
    std::fputs(text.str().c_str(), stderr);
  }

  int rank_;
  std::string name_;
};

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, rank = 0, size = 1;
#ifdef __SANITIZE_ADDRESS__
  __lsan_disable();  // MPI probes plug-ins and unloads some: no suppression could name what those leave behind
#endif
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
#ifdef __SANITIZE_ADDRESS__
  __lsan_enable();
#endif
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  tessera::test::prepare_to_share_a_gpu(rank);
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::GTEST_FLAG(catch_exceptions) = false;
  Kokkos::initialize(argc, argv);

  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank > 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new RankPrinter(rank));  // GoogleTest owns it
  if (rank == 0) std::printf("%d ranks\n", size);

  int result = 0, worst = 0;
  try {
    result = RUN_ALL_TESTS();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[rank %d] an exception left the test: %s\n", rank, error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Allreduce(&result, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  Kokkos::finalize();
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();  // now: what MPI's plug-ins keep cannot be told from ours once they are unloaded
#endif
  MPI_Finalize();
  return worst;
}
