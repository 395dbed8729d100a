/// The console's table of a benchmark, and how a timing goes.
#include "jobs/bench.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>
#include <stdexcept>

#include "kernels/core/events.hpp"

namespace tessera::jobs {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

TEST(BenchTable, keeps_its_columns_apart_and_under_their_names) {
  using T = BenchTable;
  const auto row = [](const std::string& kernel, double ms, double std_ms) {
    return std::vector<T::Cell>{T::text("kernel", kernel, "weighted_sum_backward"), T::text("dtype", "fp32"),
                                T::number("ms", "ms", ms), T::number("std_ms", "ms", std_ms)};
  };
  BenchTable table;
  table.add(row("copy", 0.0097053, 3.17861e-05));
  table.add(row("weighted_sum_backward", -1.23456e-05, -1.23456e+15));
  table.add(row("rope", NAN, 2));
  EXPECT_THAT(words_of(table.header()), ElementsAre("kernel", "dtype", "ms", "std_ms"));
  EXPECT_THAT(words_of(table.line(0)), ElementsAre("copy", "fp32", "0.0097053", "3.1786e-05"));
  EXPECT_THAT(words_of(table.line(1)), ElementsAre("weighted_sum_backward", "fp32", "-1.2346e-05", "-1.2346e+15"));
  EXPECT_THAT(words_of(table.line(2)), ElementsAre("rope", "fp32", "-", "2"));
  for (std::size_t line = 0; line < table.rows(); ++line) {
    EXPECT_EQ(table.line(line).size(), table.header().size()) << table.line(line);
  }

  BenchTable unforeseen;
  unforeseen.add({T::text("name", "a text longer than any other"), T::text("next", "a text longer than any other")});
  EXPECT_EQ(words_of(unforeseen.line(0)).size(), 12u) << unforeseen.line(0);
}

TEST(TimeRepeats, rests_once_before_it_warms_up_and_repeats) {
  config::Bench bench;
  bench.warmup = 2;
  bench.repeats = 3;
  bench.rest_ms = 100;
  const double begin_s = events::now_s();
  std::vector<double> called_s;
  const Timing timing = time_repeats(bench, kernels::Device(), [&] { called_s.push_back(events::now_s() - begin_s); });
  EXPECT_EQ(timing.repeats, 3);
  ASSERT_GE(called_s.size(), 6u);  // one before the rest, the warm-up, the repeats
  EXPECT_GE(called_s[1] - called_s[0], 100e-3);
  EXPECT_LT(called_s.back() - called_s[1], 100e-3);
  EXPECT_LT(timing.median_s, 100e-3);  // the rest counts in no repeat
}

TEST(DtypeNamed, knows_what_the_decks_may_name) {
  EXPECT_EQ(dtype_named("fp32"), Dtype::fp32);
  EXPECT_EQ(dtype_named("bf16"), Dtype::bf16);
  EXPECT_EQ(dtype_named("fp16"), Dtype::fp16);
  EXPECT_THROW(dtype_named("int32"), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::jobs
