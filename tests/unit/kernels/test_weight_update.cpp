// What is common to all optimizers: blocks, master weights, and where and when an update changes what.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <type_traits>

#include "kernels/optimizers.hpp"
#include "support/launch_recorder.hpp"
#include "support/scalars.hpp"
#include "unit/kernels/update_run.hpp"

namespace tessera::test {
namespace {

using kernels::kUpdateBlock;
using kernels::make_update_blocks;
using kernels::UpdateScalars;

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
  const UpdateRun<kernels::Adamw, bfloat16> wide({at(0, 10007, true)}, 10007);
  const UpdateRun<kernels::Adamw, bfloat16, bfloat16> narrow({at(0, 10007, true)}, 10007);
  const auto grad = narrow.grad.values();
  const Buffer<float> same_grad(grad);
  auto kernel = wide.kernel(Buffer<UpdateScalars>(std::vector<UpdateScalars>{scalars_at(1)}));
  const Buffer<UpdateScalars> now(std::vector<UpdateScalars>{scalars_at(1)});
  kernel.scalars = now.value();
  kernel.grad = same_grad.vector();
  kernel.launch(instance());
  narrow.step(scalars_at(1));
  EXPECT_TRUE(same_bits(wide.param.elements(), narrow.param.elements()));
  EXPECT_TRUE(same_bits(wide.master.elements(), narrow.master.elements()));
}

template <class RuleOf, class ScalarOf>
struct Typed {
  using Rule = RuleOf;
  using Scalar = ScalarOf;
};
template <class Type>
using RunOf = UpdateRun<typename Type::Rule, typename Type::Scalar>;

struct TypedNames {
  template <class Type>
  static std::string GetName(int) {
    return std::string(Type::Rule::kName) + "_" + ScalarNames::GetName<typename Type::Scalar>(0);
  }
};

template <class Type>
struct WeightUpdate : ::testing::Test {};
using kernels::Adamw;
using kernels::Lion;
using EveryRule =
    ::testing::Types<Typed<Adamw, double>, Typed<Adamw, float>, Typed<Adamw, bfloat16>, Typed<Adamw, float16>,
                     Typed<Lion, double>, Typed<Lion, float>, Typed<Lion, bfloat16>, Typed<Lion, float16>>;
TYPED_TEST_SUITE(WeightUpdate, EveryRule, TypedNames);

template <class Real>
std::vector<std::vector<Real>> elements_of(const std::vector<Buffer<Real>>& arrays) {
  std::vector<std::vector<Real>> all;
  for (const Buffer<Real>& array : arrays) all.push_back(array.elements());
  return all;
}

TYPED_TEST(WeightUpdate, skip_leaves_everything_as_it_is) {
  const RunOf<TypeParam> run({at(0, 100, true)}, 100);
  run.step(scalars_at(1));
  const auto master = run.master.elements();
  const auto moments = elements_of(run.moments);
  const auto param = run.param.elements();
  run.step(scalars_at(2, std::nan(""), 1));
  EXPECT_TRUE(same_bits(run.master.elements(), master));
  const auto after = elements_of(run.moments);
  for (std::size_t k = 0; k < moments.size(); ++k) EXPECT_TRUE(same_bits(after[k], moments[k])) << k;
  EXPECT_TRUE(same_bits(run.param.elements(), param));
}

TYPED_TEST(WeightUpdate, repeats_bit_for_bit) {
  const RunOf<TypeParam> one({at(0, 10007, true)}, 10007), two({at(0, 10007, true)}, 10007);
  for (int step = 1; step <= 3; ++step) one.step(scalars_at(step)), two.step(scalars_at(step));
  EXPECT_TRUE(same_bits(one.master.elements(), two.master.elements()));
  EXPECT_TRUE(same_bits(one.param.elements(), two.param.elements()));
}

TYPED_TEST(WeightUpdate, cutting_a_span_changes_no_bit) {
  const RunOf<TypeParam> whole({at(0, 10007, true)}, 10007);
  const RunOf<TypeParam> pieces({at(5001, 5006, true), at(0, 13, true), at(13, 4988, true)}, 10007);
  whole.step(scalars_at(1)), pieces.step(scalars_at(1));
  EXPECT_TRUE(same_bits(whole.master.elements(), pieces.master.elements()));
}

TYPED_TEST(WeightUpdate, launches_under_its_name_on_the_callers_instance) {
  const RunOf<TypeParam> run({at(0, 9, true)}, 9);
  const OtherInstance other;
  const LaunchRecorder recorder;
  run.step(scalars_at(1));
  EXPECT_TRUE(launched_under(recorder, TypeParam::Rule::kLaunch, instance()));
}

TYPED_TEST(WeightUpdate, refuses_extents_that_disagree_and_launches_nothing_for_no_blocks) {
  using Scalar = typename TypeParam::Scalar;
  using Kernel = typename RunOf<TypeParam>::Kernel;
  const RunOf<TypeParam> run({at(0, 9, true)}, 9);
  const Buffer<UpdateScalars> scalars(std::vector<UpdateScalars>{scalars_at(1)});
  const auto refuses = [&](auto change) {
    Kernel bad = run.kernel(scalars);
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  for (std::size_t i = 0; i < run.moments.size(); ++i) {
    refuses([&](Kernel& k) { k.moments[i] = run.moments[i].first(8); });
  }
  refuses([&](Kernel& k) { k.master = run.master.first(8); });
  refuses([&](Kernel& k) { k.scalars = {}; });

  Kernel without_copy = run.kernel(scalars);
  without_copy.param = {};
  if constexpr (std::is_same_v<Scalar, Accum<Scalar>>) {
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

TYPED_TEST(WeightUpdate, takes_weights_gradients_and_state_from_places_of_their_own) {
  using Run = RunOf<TypeParam>;
  using Scalar = typename TypeParam::Scalar;
  constexpr std::size_t n = 4096;
  // a shard: the state holds elements 1024..3071 of the weights alone, the gradients lie 64 further on
  for (const std::int64_t grad_shift : {64, 67}) {
    constexpr std::int64_t kFirst = 1024, kCount = 2048;
    const Run whole({at(kFirst, kCount, true)}, n);
    const Run shard({{kFirst, kFirst + grad_shift, 0, kCount, true}}, n);
    constexpr bool kIsOneArray = kernels::MasterWeights<Device, Scalar>::kIsOneArray;
    const auto gradients = whole.grad.elements();
    auto moved = gradients;
    for (std::int64_t i = 0; i < kCount; ++i) moved[kFirst + grad_shift + i] = gradients[kFirst + i];
    const Buffer<UpdateScalars> now(std::vector<UpdateScalars>{scalars_at(1)});
    auto kernel = shard.kernel(now);
    const Buffer<Accum<Scalar>> moved_grad(moved);
    kernel.grad = moved_grad.vector();
    const auto masters = shard.master.elements();
    const Buffer<kernels::MasterWord<Scalar>> owned(
        std::vector<kernels::MasterWord<Scalar>>(masters.begin() + kFirst, masters.begin() + kFirst + kCount));
    if (kIsOneArray) {
      kernel.param = {};
    } else {
      kernel.master = owned.vector();
      for (std::size_t k = 0; k < shard.moments.size(); ++k) kernel.moments[k] = shard.moments[k].first(kCount);
    }
    kernel.launch(instance());
    auto reference = whole.kernel(now);
    if (kIsOneArray) reference.param = {};
    reference.launch(instance());
    instance().fence();
    const auto slice = [&](const auto& values, std::int64_t first) {
      return std::vector<double>(values.begin() + first, values.begin() + first + kCount);
    };
    for (std::size_t k = 0; k < shard.moments.size(); ++k) {
      EXPECT_EQ(slice(shard.moments[k].values(), 0), slice(whole.moments[k].values(), kFirst)) << k;
    }
    if (kIsOneArray) {
      EXPECT_EQ(shard.master.values(), whole.master.values());
    } else {
      const auto whole_master = whole.master.elements();
      EXPECT_TRUE(same_bits(owned.elements(), {whole_master.begin() + kFirst, whole_master.begin() + kFirst + kCount}));
      EXPECT_EQ(slice(shard.param.values(), kFirst), slice(whole.param.values(), kFirst));
    }
  }
}

TEST(UpdateBlocks, cover_every_span_once_in_pieces_of_at_most_one_block) {
  const auto blocks = make_update_blocks({at(100000, 2 * kUpdateBlock + 3, false), at(7, 5, true), at(12, 0, true)});
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].param, 7);
  EXPECT_EQ(blocks[0].count, 5);
  EXPECT_TRUE(blocks[0].decay);
  std::int64_t next = 100000;
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].param, next);
    EXPECT_EQ(blocks[i].grad, next);
    EXPECT_EQ(blocks[i].state, next);
    EXPECT_LE(blocks[i].count, kUpdateBlock);
    EXPECT_FALSE(blocks[i].decay);
    next += blocks[i].count;
  }
  EXPECT_EQ(next, 100000 + 2 * kUpdateBlock + 3);
  EXPECT_EQ(std::ssize(blocks),
            kernels::update_blocks(5) + kernels::update_blocks(0) + kernels::update_blocks(2 * kUpdateBlock + 3));
}

TEST(UpdateBlocks, refuse_overlaps_and_negative_spans) {
  EXPECT_THROW(make_update_blocks({at(0, 10, true), at(9, 1, true)}), std::invalid_argument);
  EXPECT_THROW(make_update_blocks({at(-1, 10, true)}), std::invalid_argument);
  EXPECT_THROW(make_update_blocks({at(0, -1, true)}), std::invalid_argument);
  EXPECT_THROW(make_update_blocks({{0, 0, 0, 10, true}, {10, 10, 9, 5, true}}), std::invalid_argument);
  EXPECT_NO_THROW(make_update_blocks({at(10, 5, true), at(0, 10, false)}));
}

}  // namespace
}  // namespace tessera::test
