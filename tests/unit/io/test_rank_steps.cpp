/// /steps/by_rank and /steps/over_ranks: what every rank measured, through changes of their number.
#include <gmock/gmock.h>

#include <cmath>

#include "io/h5.hpp"
#include "io/rank_steps.hpp"
#include "io/trace.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

using io::RankRecord;
using testing::ElementsAre;
using testing::NanSensitiveFloatEq;

const float kNaN = io::kNoNumber;

RankRecord computing(float seconds) { return {.step_time_s = 2, .compute_s = seconds, .exposed_comm_s = 2 - seconds}; }

/// `steps` steps from `first` on: rank r computes for 1 + r seconds.
void add_steps(io::Trace& trace, std::int64_t first, std::int64_t steps, int ranks) {
  for (std::int64_t step = first; step < first + steps; ++step) {
    trace.add({.step = step});
    std::vector<RankRecord> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(computing(1 + static_cast<float>(rank)));
    trace.rank_steps().add(all);
  }
}

io::RunInfo info_of(int ranks) {
  io::RunInfo info;
  info.origin.launch.ranks = ranks;
  return info;
}

std::vector<float> floats(const fs::path& path, const std::string& name) {
  return io::h5::File::open(path).dataset(name).values<float>();
}
io::h5::Shape shape(const fs::path& path, const std::string& name) {
  return io::h5::File::open(path).dataset(name).shape();
}

TEST(RankSpread, leaves_out_who_has_not_measured) {
  const auto spread = io::spread_of(std::vector<RankRecord>{computing(3), {}, computing(5), computing(5)});
  EXPECT_EQ(spread.min.compute_s, 3);
  EXPECT_EQ(spread.max.compute_s, 5);
  EXPECT_FLOAT_EQ(spread.mean.compute_s, 13.0F / 3);
  EXPECT_EQ(spread.slowest, 2) << "the first of two";
  EXPECT_TRUE(std::isnan(spread.mean.data_s)) << "nobody has measured it";
  EXPECT_EQ(io::spread_of({}).slowest, -1);
}

TEST(RankSteps, ranks_stand_side_by_side) {
  const ScratchFolder folder;
  io::Trace trace(folder / "run.h5", info_of(2), 0);
  add_steps(trace, 1, 3, 2);
  trace.flush();
  EXPECT_THAT(shape(folder / "run.h5", "steps/by_rank/compute_time"), ElementsAre(3, 2));
  EXPECT_THAT(floats(folder / "run.h5", "steps/by_rank/compute_time"), ElementsAre(1, 2, 1, 2, 1, 2));
  EXPECT_THAT(floats(folder / "run.h5", "steps/by_rank/exposed_comm"), ElementsAre(1, 0, 1, 0, 1, 0));
  EXPECT_FALSE(io::h5::File::open(folder / "run.h5").has("steps/over_ranks"));
}

TEST(RankSteps, steps_whose_ranks_have_not_been_asked_are_nan) {
  const ScratchFolder folder;
  io::Trace trace(folder / "run.h5", info_of(1), 0);
  add_steps(trace, 1, 1, 1);
  trace.add({.step = 2});
  trace.flush();
  EXPECT_THAT(floats(folder / "run.h5", "steps/by_rank/compute_time"),
              ElementsAre(NanSensitiveFloatEq(1), NanSensitiveFloatEq(kNaN)));
}

TEST(RankSteps, a_resume_cuts_steps_and_more_ranks_widen_all) {
  const ScratchFolder folder;
  {
    io::Trace trace(folder / "run.h5", info_of(1), 0);
    add_steps(trace, 1, 5, 1);
    trace.flush();
  }
  {
    io::Trace trace(folder / "run.h5", info_of(2), 0, 2);
    add_steps(trace, 3, 1, 2);
    trace.flush();
    EXPECT_THAT(shape(folder / "run.h5", "steps/by_rank/compute_time"), ElementsAre(3, 2));
    EXPECT_THAT(floats(folder / "run.h5", "steps/by_rank/compute_time"),
                ElementsAre(1, NanSensitiveFloatEq(kNaN), 1, NanSensitiveFloatEq(kNaN), 1, 2));
  }
  io::Trace trace(folder / "run.h5", info_of(1), 0, 3);
  add_steps(trace, 4, 1, 1);
  trace.flush();
  EXPECT_THAT(shape(folder / "run.h5", "steps/by_rank/compute_time"), ElementsAre(4, 2)) << "earlier steps had two";
}

TEST(RankSteps, of_many_ranks_only_their_spread_is_kept_for_all_steps) {
  const ScratchFolder folder;
  {
    io::Trace trace(folder / "run.h5", info_of(2), 0);
    add_steps(trace, 1, 2, 2);
    trace.flush();
  }
  {
    io::Trace trace(folder / "run.h5", info_of(17), 0, 1);
    trace.add({.step = 2});
    std::vector<RankRecord> all;
    for (int rank = 0; rank < 17; ++rank) all.push_back(computing(1 + static_cast<float>(rank)));
    trace.rank_steps().add(io::spread_of(all));
    trace.flush();
  }
  const auto check = [&] {
    EXPECT_FALSE(io::h5::File::open(folder / "run.h5").has("steps/by_rank"));
    EXPECT_THAT(floats(folder / "run.h5", "steps/over_ranks/compute_time"), ElementsAre(1, 1.5, 2, 1, 9, 17));
    EXPECT_THAT(io::h5::File::open(folder / "run.h5").dataset("steps/over_ranks/slowest_rank").values<std::int32_t>(),
                ElementsAre(1, 16));
  };
  check();
  io::Trace(folder / "run.h5", info_of(2), 0, 2).flush();
  check();
}

TEST(Attempts, keep_those_that_a_resume_rewinds) {
  const ScratchFolder folder;
  io::RunInfo info = info_of(2);
  info.origin.git_hash = "abc";
  info.job = "4711";
  {
    io::Trace trace(folder / "run.h5", info, 0);
    add_steps(trace, 1, 9, 2);
    trace.set_end("stopped by SIGUSR1");
  }
  { io::Trace(folder / "run.h5", info, 0, 5).flush(); }
  io::Trace trace(folder / "run.h5", info_of(1), 0, 3);
  trace.flush();
  const auto file = io::h5::File::open(folder / "run.h5");
  const auto attempts = file.group("attempts");
  EXPECT_THAT(attempts.dataset("reason").strings(), ElementsAre("stopped by SIGUSR1", "killed", "running"));
  EXPECT_THAT(attempts.dataset("from_step").values<std::int64_t>(), ElementsAre(0, 5, 3));
  EXPECT_THAT(attempts.dataset("ranks").values<std::int64_t>(), ElementsAre(2, 2, 1));
  EXPECT_THAT(attempts.dataset("job").strings(), ElementsAre("4711", "4711", ""));
  EXPECT_THAT(attempts.dataset("commit").strings(), ElementsAre("abc", "abc", ""));
  const auto start = attempts.dataset("start").values<double>(), end = attempts.dataset("end").values<double>();
  for (std::size_t i = 0; i < start.size(); ++i) EXPECT_LE(start[i], end[i]);
  EXPECT_LE(end[0], start[1]);
}

TEST(Attempts, of_an_older_file_are_counted) {
  const ScratchFolder folder;
  {
    auto file = io::h5::File::create(folder / "run.h5");
    file.make_group("info");
    file.close();
  }
  const auto attempts = io::load_attempts(io::h5::File::open(folder / "run.h5"), 2);
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_EQ(attempts[1].reason, "not recorded");
  EXPECT_TRUE(std::isnan(attempts[1].start_s));
}

}  // namespace
}  // namespace tessera::test
