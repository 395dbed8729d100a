#include "train/batch_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "errors.hpp"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

BatchPlan plan(std::int64_t batch, std::int64_t micro, int ranks, bool allow_uneven = false) {
  config::Train train;
  train.batch_size = batch;
  train.micro_batch_size = micro;
  config::Parallel parallel;
  parallel.allow_uneven = allow_uneven;
  return plan_batch(train, parallel, ranks);
}

std::string refusal(std::int64_t batch, std::int64_t micro, int ranks) {
  try {
    plan(batch, micro, ranks);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::usage);
    return failure.what();
  }
  ADD_FAILURE() << batch << " sequences in micro-batches of " << micro << " on " << ranks << " ranks were accepted";
  return "";
}

TEST(BatchPlan, shares_an_even_batch) {
  const BatchPlan p = plan(24, 2, 3);
  EXPECT_EQ(p.micro_sequences, 2);
  EXPECT_EQ(p.micro_steps, 4);
  EXPECT_EQ(p.sequences_of(1), 8);
  EXPECT_EQ(p.first_sample(0), 0);
  EXPECT_EQ(p.first_sample(2), 16);
  for (int micro = 0; micro < 4; ++micro) EXPECT_EQ(p.sequences_of(2, micro), 2);
}

TEST(BatchPlan, micro_batch_0_is_the_whole_share) {
  EXPECT_EQ(plan(24, 0, 3).micro_sequences, 8);
  EXPECT_EQ(plan(24, 0, 3).micro_steps, 1);
}

TEST(BatchPlan, shares_differ_by_one_at_most) {
  for (const auto& [count, ranks] : {std::pair{64, 9}, {64, 12}, {4, 3}, {1, 2}, {0, 3}, {17476, 256}}) {
    std::int64_t first = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Share share = share_of(count, rank, ranks);
      EXPECT_EQ(share.first, first);
      EXPECT_THAT(share.last - share.first, testing::AnyOf(count / ranks, count / ranks + 1));
      EXPECT_EQ(share.most, (count + ranks - 1) / ranks);
      first = share.last;
    }
    EXPECT_EQ(first, count);
  }
}

TEST(BatchPlan, an_uneven_batch_gives_the_first_ranks_one_more) {
  const BatchPlan p = plan(5, 2, 3, true);
  EXPECT_EQ(p.sequences_of(0), 2);
  EXPECT_EQ(p.sequences_of(1), 2);
  EXPECT_EQ(p.sequences_of(2), 1);
  EXPECT_EQ(p.micro_steps, 1);
  const BatchPlan two = plan(5, 2, 2, true);
  EXPECT_EQ(two.micro_steps, 2);
  EXPECT_EQ(two.sequences_of(0, 0), 2);
  EXPECT_EQ(two.sequences_of(0, 1), 1);
  EXPECT_EQ(two.sequences_of(1, 1), 0);  // nothing left, but the step is taken
}

TEST(BatchPlan, covers_every_sequence_once_in_every_division) {
  for (std::int64_t batch = 1; batch <= 13; ++batch) {
    for (std::int64_t micro = 0; micro <= 6; ++micro) {
      for (int ranks = 1; ranks <= 7; ++ranks) {
        const BatchPlan p = plan(batch, micro, ranks, true);
        EXPECT_EQ(p.global_sequences, batch);
        EXPECT_EQ(p.ranks, ranks);
        EXPECT_GE(p.micro_sequences, 1);
        EXPECT_LE(p.micro_sequences, micro > 0 ? micro : batch);
        std::int64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(p.first_sample(rank), next);
          std::int64_t in_steps = 0;
          for (int step = 0; step < p.micro_steps; ++step) {
            EXPECT_GE(p.sequences_of(rank, step), 0);
            EXPECT_LE(p.sequences_of(rank, step), p.micro_sequences);
            in_steps += p.sequences_of(rank, step);
          }
          EXPECT_EQ(in_steps, p.sequences_of(rank)) << batch << " / " << micro << " on " << ranks << ", rank " << rank;
          next += in_steps;
        }
        EXPECT_EQ(next, batch);
      }
    }
  }
}

TEST(BatchPlan, refuses_ranks_that_do_not_divide_the_batch) {
  const std::string message = refusal(8, 0, 3);
  EXPECT_THAT(message, HasSubstr("train.batch_size=8"));
  EXPECT_THAT(message, HasSubstr("3 ranks"));
  EXPECT_THAT(message, HasSubstr("parallel.allow_uneven=true"));
  refusal(2, 0, 3);  // fewer sequences than ranks
}

TEST(BatchPlan, refuses_a_micro_batch_that_does_not_divide_the_share) {
  const std::string message = refusal(12, 4, 2);
  EXPECT_THAT(message, HasSubstr("train.micro_batch_size=4"));
  EXPECT_THAT(message, HasSubstr("6 sequences of each of 2 ranks"));
  EXPECT_THAT(message, HasSubstr("parallel.allow_uneven=true"));
  refusal(8, 16, 1);  // larger than the batch
}

}  // namespace
}  // namespace tessera::train
