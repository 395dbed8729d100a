#include "parallel/watch/start_watch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace tessera::parallel {
namespace {

using ::testing::ExitedWithCode;

constexpr double kLimit_s = 0.02;  // 0.2 s with patience
constexpr double kShort_s = 0.1;   // 1 s: time enough to reach the end of the start
constexpr double kLong_s = 60;     // where nothing is to end this process, however late its threads run
constexpr int kLost = 7;           // exit code

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// Whether a socket of this process says that rank `rank` has come.
bool is_announced(int rank) {
  std::ifstream file("/proc/net/unix");
  std::stringstream sockets;
  sockets << file.rdbuf();
  const std::string end = "-" + std::to_string(rank) + "-" + std::to_string(::getpid()) + "\n";
  return sockets.str().find(end) != std::string::npos;
}

struct StartWatchDeath : ::testing::Test {
  void SetUp() override {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    ::setenv("PMIX_NAMESPACE", ("a launch of process " + std::to_string(::getpid())).c_str(), 1);
  }
};

TEST_F(StartWatchDeath, names_the_ranks_that_have_come_and_those_that_it_has_not_seen) {
  EXPECT_EXIT(
      {
        const StartWatch other(2, 4, 60, kLost);
        const StartWatch start(0, 4, kLimit_s, kLost);
        sleep_s(60);
      },
      ExitedWithCode(7),
      "rank 0: the 4 ranks have not started within 0.2 s(.|\n)*have reached the start on this host: 0, 2\n"
      ".*ranks not seen: 1, 3; (.|\n)*leaves with exit code 7");
}

TEST_F(StartWatchDeath, says_when_the_launch_has_no_id) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID"}) ::unsetenv(name);
  EXPECT_EXIT(
      {
        const StartWatch start(0, 2, kLimit_s, kLost);
        sleep_s(60);
      },
      ExitedWithCode(7), "which ranks have come is unknown: the launcher gives the launch no id");
}

TEST_F(StartWatchDeath, lets_a_launch_alone_that_has_started) {
  StartWatch start(1, 2, kLong_s, kLost);
  EXPECT_TRUE(is_announced(1));
  start.end();
  EXPECT_TRUE(is_announced(1)) << "others may still be starting";
}

TEST_F(StartWatchDeath, goes_on_after_the_start_for_longer_than_the_limit) {
  EXPECT_EXIT(
      {
        StartWatch start(1, 2, kShort_s, kLost);
        start.end();
        sleep_s(2 * StartWatch::kPatience * kShort_s);
        std::_Exit(0);
      },
      ExitedWithCode(0), "");
}

TEST_F(StartWatchDeath, does_not_watch_a_single_rank_or_without_a_limit) {
  const StartWatch single(0, 1, kLimit_s, kLost), unlimited(1, 2, 0, kLost);
  EXPECT_FALSE(is_announced(0));
  EXPECT_FALSE(is_announced(1));
  sleep_s(2 * StartWatch::kPatience * kLimit_s);
}

TEST_F(StartWatchDeath, leaves_no_name_behind) {
  { const StartWatch start(1, 2, kLong_s, kLost); }
  EXPECT_FALSE(is_announced(1));
}

}  // namespace
}  // namespace tessera::parallel
