#include "parallel/collectives/collective.hpp"

#include <gtest/gtest.h>

#ifdef __GLIBC__
  #include <malloc.h>
#endif

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "parallel/collectives/mpi.hpp"
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
  std::vector<std::unique_ptr<Transfer>> pending;
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
    const Transfer::Times times = sum->times();
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

TEST(Collectives, refuse_what_cannot_cross_the_network_in_the_wire) {
  TestWorld world;
  const auto parts = static_cast<std::size_t>(world.size());
  std::vector<float> floats(3 * parts);
  std::vector<double> doubles(3 * parts);
  std::vector<float16> halves(3 * parts);
  std::vector<bfloat16> narrow(3 * parts), short_of_one(3 * parts - 1);
  const auto refuses = [&](const Span& span, const Span& wire) {
    EXPECT_THROW(world.collectives().make_all_reduce(span, wire), std::invalid_argument);
    EXPECT_THROW(world.collectives().make_reduce_scatter(span, wire), std::invalid_argument);
  };
  refuses(span_of(floats), span_of(halves));  // gradients in fp32 exceed what fp16 can hold
  refuses(span_of(doubles), span_of(narrow));
  refuses(span_of(narrow), span_of(narrow));
  refuses(span_of(floats), span_of(short_of_one));
  EXPECT_NO_THROW(world.collectives().make_all_reduce(span_of(floats), span_of(narrow)));
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

/// Messages in parts: `part` elements of every rank, whose values encode their position and their rank. In 16 bits they
/// are so small that every sum of a few ranks is exact.
template <class Real>
std::int64_t part_value(std::int64_t i, int rank) {
  const std::int64_t range = sizeof(Real) == 2 ? 31 : 1001;
  return (i * 37 % range - range / 2) * (rank + 1);
}

template <class Real>
void expect_reduce_scatter(TestWorld& world, Collectives& group, int first_rank) {
  for (const std::int64_t part : {0, 1, 3, 1009, 400'001}) {
    const int ranks = group.size();
    std::vector<Real> values(static_cast<std::size_t>(part * ranks));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<Real>(static_cast<double>(part_value<Real>(static_cast<std::int64_t>(i), world.rank())));
    }
    const std::vector<Real> given = values;
    std::vector<Real> elsewhere(static_cast<std::size_t>(part));
    for (const bool in_place : {true, false}) {
      values = given;
      const auto transfer = group.make_reduce_scatter(span_of(values), {}, in_place ? Span{} : span_of(elsewhere));
      transfer->connect();
      transfer->start({});
      transfer->join({});
      const Real* const sums = in_place ? values.data() + part * group.rank() : elsewhere.data();
      for (std::int64_t i = 0; i < part; ++i) {
        double sum = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          sum += static_cast<double>(part_value<Real>(part * group.rank() + i, first_rank + rank));
        }
        ASSERT_EQ(static_cast<double>(sums[i]), sum) << "element " << i << " of " << part << ", in place " << in_place;
      }
    }
  }
}

TYPED_TEST(AllReduceOf, scatters_sums_of_exact_numbers_exactly) {
  TestWorld world;
  expect_reduce_scatter<TypeParam>(world, world.collectives(), 0);
}

TEST(Collectives, scatter_sums_of_16_bit_floats) {
  TestWorld world;
  expect_reduce_scatter<bfloat16>(world, world.collectives(), 0);
  expect_reduce_scatter<float16>(world, world.collectives(), 0);
}

TEST(Collectives, scatter_what_crosses_the_network_rounded) {
  if constexpr (!kernels::kIsHost<kernels::Device>)
    GTEST_SKIP() << "the values lie in host memory; NCCL's tests have GPUs'";
  TestWorld world;
  constexpr std::int64_t part = 1001;
  std::vector<float> values(static_cast<std::size_t>(part * world.size()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(static_cast<int>(i % 31) - 15);
  const std::vector<float> given = values;
  std::vector<float> elsewhere(part);
  std::vector<bfloat16> wire(values.size());
  for (const bool in_place : {true, false}) {
    values = given;
    const auto transfer =
        world.collectives().make_reduce_scatter(span_of(values), span_of(wire), in_place ? Span{} : span_of(elsewhere));
    transfer->connect();
    transfer->start({});
    transfer->join({});
    const float* const sums = in_place ? values.data() + part * world.rank() : elsewhere.data();
    for (std::int64_t i = 0; i < part; ++i) {
      ASSERT_EQ(sums[i], static_cast<float>(((part * world.rank() + i) % 31 - 15) * world.size()));
    }
  }
}

TEST(Collectives, gather_the_parts_of_all_ranks_in_every_dtype_in_place_and_from_elsewhere) {
  TestWorld world;
  const auto check = [&](auto zero, std::int64_t part, bool in_place) {
    using Element = decltype(zero);
    std::vector<Element> whole(static_cast<std::size_t>(part * world.size())), mine(static_cast<std::size_t>(part));
    Element* const own = in_place ? whole.data() + part * world.rank() : mine.data();
    const auto byte = [&](std::int64_t i) { return static_cast<unsigned char>(i * 7 + i / 251); };
    const auto size = static_cast<std::int64_t>(sizeof(Element)), first = part * world.rank() * size;
    for (std::int64_t i = 0; i < part * size; ++i) reinterpret_cast<unsigned char*>(own)[i] = byte(first + i);
    const auto transfer = world.collectives().make_all_gather({"part", own, part, kDtype<Element>}, span_of(whole));
    transfer->connect();
    for (int run = 0; run < 2; ++run) {
      transfer->start({});
      transfer->join({});
      const auto* bytes = reinterpret_cast<const unsigned char*>(whole.data());
      for (std::int64_t i = 0; i < part * world.size() * size; ++i) ASSERT_EQ(bytes[i], byte(i)) << "byte " << i;
    }
  };
  for (const std::int64_t part : {0, 1, 1009, 300'007}) {
    for (const bool in_place : {true, false}) {
      check(0.0f, part, in_place);
      check(0.0, part, in_place);
      check(bfloat16(), part, in_place);
      check(float16(), part, in_place);
      check(std::int32_t{0}, part, in_place);
    }
  }
}

/// Transfers of several pieces each, all of them under way at once, which the ranks ask for in different orders.
TEST(Collectives, pieces_of_several_transfers_arrive_whole_however_each_rank_polls) {
  TestWorld world;
  const int ranks = world.size();
  const std::int64_t part = 3 * kPieceBytes / 4 / ranks + 17;  // three pieces and a rest
  const auto value = [](std::int64_t i, int rank) { return static_cast<float>((i % 251 - 125) * (rank + 1)); };
  const auto sum = [&](std::int64_t i) { return value(i, ranks * (ranks + 1) / 2 - 1); };
  std::vector<std::vector<float>> values(6, std::vector<float>(static_cast<std::size_t>(part * ranks)));
  const auto fill = [&](std::vector<float>& of) {
    for (std::size_t i = 0; i < of.size(); ++i) of[i] = value(static_cast<std::int64_t>(i), world.rank());
  };
  Collectives& all = world.collectives();
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Span whole = span_of(values[i]);
    transfers.push_back(i % 3 == 0   ? all.make_all_reduce(whole, {})
                        : i % 3 == 1 ? all.make_reduce_scatter(whole, {})
                                     : all.make_all_gather(whole.part(world.rank() * part, part), whole));
    transfers.back()->connect();
  }
  for (int run = 0; run < 2; ++run) {
    for (std::vector<float>& of : values) fill(of);
    for (const auto& transfer : transfers) transfer->start({});
    const auto nth = [&](std::size_t i) { return (i * 5 + static_cast<std::size_t>(world.rank())) % values.size(); };
    for (int polls = 0; polls < 10; ++polls) transfers[nth(polls)]->test();
    for (std::size_t i = 0; i < values.size(); ++i) transfers[nth(i)]->join({});
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t own = world.rank() * part;
      const bool is_scatter = i % 3 == 1;
      for (std::int64_t at = is_scatter ? own : 0; at < (is_scatter ? own + part : part * ranks); ++at) {
        const float expected = i % 3 == 2 ? value(at, static_cast<int>(at / part)) : sum(at);
        ASSERT_EQ(values[i][static_cast<std::size_t>(at)], expected) << "transfer " << i << ", element " << at;
      }
    }
  }
}

#ifdef __GLIBC__
/// What the process has allocated beyond these transfers' spans, at most, while they run [bytes].
std::int64_t most_allocated(const std::vector<std::unique_ptr<Transfer>>& transfers) {
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
  };
  const std::int64_t before = allocated();
  std::int64_t most = 0;
  for (const auto& transfer : transfers) transfer->start({});
  for (const auto& transfer : transfers) {
    do most = std::max(most, allocated() - before);
    while (!transfer->test());
  }
  return most;
}

TEST(Collectives, allocate_no_more_for_larger_messages_or_more_of_them) {
  TestWorld world;
  const std::int64_t count = 24 * kPieceBytes / 4 / world.size() * world.size();
  std::vector<std::vector<float>> values(3, std::vector<float>(static_cast<std::size_t>(count)));
  for (const bool scatters : {false, true}) {
    std::vector<std::unique_ptr<Transfer>> transfers;
    for (std::vector<float>& of : values) {
      Collectives& all = world.collectives();
      transfers.push_back(scatters ? all.make_reduce_scatter(span_of(of), {}) : all.make_all_reduce(span_of(of), {}));
      transfers.back()->connect();
    }
    most_allocated(transfers);  // the library keeps some of what it allocates at first
    const std::int64_t message = count * 4, margin = std::int64_t{1} << 20;
    EXPECT_LE(most_allocated(transfers), mpi_sum_bytes(3 * message, scatters) + margin)
        << (scatters ? "reduce-scatters" : "all-reduces") << " of " << message << " bytes";
  }
}
#endif

TEST(Collectives, refuse_parts_that_are_not_equal) {
  TestWorld world;
  if (world.size() == 1) GTEST_SKIP() << "one rank takes any length";
  std::vector<float> values(static_cast<std::size_t>(world.size()) * 10 + 1), mine(10);
  Collectives& all = world.collectives();
  EXPECT_THROW(all.make_reduce_scatter(span_of(values), {}), std::invalid_argument);
  EXPECT_THROW(all.make_all_gather(span_of(mine), span_of(values)), std::invalid_argument);
  values.pop_back();
  EXPECT_NO_THROW(all.make_all_gather(span_of(mine), span_of(values)));
  EXPECT_NO_THROW(all.make_reduce_scatter(span_of(values), {}, span_of(mine)));
  EXPECT_THROW(all.make_reduce_scatter(span_of(values), {}, span_of(values).part(5, 10)), std::invalid_argument);
  mine.pop_back();
  EXPECT_THROW(all.make_all_gather(span_of(mine), span_of(values)), std::invalid_argument);
  EXPECT_THROW(all.make_reduce_scatter(span_of(values), {}, span_of(mine)), std::invalid_argument);
}

TEST(Collectives, form_groups_that_exchange_among_themselves) {
  TestWorld world;
  const auto pairs = world.collectives().make_group(world.rank() / 2);
  const int first = world.rank() / 2 * 2;
  EXPECT_EQ(pairs->rank(), world.rank() - first);
  EXPECT_EQ(pairs->size(), std::min(2, world.size() - first));
  expect_reduce_scatter<float>(world, *pairs, first);
  const auto alone = world.collectives().make_group(world.rank());
  EXPECT_EQ(alone->size(), 1);
  expect_reduce_scatter<double>(world, *alone, world.rank());
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

TEST(Collectives, a_broadcast_may_be_under_way_beside_a_sum_and_start_again) {
  TestWorld world;
  std::vector<float> values(1'000'000), summed(300'000);
  const auto broadcast = world.collectives().make_broadcast(span_of(values));
  const auto sum = test::connected_sum(world, span_of(summed));
  broadcast->connect();
  for (int run = 0; run < 2; ++run) {
    std::fill(values.begin(), values.end(), static_cast<float>(world.rank() + run));
    std::fill(summed.begin(), summed.end(), 1.0f);
    sum->start({});
    broadcast->start({});
    broadcast->join({});
    sum->join({});
    EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(run)));
    EXPECT_EQ(summed, std::vector<float>(summed.size(), static_cast<float>(world.size())));
    EXPECT_TRUE(broadcast->test());
    EXPECT_LE(broadcast->times().start_s, broadcast->times().end_s);
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
