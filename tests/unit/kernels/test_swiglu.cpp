#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/swiglu.hpp"
#include "reference/swiglu.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/gradient_check.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::SwigluBackward;
using kernels::SwigluForward;

struct Shape {
  int N, F;
};
// one, primes, a tile less one, exactly one, plus one, several tiles and a rest
const std::vector<Shape> kShapes = {{1, 1}, {3, 7}, {2, 255}, {2, 256}, {5, 257}, {3, 700}, {3, 3072}, {2, 10240}};

template <class Scalar>
std::vector<Scalar> forward(Shape s, const std::vector<double>& gate_up) {
  const Buffer<Scalar> in(gate_up);
  const auto out = Buffer<Scalar>::unwritten(s.N * s.F);
  SwigluForward<Device, Scalar>{.gate_up = in.matrix(s.N, 2 * s.F), .out = out.matrix(s.N, s.F)}.launch(instance());
  return out.elements();
}

template <class Scalar>
std::vector<Scalar> backward(Shape s, const std::vector<double>& gate_up, const std::vector<double>& d_out) {
  const Buffer<Scalar> in(gate_up), d_out_in(d_out);
  const auto d_gate_up = Buffer<Scalar>::unwritten(gate_up.size());
  SwigluBackward<Device, Scalar>{.gate_up = in.matrix(s.N, 2 * s.F),
                                 .d_out = d_out_in.matrix(s.N, s.F),
                                 .d_gate_up = d_gate_up.matrix(s.N, 2 * s.F)}
      .launch(instance());
  return d_gate_up.elements();
}

template <class Scalar>
struct Swiglu : ::testing::Test {
  // wide enough for both tails of the sigmoid
  static std::vector<double> gate_up(Shape s) { return uniform_as<Scalar>(2 * s.N * s.F, 1, -8, 8); }
  static std::vector<double> d_out(Shape s) { return uniform_as<Scalar>(s.N * s.F, 2); }
  static std::vector<double> values(const std::vector<Scalar>& elements) { return Buffer<Scalar>(elements).values(); }
};
TYPED_TEST_SUITE(Swiglu, AllScalars, ScalarNames);

TYPED_TEST(Swiglu, forward_matches_reference_for_ragged_shapes) {
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " F " << s.F);
    const auto in = this->gate_up(s);
    EXPECT_TRUE(all_close<TypeParam>(this->values(forward<TypeParam>(s, in)), reference::swiglu_forward(in, s.F),
                                     {.relative = tolerance<TypeParam>(), .absolute = kSmallest<TypeParam>}));
  }
}

TYPED_TEST(Swiglu, backward_matches_reference_for_ragged_shapes) {
  for (const Shape s : kShapes) {
    SCOPED_TRACE(::testing::Message() << "N " << s.N << " F " << s.F);
    const auto in = this->gate_up(s), d_out = this->d_out(s);
    // silu' passes through zero near -1.28, where its terms (at most 1) cancel; it is multiplied by |up| <= 8
    EXPECT_TRUE(all_close<TypeParam>(
        this->values(backward<TypeParam>(s, in, d_out)), reference::swiglu_backward(in, d_out, s.F),
        {.relative = tolerance<TypeParam>(), .absolute = 8 * tolerance<Accum<TypeParam>>()}));
  }
}

TYPED_TEST(Swiglu, far_tails_give_zero_or_the_identity_and_no_nan) {
  const Shape s{1, 4};
  const std::vector<double> in = {-300, -90, 90, 300, 1, 1, 1, 1};
  const auto out = this->values(forward<TypeParam>(s, in));
  EXPECT_TRUE(all_close<TypeParam>(out, {0, 0, 90, 300}, {.absolute = 1e-30}));
  const auto d_in = this->values(backward<TypeParam>(s, in, {1, 1, 1, 1}));
  EXPECT_TRUE(all_close<TypeParam>(d_in, {0, 0, 1, 1, 0, 0, 90, 300}, {.absolute = 1e-30}));
}

TYPED_TEST(Swiglu, backward_in_place_equals_apart) {
  const Shape s{3, 300};
  const auto in = this->gate_up(s), d_out = this->d_out(s);
  const Buffer<TypeParam> in_place(in), d_out_in(d_out);
  SwigluBackward<Device, TypeParam>{.gate_up = in_place.matrix(s.N, 2 * s.F),
                                    .d_out = d_out_in.matrix(s.N, s.F),
                                    .d_gate_up = in_place.matrix(s.N, 2 * s.F)}
      .launch(instance());
  EXPECT_TRUE(same_bits(in_place.elements(), backward<TypeParam>(s, in, d_out)));
}

TYPED_TEST(Swiglu, backward_hands_out_forwards_result_again_also_in_place_of_d_out) {
  for (const Shape s : {Shape{3, 300}, Shape{2, 512}, Shape{2, 7}}) {
    const auto in = this->gate_up(s), d_out = this->d_out(s);
    const Buffer<TypeParam> in_place(in), out(d_out);
    SwigluBackward<Device, TypeParam>{.gate_up = in_place.matrix(s.N, 2 * s.F),
                                      .d_out = out.matrix(s.N, s.F),
                                      .d_gate_up = in_place.matrix(s.N, 2 * s.F),
                                      .out = out.matrix(s.N, s.F)}
        .launch(instance());
    EXPECT_TRUE(same_bits(in_place.elements(), backward<TypeParam>(s, in, d_out)));
    EXPECT_TRUE(all_close<TypeParam>(out.values(), reference::swiglu_forward(in, s.F),
                                     {.relative = tolerance<TypeParam>(), .absolute = kSmallest<TypeParam>}));
  }
}

TYPED_TEST(Swiglu, repeats_bit_for_bit) {
  const Shape s{7, 333};
  const auto in = this->gate_up(s), d_out = this->d_out(s);
  EXPECT_TRUE(same_bits(forward<TypeParam>(s, in), forward<TypeParam>(s, in)));
  EXPECT_TRUE(same_bits(backward<TypeParam>(s, in, d_out), backward<TypeParam>(s, in, d_out)));
}

TYPED_TEST(Swiglu, launches_under_its_name_on_the_callers_instance) {
  const Shape s{2, 3};
  const OtherInstance other;
  const LaunchRecorder recorder;
  forward<TypeParam>(s, this->gate_up(s));
  backward<TypeParam>(s, this->gate_up(s), this->d_out(s));
  EXPECT_TRUE(launched_under(recorder, "tessera::swiglu::", instance()));
  EXPECT_EQ(recorder.launches().size(), 2u);
}

TYPED_TEST(Swiglu, refuses_shapes_that_disagree_and_launches_nothing_for_no_rows) {
  const auto data = Buffer<TypeParam>::zeros(64);
  const auto go_forward = [&](auto gate_up, auto out) {
    SwigluForward<Device, TypeParam>{.gate_up = gate_up, .out = out}.launch(instance());
  };
  const auto go_backward = [&](auto gate_up, auto d_out, auto d_gate_up) {
    SwigluBackward<Device, TypeParam>{.gate_up = gate_up, .d_out = d_out, .d_gate_up = d_gate_up}.launch(instance());
  };
  EXPECT_NO_THROW(go_forward(data.matrix(3, 8), data.matrix(3, 4)));
  EXPECT_THROW(go_forward(data.matrix(3, 4), data.matrix(3, 4)), std::invalid_argument);
  EXPECT_THROW(go_forward(data.matrix(2, 8), data.matrix(3, 4)), std::invalid_argument);
  EXPECT_NO_THROW(go_backward(data.matrix(3, 8), data.matrix(3, 4), data.matrix(3, 8)));
  EXPECT_THROW(go_backward(data.matrix(3, 7), data.matrix(3, 4), data.matrix(3, 8)), std::invalid_argument);
  EXPECT_THROW(go_backward(data.matrix(3, 8), data.matrix(2, 4), data.matrix(3, 8)), std::invalid_argument);
  EXPECT_THROW(go_backward(data.matrix(3, 8), data.matrix(3, 4), data.matrix(3, 4)), std::invalid_argument);
  EXPECT_THROW((SwigluBackward<Device, TypeParam>{.gate_up = data.matrix(3, 8),
                                                  .d_out = data.matrix(3, 4),
                                                  .d_gate_up = data.matrix(3, 8),
                                                  .out = data.matrix(3, 8)}
                    .launch(instance())),
               std::invalid_argument);

  const LaunchRecorder recorder;
  go_forward(data.matrix(0, 8), data.matrix(0, 4));
  go_backward(data.matrix(0, 8), data.matrix(0, 4), data.matrix(0, 8));
  EXPECT_THAT(recorder.labels(), ::testing::IsEmpty());
}

TEST(Silu, scalar_core_matches_the_textbook) {
  for (double x = -20; x <= 20; x += 0.37) {
    EXPECT_NEAR(kernels::silu_gradient(x).value, reference::silu(x), 1e-14 * (1 + std::abs(x)));
    const double h = 1e-5, slope = (reference::silu(x + h) - reference::silu(x - h)) / (2 * h);
    EXPECT_NEAR(kernels::silu_gradient(x).derivative, slope, 1e-9);
  }
}

TEST(SwigluGradient, is_that_of_the_forward_kernel) {
  const Shape s{2, 5};
  const auto in = uniform(2 * s.N * s.F, 1, -3, 3), weight = uniform(s.N * s.F, 2);
  EXPECT_TRUE(is_gradient_of([&](const auto& moved) { return dot(forward<double>(s, moved), weight); }, in,
                             backward<double>(s, in, weight)));
}

}  // namespace
}  // namespace tessera::test
