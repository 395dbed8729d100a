/// The plans of jobs that run several set-ups, and which of them share their communicators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "errors.hpp"
#include "lab/bench_keys.hpp"
#include "lab/kinds.hpp"
#include "lab/set_ups.hpp"
#include "train/choices.hpp"
#include "train/plan.hpp"
#include "unit/train/decks.hpp"

namespace tessera::lab {
namespace {

using ::testing::HasSubstr;
using train::describe, train::plan_text, train::plan_training, train::require_same_method, train::collectives_of;

TEST(PlanText, of_a_benchmark_of_steps_is_one_plan_for_each_size_and_prices_no_run) {
  config::Settings deck = test::small_deck();
  deck.job.kind = kBenchStep;
  deck.section<Bench>().sizes = {"deck", "small"};
  const std::string text = plan_text(deck, 1);
  const std::string own = describe(plan_training(deck, Dtype::fp32, 1), deck);
  deck.model = config::with_size(deck.model, "small");
  const std::string small = describe(plan_training(deck, Dtype::fp32, 1), deck);
  EXPECT_NE(own, small);
  EXPECT_THAT(text, HasSubstr("size       custom\n" + own));
  EXPECT_THAT(text, HasSubstr("size       small\n" + small));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("in all")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("checkpoint")));
}

TEST(PlanText, of_a_benchmark_of_strategies_is_one_plan_for_each) {
  config::Settings deck = test::small_deck();
  deck.job.kind = kBenchStrategies;
  deck.section<Bench>().strategies = {"flat", "parameters"};
  const std::string text = plan_text(deck, 2);
  config::Settings flat = deck, parameters = deck;
  flat.parallel.gradient_sync = config::GradientSync::flat;
  parameters.parallel.shard = config::Shard::parameters;
  EXPECT_THAT(text, HasSubstr("strategy   flat\n" + describe(plan_training(flat, Dtype::fp32, 2), flat)));
  EXPECT_THAT(text,
              HasSubstr("strategy   parameters\n" + describe(plan_training(parameters, Dtype::fp32, 2), parameters)));
}

TEST(PlanText, of_a_benchmark_of_generation_is_one_plan_for_each_prompt) {
  config::Settings deck = test::small_deck();
  deck.job.kind = kBenchGenerate;
  deck.section<Bench>().lengths = {8, 16};
  deck.section<Bench>().batch = 2;
  const std::string text = plan_text(deck, 1);
  EXPECT_THAT(text, HasSubstr("\nsize       custom, "));
  EXPECT_THAT(text, HasSubstr("prompts    2 of 8 tokens and 17 more each\n"));
  EXPECT_THAT(text, HasSubstr("prompts    2 of 16 tokens and 17 more each\n"));
}

TEST(PlanText, is_refused_for_jobs_that_run_no_steps) {
  for (const config::JobKind kind : {kBenchAttention, kBenchKernels, kBenchComm, kBenchDecode, kBenchAccumulation}) {
    config::Settings deck = test::small_deck();
    deck.job.kind = kind;
    deck.section<Bench>().tuned = {true};  // not in every build, which is not what is wrong
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

TEST(RequireSameMethod, refuses_sweeps_with_and_without_groups) {
  config::Deck sweep;
  sweep.settings.job.kind = kBenchStrategies;
  sweep.settings.parallel.shard_ranks = 2;
  sweep.settings.section<Bench>().strategies = {"optimizer", "parameters"};
  EXPECT_NO_THROW(require_same_method(sweep, 4));
  EXPECT_TRUE(collectives_of(sweep, 4).forms_groups) << "those of its strategies";
  sweep.settings.section<Bench>().strategies = {"bucket", "optimizer"};
  EXPECT_THROW(require_same_method(sweep, 4), Failure);
  EXPECT_NO_THROW(require_same_method(sweep, 2));
  config::Deck deck;
  deck.rows = {config::DeckRow{"sweep", {}, sweep.settings, ""}};
  EXPECT_THROW(require_same_method(deck, 4), Failure);
}

}  // namespace
}  // namespace tessera::lab
