// Optimizers with moments and weights that exist in bfloat16 alone, rounded stochastically.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/core/random.hpp"
#include "kernels/master_weights.hpp"
#include "kernels/optimizers.hpp"
#include "kernels/weight_update.hpp"
#include "reference/adamw.hpp"
#include "reference/lion.hpp"
#include "support/buffer.hpp"
#include "support/instance.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::round_stochastically;

bfloat16 of_bits(std::uint16_t bits) {
  bfloat16 x;
  x.bits = bits;
  return x;
}

TEST(StochasticRounding, keeps_what_bfloat16_has) {
  for (std::uint32_t bits = 0; bits < 0x10000; bits += 7) {
    const bfloat16 exact = of_bits(static_cast<std::uint16_t>(bits));
    const auto x = static_cast<float>(exact);
    if (std::isnan(x)) continue;
    for (const std::uint64_t random : {0u, 1u, 0x7fffu, 0xffffu}) {
      EXPECT_EQ(round_stochastically(x, random).bits, exact.bits) << x;
    }
  }
}

TEST(StochasticRounding, keeps_infinities_and_nans_and_makes_none) {
  EXPECT_EQ(static_cast<float>(round_stochastically(INFINITY, 0xffff)), INFINITY);
  EXPECT_EQ(static_cast<float>(round_stochastically(-INFINITY, 0xffff)), -INFINITY);
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff80ffffu}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(round_stochastically(std::bit_cast<float>(bits), 0xffff))));
  }
  EXPECT_TRUE(std::isfinite(static_cast<float>(round_stochastically(3.402823466e38f, 0xffff))));
}

TEST(StochasticRounding, goes_up_as_often_as_the_number_is_near) {
  // 1 + k/8 of the gap above 1: up in k/8 of all cases; 5 standard deviations of n Bernoulli draws
  constexpr int n = 100000;
  for (int k = 0; k <= 8; ++k) {
    const float x = 1.0f + static_cast<float>(k) / 8.0f * 0x1p-7f;
    int up = 0;
    for (int i = 0; i < n; ++i) up += static_cast<float>(round_stochastically(x, mix(3, i))) > 1.0f;
    const double p = k / 8.0;
    EXPECT_NEAR(up, p * n, 5 * std::sqrt(n * p * (1 - p)) + 1e-9) << k;
  }
}

TEST(StochasticRounding, lets_a_sum_of_small_terms_grow) {
  bfloat16 nearest(1.0f), stochastic(1.0f);
  constexpr int n = 4096;
  for (int i = 0; i < n; ++i) {  // a tenth of a unit in the last place each
    nearest = bfloat16(static_cast<float>(nearest) + 0.1f * 0x1p-7f);
    stochastic = round_stochastically(static_cast<float>(stochastic) + 0.1f * 0x1p-7f, mix(9, i));
  }
  EXPECT_EQ(static_cast<float>(nearest), 1.0f);
  EXPECT_NEAR(static_cast<float>(stochastic), 1 + n * 0.1 * 0x1p-7, 0.4);
}

constexpr reference::AdamwConfig kConfig{
    .learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.1};

/// What a step makes of an element in double; whether rounding decides about more than its last digits.
struct Exact {
  double p;
  std::vector<double> moments;
  bool is_undecided = false;
};
Exact exact_step(kernels::Adamw, double p, const std::vector<double>& moments, double grad) {
  // reference::adamw divides by the biases of step 1 from these moments on
  const auto [new_p, m, v] = reference::adamw({p, moments[0], moments[1]}, grad, 1, kConfig);
  return {new_p, {m, v}};
}
Exact exact_step(kernels::Lion, double p, const std::vector<double>& moments, double grad) {
  const reference::LionConfig config{kConfig.learning_rate, kConfig.beta1, kConfig.beta2, kConfig.weight_decay};
  const auto [new_p, m] = reference::lion({p, moments[0]}, grad, config);
  return {new_p, {m}, std::abs(reference::lion_direction({p, moments[0]}, grad, config)) <= tolerance<float>()};
}

/// All in 16 bits; moments begin as multiples of 1/64.
template <class Rule>
struct NarrowRun {
  using Kernel = kernels::WeightUpdate<Rule, Device, bfloat16, bfloat16, bfloat16, false>;

  explicit NarrowRun(std::size_t n) : param(uniform(n, 1)), grad(uniform(n, 2)) {
    for (int k = 0; k < Kernel::kMoments; ++k) moments.emplace_back(sixty_fourths(n));
  }

  static std::vector<double> sixty_fourths(std::size_t n) {
    std::vector<double> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<double>(i % 32) / 64;
    return values;
  }

  void step(const std::vector<kernels::UpdateSpan>& spans, std::uint64_t noise) {
    const Buffer<kernels::UpdateBlock> blocks(kernels::make_update_blocks(spans));
    const Buffer<kernels::UpdateScalars> now(
        std::vector<kernels::UpdateScalars>{{.learning_rate = kConfig.learning_rate,
                                             .bias1 = 1 - kConfig.beta1,
                                             .bias2 = 1 - kConfig.beta2,
                                             .grad_scale = 1,
                                             .skip = 0,
                                             .noise = noise}});
    Kernel update{.blocks = blocks.vector(),
                  .master = {},
                  .param = param.vector(),
                  .grad = grad.vector(),
                  .moments = {},
                  .scalars = now.value(),
                  .keys = {kConfig.beta1, kConfig.beta2, float(kConfig.eps), float(kConfig.weight_decay)}};
    for (int k = 0; k < Kernel::kMoments; ++k) update.moments[k] = moments[k].vector();
    update.launch(instance());
    instance().fence();
  }

  Buffer<bfloat16> param, grad;
  std::vector<Buffer<bfloat16>> moments;
};

template <class Rule>
struct UpdateInSixteenBits : ::testing::Test {};
struct RuleNames {
  template <class Rule>
  static std::string GetName(int) {
    return std::string(Rule::kName);
  }
};
using EveryRule = ::testing::Types<kernels::Adamw, kernels::Lion>;
TYPED_TEST_SUITE(UpdateInSixteenBits, EveryRule, RuleNames);

TYPED_TEST(UpdateInSixteenBits, rounds_the_reference_up_or_down_and_is_right_on_average) {
  constexpr std::size_t n = 50000;
  NarrowRun<TypeParam> run(n);
  const std::size_t arrays = run.moments.size();
  const auto p = run.param.values(), g = run.grad.values();
  const auto values_of = [&] {
    std::vector<std::vector<double>> all;
    for (const auto& moment : run.moments) all.push_back(moment.values());
    return all;
  };
  const auto old = values_of();
  run.step({{0, 0, 0, n, true, 0}}, 5);
  const auto new_p = run.param.values();
  const auto made = values_of();
  std::vector<double> off(1 + arrays);
  const auto one = [&](double found, double exact, double& sum) {
    const double gap = kEpsilon<bfloat16> * std::abs(exact);       // at least a unit in the last place
    EXPECT_LE(std::abs(found - exact), gap + tolerance<float>());  // the arithmetic is in float, of numbers up to 1
    if (std::abs(exact) > 1e-3) sum += (found - exact) / gap;
  };
  std::size_t undecided = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<double> before;
    for (std::size_t k = 0; k < arrays; ++k) before.push_back(old[k][i]);
    const Exact exact = exact_step(TypeParam{}, p[i], before, g[i]);
    undecided += exact.is_undecided;
    if (!exact.is_undecided) one(new_p[i], exact.p, off[0]);
    for (std::size_t k = 0; k < arrays; ++k) one(made[k][i], exact.moments[k], off[1 + k]);
  }
  EXPECT_LE(undecided, n / 100);
  // each deviates by less than a gap, independently: the mean by less than 5 / sqrt(n), and what float adds
  for (const double sum : off) EXPECT_LE(std::abs(sum / n), 5 / std::sqrt(static_cast<double>(n)));
}

TYPED_TEST(UpdateInSixteenBits, depends_on_seed_and_index_and_not_on_the_cut) {
  constexpr std::int64_t n = 30000;
  NarrowRun<TypeParam> whole(n), cut(n), other(n);
  whole.step({{0, 0, 0, n, true, 1000}}, 5);
  cut.step({{0, 0, 0, 64, true, 1000}, {64, 64, 64, 9000, true, 1064}, {9064, 9064, 9064, n - 9064, true, 10064}}, 5);
  other.step({{0, 0, 0, n, true, 1000}}, 6);
  EXPECT_TRUE(same_bits(whole.param.elements(), cut.param.elements()));
  for (std::size_t k = 0; k < whole.moments.size(); ++k) {
    EXPECT_TRUE(same_bits(whole.moments[k].elements(), cut.moments[k].elements())) << k;
    EXPECT_FALSE(same_bits(whole.moments[k].elements(), other.moments[k].elements())) << k;
  }
  EXPECT_FALSE(same_bits(whole.param.elements(), other.param.elements()));
}

TYPED_TEST(UpdateInSixteenBits, parts_in_places_of_their_own_give_the_same_bits) {
  constexpr std::int64_t n = 4096, kFirst = 1024, kCount = 1000;
  NarrowRun<TypeParam> whole(n), part(n);
  whole.step({{kFirst, kFirst, kFirst, kCount, false, kFirst}}, 5);
  for (auto& moment : part.moments) {
    const auto all = moment.elements();
    moment = Buffer<bfloat16>(std::vector<bfloat16>(all.begin() + kFirst, all.begin() + kFirst + kCount));
  }
  part.step({{kFirst, kFirst, 0, kCount, false, kFirst}}, 5);
  EXPECT_TRUE(same_bits(whole.param.elements(), part.param.elements()));
}

}  // namespace
}  // namespace tessera::test
