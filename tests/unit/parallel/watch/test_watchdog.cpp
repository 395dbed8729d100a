#include "parallel/watch/watchdog.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

namespace tessera::parallel {
namespace {

using ::testing::ExitedWithCode;

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// Successful watches, so that the plain limit applies.
void pass_the_first(Watchdog& watchdog) {
  for (int i = 0; i < Watchdog::kFirstWatches; ++i) Watchdog::Watch(&watchdog, "a first step");
}

constexpr double kLimit_s = 0.2;
constexpr double kRoomy_s = 1.5;  // a machine's stall that is longer than the room left below it counts as a pause
constexpr double kForever_s = 60;
constexpr int kLost = 7;  // exit code

// A fresh process for each death test: the watchdog has a thread.
struct WatchdogDeath : ::testing::Test {
  void SetUp() override { ::testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(WatchdogDeath, ends_a_step_that_makes_no_progress) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(3, kLimit_s, kLost, {});
        pass_the_first(watchdog);
        const Watchdog::Watch watch(&watchdog, "step 12");
        events::report(events::CommunicationStart{"all_reduce[mpi]", "grad.bucket.1", 4096, events::now_s()});
        sleep_s(kForever_s);
      },
      ExitedWithCode(7),
      "rank 3: no progress for [01].[0-9] s.*under way: step 12(.|\n)*grad.bucket.1 started, 4096 bytes");
}

TEST_F(WatchdogDeath, goes_on_with_the_outer_watch_when_an_inner_one_has_ended) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(3, kLimit_s, kLost, {});
        pass_the_first(watchdog);
        const Watchdog::Watch row(&watchdog, "the exchange between rows");
        { const Watchdog::Watch watch(&watchdog, "the set-up of a row", kForever_s); }
        sleep_s(kForever_s);
      },
      ExitedWithCode(7), "no progress for [01].[0-9] s.*under way: the exchange between rows");
}

/// The failed row of an experiment, say, after which the next one runs.
TEST_F(WatchdogDeath, learns_nothing_from_a_watch_that_an_exception_ends) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(3, kRoomy_s, kLost, {});
        try {
          const Watchdog::Watch watch(&watchdog, "a row");
          sleep_s(1.2 * kRoomy_s);  // the first watches have twice the limit; what was learnt would be 2.4 times
          throw 1;
        } catch (int) {
        }
        pass_the_first(watchdog);
        const Watchdog::Watch watch(&watchdog, "step 12");
        sleep_s(kForever_s);
      },
      ExitedWithCode(7), "no progress for [12]\\.");
}

TEST_F(WatchdogDeath, reports_the_transfers_that_are_recorded) {
  EXPECT_EXIT(
      {
        FlightRecorder recorder;
        recorder.begin(recorder.name("all_gather[mpi]", "params.head"), 64);
        Watchdog watchdog(3, kLimit_s, kLost, {}, {}, &recorder);
        const Watchdog::Watch watch(&watchdog, "step 12");
        sleep_s(kForever_s);
      },
      ExitedWithCode(7),
      "under way: step 12\n(.|\n)*rank 3:   #1  all_gather.mpi. of params.head .64 bytes., started [0-9.]+ s ago, "
      "under way");
}

/// Two ranks of one host, whose processes are this one.
struct TwoOfAHost {
  TwoOfAHost() {
    auto first = std::make_unique<SharedMemory>(FlightRecorder::bytes_for(2));
    auto second = std::make_unique<SharedMemory>(FlightRecorder::bytes_for(2), first->address());
    recorders[0] = std::make_unique<FlightRecorder>(std::move(first), 0, 2, 0, 2);
    recorders[1] = std::make_unique<FlightRecorder>(std::move(second), 1, 2, 1, 2);
  }
  std::unique_ptr<FlightRecorder> recorders[2];
};

TEST_F(WatchdogDeath, has_no_patience_with_a_stopped_rank_of_its_host) {
  EXPECT_EXIT(
      {
        TwoOfAHost host;
        host.recorders[1]->beat();  // its last
        Watchdog watchdog(0, kLimit_s, kLost, {}, {}, host.recorders[0].get());
        const Watchdog::Watch watch(&watchdog, "a checkpoint", kForever_s);
        sleep_s(kForever_s);
      },
      ExitedWithCode(7),
      "no progress for [345]\\..*under way: a checkpoint\n.*rank 0: rank 1 has given no sign of life for");
}

TEST_F(WatchdogDeath, has_patience_with_a_rank_that_gives_signs_of_life_or_has_ended_in_good_order) {
  EXPECT_EXIT(
      {
        TwoOfAHost host;
        host.recorders[1]->beat();
        host.recorders[1]->rest();
        Watchdog watchdog(0, kLimit_s, kLost, {}, {}, host.recorders[0].get());
        {
          const Watchdog::Watch watch(&watchdog, "a checkpoint", kForever_s);
          sleep_s(Watchdog::kStopped_s + 1);
        }
        const Watchdog other(1, kLimit_s, kLost, {}, {}, host.recorders[1].get());
        const Watchdog::Watch watch(&watchdog, "a checkpoint", kForever_s);
        sleep_s(Watchdog::kStopped_s + 1);
        std::_Exit(0);
      },
      ExitedWithCode(0), "");
}

/// Suspends this process and resumes it after `seconds`.
void suspend_s(unsigned seconds) {
  const pid_t me = ::getpid();
  if (::fork() == 0) {
    ::sleep(seconds);
    ::kill(me, SIGCONT);
    ::_exit(0);
  }
  ::raise(SIGSTOP);
}

TEST_F(WatchdogDeath, takes_no_rank_for_stopped_that_was_suspended_and_resumed_with_it) {
  EXPECT_EXIT(
      {
        TwoOfAHost host;
        Watchdog watchdog(0, kLimit_s, kLost, {}, {}, host.recorders[0].get());
        const Watchdog::Watch watch(&watchdog, "a checkpoint", kForever_s);
        for (double waited_s = 0; waited_s < Watchdog::kStopped_s + 0.5; waited_s += 0.1) {
          host.recorders[1]->beat();
          sleep_s(0.1);
        }
        suspend_s(static_cast<unsigned>(Watchdog::kStopped_s) + 1);
        sleep_s(0.5);  // the watchdog of rank 0 wakes first
        host.recorders[1]->beat();
        sleep_s(0.5);
        std::_Exit(0);
      },
      ExitedWithCode(0), "");
}

TEST_F(WatchdogDeath, misses_a_rank_that_stays_stopped_when_it_is_resumed) {
  EXPECT_EXIT(
      {
        TwoOfAHost host;
        host.recorders[1]->beat();  // its last
        Watchdog watchdog(0, kLimit_s, kLost, {}, {}, host.recorders[0].get());
        const Watchdog::Watch watch(&watchdog, "a checkpoint", kForever_s);
        suspend_s(static_cast<unsigned>(Watchdog::kStopped_s) + 1);
        sleep_s(kForever_s);
      },
      ExitedWithCode(7),
      "no progress for [345]\\..*under way: a checkpoint\n.*rank 0: rank 1 has given no sign of life for");
}

TEST_F(WatchdogDeath, does_not_count_a_suspension_while_it_asks_for_faults) {
  EXPECT_EXIT(
      {
        std::atomic<bool> suspends = false;
        Watchdog watchdog(0, 1, kLost, [&] {
          if (suspends.exchange(false)) suspend_s(4);
          return std::string();
        });
        pass_the_first(watchdog);
        const Watchdog::Watch watch(&watchdog, "step 12");
        suspends = true;
        while (suspends) sleep_s(1e-3);
        sleep_s(0.3);  // it goes on, and watches
        std::_Exit(0);
      },
      ExitedWithCode(0), "");
}

TEST_F(WatchdogDeath, does_not_learn_patience_from_a_suspension_that_the_main_thread_notices_first) {
  EXPECT_EXIT(
      {
        std::atomic<bool> holds = false;
        std::atomic<bool> is_held = false;
        Watchdog watchdog(0, 0.5, kLost, [&] {
          for (; holds; sleep_s(1e-3)) is_held = true;
          return std::string();
        });
        pass_the_first(watchdog);
        {
          const Watchdog::Watch watch(&watchdog, "step 12");
          holds = true;
          while (!is_held) sleep_s(1e-3);
          suspend_s(5);
          events::report(events::CommunicationStart{"all_reduce[mpi]", "grad.bucket.1", 4096, events::now_s()});
          holds = false;
        }
        const Watchdog::Watch watch(&watchdog, "step 13");
        sleep_s(kForever_s);
      },
      ExitedWithCode(7), "no progress for [0-3]\\..*under way: step 13");
}

TEST(Watchdog, gives_a_sign_of_life_at_once) {
  TwoOfAHost host;
  const Watchdog watchdog(1, kForever_s, kLost, {}, {}, host.recorders[1].get());
  EXPECT_EQ(host.recorders[0]->report(0)[0].find("rank 1 has given no sign of life for 0."), 0);
}

TEST_F(WatchdogDeath, ends_with_the_librarys_fault_inside_or_outside_of_a_step) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(0, kForever_s, kLost, [] { return std::string("the network is gone"); });
        sleep_s(kForever_s);
      },
      ExitedWithCode(7), "rank 0: the network is gone");
}

TEST_F(WatchdogDeath, ends_a_rank_that_leaves_and_does_not_get_anywhere_whatever_it_reports) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(2, kLimit_s, kLost, {}, [] { std::fputs("nothing waits any more\n", stderr); });
        watchdog.leave();
        for (double slept_s = 0; slept_s < kForever_s; slept_s += kLimit_s / 4) {
          const Watchdog::Watch watch(&watchdog, "cleaning up");
          events::report(events::Region{"backward/block.01", "compute", 0, 1});
          sleep_s(kLimit_s / 4);
        }
      },
      ExitedWithCode(7), "rank 2: it leaves by an exception(.|\n)*exit code 7(.|\n)*nothing waits any more");
}

TEST_F(WatchdogDeath, ends_a_rank_that_leaves_with_the_cause_once_it_is_known) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(2, kLimit_s, kLost, {});
        watchdog.leave();
        watchdog.leave(Departure{6, "the disk is full"});
        watchdog.leave();
        sleep_s(kForever_s);
      },
      ExitedWithCode(6),
      "rank 2: the disk is full\n.*rank 2: it leaves by an exception(.|\n)*leaves with exit code 6\n");
}

TEST_F(WatchdogDeath, spares_a_rank_that_stays_after_all) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(2, kLimit_s, kLost, {});
        watchdog.leave(Departure{6, "the disk is full"});
        watchdog.stay();
        sleep_s(kLimit_s / 2 + Watchdog::kLeaving_s + 0.5);
        std::_Exit(0);
      },
      ExitedWithCode(0), "");
}

TEST_F(WatchdogDeath, gives_the_first_steps_longer) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(0, kRoomy_s, kLost, {});
        {
          const Watchdog::Watch watch(&watchdog, "step 1");
          sleep_s(1.2 * kRoomy_s);  // within twice
        }
        const Watchdog::Watch watch(&watchdog, "step 2");
        sleep_s(kForever_s);
      },
      ExitedWithCode(7), "under way: step 2");
}

TEST(Watchdog, lets_a_step_alone_that_reports) {
  Watchdog watchdog(0, kRoomy_s, kLost, {});
  pass_the_first(watchdog);
  const Watchdog::Watch watch(&watchdog, "step 12");
  for (int i = 0; i < 20; ++i) {
    sleep_s(kRoomy_s / 15);
    events::report(events::Region{"backward/block.01", "compute", 0, 1});
  }
}

TEST(Watchdog, has_patience_with_long_work_that_makes_progress) {
  Watchdog watchdog(0, kRoomy_s / 2, kLost, {});
  pass_the_first(watchdog);
  const Watchdog::Watch watch(&watchdog, "a checkpoint", 2);
  for (int i = 0; i < 8; ++i) {
    sleep_s(kRoomy_s / 5);
    watchdog.made_progress();
  }
}

TEST(Watchdog, does_not_mind_waiting_outside_of_a_watch) {
  Watchdog watchdog(0, kLimit_s, kLost, {});
  pass_the_first(watchdog);
  sleep_s(3 * kLimit_s);
  Watchdog::Watch(nullptr, "watched by nobody");
}

TEST(Watchdog, learns_from_slow_steps) {
  Watchdog watchdog(0, kRoomy_s, kLost, {});
  {
    const Watchdog::Watch watch(&watchdog, "step 1");
    sleep_s(kRoomy_s);
  }
  pass_the_first(watchdog);
  const Watchdog::Watch watch(&watchdog, "step 12");
  sleep_s(1.2 * kRoomy_s);  // below twice the longest silence
}

TEST(Watchdog, allows_a_silence_that_was_announced) {
  Watchdog watchdog(0, kRoomy_s / 2, kLost, {});
  pass_the_first(watchdog);
  watchdog.expect_silence(kRoomy_s);
  const Watchdog::Watch watch(&watchdog, "step 12");
  sleep_s(1.2 * kRoomy_s);
}

TEST_F(WatchdogDeath, learns_nothing_from_long_steps_that_report) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(0, kRoomy_s, kLost, {});
        {
          const Watchdog::Watch watch(&watchdog, "step 1");
          for (int i = 0; i < 20; ++i) {
            sleep_s(kRoomy_s / 10);
            events::report(events::Region{"backward/block.01", "compute", 0, 1});
          }
        }
        pass_the_first(watchdog);
        const Watchdog::Watch watch(&watchdog, "step 12");
        sleep_s(kForever_s);
      },
      ExitedWithCode(7), "no progress for [12]\\..*under way: step 12");
}

TEST_F(WatchdogDeath, learns_nothing_from_patience) {
  EXPECT_EXIT(
      {
        Watchdog watchdog(0, kLimit_s, kLost, {});
        {
          const Watchdog::Watch watch(&watchdog, "a checkpoint", 10);
          sleep_s(5 * kLimit_s);
        }
        pass_the_first(watchdog);
        const Watchdog::Watch watch(&watchdog, "step 12");
        sleep_s(kForever_s);
      },
      ExitedWithCode(7), "no progress for [01]\\.[0-9] s.*under way: step 12");
}

TEST(Watchdog, has_patience_when_asked_to) {
  Watchdog watchdog(0, kLimit_s, kLost, {});
  pass_the_first(watchdog);
  const Watchdog::Watch watch(&watchdog, "a checkpoint", 10);
  sleep_s(4 * kLimit_s);
}

TEST(Watchdog, hears_more_than_it_keeps) {
  Watchdog watchdog(0, kForever_s, kLost, {});
  const std::string label(500, 'x');
  for (int i = 0; i < 100; ++i) events::report(events::Communication{"all_reduce", label, 1, 0, 1, 0});
}

TEST(Watchdog, asks_for_faults_without_holding_up_those_who_report) {
  std::atomic<bool> is_asked = false, may_answer = false;
  Watchdog watchdog(0, kLimit_s, kLost, [&] {
    is_asked = true;
    while (!may_answer) sleep_s(0.001);
    return std::string();
  });
  while (!is_asked) sleep_s(0.001);
  events::report(events::Region{"backward/block.01", "compute", 0, 1});  // would hang
  may_answer = true;
}

}  // namespace
}  // namespace tessera::parallel
