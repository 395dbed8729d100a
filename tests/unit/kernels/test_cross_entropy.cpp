#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cross_entropy.hpp"
#include "reference/cross_entropy.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/gradient_check.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::CrossEntropy;
using kernels::LossSum;

struct Shape {
  int n, V;
};
// one class, fewer than a packet, primes, a byte vocabulary, a tile less one, exactly one, plus one, several tiles and
// a rest; on GPUs: rows that begin anywhere in a packet, the longest in registers (fp64, fp32, 16 bits) and one more,
// rows in the pad, and beyond it
const std::vector<Shape> kShapes = {{1, 1},     {9, 2},     {3, 7},     {5, 257},   {2, 1023},  {2, 1024},  {3, 1025},
                                    {9, 4099},  {3, 4096},  {2, 4097},  {2, 8192},  {2, 8193},  {2, 10000}, {2, 16384},
                                    {2, 16385}, {9, 20011}, {2, 50304}, {2, 50257}, {2, 60001}, {1, 151936}};
constexpr int kLong = 20011;  // columns that no GPU team keeps in registers, prime
constexpr double kScale = 0.25;

template <class Scalar>
struct Result {
  using Real = Accum<Scalar>;
  Buffer<Scalar> logits;
  Buffer<Real> row_loss;

  Result(Shape s, const std::vector<double>& in, const std::vector<int>& targets, bool write_gradient,
         int vocabulary = 0)
      : logits(in), row_loss(Buffer<Real>::unwritten(s.n)) {
    const Buffer<int> targets_in(targets);
    const Buffer<Real> scale(std::vector<double>{kScale});
    CrossEntropy<Device, Scalar>{.logits = logits.matrix(s.n, s.V),
                                 .targets = targets_in.vector(),
                                 .row_loss = row_loss.vector(),
                                 .grad_scale = scale.value(),
                                 .write_gradient = write_gradient,
                                 .vocabulary = vocabulary}
        .launch(instance());
  }
};

template <class Scalar>
struct CrossEntropyTest : ::testing::Test {
  static std::vector<double> logits(Shape s) { return uniform_as<Scalar>(s.n * s.V, 1, -6, 6); }
  static std::vector<int> targets(Shape s) { return uniform_int(s.n, 2, 0, s.V); }
};
TYPED_TEST_SUITE(CrossEntropyTest, AllScalars, ScalarNames);

TYPED_TEST(CrossEntropyTest, loss_and_gradient_match_reference_for_ragged_shapes) {
  using Real = Accum<TypeParam>;
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "n " << s.n << " V " << s.V);
    const auto logits = this->logits(s);
    const auto targets = this->targets(s);
    const Result<TypeParam> got(s, logits, targets, true);
    const auto expected = reference::cross_entropy(logits, targets, kScale);
    // the loss is a difference of numbers up to 12 + log V
    EXPECT_TRUE(all_close<Real>(got.row_loss.values(), expected.row_loss, {.absolute = 20 * tolerance<Real>()}));
    // exp amplifies the rounding of x - max (at most 12); near the target p - 1 cancels
    EXPECT_TRUE(all_close<TypeParam>(
        got.logits.values(), expected.d_logits,
        {.relative = tolerance<TypeParam>(s.V) + 12 * kEpsilon<Real>, .absolute = kScale * tolerance<Real>(s.V)},
        {std::size_t(s.n), std::size_t(s.V)}));
  }
}

TYPED_TEST(CrossEntropyTest, small_probabilities_keep_their_relative_accuracy) {
  using Real = Accum<TypeParam>;
  const Shape s{1, 4};
  const std::vector<double> logits = {8, 0, -4, -8};
  const Result<TypeParam> got(s, logits, {0}, true);
  auto expected = reference::cross_entropy(logits, {0}, kScale).d_logits;
  auto values = got.logits.values();
  EXPECT_NEAR(values[0], expected[0], kScale * tolerance<Real>(s.V));
  values.erase(values.begin()), expected.erase(expected.begin());
  const double bound = tolerance<TypeParam>(s.V) + 16 * kEpsilon<Real>;
  EXPECT_TRUE(all_close<TypeParam>(values, expected, {.relative = bound, .absolute = kSmallest<TypeParam>}));
}

TYPED_TEST(CrossEntropyTest, large_logits_neither_overflow_nor_become_nan) {
  using Real = Accum<TypeParam>;
  const Shape s{4, 1500};  // two tiles
  auto logits = uniform_as<TypeParam>(s.n * s.V, 3);
  logits[1400] = 30000;         // row 0: the maximum comes in the second tile
  logits[s.V + 3] = -30000;     // row 1: the target has probability 0
  logits[2 * s.V + 5] = 30000;  // row 2: the maximum comes in the first tile
  for (int v = 0; v < s.V; ++v) logits[3 * s.V + v] = v == 700 ? -100 : -30000;  // row 3: all are negative
  const std::vector<int> targets = {7, 3, 8, 9};
  const Result<TypeParam> got(s, logits, targets, true);
  const auto expected = reference::cross_entropy(Buffer<TypeParam>(logits).values(), targets, kScale);
  EXPECT_TRUE(all_close<Real>(got.row_loss.values(), expected.row_loss, {.relative = tolerance<Real>(s.V)}));
  EXPECT_TRUE(all_close<TypeParam>(got.logits.values(), expected.d_logits,
                                   {.relative = tolerance<TypeParam>(s.V), .absolute = tolerance<Real>(s.V)}));
}

TYPED_TEST(CrossEntropyTest, the_loss_of_a_certain_target_is_zero_however_large_its_logit) {
  for (const int V : {40, kLong}) {
    for (const double large : {736.0, 2000.0, -2000.0, 30000.0}) {
      SCOPED_TRACE(::testing::Message() << V << " columns, " << large);
      const Shape s{1, V};
      std::vector<double> logits(V, large - 400);
      logits[V / 2] = large;
      const Result<TypeParam> got(s, logits, {V / 2}, true);
      EXPECT_EQ(got.row_loss.values(), std::vector<double>{0});
      EXPECT_THAT(got.logits.values(), ::testing::Each(::testing::DoubleNear(0, 1e-100)));
    }
  }
}

TYPED_TEST(CrossEntropyTest, ignores_targets_of_minus_one) {
  for (const int V : {40, kLong}) {
    const Shape s{3, V};
    auto logits = this->logits(s);
    logits[V + 1] = std::nan("");  // in the row without target: it does not count
    const Result<TypeParam> got(s, logits, {5, -1, 6}, true);
    const auto expected = reference::cross_entropy(logits, {5, -1, 6}, kScale);
    EXPECT_EQ(got.row_loss.values()[1], 0);
    const auto d = got.logits.values();
    EXPECT_THAT(std::vector<double>(d.begin() + V, d.begin() + 2 * V), ::testing::Each(0.0));
    EXPECT_TRUE(
        all_close<TypeParam>(d, expected.d_logits, {.relative = 2 * tolerance<TypeParam>(V), .absolute = 1e-6}));
  }
}

TYPED_TEST(CrossEntropyTest, long_rows_are_taken_in_turn) {
  // more rows than a GPU has teams at once: in the pads of four teams per processor, beyond the pad of one
  const int beyond = 256 * 1024 / static_cast<int>(sizeof(TypeParam)) + 1;
  for (const Shape on_gpu : {Shape{600, kLong}, Shape{140, beyond}}) {
    SCOPED_TRACE(on_gpu.V);
    const Shape s{kernels::kIsHost<Device> ? 3 : on_gpu.n, on_gpu.V};
    const auto logits = this->logits(s);
    const auto targets = this->targets(s);
    const Result<TypeParam> got(s, logits, targets, true);
    const auto expected = reference::cross_entropy(logits, targets, kScale);
    EXPECT_TRUE(all_close<Accum<TypeParam>>(got.row_loss.values(), expected.row_loss,
                                            {.absolute = 20 * tolerance<Accum<TypeParam>>()}));
    EXPECT_TRUE(all_close<TypeParam>(got.logits.values(), expected.d_logits,
                                     {.relative = tolerance<TypeParam>(s.V) + 12 * kEpsilon<Accum<TypeParam>>,
                                      .absolute = kScale * tolerance<Accum<TypeParam>>(s.V)}));
  }
}

TYPED_TEST(CrossEntropyTest, padding_takes_no_part_and_gets_no_gradient) {
  for (const auto& [V, columns] : {std::pair(257, 264), std::pair(1000, 1024), std::pair(70001, 70016)}) {
    SCOPED_TRACE(::testing::Message() << V << " of " << columns);
    const Shape s{3, V};
    const auto logits = this->logits(s);
    const auto targets = this->targets(s);
    std::vector<double> padded(std::size_t(s.n) * columns, 100);  // would dominate every row
    for (int i = 0; i < s.n; ++i) std::copy_n(logits.begin() + i * V, V, padded.begin() + i * columns);
    const Result<TypeParam> got({s.n, columns}, padded, targets, true, V);
    const Result<TypeParam> plain(s, logits, targets, true);
    EXPECT_TRUE(all_close<Accum<TypeParam>>(got.row_loss.values(), plain.row_loss.values(),
                                            {.absolute = 20 * tolerance<Accum<TypeParam>>()}));
    const auto d = got.logits.values(), d_plain = plain.logits.values();
    std::vector<double> kept;
    for (int i = 0; i < s.n; ++i) {
      kept.insert(kept.end(), d.begin() + i * columns, d.begin() + i * columns + V);
      EXPECT_THAT(std::vector<double>(d.begin() + i * columns + V, d.begin() + (i + 1) * columns),
                  ::testing::Each(0.0));
    }
    EXPECT_TRUE(all_close<TypeParam>(kept, d_plain,
                                     {.relative = 2 * tolerance<TypeParam>(V),
                                      .absolute = 2 * kScale * tolerance<Accum<TypeParam>>(V) + kSmallest<TypeParam>}));
  }
}

TYPED_TEST(CrossEntropyTest, leaves_the_logits_alone_when_no_gradient_is_wanted) {
  for (const int V : {257, kLong}) {
    const Shape s{3, V};
    const auto logits = this->logits(s);
    const auto targets = this->targets(s);
    const Result<TypeParam> without(s, logits, targets, false), with(s, logits, targets, true);
    EXPECT_EQ(without.logits.values(), logits);
    EXPECT_TRUE(same_bits(without.row_loss.elements(), with.row_loss.elements()));
  }
}

TYPED_TEST(CrossEntropyTest, a_nan_logit_shows_in_its_loss_and_in_no_other) {
  for (const Shape s : {Shape{3, 300}, Shape{3, kLong}}) {
    for (const double sign : {1.0, -1.0}) {
      auto logits = this->logits(s);
      logits[s.V + 123] = std::copysign(std::nan(""), sign);
      const auto loss = Result<TypeParam>(s, logits, {0, 1, 2}, false).row_loss.values();
      EXPECT_TRUE(std::isnan(loss[1])) << sign << " " << s.V;
      EXPECT_TRUE(std::isfinite(loss[0]) && std::isfinite(loss[2])) << sign << " " << s.V;
    }
  }
}

TYPED_TEST(CrossEntropyTest, an_infinite_loss_shows_in_its_gradient_and_in_no_other) {
  for (const Shape s : {Shape{3, 300}, Shape{3, kLong}, Shape{3, 70001}}) {
    for (const int target : {0, 123, s.V - 1}) {
      auto logits = this->logits(s);
      logits[s.V + target] = -HUGE_VAL;
      const Result<TypeParam> got(s, logits, {1, target, 2}, true);
      EXPECT_EQ(got.row_loss.values()[1], HUGE_VAL);
      const auto d = got.logits.values();
      for (int i = 0; i < s.n * s.V; ++i) ASSERT_EQ(std::isfinite(d[i]), i != s.V + target) << i << " of " << s.V;
    }
  }
}

TYPED_TEST(CrossEntropyTest, loss_sum_adds_to_the_total_in_double) {
  using Real = Accum<TypeParam>;
  for (const int n : {1, 31, 4099}) {
    const auto losses = uniform_as<Real>(n, 4, 0, 8);
    const Buffer<Real> row_loss(losses);
    const Buffer<double> total(std::vector<double>{1000});
    LossSum<Device, TypeParam>{.row_loss = row_loss.vector(), .total = total.value()}.launch(instance());
    double expected = 1000;
    for (double loss : losses) expected += loss;
    EXPECT_TRUE(all_close<double>(total.values(), {expected}, {.relative = tolerance<double>(n)}));
  }
}

TYPED_TEST(CrossEntropyTest, repeats_bit_for_bit) {
  for (const Shape s : {Shape{9, 2500}, Shape{9, kLong}}) {
    const Result<TypeParam> one(s, this->logits(s), this->targets(s), true),
        two(s, this->logits(s), this->targets(s), true);
    EXPECT_TRUE(same_bits(one.logits.elements(), two.logits.elements()));
    EXPECT_TRUE(same_bits(one.row_loss.elements(), two.row_loss.elements()));
  }
}

TYPED_TEST(CrossEntropyTest, launches_under_its_name_on_the_callers_instance) {
  const OtherInstance other;
  const LaunchRecorder recorder;
  const Result<TypeParam> run({2, 5}, std::vector<double>(10), {0, 1}, true);
  const Buffer<double> total(std::vector<double>{0});
  LossSum<Device, TypeParam>{.row_loss = run.row_loss.vector(), .total = total.value()}.launch(instance());
  EXPECT_TRUE(launched_under(recorder, "tessera::cross_entropy::", instance()));
  EXPECT_EQ(recorder.launches().size(), 2u);
}

TYPED_TEST(CrossEntropyTest, refuses_shapes_that_disagree_and_launches_nothing_for_no_rows) {
  using Real = Accum<TypeParam>;
  using Kernel = CrossEntropy<Device, TypeParam>;
  const auto data = Buffer<TypeParam>::zeros(64);
  const auto real = Buffer<Real>::zeros(64);
  const auto targets = Buffer<int>::zeros(64);
  const Kernel good{.logits = data.matrix(3, 4),
                    .targets = targets.first(3),
                    .row_loss = real.first(3),
                    .grad_scale = real.value(),
                    .write_gradient = true};
  EXPECT_NO_THROW(good.launch(instance()));
  const auto refuses = [&](auto change) {
    Kernel bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  refuses([&](Kernel& k) { k.targets = targets.first(4); });
  refuses([&](Kernel& k) { k.row_loss = real.first(2); });
  refuses([&](Kernel& k) { k.grad_scale = {}; });
  refuses([&](Kernel& k) { k.logits = data.matrix(3, 0); });
  refuses([&](Kernel& k) { k.vocabulary = 5; });
  EXPECT_THROW((LossSum<Device, TypeParam>{.row_loss = real.vector(), .total = {}}.launch(instance())),
               std::invalid_argument);

  const LaunchRecorder recorder;
  Kernel none = good;
  none.logits = data.matrix(0, 4), none.targets = targets.first(0), none.row_loss = real.first(0);
  none.launch(instance());
  EXPECT_THAT(recorder.labels(), ::testing::IsEmpty());
}

TEST(CrossEntropyGradient, is_that_of_the_forward_kernel) {
  const Shape s{3, 6};
  const auto logits = uniform(s.n * s.V, 1, -2, 2);
  const std::vector<int> targets = {4, -1, 0};
  EXPECT_TRUE(is_gradient_of(
      [&](const auto& moved) {
        const auto loss = Result<double>(s, moved, targets, false).row_loss.values();
        return kScale * (loss[0] + loss[1] + loss[2]);
      },
      logits, Result<double>(s, logits, targets, true).logits.values()));
}

}  // namespace
}  // namespace tessera::test
