#include <gtest/gtest.h>

#include "kernels/cuda/target.hpp"
#include "train/forward.hpp"
#include "unit/train/training.hpp"

namespace tessera::test {
namespace {

using memory::Category;

config::Settings settings_of(Dtype dtype) {
  config::Settings settings = small_settings();
  settings.train.micro_batch_size = 2;
  settings.precision.compute = dtype == Dtype::bf16   ? config::Precision::bf16
                               : dtype == Dtype::fp16 ? config::Precision::fp16
                                                      : config::Precision::fp32;
  return settings;
}

class ForwardOf : public ::testing::TestWithParam<Dtype> {};

TEST_P(ForwardOf, its_loss_is_the_trainers) {
  Training training(settings_of(GetParam()), GetParam());
  const train::ForwardPlan plan = train::plan_forward(training.settings, GetParam(), training.world.size());
  const auto forward = train::make_forward(plan, training.settings, training.world, 13);
  for (const std::int64_t windows : {5, 1, 5}) {  // shares are uneven, or empty; a pass leaves nothing behind
    const train::ValidationSum mine = forward->validate(training.sampler, windows);
    const train::ValidationSum trainers = training.trainer->validate(training.sampler, windows);
    EXPECT_EQ(mine.tokens, trainers.tokens);
    EXPECT_EQ(mine.loss_sum, trainers.loss_sum);
    EXPECT_EQ(mine.loss_sum > 0, mine.tokens > 0);
  }
}
INSTANTIATE_TEST_SUITE_P(dtypes, ForwardOf, ::testing::Values(Dtype::fp64, Dtype::fp32, Dtype::bf16, Dtype::fp16));

TEST(Forward, replayed_from_a_graph_gives_the_same_loss) {
  if (!kernels::kHere.has_vendor_parts()) GTEST_SKIP() << "this build has no graphs";
  for (const Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
    Training training(settings_of(dtype), dtype);
    config::Settings with_graph = training.settings;
    with_graph.train.graph = true;
    const train::ForwardPlan plan = train::plan_forward(with_graph, dtype, training.world.size());
    const auto plain = train::make_forward(plan, training.settings, training.world, 13);
    const auto replayed = train::make_forward(plan, with_graph, training.world, 13);
    for (const std::int64_t windows : {1, 6, 5, 12, 6}) {  // whole micro-batches of two, other tokens each, and a rest
      EXPECT_EQ(replayed->validate(training.sampler, windows).loss_sum,
                plain->validate(training.sampler, windows).loss_sum);
    }
  }
}

TEST(ForwardPlan, has_weights_and_the_activations_of_one_block_at_a_time) {
  config::Settings settings = small_settings();
  const auto bytes = [&](std::int64_t layers, Category category) {
    settings.model.num_layers = layers;
    const train::ForwardPlan plan = train::plan_forward(settings, Dtype::fp32, 1);
    return plan.layout.peak_by_category()[static_cast<std::size_t>(category)];
  };
  EXPECT_EQ(bytes(8, Category::gradients), 0);
  EXPECT_EQ(bytes(8, Category::optimizer), 0);
  EXPECT_EQ(bytes(8, Category::activations), bytes(4, Category::activations));
  const train::ForwardPlan plan = train::plan_forward(settings, Dtype::fp32, 1);
  EXPECT_EQ(plan.layout[plan.params].bytes, 4 * plan.table.flat_count());
  EXPECT_LT(3 * plan.layout.total_bytes(), train::plan_training(settings, Dtype::fp32, 1).layout.total_bytes());
}

TEST(ForwardPlan, has_the_receive_buffer_that_ranks_hold_and_nothing_of_what_sums_take) {
  const train::Machine gpus{.target = kernels::gpu_target("90a"), .has_nccl = true};
  config::Settings settings = small_settings();
  const auto bytes = [&](int ranks) {
    const memory::Layout layout = train::plan_forward(settings, Dtype::fp32, ranks, gpus).layout;
    return layout.total_bytes() - layout.arena_bytes();
  };
  const auto counted = [&](int ranks) { return train::collectives_bytes(settings.parallel, ranks, gpus); };
  const std::int64_t alone = bytes(1);
  ASSERT_GT(counted(2).nccl, 0);
  ASSERT_GT(counted(2).receive, 0);
  EXPECT_EQ(bytes(2) - alone, counted(2).receive);
  settings.parallel.transfers = config::Transfers::ring;
  ASSERT_EQ(counted(2).receive, 0);
  EXPECT_EQ(bytes(2), alone);
}

}  // namespace
}  // namespace tessera::test
