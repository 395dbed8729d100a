#include "optim/step_state.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "support/instance.hpp"
#include "support/launch_recorder.hpp"

namespace tessera::optim {
namespace {

using kernels::Device;

/// A StepState on the device that a test sets, runs and reads.
struct State {
  Kokkos::View<StepState, Device::memory_space> memory{"test.state"};

  StateView view() const { return StateView(memory.data()); }
  void set(const StepState& state) const {
    const auto host = Kokkos::create_mirror_view(memory);
    host() = state;
    Kokkos::deep_copy(memory, host);
  }
  StepState get() const { return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), memory)(); }
};

PrepareUpdate prepare_of(const State& state, double clip_norm, bool scales_dynamically) {
  return {state.view(), Schedule{1e-3, 1e-4, 10, 100}, 0.9, 0.95, clip_norm, scales_dynamically, 1};
}

StepState after(StepState before, double clip_norm = 1, bool scales_dynamically = false) {
  const State state;
  state.set(before);
  prepare_of(state, clip_norm, scales_dynamically).launch(test::instance());
  Kokkos::fence();
  return state.get();
}

StepState state_of(double norm, double loss_scale = 1) {
  StepState s{};
  s.norm_squared = norm * norm * loss_scale * loss_scale;  // of the scaled gradients
  s.loss_scale = loss_scale;
  return s;
}

TEST(BeginStep, clears_the_loss_and_weights_by_tokens_and_loss_scale) {
  const State state;
  StepState before = state_of(3, 1024);
  before.loss_sum = 77, before.step = 5, before.optimizer_steps = 4, before.good_steps = 3;
  state.set(before);
  const Kokkos::View<float, Device::memory_space> scale("test.scale");
  BeginStep<float>{state.view(), kernels::Value<float, Device>(scale.data()), 4096}.launch(test::instance());
  Kokkos::fence();
  EXPECT_EQ(Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), scale)(), 0.25f);
  const StepState s = state.get();
  EXPECT_EQ(s.loss_sum, 0);
  EXPECT_EQ(s.loss_scale, 1024);
  EXPECT_EQ(s.step, 5);
  EXPECT_EQ(s.optimizer_steps, 4);
  EXPECT_EQ(s.good_steps, 3);
}

TEST(BeginStep, scale_in_double_is_exact) {
  const State state;
  state.set(state_of(1));
  const Kokkos::View<double, Device::memory_space> scale("test.scale");
  BeginStep<double>{state.view(), kernels::Value<double, Device>(scale.data()), 75}.launch(test::instance());
  Kokkos::fence();
  EXPECT_EQ(Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), scale)(), 1.0 / 75);
}

TEST(FinishUpdate, with_an_update_prepared_before_the_norm_is_the_update_prepared_after_it) {
  const State state;
  StepState before = state_of(std::numeric_limits<double>::quiet_NaN());  // of the step before: nothing reads it
  before.step = 7, before.optimizer_steps = 5;
  const auto in_two = [&](double norm_squared) {
    state.set(before);
    PrepareUpdate prepare = prepare_of(state, 0, false);
    prepare.precedes_norm = true;
    prepare.launch(test::instance());
    Kokkos::fence();
    StepState s = state.get();
    EXPECT_EQ(s.update.skip, 0);
    s.norm_squared = norm_squared;
    state.set(s);
    FinishUpdate{state.view()}.launch(test::instance());
    Kokkos::fence();
    return state.get();
  };
  for (const double norm_squared : {9.0, std::numeric_limits<double>::infinity()}) {
    StepState at_once = before;
    at_once.norm_squared = norm_squared;
    at_once = after(at_once, 0);
    const StepState s = in_two(norm_squared);
    EXPECT_EQ(s.grad_norm, at_once.grad_norm);
    EXPECT_EQ(s.update.skip, at_once.update.skip);
    EXPECT_EQ(s.optimizer_steps, at_once.optimizer_steps);
    EXPECT_EQ(s.step, at_once.step);
    EXPECT_EQ(s.update.learning_rate, at_once.update.learning_rate);
    EXPECT_EQ(s.update.grad_scale, at_once.update.grad_scale);
    EXPECT_EQ(s.update.noise, at_once.update.noise);
    if (s.update.skip != 0) continue;  // its factors are not used
    EXPECT_EQ(s.update.bias1, at_once.update.bias1);
    EXPECT_EQ(s.update.bias2, at_once.update.bias2);
  }
}

TEST(PrepareUpdate, a_small_norm_is_not_clipped) {
  const StepState s = after(state_of(0.5));
  EXPECT_DOUBLE_EQ(s.grad_norm, 0.5);
  EXPECT_EQ(s.update.grad_scale, 1.0);
  EXPECT_EQ(s.update.skip, 0);
}

TEST(PrepareUpdate, a_large_norm_is_clipped_to_the_limit) {
  for (const double clip : {1.0, 0.1, 2.5}) {
    const StepState s = after(state_of(8), clip);
    EXPECT_DOUBLE_EQ(s.grad_norm, 8);  // before clipping
    EXPECT_DOUBLE_EQ(s.update.grad_scale, clip / (8 + 1e-6));
  }
}

TEST(PrepareUpdate, clip_norm_0_is_off) { EXPECT_EQ(after(state_of(1e6), 0).update.grad_scale, 1.0); }

TEST(PrepareUpdate, a_norm_of_zero_divides_nothing) {
  const StepState s = after(state_of(0));
  EXPECT_EQ(s.grad_norm, 0);
  EXPECT_EQ(s.update.grad_scale, 1.0);
  EXPECT_EQ(s.update.skip, 0);
}

TEST(PrepareUpdate, the_loss_scale_is_taken_out_of_norm_and_gradients) {
  const StepState s = after(state_of(8, 4096), 2, true);
  EXPECT_DOUBLE_EQ(s.grad_norm, 8);
  EXPECT_DOUBLE_EQ(s.update.grad_scale, 2 / (8 + 1e-6) / 4096);
  EXPECT_EQ(s.loss_scale, 4096);
}

TEST(PrepareUpdate, learning_rate_is_that_of_the_steps_begun) {
  const Schedule schedule{1e-3, 1e-4, 10, 100};
  StepState s = state_of(1);
  for (int step = 0; step < 110; ++step) {
    s = after(s);
    EXPECT_EQ(s.step, step + 1);
    EXPECT_DOUBLE_EQ(s.update.learning_rate, schedule.learning_rate_at(step));
  }
}

TEST(PrepareUpdate, bias_corrections_are_those_of_the_updates_done) {
  StepState s = state_of(1);
  for (int update = 1; update <= 2000; ++update) {
    s = after(s);
    ASSERT_EQ(s.optimizer_steps, update);
    ASSERT_NEAR(s.update.bias1, 1 - std::pow(0.9, update), 1e-14);
    ASSERT_NEAR(s.update.bias2, 1 - std::pow(0.95, update), 1e-14);
  }
}

TEST(PrepareUpdate, an_overflow_skips_the_update_and_halves_the_scale) {
  for (const double norm_squared : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    StepState before = state_of(1, 1024);
    before.norm_squared = norm_squared;
    before.step = 7, before.optimizer_steps = 5, before.good_steps = 3;
    const StepState s = after(before, 1, true);
    EXPECT_NE(s.update.skip, 0);
    EXPECT_EQ(s.loss_scale, 512);
    EXPECT_EQ(s.good_steps, 0);
    EXPECT_EQ(s.optimizer_steps, 5);  // AdamW's counter does not advance
    EXPECT_EQ(s.step, 8);             // the schedule does
  }
}

TEST(PrepareUpdate, without_dynamic_scaling_an_overflow_skips_and_changes_no_scale) {
  StepState before = state_of(1);
  before.norm_squared = std::nan("");
  const StepState s = after(before, 1, false);
  EXPECT_NE(s.update.skip, 0);
  EXPECT_EQ(s.loss_scale, 1);
  EXPECT_EQ(s.optimizer_steps, 0);
}

TEST(PrepareUpdate, a_good_step_after_a_skip_updates_again) {
  StepState s = state_of(1, 1024);
  s.norm_squared = std::nan("");
  s = after(s, 1, true);
  s.norm_squared = 512.0 * 512.0;
  s = after(s, 0, true);
  EXPECT_EQ(s.update.skip, 0);
  EXPECT_DOUBLE_EQ(s.grad_norm, 1);
  EXPECT_EQ(s.update.grad_scale, 1.0 / 512);
  EXPECT_EQ(s.optimizer_steps, 1);
}

TEST(PrepareUpdate, the_scale_doubles_after_2000_good_steps_and_not_before) {
  StepState before = state_of(1, 1024);
  before.good_steps = 1998;
  const StepState last = after(before, 1, true);
  EXPECT_EQ(last.loss_scale, 1024);
  EXPECT_EQ(last.good_steps, 1999);
  const StepState grown = after(last, 1, true);
  EXPECT_EQ(grown.loss_scale, 2048);
  EXPECT_EQ(grown.good_steps, 0);
  EXPECT_DOUBLE_EQ(grown.update.grad_scale, 1 / (1 + 1e-6) / 1024);  // this step's gradients carry the old scale
  EXPECT_EQ(after(last, 1, false).loss_scale, 1024);
}

TEST(PrepareUpdate, the_scale_stays_between_1_and_2_to_the_24) {
  StepState largest = state_of(1, 1 << 24);
  largest.good_steps = 1999;
  EXPECT_EQ(after(largest, 1, true).loss_scale, 1 << 24);
  StepState least = state_of(1, 1);
  least.norm_squared = std::nan("");
  EXPECT_EQ(after(least, 1, true).loss_scale, 1);
}

TEST(PrepareUpdate, an_overflow_is_a_bad_step_only_where_no_smaller_scale_may_help) {
  for (const auto& [scale, scales_dynamically, expected] :
       {std::tuple{1024.0, true, BadStep::no}, {1.0, true, BadStep::not_finite}, {1.0, false, BadStep::not_finite}}) {
    StepState s = state_of(1, scale);
    EXPECT_EQ(after(s, 1, scales_dynamically).bad, BadStep::no);
    s.norm_squared = std::nan("");
    EXPECT_EQ(after(s, 1, scales_dynamically).bad, expected);
  }
}

// mean + 2 deviations of the last four good norms; a spike is none of them.
TEST(PrepareUpdate, a_spike_changes_no_weights_and_is_not_remembered) {
  const Kokkos::View<double*, Device::memory_space> norms("test.norms", 4);
  const State state;
  StepState s = state_of(1);
  const auto step = [&](double norm) {
    s.norm_squared = norm * norm;
    state.set(s);
    PrepareUpdate prepare = prepare_of(state, 0, false);
    prepare.spike_deviations = 2;
    prepare.norms = norms;
    prepare.launch(test::instance());
    Kokkos::fence();
    s = state.get();
    EXPECT_EQ(s.update.skip != 0, s.bad != BadStep::no);
    return s.bad;
  };
  for (const double norm : {1.0, 90.0, 3.0, 1.0, 3.0}) EXPECT_EQ(step(norm), BadStep::no);  // none while there are few
  EXPECT_EQ(step(80), BadStep::no);  // 90 is still one of the four: 24.25 + 2 * 37.97
  for (const double norm : {1.0, 3.0, 1.0}) EXPECT_EQ(step(norm), BadStep::no);
  EXPECT_EQ(step(3), BadStep::no);  // 80 leaves: 1, 3, 1, 3
  const std::int64_t updates = s.optimizer_steps;
  EXPECT_EQ(step(4.1), BadStep::spike);  // 2 + 2 * 1
  EXPECT_EQ(step(std::nan("")), BadStep::not_finite);
  EXPECT_EQ(step(4.1), BadStep::spike);
  EXPECT_EQ(s.optimizer_steps, updates);
  EXPECT_EQ(step(3.9), BadStep::no);
}

TEST(StepState, kernels_are_labelled_and_on_the_callers_instance) {
  const State state;
  state.set(state_of(1));
  const Kokkos::View<float, Device::memory_space> scale("test.scale");
  const test::OtherInstance other;
  const Device exec = test::instance();
  const test::LaunchRecorder recorder;
  BeginStep<float>{state.view(), kernels::Value<float, Device>(scale.data()), 1}.launch(exec);
  prepare_of(state, 1, true).launch(exec);
  EXPECT_TRUE(test::launched_under(recorder, "tessera::optim::", exec));
  EXPECT_EQ(recorder.launches().size(), 2u);
}

}  // namespace
}  // namespace tessera::optim
