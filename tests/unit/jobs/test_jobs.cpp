/// What exceptions mean to the ranks, and what memory a rank may have.
#include "jobs/jobs.hpp"
#include "jobs/memory.hpp"
#include "jobs/failure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "unit/parallel/world.hpp"

namespace tessera::jobs {
namespace {

using test::TestWorld;
using ::testing::HasSubstr;

TEST(Failure, quotes_no_control_characters) {
  const Failure failure(Exit::files, "a\033[31mb\x7f\r.txt: gone.\n\tGive é \xc2\x9b another\r\n");
  EXPECT_STREQ(failure.what(), "a\\x1b[31mb\\x7f\\x0d.txt: gone.\n\tGive é \\xc2\\x9b another\r\n");
  EXPECT_EQ(printable(failure.what()), failure.what()) << "once is enough";
}

TEST(FailureOf, keeps_the_code_of_ours_and_finds_that_of_others) {
  const TestWorld world;
  EXPECT_EQ(failure_of(world, Failure(Exit::numbers, "NaN")).code(), Exit::numbers);
  EXPECT_EQ(failure_of(world, std::runtime_error("?")).code(), Exit::environment);
  const Failure full = failure_of(world, std::bad_alloc());
  EXPECT_EQ(full.code(), Exit::out_of_memory);
  EXPECT_THAT(full.what(), HasSubstr("need less"));
}

TEST(FailureOf, all_ranks_is_the_first_ones) {
  TestWorld world(departure_of);
  try {
    world.agree([] { throw std::bad_alloc(); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const parallel::AgreedError& caught) {
    EXPECT_EQ(failure_of(world, caught).code(), Exit::out_of_memory);
    EXPECT_EQ(failure_of(world, caught).what(), std::string(failure_of(std::bad_alloc()).what()));
  }
  try {
    world.agree("4\x01 an address");  // bytes of another exchange
    ADD_FAILURE() << "nothing was thrown";
  } catch (const parallel::AgreedError& caught) {
    EXPECT_EQ(failure_of(world, caught).code(), Exit::environment);
    EXPECT_STREQ(caught.what(), "4\\x01 an address");
  }
}

TEST(RequireSame, names_the_first_rank_that_differs_from_rank_0) {
  TestWorld world(departure_of);
  EXPECT_NO_THROW(require_same(world, "same", "differs"));
  if (world.size() == 1) return;
  try {
    require_same(world, world.rank() == world.size() - 1 ? "other" : "same", "reads other data");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const parallel::AgreedError& caught) {
    EXPECT_EQ(failure_of(world, caught).code(), Exit::files);
    EXPECT_EQ(caught.what(), "rank " + std::to_string(world.size() - 1) + " on " + world.host() + " reads other data");
  }
}

TEST(MemoryShare, is_what_nobody_has_taken_and_what_the_rank_holds) {
  TestWorld world;
  EXPECT_EQ(share_of_memory(world).held, 0) << "MPI has no buffers on a device";
  const double all = static_cast<double>(available_bytes());
  EXPECT_NEAR(static_cast<double>(available_bytes({4, 0})), all / 4, 0.1 * all);  // other processes run too
  const std::int64_t held = std::int64_t{1} << 50;
  EXPECT_GE(available_bytes({1, held}), held);
}

config::Settings saving_on_gpus(config::Background background) {
  config::Settings deck;
  deck.model = {.vocab_size = 64, .context_length = 32, .d_model = 64, .num_layers = 4, .num_heads = 2, .d_ff = 256};
  deck.train.batch_size = 6;
  deck.checkpoint = {.every = 5, .background = background};
  return deck;
}

TEST(PlanRun, leaves_the_copy_for_checkpoints_out_where_one_host_lacks_the_memory) {
  TestWorld world(departure_of);
  const train::Machine gpus{.build = "a build for H200s", .target = kernels::gpu_target("90a"), .has_nccl = true};
  using config::Background;
  for (const auto& [background, is_scarce, copies] : {std::tuple{Background::automatic, false, true},
                                                      {Background::automatic, true, false},
                                                      {Background::on, true, true},
                                                      {Background::off, true, false}}) {
    std::vector<std::int64_t> asked;
    std::string note;
    const train::Plan plan = plan_run(
        saving_on_gpus(background), gpus, world,
        [&](const memory::Layout& layout) {
          asked.push_back(layout.total_bytes(memory::Space::host));
          return !is_scarce || world.rank() != world.size() - 1;
        },
        [&](const std::string& text) { note += text; });
    EXPECT_EQ(plan.arrays.copy != memory::kAbsent, copies);
    const bool has_given_way = background == Background::automatic && is_scarce;
    EXPECT_EQ(note.find("checkpoint.background") != std::string::npos, has_given_way) << note;
    if (has_given_way) {
      ASSERT_EQ(asked.size(), 1u);
      EXPECT_LT(plan.layout.total_bytes(memory::Space::host), asked[0]);
    }
  }
}

}  // namespace
}  // namespace tessera::jobs
