#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/adamw.hpp"
#include "reference/adamw.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::AdamwBlock;
using kernels::AdamwScalars;
using kernels::AdamwSpan;
using kernels::AdamwUpdate;
using kernels::kAdamwBlock;
using kernels::make_adamw_blocks;

constexpr reference::AdamwConfig kConfig{
    .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};

/// A span that begins at `first` of the weights, the gradients and the state alike.
AdamwSpan at(std::int64_t first, std::int64_t count, bool decay) { return {first, first, first, count, decay, first}; }

AdamwScalars scalars_at(int step, double grad_scale = 1, int skip = 0, const reference::AdamwConfig& config = kConfig) {
  return {.learning_rate = config.learning_rate,
          .bias1 = 1 - std::pow(config.beta1, step),
          .bias2 = 1 - std::pow(config.beta2, step),
          .grad_scale = grad_scale,
          .skip = skip};
}

/// Parameters, moments and working copy of one test, and the update that a step applies to them.
template <class Scalar, class Grad = Accum<Scalar>>
struct AdamwRun {
  using Real = Accum<Scalar>;
  using Word = kernels::MasterWord<Scalar>;
  static constexpr bool kHasHalves = kernels::MasterWeights<Device, Scalar>::kAreHalves;
  Buffer<AdamwBlock> blocks;
  Buffer<Word> master;
  Buffer<Grad> grad;
  Buffer<Real> m, v;
  Buffer<Scalar> param;

  AdamwRun(const std::vector<AdamwSpan>& spans, std::size_t n)
      : blocks(make_adamw_blocks(spans)),
        master(initial_master(n)),
        grad(uniform_as<Grad>(n, 2)),
        m(Buffer<Real>::zeros(n)),
        v(Buffer<Real>::zeros(n)),
        param(kHasHalves ? Buffer<Scalar>(upper_halves(n)) : Buffer<Scalar>::unwritten(n)) {}

  /// The weights that the optimizer sees.
  std::vector<double> weights() const {
    if constexpr (kHasHalves) {
      const auto upper = param.elements();
      const auto lower = master.elements();
      std::vector<double> joined(upper.size());
      for (std::size_t i = 0; i < joined.size(); ++i) joined[i] = kernels::join(upper[i], lower[i]);
      return joined;
    } else {
      return master.values();
    }
  }

  AdamwUpdate<Device, Scalar, Grad> kernel(const Buffer<AdamwScalars>& scalars,
                                           const reference::AdamwConfig& config = kConfig) const {
    return {.blocks = blocks.vector(),
            .master = master.vector(),
            .param = param.vector(),
            .grad = grad.vector(),
            .m = m.vector(),
            .v = v.vector(),
            .scalars = scalars.value(),
            .beta1 = config.beta1,
            .beta2 = config.beta2,
            .eps = Real(config.eps),
            .weight_decay = Real(config.weight_decay)};
  }
  void step(const AdamwScalars& now, const reference::AdamwConfig& config = kConfig) const {
    kernel(Buffer<AdamwScalars>(std::vector<AdamwScalars>{now}), config).launch(instance());
  }

 private:
  static std::vector<Scalar> upper_halves(std::size_t n) {
    std::vector<Scalar> halves;
    if constexpr (kHasHalves) {
      for (const double weight : uniform_as<float>(n, 1)) {
        halves.push_back(kernels::cut(static_cast<float>(weight)).upper);
      }
    }
    return halves;
  }
  static Buffer<Word> initial_master(std::size_t n) {
    if constexpr (kHasHalves) {
      std::vector<Word> halves;
      for (const double weight : uniform_as<float>(n, 1)) {
        halves.push_back(kernels::cut(static_cast<float>(weight)).lower);
      }
      return Buffer<Word>(halves);
    } else {
      return Buffer<Word>(uniform_as<Real>(n, 1));
    }
  }
};

template <class Scalar>
struct Adamw : ::testing::Test {};
TYPED_TEST_SUITE(Adamw, AllScalars, ScalarNames);

TYPED_TEST(Adamw, follows_the_reference_for_ten_steps_over_ragged_spans) {
  using Real = Accum<TypeParam>;
  // one element, a block less one, one block, one more, and a rest; decay on every other; a hole that no span covers
  const std::int64_t b = kAdamwBlock;
  const std::vector<AdamwSpan> spans = {at(0, 1, true), at(1, b - 1, false), at(b, b, true), at(2 * b, b + 1, false),
                                        at(3 * b + 5, 17, true)};
  const std::size_t n = 3 * b + 30;
  const AdamwRun<TypeParam> run(spans, n);
  const auto before = run.weights(), grad = run.grad.values();
  constexpr int kSteps = 10;
  constexpr double kClip = 0.5;
  for (int step = 1; step <= kSteps; ++step) run.step(scalars_at(step, kClip));

  auto p = before, m = std::vector<double>(n), v = m;
  for (const auto& [first, grad_first, state_first, count, decay, index] : spans) {
    auto config = kConfig;
    if (!decay) config.weight_decay = 0;
    for (std::int64_t i = first; i < first + count; ++i) {
      reference::AdamwState state{p[i], 0, 0};
      for (int step = 1; step <= kSteps; ++step) state = reference::adamw(state, kClip * grad[i], step, config);
      p[i] = state.p, m[i] = state.m, v[i] = state.v;
    }
  }
  // every step rounds p once (|p| <= 1) and moves it by about the learning rate, known to a few eps
  EXPECT_TRUE(all_close<Real>(run.weights(), p, {.absolute = kSteps * tolerance<Real>()}));
  EXPECT_TRUE(all_close<Real>(run.m.values(), m, {.relative = kSteps * tolerance<Real>()}));
  EXPECT_TRUE(all_close<Real>(run.v.values(), v, {.relative = kSteps * tolerance<Real>()}));

  // the working copy is the master, rounded; what no span covers is not touched
  const auto weights = run.weights();
  const auto param = run.param.elements();
  for (std::size_t i = 0; i < n; ++i) {
    const bool covered = i < std::size_t(3 * b + 1) || (i >= std::size_t(3 * b + 5) && i < std::size_t(3 * b + 22));
    if (covered || AdamwRun<TypeParam>::kHasHalves) {
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
  const reference::AdamwConfig config{
      .learning_rate = 0.01, .beta1 = 0.999, .beta2 = 0.99999, .eps = 1e-6, .weight_decay = 0.1};
  constexpr std::size_t n = 1000;
  constexpr int kSteps = 10;
  const AdamwRun<TypeParam> run({at(0, n, true)}, n);
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
    EXPECT_TRUE(all_close<Real>(run.m.values(), m, {.absolute = step * tolerance<Real>() * largest_m}));
    EXPECT_TRUE(all_close<Real>(run.v.values(), v, {.relative = step * tolerance<Real>()}));
  }
}

TEST(MasterWeights, halves_of_a_float_are_the_nearest_bfloat16_and_the_rest) {
  for (const float value : {0.0f, -0.0f, 1.0f, -1.0f, 0.1f, -3.3e-5f, 65504.0f, 1.5e-39f, 3.4e38f, 1.00390625f,
                            std::numeric_limits<float>::infinity()}) {
    const kernels::FloatHalves halves = kernels::cut(value);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(kernels::join(halves.upper, halves.lower)),
              std::bit_cast<std::uint32_t>(value))
        << value;
    if (std::abs(value) < 3.3e38f && std::abs(value) > 1e-37f) {
      EXPECT_LE(std::abs(static_cast<float>(halves.upper) - value), kEpsilon<bfloat16> / 2 * std::abs(value)) << value;
    }
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(kernels::cut(std::nanf("")).upper)));
}

TEST(MasterWeights, bfloat16_gradients_move_the_weights_as_fp32_ones_of_the_same_value_do) {
  const AdamwRun<bfloat16> wide({at(0, 10007, true)}, 10007);
  const AdamwRun<bfloat16, bfloat16> narrow({at(0, 10007, true)}, 10007);
  const auto grad = narrow.grad.values();
  const Buffer<float> same_grad(grad);
  auto kernel = wide.kernel(Buffer<AdamwScalars>(std::vector<AdamwScalars>{scalars_at(1)}));
  const Buffer<AdamwScalars> now(std::vector<AdamwScalars>{scalars_at(1)});
  kernel.scalars = now.value();
  kernel.grad = same_grad.vector();
  kernel.launch(instance());
  narrow.step(scalars_at(1));
  EXPECT_TRUE(same_bits(wide.param.elements(), narrow.param.elements()));
  EXPECT_TRUE(same_bits(wide.master.elements(), narrow.master.elements()));
}

TYPED_TEST(Adamw, skip_leaves_everything_as_it_is) {
  const AdamwRun<TypeParam> run({at(0, 100, true)}, 100);
  run.step(scalars_at(1));
  const auto master = run.master.elements();
  const auto m = run.m.elements(), v = run.v.elements();
  const auto param = run.param.elements();
  run.step(scalars_at(2, std::nan(""), 1));
  EXPECT_TRUE(same_bits(run.master.elements(), master));
  EXPECT_TRUE(same_bits(run.m.elements(), m));
  EXPECT_TRUE(same_bits(run.v.elements(), v));
  EXPECT_TRUE(same_bits(run.param.elements(), param));
}

TYPED_TEST(Adamw, repeats_bit_for_bit) {
  const AdamwRun<TypeParam> one({at(0, 10007, true)}, 10007), two({at(0, 10007, true)}, 10007);
  for (int step = 1; step <= 3; ++step) one.step(scalars_at(step)), two.step(scalars_at(step));
  EXPECT_TRUE(same_bits(one.master.elements(), two.master.elements()));
  EXPECT_TRUE(same_bits(one.param.elements(), two.param.elements()));
}

TYPED_TEST(Adamw, cutting_a_span_changes_no_bit) {
  const AdamwRun<TypeParam> whole({at(0, 10007, true)}, 10007);
  const AdamwRun<TypeParam> pieces({at(5001, 5006, true), at(0, 13, true), at(13, 4988, true)}, 10007);
  whole.step(scalars_at(1)), pieces.step(scalars_at(1));
  EXPECT_TRUE(same_bits(whole.master.elements(), pieces.master.elements()));
}

TYPED_TEST(Adamw, launches_under_its_name_on_the_callers_instance) {
  const AdamwRun<TypeParam> run({at(0, 9, true)}, 9);
  const OtherInstance other;
  const LaunchRecorder recorder;
  run.step(scalars_at(1));
  EXPECT_TRUE(launched_under(recorder, "tessera::adamw::", instance()));
}

TYPED_TEST(Adamw, refuses_extents_that_disagree_and_launches_nothing_for_no_blocks) {
  using Kernel = AdamwUpdate<Device, TypeParam>;
  const AdamwRun<TypeParam> run({at(0, 9, true)}, 9);
  const Buffer<AdamwScalars> scalars(std::vector<AdamwScalars>{scalars_at(1)});
  const auto refuses = [&](auto change) {
    Kernel bad = run.kernel(scalars);
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  refuses([&](Kernel& k) { k.m = run.m.first(8); });
  refuses([&](Kernel& k) { k.v = run.v.first(8); });
  refuses([&](Kernel& k) { k.master = run.master.first(8); });
  refuses([&](Kernel& k) { k.scalars = {}; });

  Kernel without_copy = run.kernel(scalars);
  without_copy.param = {};
  if constexpr (std::is_same_v<TypeParam, Accum<TypeParam>>) {
    EXPECT_NO_THROW(without_copy.launch(instance()));
  } else {
    EXPECT_THROW(without_copy.launch(instance()), std::invalid_argument);
  }

  const LaunchRecorder recorder;
  Kernel none = run.kernel(scalars);
  none.blocks = run.blocks.first(0);
  none.launch(instance());
  EXPECT_THAT(recorder.labels(), ::testing::IsEmpty());
}

TYPED_TEST(Adamw, takes_weights_gradients_and_state_from_places_of_their_own) {
  using Run = AdamwRun<TypeParam>;
  constexpr std::size_t n = 4096;
  // a shard: the state holds elements 1024..3071 of the weights alone, the gradients lie 64 further on
  for (const std::int64_t grad_shift : {64, 67}) {
    constexpr std::int64_t kFirst = 1024, kCount = 2048;
    const Run whole({at(kFirst, kCount, true)}, n);
    const Run shard({{kFirst, kFirst + grad_shift, 0, kCount, true}}, n);
    constexpr bool kIsOneArray = kernels::MasterWeights<Device, TypeParam>::kIsOneArray;
    const auto gradients = whole.grad.elements();
    auto moved = gradients;
    for (std::int64_t i = 0; i < kCount; ++i) moved[kFirst + grad_shift + i] = gradients[kFirst + i];
    const Buffer<AdamwScalars> now(std::vector<AdamwScalars>{scalars_at(1)});
    auto kernel = shard.kernel(now);
    const Buffer<Accum<TypeParam>> moved_grad(moved);
    kernel.grad = moved_grad.vector();
    const auto masters = shard.master.elements();
    const Buffer<kernels::MasterWord<TypeParam>> owned(
        std::vector<kernels::MasterWord<TypeParam>>(masters.begin() + kFirst, masters.begin() + kFirst + kCount));
    if (kIsOneArray) {
      kernel.param = {};
    } else {
      kernel.master = owned.vector();
      kernel.m = shard.m.first(kCount);
      kernel.v = shard.v.first(kCount);
    }
    kernel.launch(instance());
    auto reference = whole.kernel(now);
    if (kIsOneArray) reference.param = {};
    reference.launch(instance());
    instance().fence();
    const auto slice = [&](const auto& values, std::int64_t first) {
      return std::vector<double>(values.begin() + first, values.begin() + first + kCount);
    };
    EXPECT_EQ(slice(shard.m.values(), 0), slice(whole.m.values(), kFirst));
    EXPECT_EQ(slice(shard.v.values(), 0), slice(whole.v.values(), kFirst));
    if (kIsOneArray) {
      EXPECT_EQ(shard.master.values(), whole.master.values());
    } else {
      const auto whole_master = whole.master.elements();
      EXPECT_TRUE(same_bits(owned.elements(), {whole_master.begin() + kFirst, whole_master.begin() + kFirst + kCount}));
      EXPECT_EQ(slice(shard.param.values(), kFirst), slice(whole.param.values(), kFirst));
    }
  }
}

TEST(AdamwBlocks, cover_every_span_once_in_pieces_of_at_most_one_block) {
  const auto blocks = make_adamw_blocks({at(100000, 2 * kAdamwBlock + 3, false), at(7, 5, true), at(12, 0, true)});
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].param, 7);
  EXPECT_EQ(blocks[0].count, 5);
  EXPECT_TRUE(blocks[0].decay);
  std::int64_t next = 100000;
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].param, next);
    EXPECT_EQ(blocks[i].grad, next);
    EXPECT_EQ(blocks[i].state, next);
    EXPECT_LE(blocks[i].count, kAdamwBlock);
    EXPECT_FALSE(blocks[i].decay);
    next += blocks[i].count;
  }
  EXPECT_EQ(next, 100000 + 2 * kAdamwBlock + 3);
  EXPECT_EQ(std::ssize(blocks),
            kernels::adamw_blocks(5) + kernels::adamw_blocks(0) + kernels::adamw_blocks(2 * kAdamwBlock + 3));
}

TEST(AdamwBlocks, refuse_overlaps_and_negative_spans) {
  EXPECT_THROW(make_adamw_blocks({at(0, 10, true), at(9, 1, true)}), std::invalid_argument);
  EXPECT_THROW(make_adamw_blocks({at(-1, 10, true)}), std::invalid_argument);
  EXPECT_THROW(make_adamw_blocks({at(0, -1, true)}), std::invalid_argument);
  EXPECT_THROW(make_adamw_blocks({{0, 0, 0, 10, true}, {10, 10, 9, 5, true}}), std::invalid_argument);
  EXPECT_NO_THROW(make_adamw_blocks({at(10, 5, true), at(0, 10, false)}));
}

}  // namespace
}  // namespace tessera::test
