#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/rope.hpp"
#include "reference/rope.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/gradient_check.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

using kernels::RopeDirection;

struct Shape {
  int B, H, T, D;
  std::size_t size() const { return std::size_t(B) * H * T * D; }
};
const std::vector<Shape> kShapes = {{1, 1, 1, 2},  {2, 3, 5, 6},  {1, 2, 17, 16},  {3, 1, 7, 18},
                                    {1, 5, 3, 80}, {2, 7, 3, 64}, {1, 40, 2, 128}, {1, 3, 2, 256}};
constexpr double kTheta = 10000;

template <class Real>
Buffer<Real> table(int positions, int D) {
  std::vector<Real> host(std::size_t(positions) * D);
  kernels::fill_rope_table(host.data(), positions, D, kTheta);
  return Buffer<Real>(host);
}

template <class Scalar>
std::vector<Scalar> turn(Shape s, const std::vector<double>& x, int first_position, RopeDirection direction) {
  const Buffer<Scalar> in_place(x);
  const auto angles = table<Accum<Scalar>>(first_position + s.T, s.D);
  kernels::Rope<Device, Scalar>{.x = in_place.heads(s.B, s.H, s.T, s.D),
                                .table = angles.head_rows(first_position + s.T, s.D / 2, 2),
                                .first_position = first_position,
                                .direction = direction}
      .launch(instance());
  return in_place.elements();
}

template <class Scalar>
std::vector<double> turn_values(Shape s, const std::vector<double>& x, int first_position, RopeDirection direction) {
  return Buffer<Scalar>(turn<Scalar>(s, x, first_position, direction)).values();
}

template <class Scalar>
struct Rope : ::testing::Test {};
TYPED_TEST_SUITE(Rope, AllScalars, ScalarNames);

TYPED_TEST(Rope, matches_reference_in_both_directions_and_from_any_position) {
  for (const Shape s : kShapes) {
    for (const int first : {0, 100}) {
      SCOPED_TRACE(::testing::Message() << s.B << ' ' << s.H << ' ' << s.T << ' ' << s.D << " from " << first);
      const auto x = uniform_as<TypeParam>(s.size(), 1);
      const std::vector<std::size_t> shape = {std::size_t(s.B), std::size_t(s.H), std::size_t(s.T), std::size_t(s.D)};
      EXPECT_TRUE(all_close<TypeParam>(turn_values<TypeParam>(s, x, first, RopeDirection::forward),
                                       reference::rope(x, s.T, s.D, kTheta, first, 1),
                                       {.of_max = tolerance<TypeParam>()}, shape));
      EXPECT_TRUE(all_close<TypeParam>(turn_values<TypeParam>(s, x, first, RopeDirection::backward),
                                       reference::rope(x, s.T, s.D, kTheta, first, -1),
                                       {.of_max = tolerance<TypeParam>()}, shape));
    }
  }
}

TYPED_TEST(Rope, turns_q_and_k_inside_the_fused_buffer_and_leaves_the_rest_alone) {
  const Shape s{2, 3, 4, 6};
  const int row = 3 * s.H * s.D;
  const auto before = uniform_as<TypeParam>(std::size_t(s.B) * s.T * row, 2);
  const Buffer<TypeParam> qkv(before);
  const auto angles = table<Accum<TypeParam>>(s.T, s.D);
  constexpr int kKeys = 1;
  kernels::Rope<Device, TypeParam>{.x = kernels::heads_of_qkv<Device>(qkv.data(), kKeys, s.B, s.H, s.T, s.D),
                                   .table = angles.head_rows(s.T, s.D / 2, 2)}
      .launch(instance());

  std::vector<double> expected = before;
  for (int b = 0; b < s.B; ++b) {
    for (int t = 0; t < s.T; ++t) {
      for (int h = 0; h < s.H; ++h) {
        const auto head = expected.begin() + (b * s.T + t) * row + (kKeys * s.H + h) * s.D;
        const auto turned = reference::rope(std::vector<double>(head, head + s.D), 1, s.D, kTheta, t, 1);
        std::copy(turned.begin(), turned.end(), head);
      }
    }
  }
  EXPECT_TRUE(all_close<TypeParam>(qkv.values(), expected, {.of_max = tolerance<TypeParam>()}));
}

TYPED_TEST(Rope, turns_q_and_k_in_one_launch_as_in_two) {
  for (const Shape s : {Shape{2, 3, 4, 6}, Shape{1, 5, 3, 64}}) {
    const auto before = uniform_as<TypeParam>(3 * s.size(), 2);
    const Buffer<TypeParam> together(before), apart(before);
    const auto angles = table<Accum<TypeParam>>(s.T, s.D);
    const auto turn = [&](const kernels::HeadTensor<TypeParam, Device>& x) {
      kernels::Rope<Device, TypeParam>{.x = x, .table = angles.head_rows(s.T, s.D / 2, 2)}.launch(instance());
    };
    turn(kernels::heads_of_q_and_k<Device>(together.data(), s.B, s.H, s.T, s.D));
    for (const int part : {0, 1}) turn(kernels::heads_of_qkv<Device>(apart.data(), part, s.B, s.H, s.T, s.D));
    EXPECT_TRUE(same_bits(together.elements(), apart.elements()));
  }
}

TYPED_TEST(Rope, repeats_bit_for_bit) {
  const Shape s{2, 3, 11, 14};
  const auto x = uniform_as<TypeParam>(s.size(), 1);
  EXPECT_TRUE(
      same_bits(turn<TypeParam>(s, x, 3, RopeDirection::forward), turn<TypeParam>(s, x, 3, RopeDirection::forward)));
}

TYPED_TEST(Rope, launches_under_its_name_on_the_callers_instance) {
  const OtherInstance other;
  const LaunchRecorder recorder;
  turn<TypeParam>({1, 1, 2, 4}, std::vector<double>(8), 0, RopeDirection::forward);
  turn<TypeParam>({1, 1, 2, 4}, std::vector<double>(8), 0, RopeDirection::backward);
  EXPECT_TRUE(launched_under(recorder, "tessera::rope::", instance()));
  EXPECT_THAT(recorder.labels(), ::testing::ElementsAre("tessera::rope::forward", "tessera::rope::backward"));
}

TYPED_TEST(Rope, refuses_odd_widths_short_tables_and_strided_heads_and_launches_nothing_for_no_tokens) {
  const auto data = Buffer<TypeParam>::zeros(256);
  const auto angles = Buffer<Accum<TypeParam>>::zeros(256);
  const auto go = [&](auto x, auto table, int first_position) {
    kernels::Rope<Device, TypeParam>{.x = x, .table = table, .first_position = first_position}.launch(instance());
  };
  EXPECT_NO_THROW(go(data.heads(1, 2, 3, 4), angles.head_rows(5, 2, 2), 2));
  EXPECT_THROW(go(data.heads(1, 2, 3, 5), angles.head_rows(5, 2, 2), 0), std::invalid_argument);
  EXPECT_THROW(go(data.heads(1, 2, 3, 6), angles.head_rows(5, 2, 2), 0), std::invalid_argument);
  EXPECT_THROW(go(data.heads(1, 2, 3, 4), angles.head_rows(5, 2, 1), 0), std::invalid_argument);
  EXPECT_THROW(go(data.heads(1, 2, 3, 4), angles.head_rows(5, 2, 2), 3), std::invalid_argument);
  EXPECT_THROW(go(data.heads(1, 2, 3, 4), angles.head_rows(5, 2, 2), -1), std::invalid_argument);
  const kernels::HeadTensor<TypeParam, Device> strided(data.data(), Kokkos::LayoutStride(1, 64, 2, 32, 3, 8, 4, 2));
  EXPECT_THROW(go(strided, angles.head_rows(5, 2, 2), 0), std::invalid_argument);

  const LaunchRecorder recorder;
  go(data.heads(1, 2, 0, 4), angles.head_rows(5, 2, 2), 0);
  EXPECT_THAT(recorder.labels(), ::testing::IsEmpty());
}

TEST(RopeGradient, is_that_of_the_forward_kernel) {
  const Shape s{1, 2, 3, 4};
  const auto x = uniform(s.size(), 1), weight = uniform(s.size(), 2);
  EXPECT_TRUE(
      is_gradient_of([&](const auto& moved) { return dot(turn<double>(s, moved, 5, RopeDirection::forward), weight); },
                     x, turn<double>(s, weight, 5, RopeDirection::backward)));
}

}  // namespace
}  // namespace tessera::test
