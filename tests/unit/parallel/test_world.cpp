#include "parallel/world.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/core/words.hpp"
#include "parallel/choice.hpp"
#include "parallel/collectives/collective.hpp"
#include "parallel/device.hpp"
#include "parallel/errors.hpp"
#include "parallel/collectives/mpi.hpp"
#include "support/no_collectives.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::parallel {
namespace {

using test::TestWorld;
using ::testing::Each;
using ::testing::HasSubstr;

template <class Work>
std::string environment_failure_of(Work work) {
  try {
    work();
  } catch (const EnvironmentError& failure) {
    return failure.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

using Variables = std::map<std::string, const char*>;
const Variables kSrun{{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_NTASKS", "16"}};

void check(int ranks, const Variables& variables) {
  check_launcher(ranks, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second;
  });
}

TEST(CheckLauncher, accepts_agreement_and_no_srun) {
  EXPECT_NO_THROW(check(8, kSrun));
  EXPECT_NO_THROW(check(4, {}));
  EXPECT_NO_THROW(check(1, {{"SLURM_NTASKS", "8"}})) << "in a job's script, which is no step of srun's";
}

TEST(CheckLauncher, asks_mpirun_before_slurm) {
  const Variables below_a_daemon{{"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NUM_TASKS", "1"}};
  const std::string mpichs = std::string("MPI") + "_LOCALNRANKS";
  for (const Variables& set_by_mpirun : {Variables{{"OMPI_COMM_WORLD_SIZE", "2"}},
                                         Variables{{mpichs, "2"}, {"PMI_SIZE", "2"}}, Variables{{mpichs, "2"}}}) {
    Variables all = set_by_mpirun;
    all.insert(below_a_daemon.begin(), below_a_daemon.end());
    EXPECT_NO_THROW(check(2, all)) << all.begin()->first;
    if (all.contains(mpichs) && !all.contains("PMI_SIZE")) continue;
    EXPECT_THAT(environment_failure_of([&] { check(1, all); }), HasSubstr("MPI has 1 rank but mpirun started 2"));
  }
}

TEST(CheckLauncher, refuses_another_count_than_sruns_and_names_both) {
  const std::string message = environment_failure_of([] { check(1, kSrun); });
  EXPECT_THAT(message, HasSubstr("1 rank "));
  EXPECT_THAT(message, HasSubstr("SLURM_STEP_NUM_TASKS is 8"));
  EXPECT_THAT(message, HasSubstr("--mpi=pmix"));
}

TEST(World, ranks_are_numbered_and_share_this_host) {
  const TestWorld world;
  ASSERT_GE(world.size(), 1);
  const std::vector<double> seen = world.sum({static_cast<double>(world.rank()), 1.0});
  EXPECT_EQ(seen[0], world.size() * (world.size() - 1) / 2.0);
  EXPECT_EQ(seen[1], world.size());
  EXPECT_EQ(world.local_size(), world.size());
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_EQ(world.hosts(), world.host() + ": " + counted(world.size(), "rank"));
  ASSERT_EQ(std::ssize(world.places()), world.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    EXPECT_EQ(world.places()[rank].rank, rank);
    EXPECT_EQ(world.places()[rank].local_rank, rank);
    EXPECT_EQ(world.places()[rank].host, world.host());
  }
}

TEST(World, any_and_max_hear_every_rank) {
  const TestWorld world;
  EXPECT_FALSE(world.any(false));
  for (int rank = 0; rank < world.size(); ++rank) EXPECT_TRUE(world.any(world.rank() == rank)) << "only rank " << rank;
  EXPECT_EQ(world.max(-5 - world.rank()), -5);
  EXPECT_EQ(world.max(world.rank()), world.size() - 1);
}

TEST(World, sums_element_by_element_in_double) {
  const TestWorld world;
  EXPECT_EQ(world.sum({}), std::vector<double>{});
  const std::vector<double> sums = world.sum({1.0 + 0x1p-40, -1.0, world.rank() == 0 ? 0x1p60 : 0.0});
  EXPECT_EQ(sums, (std::vector<double>{world.size() * (1.0 + 0x1p-40), -1.0 * world.size(), 0x1p60}));
}

TEST(World, gathers_texts_of_different_lengths_in_the_order_of_ranks) {
  const TestWorld world;
  const auto text_of = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 70000, 'a' + rank) + '\0' + "end";
  };
  const std::vector<std::string> all = world.all_gather(text_of(world.rank()));
  ASSERT_EQ(static_cast<int>(all.size()), world.size());
  for (int rank = 0; rank < world.size(); ++rank) EXPECT_EQ(all[rank], text_of(rank)) << "text of rank " << rank;
  EXPECT_EQ(world.all_gather(""), std::vector<std::string>(world.size()));
}

TEST(World, broadcasts_the_text_of_rank_0_whatever_the_others_hold) {
  const TestWorld world;
  const std::string long_text(100000, 'x');
  EXPECT_EQ(world.broadcast(world.rank() == 0 ? long_text : "other"), long_text);
  EXPECT_EQ(world.broadcast(world.rank() == 0 ? "" : "other"), "");
  world.barrier();
}

TEST(World, uses_other_collectives_while_they_are_lent) {
  TestWorld world;
  Collectives* mpi = &world.collectives();
  auto other = make_mpi_collectives(world.recorder());
  Collectives* lent = other.get();
  world.use(std::move(other));
  EXPECT_EQ(&world.collectives(), lent);
  world.use(nullptr);
  EXPECT_EQ(&world.collectives(), mpi);
}

TEST(World, hears_of_each_piece_of_a_long_sum) {
  TestWorld world;
  if (world.size() == 1) GTEST_SKIP() << "no message";
  int pieces = 0;
  const auto collectives = make_mpi_collectives(world.recorder(), [&] { ++pieces; });
  const Kokkos::View<float*> values("values", 3 * kPieceBytes / sizeof(float));
  const auto sum = collectives->make_all_reduce(
      {"values", values.data(), static_cast<std::int64_t>(values.size()), Dtype::fp32}, {});
  const kernels::Device exec;
  sum->start(exec);
  sum->join(exec);
  EXPECT_GE(pieces, 3);
}

/// Counts calls of abandon(); nothing else is called.
class Abandoned final : public test::NoCollectives {
 public:
  explicit Abandoned(int& times) : times_(times) {}
  void abandon() override { ++times_; }

 private:
  int& times_;
};

TEST(World, abandons_the_collectives_when_an_exception_passes_a_watch) {
  TestWorld world;
  int times = 0;
  world.use(std::make_unique<Abandoned>(times));
  { const auto watch = world.watch("a step that goes well"); }
  EXPECT_EQ(times, 0);
  try {
    const auto watch = world.watch("a step that does not");
    throw std::runtime_error("the disk is full");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(times, 1);
  struct Leaving {  // a watch that begins and ends well while an exception is on its way
    ~Leaving() { const auto watch = world.watch("cleaning up"); }
    TestWorld& world;
  };
  try {
    const Leaving leaving{world};
    throw std::runtime_error("the disk is full");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(times, 1);
  try {
    const auto watch = world.watch("a step that ends on every rank");
    world.leave_together();
    throw std::runtime_error("the disk is full");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(times, 1);
  world.use(nullptr);
}

/// What a rank throws, and what its exit code means here: 10 and the length of the message.
Departure by_length(const World&, const std::exception& caught) {
  return {10 + static_cast<int>(std::string(caught.what()).size()), caught.what()};
}

/// What `work` throws on this rank. All ranks must have thrown it.
Departure agreed(TestWorld& world, const std::function<void()>& work) {
  Departure mine{0, "nothing was thrown"};
  try {
    work();
  } catch (const AgreedError& error) {
    mine = {error.exit_code(), error.what()};
  }
  world.stay();
  EXPECT_THAT(world.all_gather(std::to_string(mine.exit_code) + mine.why),
              Each(std::to_string(mine.exit_code) + mine.why));
  return mine;
}

/// What all ranks throw if `ranks` fail, each with a message of its own.
Departure agreed_if_fail(TestWorld& world, const std::vector<int>& ranks) {
  return agreed(world, [&] {
    world.agree([&] {
      if (std::count(ranks.begin(), ranks.end(), world.rank()) == 0) return;
      throw std::runtime_error("gone" + std::string(static_cast<std::size_t>(world.rank()), '!'));
    });
  });
}

TEST(Agree, one_ranks_failure_is_every_ranks_and_names_it) {
  TestWorld world(by_length);
  EXPECT_NO_THROW(world.agree([] {}));
  for (int rank = 0; rank < world.size(); ++rank) {
    const Departure departure = agreed_if_fail(world, {rank});
    const std::string who = world.size() > 1 ? "rank " + std::to_string(rank) + ": " : "";
    EXPECT_EQ(departure.why, who + "gone" + std::string(static_cast<std::size_t>(rank), '!'));
    EXPECT_EQ(departure.exit_code, 14 + rank) << "of what was caught";
  }
}

TEST(Agree, of_several_failures_the_first_is_told_and_all_ranks_are_named_unless_all_failed) {
  TestWorld world(by_length);
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(agreed_if_fail(world, ranks).why, "gone");
  if (world.size() < 3) return;
  ranks.erase(ranks.begin());
  const Departure departure = agreed_if_fail(world, ranks);
  EXPECT_EQ(departure.why, world.size() == 3 ? "rank 1, 2: gone!" : "rank 1, 2, 3: gone!");
  EXPECT_EQ(departure.exit_code, 15);
}

TEST(Agree, on_root_runs_there_alone_and_names_no_rank) {
  TestWorld world(by_length);
  int runs = 0;
  world.agree_on_root([&] { ++runs; });
  EXPECT_EQ(runs, world.rank() == 0 ? 1 : 0);
  const Departure departure = agreed(world, [&] { world.agree_on_root([] { throw std::bad_alloc(); }); });
  EXPECT_EQ(departure.why, std::bad_alloc().what());
}

TEST(Agree, gathers_what_the_work_returns) {
  TestWorld world(by_length);
  const auto result = [&] { return std::string(static_cast<std::size_t>(world.rank()), '-'); };
  const std::vector<std::string> all = world.all_gather(result);
  ASSERT_EQ(static_cast<int>(all.size()), world.size());
  for (int rank = 0; rank < world.size(); ++rank) EXPECT_EQ(all[rank].size(), static_cast<std::size_t>(rank));
  const Departure departure = agreed(world, [&] {
    world.all_gather([&] {
      if (world.rank() == world.size() - 1) throw std::runtime_error("gone");
      return std::string("well");
    });
  });
  EXPECT_EQ(departure.why, "gone") << "and no rank";
  EXPECT_EQ(departure.exit_code, 14);
}

TEST(Agree, passes_a_problem_on) {
  TestWorld world(by_length);
  EXPECT_EQ(world.problem_of([] {}), "");
  EXPECT_NO_THROW(world.agree(""));
  const std::string problem = world.problem_of([] { throw std::runtime_error("2 lines\n75 more"); });
  const Departure departure = agreed(world, [&] { world.agree(problem); });
  EXPECT_EQ(departure.why, "2 lines\n75 more");
  EXPECT_EQ(departure.exit_code, 25);
  for (const std::string text : {"7", "no number", "4\x01 an address", "99999999999 too many"}) {
    EXPECT_EQ(agreed(world, [&] { world.agree(text); }).why, text) << "of another exchange";
  }
}

TEST(Agree, leaves_alone_what_is_no_exception_of_the_standard_library) {
  TestWorld world(by_length);
  EXPECT_THROW(world.problem_of([] { throw 7; }), int);
}

TEST(Agree, no_watch_takes_the_end_for_a_loss) {
  TestWorld world(by_length);
  constexpr double kLimit_s = 2;
  world.start_watchdog(kLimit_s, 7);
  int times = 0;
  world.use(std::make_unique<Abandoned>(times));
  try {
    const auto watch = world.watch("a step");
    world.agree([] { throw std::runtime_error("gone"); });
  } catch (const AgreedError&) {
    EXPECT_EQ(times, 0) << "nothing is abandoned";
    const std::chrono::duration<double> longer(Watchdog::kLeaving_s + kLimit_s / 2 + 0.5);
    if (world.size() > 1) std::this_thread::sleep_for(longer);  // a rank that leaves alone would be ended
  }
  world.stay();
  world.use(nullptr);
}

TEST(World, takes_the_collectives_that_the_deck_asks_for_or_refuses) {
  TestWorld world;
  const DeviceChoice device(world, true);
  {
    const CollectivesChoice choice(world, {.library = Library::mpi}, device);
    EXPECT_EQ(world.collectives().name(), "mpi");
  }
  const bool can = kHasNccl && device.index() >= 0 && !device.is_shared();
  {
    const CollectivesChoice choice(world, {.library = Library::automatic}, device);
    EXPECT_EQ(world.collectives().name() == "mpi", !can || world.size() == 1);
  }
  if (can) {
    const CollectivesChoice choice(world, {.library = Library::nccl}, device);
    EXPECT_NE(world.collectives().name(), "mpi");
  } else {
    EXPECT_THAT(environment_failure_of([&] { CollectivesChoice(world, {.library = Library::nccl}, device); }),
                HasSubstr("parallel.collectives = \"mpi\""));
  }
  if (world.size() > 1) {
    for (const auto method : {TransferMethod::copy_engine, TransferMethod::ring}) {
      const CollectivesOptions contradiction{.library = Library::mpi, .transfers = method};
      EXPECT_THAT(environment_failure_of([&] { CollectivesChoice(world, contradiction, device); }),
                  HasSubstr("parallel.transfers = \"auto\""));
    }
  }
  EXPECT_EQ(world.collectives().name(), "mpi");
}

TEST(World, borrows_an_mpi_that_runs_already) {
  { const TestWorld first; }
  const TestWorld second;  // would die in MPI_Init, or find MPI finalised, if the first had owned it
  EXPECT_TRUE(second.any(true));
}

}  // namespace
}  // namespace tessera::parallel
