#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/lion.hpp"
#include "reference/lion.hpp"
#include "support/close.hpp"
#include "support/scalars.hpp"
#include "unit/kernels/update_run.hpp"

namespace tessera::test {
namespace {

reference::LionConfig of(const UpdateConfig& config, bool decay = true) {
  return {config.learning_rate, config.beta1, config.beta2, decay ? config.weight_decay : 0};
}

template <class Scalar>
struct Lion : ::testing::Test {};
TYPED_TEST_SUITE(Lion, AllScalars, ScalarNames);

/// Each step draws new gradients, so that directions turn. Where beta1 m and (1 - beta1) g cancel to within what their
/// sum may be wrong by, the sign is nobody's to know: such elements are counted, and may end two learning rates away
/// for each such step.
TYPED_TEST(Lion, follows_the_reference_for_ten_steps_over_ragged_spans) {
  using Real = Accum<TypeParam>;
  const std::int64_t b = kernels::kUpdateBlock;
  const std::vector<kernels::UpdateSpan> spans = {at(0, 1, true), at(1, b - 1, false), at(b, b, true),
                                                  at(2 * b, b + 1, false), at(3 * b + 5, 17, true)};
  const std::size_t n = 3 * b + 30;
  for (const double beta : {0.9, 0.999}) {
    const UpdateConfig config{.learning_rate = 0.01, .beta1 = beta, .beta2 = 0.99, .eps = 0, .weight_decay = 0.1};
    const UpdateRun<kernels::Lion, TypeParam> run(spans, n);
    auto p = run.weights(), m = std::vector<double>(n), before = p;
    std::vector<int> undecided(n), turned(n);
    constexpr int kSteps = 10;
    constexpr double kClip = 0.5;
    for (int step = 1; step <= kSteps; ++step) {
      run.grad.upload(Buffer<Real>(uniform_as<Real>(n, 10 + step)).elements());
      const auto grad = run.grad.values();
      run.step(scalars_at(step, kClip, 0, config), config);
      for (const auto& span : spans) {
        for (std::int64_t i = span.param; i < span.param + span.count; ++i) {
          const double g = kClip * grad[i], size = std::max(std::abs(m[i]), std::abs(g));
          const double c = reference::lion_direction({p[i], m[i]}, g, of(config));
          undecided[i] += std::abs(c) <= step * tolerance<Real>() * size;
          turned[i] += step > 1 && c * m[i] < 0;
          const reference::LionState next = reference::lion({p[i], m[i]}, g, of(config, span.decay));
          p[i] = next.p, m[i] = next.m;
        }
      }
    }
    const auto weights = run.weights(), moments = run.moments[0].values();
    EXPECT_TRUE(all_close<Real>(moments, m, {.absolute = kSteps * tolerance<Real>()}));
    for (std::size_t i = 0; i < n; ++i) {
      const double bound = kSteps * tolerance<Real>() + 2 * config.learning_rate * undecided[i];
      ASSERT_LE(std::abs(weights[i] - p[i]), bound) << i;
    }
    EXPECT_LE(std::count_if(undecided.begin(), undecided.end(), [](int times) { return times > 0; }), n / 100);
    EXPECT_GT(std::count_if(turned.begin(), turned.end(), [](int times) { return times > 0; }), n / 100);
    for (std::size_t i = 3 * b + 1; i < std::size_t(3 * b + 5); ++i) EXPECT_EQ(weights[i], before[i]) << "no span";
  }
}

TYPED_TEST(Lion, terms_that_cancel_move_a_weight_either_way_or_not_and_zeros_only_decay_it) {
  using Real = Accum<TypeParam>;
  constexpr std::size_t n = 1000;
  const UpdateConfig& config = kUpdateConfig;
  const UpdateRun<kernels::Lion, TypeParam> run({at(0, n, true)}, n);
  const auto before = run.weights();
  std::vector<double> m(n), g(n);
  for (std::size_t i = 0; i < n; i += 2) m[i] = 0.5, g[i] = -4.5;  // 0.9 m = -0.1 g, but in no binary format
  run.moments[0].upload(Buffer<Real>(m).elements());
  run.grad.upload(Buffer<Real>(g).elements());
  run.step(scalars_at(1));
  const auto after = run.weights();
  for (std::size_t i = 0; i < n; ++i) {
    const double moved = std::abs(after[i] - before[i] * (1 - config.learning_rate * config.weight_decay));
    if (i % 2 == 0 && moved > config.learning_rate / 2) {
      EXPECT_NEAR(moved, config.learning_rate, tolerance<Real>()) << i;
    } else {
      EXPECT_LE(moved, tolerance<Real>()) << i;
    }
  }
}

/// Where no norm of a step precedes its update (optimizer_step.hpp), a NaN must not pass as "no direction".
TYPED_TEST(Lion, gradients_that_are_not_numbers_reach_weights_and_moments) {
  const UpdateRun<kernels::Lion, TypeParam> run({at(0, 9, true)}, 9);
  run.grad.upload(Buffer<Accum<TypeParam>>(std::vector<double>(9, std::nan(""))).elements());
  run.step(scalars_at(1));
  for (const double weight : run.weights()) EXPECT_TRUE(std::isnan(weight));
  for (const double moment : run.moments[0].values()) EXPECT_TRUE(std::isnan(moment));
}

}  // namespace
}  // namespace tessera::test
