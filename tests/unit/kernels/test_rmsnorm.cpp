#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/rmsnorm.hpp"
#include "reference/rmsnorm.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/gradient_check.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::RmsnormBackward;
using kernels::RmsnormForward;

struct Shape {
  int N, C;
};
// one element, primes, a row group less one, exactly one, plus one, more rows than all groups at their minimum (three
// and four a group on a GPU); widths of models, which a GPU holds in four, eight or sixteen packets per lane of a
// thread or of a team, and one that is not made of packets
const std::vector<Shape> kShapes = {{1, 1},    {1, 7},    {3, 16},   {15, 33},   {16, 64},
                                    {17, 127}, {40, 257}, {2100, 3}, {3300, 64}, {37, 768},
                                    {9, 1600}, {5, 4096}, {3, 6400}, {2, 16384}, {2, 6401}};
// the same for kernels that read one tensor more: each of their bodies
const std::vector<Shape> kResidualShapes = {{5, 33},   {19, 33},  {9, 768},  {21, 1024}, {7, 1600}, {5, 2560},
                                            {3, 4096}, {3, 6400}, {2, 6401}, {2, 16384}, {3300, 64}};
constexpr double kEps = 1e-5;

double max_of(const std::vector<double>& values) {
  double max = 0;
  for (double value : values) max = std::max(max, std::abs(value));
  return max;
}

template <class Scalar>
struct Forward {
  using Real = Accum<Scalar>;
  Buffer<Scalar> y;
  Buffer<Real> rrms;

  Forward(Shape s, const std::vector<double>& x, const std::vector<double>& gain)
      : y(Buffer<Scalar>::unwritten(x.size())), rrms(Buffer<Real>::unwritten(s.N)) {
    const Buffer<Scalar> x_in(x), gain_in(gain);
    RmsnormForward<Device, Scalar>{.x = x_in.matrix(s.N, s.C),
                                   .delta = {},
                                   .residual = {},
                                   .gain = gain_in.vector(),
                                   .y = y.matrix(s.N, s.C),
                                   .rrms = rrms.vector(),
                                   .eps = Real(kEps)}
        .launch(instance());
  }
};

template <class Scalar>
struct Backward {
  using Real = Accum<Scalar>;
  Buffer<Scalar> d_x;
  Buffer<Real> d_gain;

  // d_gain starts at 1, to find a kernel that overwrites instead of adding
  Backward(Shape s, const std::vector<double>& x, const std::vector<double>& gain, const std::vector<double>& d_y,
           const std::vector<double>& d_residual = {})
      : d_x(Buffer<Scalar>::unwritten(x.size())), d_gain(std::vector<Real>(s.C, Real(1))) {
    const Buffer<Scalar> x_in(x), gain_in(gain), d_y_in(d_y), d_residual_in(d_residual);
    const Buffer<Real> rrms(reference::rmsnorm_forward(x, gain, kEps).rrms);
    const auto partial = Buffer<Real>::unwritten(RmsnormBackward<Device, Scalar>::kPartials * s.C);
    RmsnormBackward<Device, Scalar> kernel{.x = x_in.matrix(s.N, s.C),
                                           .gain = gain_in.vector(),
                                           .rrms = rrms.vector(),
                                           .d_y = d_y_in.matrix(s.N, s.C),
                                           .d_residual = {},
                                           .d_x = d_x.matrix(s.N, s.C),
                                           .d_gain = d_gain.vector(),
                                           .partial = partial.matrix(RmsnormBackward<Device, Scalar>::kPartials, s.C)};
    if (!d_residual.empty()) kernel.d_residual = d_residual_in.matrix(s.N, s.C);
    kernel.launch(instance());
  }
};

template <class Scalar>
struct Rmsnorm : ::testing::Test {
  using Real = Accum<Scalar>;
  static std::vector<double> x(Shape s) { return uniform_as<Scalar>(s.N * s.C, 1); }
  static std::vector<double> gain(Shape s) { return uniform_as<Scalar>(s.C, 2, 0.5, 1.5); }
  static std::vector<double> d_y(Shape s) { return uniform_as<Scalar>(s.N * s.C, 3); }
};
TYPED_TEST_SUITE(Rmsnorm, AllScalars, ScalarNames);

TYPED_TEST(Rmsnorm, forward_matches_reference_for_ragged_shapes) {
  using Real = Accum<TypeParam>;
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " C " << s.C);
    const Forward<TypeParam> got(s, this->x(s), this->gain(s));
    const auto expected = reference::rmsnorm_forward(this->x(s), this->gain(s), kEps);
    const std::vector<std::size_t> shape = {std::size_t(s.N), std::size_t(s.C)};
    EXPECT_TRUE(all_close<TypeParam>(got.y.values(), expected.y,
                                     {.relative = tolerance<TypeParam>(s.C), .absolute = kSmallest<TypeParam>}, shape));
    EXPECT_TRUE(all_close<Real>(got.rrms.values(), expected.rrms, {.relative = tolerance<Real>(s.C)}));
  }
}

TYPED_TEST(Rmsnorm, adds_delta_to_the_residual_and_normalises_the_rounded_sum) {
  using Scalar = TypeParam;
  using Real = Accum<Scalar>;
  for (const Shape s : kResidualShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " C " << s.C);
    const Buffer<Scalar> x(this->x(s)), delta(uniform_as<Scalar>(s.N * s.C, 4)), gain(this->gain(s));
    std::vector<Scalar> sum = x.elements();
    const std::vector<Scalar> added = delta.elements();
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = static_cast<Scalar>(static_cast<Real>(sum[i]) + static_cast<Real>(added[i]));
    }
    const auto expected = reference::rmsnorm_forward(Buffer<Scalar>(sum).values(), gain.values(), kEps);
    const std::vector<std::size_t> shape = {std::size_t(s.N), std::size_t(s.C)};

    // without a residual first: the other way x is overwritten, as the contract allows
    for (const bool keeps_sum : {false, true}) {
      const auto y = Buffer<Scalar>::unwritten(s.N * s.C);
      const auto rrms = Buffer<Real>::unwritten(s.N);
      RmsnormForward<Device, Scalar> kernel{.x = x.matrix(s.N, s.C),
                                            .delta = delta.matrix(s.N, s.C),
                                            .residual = {},
                                            .gain = gain.vector(),
                                            .y = y.matrix(s.N, s.C),
                                            .rrms = rrms.vector(),
                                            .eps = Real(kEps)};
      if (keeps_sum) kernel.residual = x.matrix(s.N, s.C);
      kernel.launch(instance());
      if (keeps_sum) {
        EXPECT_TRUE(same_bits(x.elements(), sum));
      }
      EXPECT_TRUE(all_close<Scalar>(y.values(), expected.y,
                                    {.relative = tolerance<Scalar>(s.C), .absolute = kSmallest<Scalar>}, shape));
      EXPECT_TRUE(all_close<Real>(rrms.values(), expected.rrms, {.relative = tolerance<Real>(s.C)}));
    }
  }
}

TYPED_TEST(Rmsnorm, copies_x_to_the_residual_without_a_delta) {
  using Scalar = TypeParam;
  using Real = Accum<Scalar>;
  const Shape s{3, 1600};
  const Buffer<Scalar> x(this->x(s)), gain(this->gain(s));
  const auto y = Buffer<Scalar>::unwritten(s.N * s.C), residual = Buffer<Scalar>::unwritten(s.N * s.C);
  const auto rrms = Buffer<Real>::unwritten(s.N);
  RmsnormForward<Device, Scalar>{.x = x.matrix(s.N, s.C),
                                 .delta = {},
                                 .residual = residual.matrix(s.N, s.C),
                                 .gain = gain.vector(),
                                 .y = y.matrix(s.N, s.C),
                                 .rrms = rrms.vector(),
                                 .eps = Real(kEps)}
      .launch(instance());
  EXPECT_TRUE(same_bits(residual.elements(), x.elements()));
  EXPECT_TRUE(same_bits(y.elements(), Forward<Scalar>(s, x.values(), gain.values()).y.elements()));
}

TYPED_TEST(Rmsnorm, backward_matches_reference_for_ragged_shapes) {
  using Real = Accum<TypeParam>;
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " C " << s.C);
    const auto x = this->x(s), gain = this->gain(s), d_y = this->d_y(s);
    const Backward<TypeParam> got(s, x, gain, d_y);
    auto expected = reference::rmsnorm_backward(x, gain, d_y, kEps);
    for (double& d : expected.d_gain) d += 1;
    // d_x is a difference of terms as large as r * d_y * gain
    const double largest_term = max_of(reference::rmsnorm_forward(x, gain, kEps).rrms) * max_of(d_y) * max_of(gain);
    const std::vector<std::size_t> shape = {std::size_t(s.N), std::size_t(s.C)};
    EXPECT_TRUE(all_close<TypeParam>(got.d_x.values(), expected.d_x,
                                     {.relative = kEpsilon<TypeParam>, .absolute = tolerance<Real>(s.C) * largest_term},
                                     shape));
    EXPECT_TRUE(all_close<Real>(got.d_gain.values(), expected.d_gain,
                                {.absolute = tolerance<Real>(s.N) * std::sqrt(s.N) * std::max(1.0, max_of(d_y))}));
  }
}

TYPED_TEST(Rmsnorm, backward_adds_the_gradient_of_the_residual_stream_also_in_place) {
  using Scalar = TypeParam;
  using Real = Accum<Scalar>;
  for (const Shape s : kResidualShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " C " << s.C);
    const auto x = this->x(s), gain = this->gain(s), d_y = this->d_y(s);
    const auto d_residual = uniform_as<Scalar>(s.N * s.C, 5);
    const Backward<Scalar> apart(s, x, gain, d_y, d_residual);
    auto expected = reference::rmsnorm_backward(x, gain, d_y, kEps);
    for (std::size_t i = 0; i < expected.d_x.size(); ++i) expected.d_x[i] += d_residual[i];
    for (double& d : expected.d_gain) d += 1;
    EXPECT_TRUE(all_close<Scalar>(apart.d_x.values(), expected.d_x,
                                  {.relative = kEpsilon<Scalar>, .of_max = tolerance<Real>(s.C)}));
    EXPECT_TRUE(all_close<Real>(apart.d_gain.values(), expected.d_gain,
                                {.absolute = tolerance<Real>(s.N) * std::sqrt(s.N) * std::max(1.0, max_of(d_y))}));

    const Buffer<Scalar> x_in(x), gain_in(gain), d_y_in(d_y), in_place(d_residual);
    const Buffer<Real> rrms(reference::rmsnorm_forward(x, gain, kEps).rrms);
    const auto d_gain = Buffer<Real>::zeros(s.C);
    constexpr int kPartials = RmsnormBackward<Device, Scalar>::kPartials;
    const auto partial = Buffer<Real>::unwritten(kPartials * s.C);
    RmsnormBackward<Device, Scalar>{.x = x_in.matrix(s.N, s.C),
                                    .gain = gain_in.vector(),
                                    .rrms = rrms.vector(),
                                    .d_y = d_y_in.matrix(s.N, s.C),
                                    .d_residual = in_place.matrix(s.N, s.C),
                                    .d_x = in_place.matrix(s.N, s.C),
                                    .d_gain = d_gain.vector(),
                                    .partial = partial.matrix(kPartials, s.C)}
        .launch(instance());
    EXPECT_TRUE(same_bits(in_place.elements(), apart.d_x.elements()));
  }
}

TYPED_TEST(Rmsnorm, repeats_bit_for_bit) {
  for (const Shape s : {Shape{331, 61}, Shape{3300, 64}}) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " C " << s.C);
    const auto x = this->x(s), gain = this->gain(s), d_y = this->d_y(s);
    const Forward<TypeParam> one(s, x, gain), two(s, x, gain);
    EXPECT_TRUE(same_bits(one.y.elements(), two.y.elements()));
    const Backward<TypeParam> three(s, x, gain, d_y), four(s, x, gain, d_y);
    EXPECT_TRUE(same_bits(three.d_x.elements(), four.d_x.elements()));
    EXPECT_TRUE(same_bits(three.d_gain.elements(), four.d_gain.elements()));
  }
}

TYPED_TEST(Rmsnorm, launches_under_its_name_on_the_callers_instance) {
  const Shape s{40, 8};
  const OtherInstance other;
  const LaunchRecorder recorder;
  const Forward<TypeParam> forward(s, this->x(s), this->gain(s));
  const Backward<TypeParam> backward(s, this->x(s), this->gain(s), this->d_y(s));
  EXPECT_TRUE(launched_under(recorder, "tessera::rmsnorm::", instance()));
}

TYPED_TEST(Rmsnorm, refuses_shapes_that_disagree_and_launches_nothing_for_no_rows) {
  using Scalar = TypeParam;
  using Real = Accum<Scalar>;
  const auto big = Buffer<Scalar>::zeros(64);
  const auto real = Buffer<Real>::zeros(4096);
  using F = RmsnormForward<Device, Scalar>;
  const F good{.x = big.matrix(3, 4),
               .delta = {},
               .residual = {},
               .gain = big.first(4),
               .y = big.matrix(3, 4),
               .rrms = real.first(3),
               .eps = 1};
  EXPECT_NO_THROW(good.launch(instance()));
  const auto forward_refuses = [&](auto change) {
    F bad = good;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  forward_refuses([&](F& f) { f.gain = big.vector(); });
  forward_refuses([&](F& f) { f.y = big.matrix(3, 5); });
  forward_refuses([&](F& f) { f.y = big.matrix(2, 4); });
  forward_refuses([&](F& f) { f.rrms = real.vector(); });
  forward_refuses([&](F& f) { f.delta = big.matrix(2, 4); });
  forward_refuses([&](F& f) { f.delta = big.matrix(3, 3); });
  forward_refuses([&](F& f) { f.residual = big.matrix(4, 4); });
  forward_refuses([&](F& f) { f.residual = big.matrix(3, 3); });

  using B = RmsnormBackward<Device, Scalar>;
  const B fine{.x = good.x,
               .gain = good.gain,
               .rrms = good.rrms,
               .d_y = good.x,
               .d_residual = {},
               .d_x = good.y,
               .d_gain = real.first(4),
               .partial = real.matrix(B::kPartials, 4)};
  EXPECT_NO_THROW(fine.launch(instance()));
  const auto backward_refuses = [&](auto change) {
    B bad = fine;
    change(bad);
    EXPECT_THROW(bad.launch(instance()), std::invalid_argument);
  };
  backward_refuses([&](B& b) { b.gain = big.vector(); });
  backward_refuses([&](B& b) { b.rrms = real.vector(); });
  backward_refuses([&](B& b) { b.d_y = big.matrix(3, 5); });
  backward_refuses([&](B& b) { b.d_y = big.matrix(2, 4); });
  backward_refuses([&](B& b) { b.d_residual = big.matrix(4, 4); });
  backward_refuses([&](B& b) { b.d_residual = big.matrix(3, 3); });
  backward_refuses([&](B& b) { b.d_x = big.matrix(2, 4); });
  backward_refuses([&](B& b) { b.d_x = big.matrix(3, 5); });
  backward_refuses([&](B& b) { b.d_gain = real.vector(); });
  backward_refuses([&](B& b) { b.partial = real.matrix(B::kPartials - 1, 4); });
  backward_refuses([&](B& b) { b.partial = real.matrix(B::kPartials, 3); });

  const LaunchRecorder recorder;
  F none = good;
  none.x = big.matrix(0, 4), none.y = big.matrix(0, 4), none.rrms = real.first(0);
  none.launch(instance());
  EXPECT_THAT(recorder.labels(), ::testing::IsEmpty());
}

TEST(RmsnormGradient, is_that_of_the_forward_kernel) {
  const Shape s{3, 5};
  const auto x = uniform(s.N * s.C, 1), gain = uniform(s.C, 2, 0.5, 1.5), weight = uniform(s.N * s.C, 3);
  const Backward<double> backward(s, x, gain, weight);
  EXPECT_TRUE(is_gradient_of([&](const auto& moved) { return dot(Forward<double>(s, moved, gain).y.values(), weight); },
                             x, backward.d_x.values()));
  auto d_gain = backward.d_gain.values();
  for (double& d : d_gain) d -= 1;
  EXPECT_TRUE(is_gradient_of([&](const auto& moved) { return dot(Forward<double>(s, x, moved).y.values(), weight); },
                             gain, d_gain));
}

}  // namespace
}  // namespace tessera::test
