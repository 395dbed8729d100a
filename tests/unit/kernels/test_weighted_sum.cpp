#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/weighted_sum.hpp"
#include "reference/weighted_sum.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/gradient_check.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::WeightedSumBackward;
using kernels::WeightedSumForward;

struct Shape {
  int N, D;
};
// one element; a row tile (16) and a column tile (1024) less one, exactly one, plus one; primes
const std::vector<Shape> kShapes = {{1, 1}, {15, 7}, {16, 1023}, {17, 1024}, {33, 1025}, {101, 31}, {3, 3001}};

template <class Scalar>
std::vector<Scalar> forward(Shape s, const std::vector<double>& x, const std::vector<double>& w) {
  const Buffer<Scalar> x_in(x), w_in(w);
  const auto y = Buffer<Scalar>::unwritten(s.N);
  WeightedSumForward<Device, Scalar>{.x = x_in.matrix(s.N, s.D), .w = w_in.vector(), .y = y.vector()}.launch(
      instance());
  return y.elements();
}

template <class Scalar>
struct Backward {
  Buffer<Scalar> d_x;
  Buffer<Accum<Scalar>> d_w;

  Backward(Shape s, const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& d_y)
      : d_x(Buffer<Scalar>::unwritten(x.size())), d_w(Buffer<Accum<Scalar>>::unwritten(s.D)) {
    using Kernel = WeightedSumBackward<Device, Scalar>;
    const Buffer<Scalar> x_in(x), w_in(w), d_y_in(d_y);
    const auto partial = Buffer<Accum<Scalar>>::unwritten(std::size_t(Kernel::tiles(s.N)) * s.D);
    Kernel{.x = x_in.matrix(s.N, s.D),
           .w = w_in.vector(),
           .d_y = d_y_in.vector(),
           .d_x = d_x.matrix(s.N, s.D),
           .d_w = d_w.vector(),
           .partial = partial.matrix(Kernel::tiles(s.N), s.D)}
        .launch(instance());
  }
};

template <class Scalar>
struct WeightedSum : ::testing::Test {
  static std::vector<double> x(Shape s) { return uniform_as<Scalar>(s.N * s.D, 1); }
  static std::vector<double> w(Shape s) { return uniform_as<Scalar>(s.D, 2); }
  static std::vector<double> d_y(Shape s) { return uniform_as<Scalar>(s.N, 3); }
};
TYPED_TEST_SUITE(WeightedSum, AllScalars, ScalarNames);

TYPED_TEST(WeightedSum, forward_matches_reference_for_ragged_shapes) {
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " D " << s.D);
    const auto y = Buffer<TypeParam>(forward<TypeParam>(s, this->x(s), this->w(s))).values();
    // terms of either sign, at most 1: their partial sums grow like sqrt(D)
    EXPECT_TRUE(all_close<TypeParam>(
        y, reference::weighted_sum_forward(this->x(s), this->w(s)),
        {.relative = kEpsilon<TypeParam>, .absolute = tolerance<Accum<TypeParam>>(s.D) * std::sqrt(s.D)}));
  }
}

TYPED_TEST(WeightedSum, backward_matches_reference_for_ragged_shapes) {
  using Real = Accum<TypeParam>;
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " D " << s.D);
    const Backward<TypeParam> got(s, this->x(s), this->w(s), this->d_y(s));
    const auto expected = reference::weighted_sum_backward(this->x(s), this->w(s), this->d_y(s));
    EXPECT_TRUE(all_close<TypeParam>(got.d_x.values(), expected.d_x,
                                     {.relative = kEpsilon<TypeParam>, .absolute = kSmallest<TypeParam>},
                                     {std::size_t(s.N), std::size_t(s.D)}));
    EXPECT_TRUE(all_close<Real>(got.d_w.values(), expected.d_w, {.absolute = tolerance<Real>(s.N) * std::sqrt(s.N)}));
  }
}

TYPED_TEST(WeightedSum, of_no_rows_has_zero_gradient) {
  const Backward<TypeParam> got({0, 5}, {}, std::vector<double>(5, 1.0), {});
  EXPECT_THAT(got.d_w.values(), ::testing::Each(0.0));
}

TYPED_TEST(WeightedSum, repeats_bit_for_bit) {
  const Shape s{100, 1500};
  EXPECT_TRUE(same_bits(forward<TypeParam>(s, this->x(s), this->w(s)), forward<TypeParam>(s, this->x(s), this->w(s))));
  const Backward<TypeParam> one(s, this->x(s), this->w(s), this->d_y(s)), two(s, this->x(s), this->w(s), this->d_y(s));
  EXPECT_TRUE(same_bits(one.d_x.elements(), two.d_x.elements()));
  EXPECT_TRUE(same_bits(one.d_w.elements(), two.d_w.elements()));
}

TYPED_TEST(WeightedSum, launches_under_its_name_on_the_callers_instance) {
  const Shape s{20, 30};
  const OtherInstance other;
  const LaunchRecorder recorder;
  forward<TypeParam>(s, this->x(s), this->w(s));
  const Backward<TypeParam> backward(s, this->x(s), this->w(s), this->d_y(s));
  EXPECT_TRUE(launched_under(recorder, "tessera::weighted_sum::", instance()));
}

TYPED_TEST(WeightedSum, refuses_shapes_that_disagree_and_launches_nothing_for_no_rows) {
  const auto data = Buffer<TypeParam>::zeros(64);
  const auto real = Buffer<Accum<TypeParam>>::zeros(64);
  using F = WeightedSumForward<Device, TypeParam>;
  EXPECT_NO_THROW((F{data.matrix(3, 4), data.first(4), data.first(3)}.launch(instance())));
  EXPECT_THROW((F{data.matrix(3, 4), data.first(5), data.first(3)}.launch(instance())), std::invalid_argument);
  EXPECT_THROW((F{data.matrix(3, 4), data.first(4), data.first(4)}.launch(instance())), std::invalid_argument);

  using B = WeightedSumBackward<Device, TypeParam>;
  const B good{.x = data.matrix(17, 3),
               .w = data.first(3),
               .d_y = data.first(17),
               .d_x = data.matrix(17, 3),
               .d_w = real.first(3),
               .partial = real.matrix(2, 3)};
  EXPECT_NO_THROW(good.launch(instance()));
  const auto refuses = [&](auto change) {
    B bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  refuses([&](B& b) { b.w = data.first(2); });
  refuses([&](B& b) { b.d_y = data.first(16); });
  refuses([&](B& b) { b.d_x = data.matrix(17, 2); });
  refuses([&](B& b) { b.d_w = real.first(4); });
  refuses([&](B& b) { b.partial = real.matrix(1, 3); });

  const LaunchRecorder recorder;
  F{data.matrix(0, 4), data.first(4), data.first(0)}.launch(instance());
  EXPECT_THAT(recorder.labels(), ::testing::IsEmpty());
}

TEST(WeightedSumGradient, is_that_of_the_forward_kernel) {
  const Shape s{3, 5};
  const auto x = uniform(s.N * s.D, 1), w = uniform(s.D, 2), d_y = uniform(s.N, 3);
  const Backward<double> backward(s, x, w, d_y);
  EXPECT_TRUE(is_gradient_of([&](const auto& moved) { return dot(forward<double>(s, moved, w), d_y); }, x,
                             backward.d_x.values()));
  EXPECT_TRUE(is_gradient_of([&](const auto& moved) { return dot(forward<double>(s, x, moved), d_y); }, w,
                             backward.d_w.values()));
}

}  // namespace
}  // namespace tessera::test
