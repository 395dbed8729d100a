/// Ranks' numbers of their steps, brought to rank 0 whole or reduced on the way.
#include "jobs/run_file.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "io/h5.hpp"
#include "unit/io/scratch.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::jobs {
namespace {

using test::ScratchFolder;
using test::TestWorld;
using ::testing::ElementsAre;

constexpr float kNaN = io::kNoNumber;

/// Two steps of a rank: times that differ by rank, and a quantity that only rank 1 has measured.
std::vector<io::RankRecord> steps_of(int rank) {
  const auto r = static_cast<float>(rank);
  return {{2, 1 + r, 1 - r, 0.25F * r, rank == 1 ? 7 : kNaN, 100 * r}, {3, 1, 2, 0.5F, kNaN, 100}};
}

TEST(Gather, a_reduction_on_the_way_gives_what_rank_0_would_calculate) {
  const TestWorld world;
  const bool is_root = world.rank() == 0;
  const std::vector<io::RankRecord> mine = steps_of(world.rank());
  io::RankSteps whole, reduced;
  gather(world, mine, is_root ? &whole : nullptr);
  gather(world, mine, is_root ? &reduced : nullptr, 0);
  if (!is_root) return;
  const ScratchFolder folder;
  auto file = io::h5::File::create(folder / "steps.h5");
  auto a = file.make_group("whole"), b = file.make_group("reduced");
  constexpr auto kMany = static_cast<std::int64_t>(io::kMostRanks) + 1;  // so that both are written over the ranks
  whole.write(a, {1, 2}, kMany, nullptr);
  reduced.write(b, {1, 2}, kMany, nullptr);
  file.close();
  const auto made = io::h5::File::open(folder / "steps.h5");
  for (const char* name : {"step_time", "compute_time", "exposed_comm", "data_time", "resident_bytes"}) {
    const std::string path = std::string("/over_ranks/") + name;
    EXPECT_EQ(made.dataset("whole" + path).values<float>(), made.dataset("reduced" + path).values<float>()) << name;
  }
  const std::string slowest = "/over_ranks/slowest_rank";
  for (const char* group : {"whole", "reduced"}) {
    EXPECT_THAT(made.dataset(group + slowest).values<std::int32_t>(), ElementsAre(world.size() - 1, 0)) << group;
    const auto free = made.dataset(group + std::string("/over_ranks/device_free_bytes")).values<float>();
    EXPECT_EQ(std::isnan(free[0]), world.size() == 1) << group;
    EXPECT_TRUE(std::isnan(free[3])) << group << ": nobody has measured it";
    if (world.size() > 1) {
      EXPECT_THAT(std::vector<float>(free.begin(), free.begin() + 3), ElementsAre(7, 7, 7));
    }
  }
}

TEST(MemorySample, knows_the_process) {
  MemorySample memory;
  EXPECT_TRUE(std::isnan(memory.resident_bytes()));
  memory.refresh();
  EXPECT_GT(memory.resident_bytes(), 1e6F);
}

TEST(RankRecord, of_a_profiled_step_has_no_times) {
  train::StepNumbers numbers;
  numbers.step_s = numbers.forward_s = 1;
  EXPECT_EQ(rank_record(numbers, false, {}).compute_s, 1);
  EXPECT_TRUE(std::isnan(rank_record(numbers, true, {}).compute_s));
}

}  // namespace
}  // namespace tessera::jobs
