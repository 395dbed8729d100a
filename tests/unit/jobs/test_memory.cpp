/// What a deck that takes too much memory is told.
#include "jobs/memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "config/keys.hpp"
#include "errors.hpp"
#include "train/plan.hpp"

namespace tessera::jobs {
namespace {

using config::Offload;
using config::Shard;
using ::testing::HasSubstr;
using ::testing::Not;

const train::Machine kHost{.build = "a build for CPUs", .target = kernels::kHostTarget, .has_nccl = false};
const train::Machine kGpus{.build = "a build for H200s", .target = kernels::gpu_target("90a"), .has_nccl = true};

config::Settings deck_of(std::int64_t batch) {
  config::Settings deck;
  deck.model.vocab_size = 64;
  deck.model.context_length = 32;
  deck.model.d_model = 64;
  deck.model.num_layers = 4;
  deck.model.num_heads = 2;
  deck.model.d_ff = 256;
  deck.train.batch_size = batch;
  return deck;
}

train::Plan plan_of(const config::Settings& deck, int ranks, const train::Machine& machine) {
  return train::plan_training(deck, Dtype::fp32, ranks, machine);
}

/// The advice if `fits` decides.
template <class Fits>
std::string advice(const config::Settings& deck, int ranks, const train::Machine& machine, const Fits& fits) {
  return what_would_fit(plan_of(deck, ranks, machine), deck, fits, machine);
}

using Way = std::pair<Shard, Offload>;

/// The ways to keep less that are tried, in order, where nothing fits.
std::vector<Way> tried(const config::Settings& deck, int ranks, const train::Machine& machine) {
  std::vector<Way> ways;
  advice(deck, ranks, machine, [&](const config::Settings& leaner, const memory::Layout&) {
    const Way way{leaner.parallel.shard, leaner.parallel.offload};
    if (ways.empty() || ways.back() != way) ways.push_back(way);
    return false;
  });
  return ways;
}

TEST(WhatWouldFit, asks_for_smaller_micro_batches_then_recomputation_then_more_sharing) {
  const config::Settings deck = deck_of(12);
  std::vector<std::string> seen;
  const std::string all = advice(deck, 2, kHost, [&](const config::Settings& leaner, const memory::Layout&) {
    seen.push_back(config::overrides_to(leaner, deck));
    return false;
  });
  const std::vector<std::string> batches{"", " train.micro_batch_size=3", " train.micro_batch_size=2",
                                         " train.micro_batch_size=1",
                                         " train.micro_batch_size=1 train.checkpoint_activations=1"};
  ASSERT_EQ(seen.size(), 4 * batches.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const char* stages[] = {"", " parallel.shard=optimizer", " parallel.shard=gradients", " parallel.shard=parameters"};
    EXPECT_EQ(seen[i], batches[i % batches.size()] + stages[i / batches.size()]);
  }
  EXPECT_THAT(all, HasSubstr("what would fit: nothing:" + seen.back() + " needs "));
}

TEST(WhatWouldFit, shards_over_several_ranks_and_offloads_from_gpus) {
  config::Settings deck = deck_of(2);
  const Way plain{Shard::none, Offload::none}, optimizer{Shard::optimizer, Offload::none},
      gradients{Shard::gradients, Offload::none}, parameters{Shard::parameters, Offload::none},
      optimizer_on_host{Shard::parameters, Offload::optimizer}, all_on_host{Shard::parameters, Offload::parameters};
  EXPECT_EQ(tried(deck, 1, kHost), (std::vector<Way>{plain}));
  EXPECT_EQ(tried(deck, 2, kHost), (std::vector<Way>{plain, optimizer, gradients, parameters}));
  EXPECT_EQ(tried(deck, 2, kGpus),
            (std::vector<Way>{plain, optimizer, gradients, parameters, optimizer_on_host, all_on_host}));
  EXPECT_EQ(tried(deck, 1, kGpus), (std::vector<Way>{plain, {Shard::none, Offload::optimizer}, all_on_host}));
  deck.parallel.shard = Shard::gradients;
  EXPECT_EQ(tried(deck, 2, kHost), (std::vector<Way>{gradients, parameters})) << "what the deck shards stays so";
  deck.parallel.shard = Shard::parameters;
  deck.parallel.offload = Offload::parameters;
  deck.parallel.offload_slots = 4;
  EXPECT_EQ(tried(deck, 2, kGpus), (std::vector<Way>{all_on_host}));
}

TEST(WhatWouldFit, keeps_the_batch_where_sharding_alone_makes_room) {
  config::Settings deck = deck_of(2);
  deck.model.d_model = 1024;  // beside its state, MPI's own memory is small
  config::Settings sharded = deck;
  sharded.parallel.shard = Shard::optimizer;
  const std::int64_t limit = plan_of(sharded, 2, kHost).layout.total_bytes();
  ASSERT_LT(limit, plan_of(deck, 2, kHost).layout.total_bytes());
  const auto fits = [&](const config::Settings&, const memory::Layout& layout) {
    return layout.total_bytes() <= limit;
  };
  EXPECT_EQ(advice(deck, 2, kHost, fits), "\nwhat would fit: parallel.shard=optimizer");
}

TEST(WhatWouldFit, takes_back_what_a_deck_must_not_say_beside_it) {
  const auto fits = [](const config::Settings& leaner, const memory::Layout&) {
    return leaner.parallel.shard == Shard::gradients;
  };
  config::Settings deck = deck_of(2);
  deck.parallel.gradient_sync = config::GradientSync::flat;
  EXPECT_EQ(advice(deck, 2, kHost, fits), "\nwhat would fit: parallel.gradient_sync=bucket parallel.shard=gradients");
  deck = deck_of(2);
  deck.parallel.bucket_mbyte = 5;
  EXPECT_EQ(advice(deck, 2, kHost, fits), "\nwhat would fit: parallel.bucket_mbyte=25.0 parallel.shard=gradients");
}

TEST(WhatWouldFit, shares_over_all_ranks_and_recomputes_all_in_the_end) {
  config::Settings deck = deck_of(4);
  deck.parallel.shard = Shard::parameters;
  deck.parallel.shard_ranks = 1;
  const auto over_all = [](const config::Settings& leaner, const memory::Layout&) {
    return leaner.parallel.shard_ranks == 0;
  };
  EXPECT_EQ(advice(deck, 4, kHost, over_all), "\nwhat would fit: parallel.shard_ranks=0");
  deck = deck_of(1);
  deck.train.checkpoint_activations = 1;
  deck.train.recompute = config::Recompute::all_but_attention;
  const auto whole = [](const config::Settings& leaner, const memory::Layout&) {
    return leaner.train.recompute == config::Recompute::all;
  };
  EXPECT_EQ(advice(deck, 1, kHost, whole), "\nwhat would fit: train.recompute=all");
}

TEST(WhatWouldFit, has_no_micro_batches_for_gradients_in_16_bits) {
  config::Settings deck = deck_of(12);
  deck.precision = {.compute = config::Precision::bf16,
                    .gradients = config::GradientPrecision::bf16,
                    .reduce = config::ReducePrecision::bf16};
  const train::Plan plan = train::plan_training(deck, Dtype::bf16, 2, kHost);
  const auto never = [](const config::Settings&, const memory::Layout&) { return false; };
  const std::string text = what_would_fit(plan, deck, never, kHost);
  EXPECT_THAT(text, Not(HasSubstr("micro_batch_size")));
  EXPECT_THAT(text, HasSubstr("precision.gradients=\"fp32\" allows smaller micro-batches"));
}

TEST(PinnedMemory, of_the_ranks_of_a_host_must_fit_there) {
  config::Settings deck = deck_of(4);
  deck.parallel.offload = Offload::optimizer;
  const memory::Layout layout = plan_of(deck, 4, kGpus).layout;
  const std::int64_t rank_bytes = layout.total_bytes(memory::Space::host);
  const std::int64_t state = 8 * train::plan_training(deck, Dtype::fp32, 4, kGpus).table.parameter_count();
  EXPECT_GE(rank_bytes, state) << "two moments of each parameter";
  EXPECT_NO_THROW(require_pinned_memory(layout, 3, 3 * rank_bytes, "node7"));
  try {
    require_pinned_memory(layout, 3, 3 * rank_bytes - 1, "node7");
    FAIL() << "was not refused";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.code(), Exit::out_of_memory);
    EXPECT_THAT(failure.what(), HasSubstr("pins " + memory::readable_bytes(3 * rank_bytes) +
                                          " of the memory of node7 for 3 ranks, and " +
                                          memory::readable_bytes(3 * rank_bytes - 1) + " are available"));
    EXPECT_THAT(failure.what(), HasSubstr("parallel.offload"));
    EXPECT_THAT(failure.what(), HasSubstr("on the host")) << "the layout's table";
  }
}

}  // namespace
}  // namespace tessera::jobs
