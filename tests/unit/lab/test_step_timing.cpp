/// Which steps and passes of bench.step run and count, on a trainer that records its calls.
#include "lab/step_timing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "kernels/core/events.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::lab {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;

/// Reports that step n took n seconds.
class CountingTrainer final : public train::Steps {
 public:
  int most_under_way = 0, passes = 0;
  std::vector<std::int64_t> first_samples;

  void start(std::int64_t first_sample, const data::Sampler&, bool) override {
    first_samples.push_back(first_sample);
    most_under_way = std::max(most_under_way, started());
    if (started() > kMaxStarted) throw std::logic_error("too many under way");
  }
  train::StepNumbers collect() override {
    train::StepNumbers numbers;
    numbers.step_s = static_cast<double>(++collected_);
    return numbers;
  }
  int started() const override { return static_cast<int>(first_samples.size()) - collected_; }
  train::ValidationSum validate(const data::Sampler&, std::int64_t) override {
    ++passes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {};
  }

 private:
  int collected_ = 0;
};

struct StepTimingTest : ::testing::Test {
  StepTimingTest() {
    settings.train.batch_size = 2;
    settings.section<Bench>().repeats = 3;
  }
  /// The times of the counted steps, which are their numbers from 1 on.
  std::vector<double> counted(StepOrder order) {
    std::vector<double> numbers;
    for (const train::StepNumbers& step : run_steps(settings, trainer, sampler, world, order))
      numbers.push_back(step.step_s);
    EXPECT_EQ(trainer.started(), 0) << "a step was left behind";
    return numbers;
  }

  config::Settings settings;
  test::TestWorld world;
  data::Corpus corpus = data::Corpus::open(config::DataSource::synthetic, "", 61, 1);
  data::Sampler sampler{corpus, 8, 0.1, 1};
  CountingTrainer trainer;
};

TEST_F(StepTimingTest, the_warm_up_is_all_that_does_not_count) {
  for (const StepOrder order : {StepOrder::alone, StepOrder::queued}) {
    for (const std::int64_t warmup : {0, 1, 2, 5}) {
      trainer = CountingTrainer();
      settings.section<Bench>().warmup = warmup;
      const double first = static_cast<double>(warmup + 1);
      EXPECT_THAT(counted(order), ElementsAre(first, first + 1, first + 2)) << "warm-up of " << warmup;
      EXPECT_EQ(trainer.first_samples.size(), static_cast<std::size_t>(warmup + 3));
      EXPECT_EQ(trainer.first_samples.back(), 2 * (warmup + 2)) << "samples were left out, or met twice";
      EXPECT_EQ(trainer.most_under_way, order == StepOrder::queued ? 2 : 1);
    }
  }
}

TEST_F(StepTimingTest, a_single_step_that_counts_waits_behind_the_warm_up_or_nothing) {
  settings.section<Bench>().repeats = 1;
  settings.section<Bench>().warmup = 0;
  EXPECT_THAT(counted(StepOrder::queued), ElementsAre(1));
  EXPECT_EQ(trainer.most_under_way, 1);
  trainer = CountingTrainer();
  settings.section<Bench>().warmup = 1;
  EXPECT_THAT(counted(StepOrder::queued), ElementsAre(2));
  EXPECT_EQ(trainer.most_under_way, 2);
}

TEST_F(StepTimingTest, the_warm_up_lasts_as_long_as_the_deck_says) {
  settings.section<Bench>().warmup = 1;
  settings.section<Bench>().warmup_ms = 30;
  for (const StepOrder order : {StepOrder::alone, StepOrder::queued}) {
    trainer = CountingTrainer();
    const double begin_s = events::now_s();
    counted(order);
    EXPECT_GE(events::now_s() - begin_s, 30e-3);
    EXPECT_GT(trainer.first_samples.size(), 4u);
  }
  time_forward(settings, trainer, sampler, world);
  EXPECT_THAT(trainer.passes, AllOf(Ge(1 + 3), Le(30 + 1 + 3)));  // of a millisecond each, at least
}

TEST_F(StepTimingTest, forward_passes_count_from_the_first_where_there_is_no_warm_up) {
  for (const int warmup : {0, 1, 2}) {
    trainer = CountingTrainer();
    settings.section<Bench>().warmup = warmup;
    const Timing timing = time_forward(settings, trainer, sampler, world);
    EXPECT_EQ(trainer.passes, warmup + 3);
    EXPECT_EQ(timing.repeats, 3);
    EXPECT_GE(timing.first_s, 1e-3);
    EXPECT_GE(timing.mean_s, 1e-3);
    EXPECT_FALSE(std::isnan(timing.std_s));
  }
  settings.train.batch_size = sampler.validation_windows() + 1;
  EXPECT_TRUE(std::isnan(time_forward(settings, trainer, sampler, world).median_s));
}

TEST(StepTiming, deviates_as_the_sums_of_each_step_do) {
  std::vector<train::StepNumbers> steps(2);
  steps[0].forward_s = 1;
  steps[0].backward_s = 4;
  steps[1].forward_s = 3;
  steps[1].backward_s = 2;
  steps[0].was_cold = true;
  steps[0].step_s = 9;
  steps[1].step_s = 7;
  const StepTiming timing = summarize(steps);
  EXPECT_EQ(timing.forward_backward.mean_s, 5);
  EXPECT_EQ(timing.forward_backward.std_s, 0) << "what one phase gains the other loses";
  EXPECT_DOUBLE_EQ(timing.forward.std_s, std::sqrt(2.0));
  EXPECT_EQ(timing.step.first_s, 9);
  EXPECT_EQ(timing.step.median_s, 8);
  EXPECT_EQ(timing.cold_steps, 1);
}

}  // namespace
}  // namespace tessera::lab
