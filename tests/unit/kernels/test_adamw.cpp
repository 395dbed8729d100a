#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/adamw.hpp"
#include "support/close.hpp"
#include "support/scalars.hpp"
#include "unit/kernels/update_run.hpp"

namespace tessera::test {
namespace {

template <class Scalar>
struct Adamw : ::testing::Test {};
TYPED_TEST_SUITE(Adamw, AllScalars, ScalarNames);

TYPED_TEST(Adamw, follows_the_reference_for_ten_steps_over_ragged_spans) {
  using Real = Accum<TypeParam>;
  // one element, a block less one, one block, one more, and a rest; decay on every other; a hole that no span covers
  const std::int64_t b = kernels::kUpdateBlock;
  const std::vector<kernels::UpdateSpan> spans = {at(0, 1, true), at(1, b - 1, false), at(b, b, true),
                                                  at(2 * b, b + 1, false), at(3 * b + 5, 17, true)};
  const std::size_t n = 3 * b + 30;
  const UpdateRun<kernels::Adamw, TypeParam> run(spans, n);
  const auto before = run.weights(), grad = run.grad.values();
  constexpr int kSteps = 10;
  constexpr double kClip = 0.5;
  for (int step = 1; step <= kSteps; ++step) run.step(scalars_at(step, kClip));

  auto p = before, m = std::vector<double>(n), v = m;
  for (const auto& [first, grad_first, state_first, count, decay, index] : spans) {
    auto config = kUpdateConfig;
    if (!decay) config.weight_decay = 0;
    for (std::int64_t i = first; i < first + count; ++i) {
      reference::AdamwState state{p[i], 0, 0};
      for (int step = 1; step <= kSteps; ++step) state = reference::adamw(state, kClip * grad[i], step, config);
      p[i] = state.p, m[i] = state.m, v[i] = state.v;
    }
  }
  // every step rounds p once (|p| <= 1) and moves it by about the learning rate, known to a few eps
  EXPECT_TRUE(all_close<Real>(run.weights(), p, {.absolute = kSteps * tolerance<Real>()}));
  EXPECT_TRUE(all_close<Real>(run.moments[0].values(), m, {.relative = kSteps * tolerance<Real>()}));
  EXPECT_TRUE(all_close<Real>(run.moments[1].values(), v, {.relative = kSteps * tolerance<Real>()}));

  // the working copy is the master, rounded; what no span covers is not touched
  const auto weights = run.weights();
  const auto param = run.param.elements();
  for (std::size_t i = 0; i < n; ++i) {
    const bool covered = i < std::size_t(3 * b + 1) || (i >= std::size_t(3 * b + 5) && i < std::size_t(3 * b + 22));
    if (covered || UpdateRun<kernels::Adamw, TypeParam>::kHasHalves) {
      const double off = std::abs(static_cast<double>(param[i]) - weights[i]);
      ASSERT_LE(off, std::max(kEpsilon<TypeParam> * std::abs(weights[i]), kSmallest<TypeParam>) / 2) << i;
      if (!covered) {
        ASSERT_EQ(weights[i], before[i]) << i;
      }
    } else {
      ASSERT_TRUE(std::isnan(static_cast<double>(param[i]))) << i;
    }
  }
}

TYPED_TEST(Adamw, betas_near_one_lose_no_digits_and_gradients_may_change_sign) {
  using Real = Accum<TypeParam>;
  const UpdateConfig config{.learning_rate = 0.01, .beta1 = 0.999, .beta2 = 0.99999, .eps = 1e-6, .weight_decay = 0.1};
  constexpr std::size_t n = 1000;
  constexpr int kSteps = 10;
  const UpdateRun<kernels::Adamw, TypeParam> run({at(0, n, true)}, n);
  const auto before = run.weights(), grad = run.grad.values();
  auto p = before, m = std::vector<double>(n), v = m;
  for (int step = 1; step <= kSteps; ++step) {
    SCOPED_TRACE(step);
    const double sign = step % 3 == 0 ? -1 : 1;
    run.step(scalars_at(step, sign, 0, config), config);
    for (std::size_t i = 0; i < n; ++i) {
      const reference::AdamwState next = reference::adamw({p[i], m[i], v[i]}, sign * grad[i], step, config);
      p[i] = next.p, m[i] = next.m, v[i] = next.v;
    }
    // |g| <= 1, so |m| <= (1 - beta1) step: what m loses is relative to that
    const double largest_m = (1 - config.beta1) * step;
    EXPECT_TRUE(all_close<Real>(run.weights(), p, {.absolute = step * tolerance<Real>()}));
    EXPECT_TRUE(all_close<Real>(run.moments[0].values(), m, {.absolute = step * tolerance<Real>() * largest_m}));
    EXPECT_TRUE(all_close<Real>(run.moments[1].values(), v, {.relative = step * tolerance<Real>()}));
  }
}

}  // namespace
}  // namespace tessera::test
