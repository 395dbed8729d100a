#include "optim/step_state.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::optim {
namespace {

const Schedule kSchedule{.peak = 1e-3, .minimum = 1e-4, .warmup_steps = 10, .steps = 110};

TEST(Schedule, warms_up_linearly_from_the_first_step) {
  EXPECT_DOUBLE_EQ(kSchedule.learning_rate_at(0), 1e-4);
  EXPECT_DOUBLE_EQ(kSchedule.learning_rate_at(4), 5e-4);
  EXPECT_DOUBLE_EQ(kSchedule.learning_rate_at(9), 1e-3);  // the last warm-up step has the peak
}

TEST(Schedule, falls_as_a_cosine_to_the_minimum) {
  EXPECT_DOUBLE_EQ(kSchedule.learning_rate_at(10), 1e-3);
  EXPECT_DOUBLE_EQ(kSchedule.learning_rate_at(60), 5.5e-4);                                    // half way
  EXPECT_DOUBLE_EQ(kSchedule.learning_rate_at(35), 1e-4 + 0.5 * 9e-4 * (1 + std::sqrt(0.5)));  // a quarter
  EXPECT_NEAR(kSchedule.learning_rate_at(109), 1e-4, 9e-4 * 2.5e-4);                           // (pi/200)^2
  EXPECT_GT(kSchedule.learning_rate_at(109), 1e-4);
  for (int step = 10; step < 109; ++step) {
    EXPECT_GT(kSchedule.learning_rate_at(step), kSchedule.learning_rate_at(step + 1)) << "step " << step;
  }
}

TEST(Schedule, keeps_the_minimum_from_the_end_on) {
  EXPECT_EQ(kSchedule.learning_rate_at(110), 1e-4);
  EXPECT_EQ(kSchedule.learning_rate_at(100000), 1e-4);
}

TEST(Schedule, without_warmup_starts_at_the_peak) {
  const Schedule schedule{.peak = 2.0, .minimum = 0.0, .warmup_steps = 0, .steps = 4};
  EXPECT_DOUBLE_EQ(schedule.learning_rate_at(0), 2.0);
  EXPECT_DOUBLE_EQ(schedule.learning_rate_at(2), 1.0);
  EXPECT_EQ(schedule.learning_rate_at(4), 0.0);
}

TEST(Schedule, equal_peak_and_minimum_are_a_constant) {
  const Schedule schedule{.peak = 3e-4, .minimum = 3e-4, .warmup_steps = 0, .steps = 20};
  for (int step = 0; step < 30; ++step) EXPECT_EQ(schedule.learning_rate_at(step), 3e-4);
}

TEST(Schedule, survives_a_run_that_is_all_warmup) {
  const Schedule schedule{.peak = 1.0, .minimum = 0.1, .warmup_steps = 5, .steps = 5};
  EXPECT_DOUBLE_EQ(schedule.learning_rate_at(4), 1.0);
  EXPECT_EQ(schedule.learning_rate_at(5), 0.1);
  const Schedule cut{.peak = 1.0, .minimum = 0.1, .warmup_steps = 10, .steps = 5};
  EXPECT_DOUBLE_EQ(cut.learning_rate_at(4), 0.5);
}

}  // namespace
}  // namespace tessera::optim
