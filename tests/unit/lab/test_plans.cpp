/// The plans of bench jobs, and whether the rows of an experiment can share their communicators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "errors.hpp"
#include "lab/bench_keys.hpp"
#include "lab/kinds.hpp"
#include "train/choices.hpp"
#include "train/plan.hpp"
#include "unit/train/decks.hpp"

namespace tessera::lab {
namespace {

using ::testing::HasSubstr;
using train::describe, train::plan_text, train::plan_training, train::require_same_method, train::collectives_of;

TEST(PlanText, of_a_benchmark_of_steps_is_that_of_a_step_and_prices_no_run) {
  config::Settings deck = test::small_deck();
  for (const config::JobKind kind : {kBenchStep, kBenchStrategies}) {
    deck.job.kind = kind;
    const std::string text = plan_text(deck, 2);
    EXPECT_THAT(text, HasSubstr(describe(plan_training(deck, Dtype::fp32, 2), deck)));
    EXPECT_THAT(text, ::testing::Not(HasSubstr("in all")));
    EXPECT_THAT(text, ::testing::Not(HasSubstr("checkpoint")));
  }
  deck.job.kind = kBenchStep;
  deck.section<Bench>().phase = "forward";
  EXPECT_THAT(plan_text(deck, 1), HasSubstr("parameters : gradients : optimizer = 1 : 0.00 : 0.00"));
}

TEST(PlanText, of_a_benchmark_of_generation_is_that_of_its_prompts) {
  config::Settings deck = test::small_deck();
  deck.job.kind = kBenchGenerate;
  deck.section<Bench>().length = 8;
  deck.section<Bench>().batch = 2;
  const std::string text = plan_text(deck, 1);
  EXPECT_THAT(text, HasSubstr("\nsize       custom, "));
  EXPECT_THAT(text, HasSubstr("prompts    2 of 8 tokens and 17 more each\n"));
}

TEST(PlanText, is_refused_for_jobs_that_run_no_steps) {
  for (const config::JobKind kind : {kBenchAttention, kBenchKernels, kBenchComm, kBenchDecode, kBenchAccumulation}) {
    config::Settings deck = test::small_deck();
    deck.job.kind = kind;
    deck.attention.kernel = config::AttentionKernel::mma;  // not in every build, which is not what is wrong
    try {
      plan_text(deck, 1);
      ADD_FAILURE() << static_cast<int>(kind);
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), Exit::usage);
      EXPECT_THAT(failure.what(), HasSubstr("has no plan: --plan is for job.kind = \"train\", \"bench.step\", "
                                            "\"bench.strategies\" and \"bench.generate\"; run this one without it"));
    }
  }
}

TEST(RequireSameMethod, refuses_rows_with_and_without_groups) {
  const auto row = [](const char* name, config::Shard shard) {
    config::Settings settings;
    settings.parallel.shard = shard;
    settings.parallel.shard_ranks = 2;
    return config::DeckRow{name, {}, settings, ""};
  };
  config::Deck deck;
  deck.settings.job.kind = kExperiment;
  deck.rows = {row("optimizer", config::Shard::optimizer), row("parameters", config::Shard::parameters)};
  EXPECT_NO_THROW(require_same_method(deck, 4));
  EXPECT_TRUE(collectives_of(deck, 4).forms_groups) << "those of its first row";
  deck.rows.push_back(row("bucket", config::Shard::none));
  EXPECT_THROW(require_same_method(deck, 4), Failure);
  EXPECT_NO_THROW(require_same_method(deck, 2));
  deck.rows.back().is_chosen = false;
  EXPECT_NO_THROW(require_same_method(deck, 4));
}

}  // namespace
}  // namespace tessera::lab
