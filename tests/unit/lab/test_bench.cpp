/// The console's table of a benchmark, and what a timing runs.
#include "lab/bench.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "kernels/core/events.hpp"

namespace tessera::lab {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

TEST(BenchRow, keeps_its_columns_apart_and_under_their_names) {
  const auto row = [](const std::string& kernel, double ms, double std_ms) {
    return BenchRow{Cell::text("kernel", kernel, "weighted_sum_backward"), Cell::text("dtype", "fp32"),
                    Cell::number("ms", "ms", ms), Cell::number("std_ms", "ms", std_ms)};
  };
  const BenchRow rows[] = {row("copy", 0.0097053, 3.17861e-05),
                           row("weighted_sum_backward", -1.23456e-05, -1.23456e+15), row("rope", NAN, 2)};
  EXPECT_THAT(words_of(header_of(rows[0])), ElementsAre("kernel", "dtype", "ms", "std_ms"));
  EXPECT_THAT(words_of(line_of(rows[0])), ElementsAre("copy", "fp32", "0.0097053", "3.1786e-05"));
  EXPECT_THAT(words_of(line_of(rows[1])), ElementsAre("weighted_sum_backward", "fp32", "-1.2346e-05", "-1.2346e+15"));
  EXPECT_THAT(words_of(line_of(rows[2])), ElementsAre("rope", "fp32", "-", "2"));
  for (const BenchRow& each : rows) EXPECT_EQ(line_of(each).size(), header_of(each).size()) << line_of(each);

  const BenchRow unforeseen{Cell::text("name", "a text longer than any other"),
                            Cell::text("next", "a text longer than any other")};
  EXPECT_EQ(words_of(line_of(unforeseen)).size(), 12u) << line_of(unforeseen);
}

/// When each run of `work` began, in seconds since the call.
struct Timed {
  Timing timing;
  std::vector<double> called_s;
};
Timed timed(const Bench& bench) {
  Timed found;
  const double begin_s = events::now_s();
  found.timing = time_repeats(bench, kernels::Device(), [&] { found.called_s.push_back(events::now_s() - begin_s); });
  return found;
}

TEST(TimeRepeats, rests_behind_the_first_run_of_the_warm_up) {
  Bench bench;
  bench.warmup = 2;
  bench.repeats = 3;
  bench.rest_ms = 1000;
  const auto [timing, called_s] = timed(bench);
  EXPECT_EQ(timing.repeats, 3);
  ASSERT_EQ(called_s.size(), 5u);
  EXPECT_GE(called_s[1] - called_s[0], 1);
  EXPECT_LT(called_s.back() - called_s[1], 1);
  EXPECT_LT(timing.median_s, 1);  // no repeat includes the rest
}

TEST(TimeRepeats, counts_every_run_but_those_of_the_warm_up) {
  Bench bench;
  bench.repeats = 3;
  for (const double rest_ms : {0.0, 20.0}) {
    for (const double row_limit_s : {0.0, 60.0}) {
      for (const int warmup : {0, 1, 2, 5}) {
        bench.warmup = warmup;
        bench.rest_ms = rest_ms;
        bench.row_limit_s = row_limit_s;
        const auto [timing, called_s] = timed(bench);
        EXPECT_EQ(called_s.size(), static_cast<std::size_t>(warmup + 3))
            << "rest " << rest_ms << ", limit " << row_limit_s;
        EXPECT_EQ(timing.repeats, 3);
        if (warmup == 0) {
          EXPECT_GE(called_s.front(), 1e-3 * rest_ms) << "the rest comes first";
        }
      }
    }
  }
  bench = {};
  bench.warmup = 0;
  bench.warmup_ms = 30;
  EXPECT_GE(timed(bench).called_s.back(), 30e-3) << "a warm-up by time alone";
}

TEST(TimeRepeats, stops_at_its_limit_without_a_warm_up_too) {
  Bench bench;
  bench.warmup = 0;
  bench.repeats = 1000;
  bench.row_limit_s = 20e-3;
  int runs = 0;
  const Timing timing = time_repeats(bench, kernels::Device(), [&] {
    ++runs;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(timing.repeats, runs);
  EXPECT_GE(runs, 1);
  EXPECT_LE(runs, 20);
}

TEST(Summarize, keeps_the_first_and_takes_the_deviation_of_a_sample) {
  const Timing timing = summarize({7, 1, 4});
  EXPECT_EQ(timing.first_s, 7);
  EXPECT_EQ(timing.median_s, 4);
  EXPECT_EQ(timing.mean_s, 4);
  EXPECT_EQ(timing.std_s, 3);
  EXPECT_EQ(timing.repeats, 3);
  EXPECT_TRUE(std::isnan(summarize({}).median_s));
}

TEST(DtypeNamed, knows_what_the_decks_may_name) {
  EXPECT_EQ(dtype_named("fp32"), Dtype::fp32);
  EXPECT_EQ(dtype_named("bf16"), Dtype::bf16);
  EXPECT_EQ(dtype_named("fp16"), Dtype::fp16);
  EXPECT_THROW(dtype_named("int32"), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::lab
