#include "parallel/collective.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "support/buffer.hpp"
#include "support/random.hpp"
#include "unit/parallel/world.hpp"

namespace tessera::parallel {
namespace {

using test::same_bits;
using test::TestWorld;

template <class Real>
Span span_of(std::vector<Real>& values) {
  return {"values", values.data(), static_cast<std::int64_t>(values.size()), kDtype<Real>};
}

template <class Real>
std::vector<Real> all_reduce(TestWorld& world, std::vector<Real> values) {
  test::all_reduce(world, span_of(values));
  return values;
}

/// One element, a few, a prime, and 9.6 MB: more than any eager message or segment of the library.
const std::size_t kSizes[] = {1, 3, 1009, 2'400'001};

template <class Real>
struct AllReduceOf : ::testing::Test {};
using Reals = ::testing::Types<float, double>;
TYPED_TEST_SUITE(AllReduceOf, Reals);

TYPED_TEST(AllReduceOf, sums_of_exact_numbers_are_exact) {
  TestWorld world;
  for (const std::size_t n : kSizes) {
    // multiples of 1/4 below 2^14: every partial sum of a few ranks is exact in float, in any order
    const auto value = [](std::size_t i, int rank) {
      return static_cast<TypeParam>((static_cast<double>(i * 37 % 50021) - 25000.0) * (rank + 1) * 0.25);
    };
    std::vector<TypeParam> mine(n), expected(n, TypeParam(0));
    for (std::size_t i = 0; i < n; ++i) {
      mine[i] = value(i, world.rank());
      for (int rank = 0; rank < world.size(); ++rank) expected[i] += value(i, rank);
    }
    EXPECT_TRUE(same_bits(all_reduce(world, mine), expected)) << n << " elements";
  }
}

TYPED_TEST(AllReduceOf, has_the_same_bits_on_every_rank_and_in_every_repeat) {
  TestWorld world;
  for (const std::size_t n : kSizes) {
    const auto random = test::uniform(n, 100 + world.rank());
    const std::vector<TypeParam> mine(random.begin(), random.end());
    const std::vector<TypeParam> first = all_reduce(world, mine);
    for (int repeat = 0; repeat < 3; ++repeat)
      EXPECT_TRUE(same_bits(all_reduce(world, mine), first)) << n << " elements";
    const std::string bits(reinterpret_cast<const char*>(first.data()), n * sizeof(TypeParam));
    EXPECT_TRUE(world.broadcast(bits) == bits)
        << "rank " << world.rank() << " has other bits than rank 0, " << n << " elements";
  }
}

TYPED_TEST(AllReduceOf, several_may_be_under_way_and_finish_in_any_order) {
  TestWorld world;
  std::vector<std::vector<TypeParam>> values;
  std::vector<std::unique_ptr<AllReduce>> pending;
  for (int i = 0; i < 4; ++i) {
    values.emplace_back(50000 + i, static_cast<TypeParam>(i + world.rank()));
    pending.push_back(test::connected_sum(world, span_of(values.back())));
    pending.back()->start({});
  }
  while (!pending[2]->test()) {
  }
  pending[3]->join({});
  pending[0]->join({});
  pending[1]->join({});
  EXPECT_TRUE(pending[0]->test());  // completion is permanent
  const double ranks = world.size() * (world.size() - 1) / 2.0;
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(values[i], std::vector<TypeParam>(50000 + i, static_cast<TypeParam>(i * world.size() + ranks)));
  }
}

TYPED_TEST(AllReduceOf, of_nothing_completes) {
  TestWorld world;
  EXPECT_EQ(all_reduce(world, std::vector<TypeParam>()), std::vector<TypeParam>());
}

TYPED_TEST(AllReduceOf, runs_again_after_it_has_completed) {
  TestWorld world;
  std::vector<TypeParam> values(1009, TypeParam(1));
  const auto sum = test::connected_sum(world, span_of(values));
  double factor = 1;
  for (int run = 0; run < 3; ++run) {
    sum->start({});
    sum->join({});
    factor *= world.size();
    EXPECT_EQ(values, std::vector<TypeParam>(1009, static_cast<TypeParam>(factor)));
    const AllReduce::Times times = sum->times();
    EXPECT_LE(times.start_s, times.joined_s);
    EXPECT_LE(times.joined_s, times.end_s);
  }
}

/// 16-bit sums: sizes up to 8 of exact small integers are exact whatever the order.
template <class Scalar>
void expect_16_bit_sums(TestWorld& world) {
  for (const std::size_t n : kSizes) {
    std::vector<Scalar> values(n), expected(n);
    for (std::size_t i = 0; i < n; ++i) {
      const double unit = static_cast<double>(i % 31) - 15;
      values[i] = Scalar(unit * (world.rank() + 1));
      expected[i] = Scalar(unit * world.size() * (world.size() + 1) / 2);
    }
    EXPECT_TRUE(same_bits(all_reduce(world, values), expected)) << n << " elements of " << kScalarName<Scalar>;
  }
}

TEST(Collectives, sum_16_bit_floats) {
  TestWorld world;
  expect_16_bit_sums<bfloat16>(world);
  expect_16_bit_sums<float16>(world);
}

TEST(Collectives, refuse_to_sum_what_is_no_number_of_ours) {
  TestWorld world;
  std::vector<std::int32_t> ints(4);
  std::vector<float> floats(4);
  std::vector<double> doubles(4);
  EXPECT_THROW(world.collectives().make_all_reduce(span_of(ints), {}), std::invalid_argument);
  EXPECT_THROW(world.collectives().make_all_reduce(span_of(doubles), span_of(floats)), std::invalid_argument);
  EXPECT_EQ(world.collectives().name(), "mpi");
  EXPECT_FALSE(world.collectives().is_asynchronous());
  EXPECT_EQ(world.collectives().fault(), "");
}

TEST(Collectives, times_are_asked_for_afterwards) {
  TestWorld world;
  std::vector<float> values(1000, 1.0f);
  const auto sum = test::connected_sum(world, span_of(values));
  sum->start({});
  EXPECT_THROW(sum->times(), std::logic_error);
  sum->join({});
  EXPECT_NO_THROW(sum->times());
}

TEST(Collectives, broadcast_rank_0_in_every_dtype) {
  TestWorld world;
  const auto check = [&](auto zero, std::size_t n) {
    using Element = decltype(zero);
    std::vector<Element> values(n, zero);
    if (world.rank() == 0) {
      auto* bytes = reinterpret_cast<unsigned char*>(values.data());
      for (std::size_t i = 0; i < n * sizeof(Element); ++i) bytes[i] = static_cast<unsigned char>(i * 7);
    }
    world.collectives().broadcast(span_of(values));
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (std::size_t i = 0; i < n * sizeof(Element); ++i) ASSERT_EQ(bytes[i], static_cast<unsigned char>(i * 7));
  };
  for (const std::size_t n : {std::size_t{1}, std::size_t{1'000'003}}) {
    check(0.0f, n);
    check(0.0, n);
    check(bfloat16(), n);
    check(float16(), n);
    check(std::int32_t{0}, n);
  }
}

TEST(Collectives, gradients_in_flight_do_not_meet_exchanges_of_the_world) {
  TestWorld world;
  std::vector<float> values(300000, 1.0f);
  const auto pending = test::connected_sum(world, span_of(values));
  pending->start({});
  EXPECT_EQ(world.max(world.rank()), world.size() - 1);
  EXPECT_EQ(world.broadcast(world.rank() == 0 ? "text" : ""), "text");
  pending->join({});
  EXPECT_EQ(values, std::vector<float>(300000, static_cast<float>(world.size())));
}

}  // namespace
}  // namespace tessera::parallel
