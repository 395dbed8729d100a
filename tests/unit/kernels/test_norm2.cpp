#include <gtest/gtest.h>

#include <limits>

#include "kernels/norm2.hpp"
#include "reference/norm2.hpp"
#include "support/buffer.hpp"
#include "support/close.hpp"
#include "support/instance.hpp"
#include "support/launch_recorder.hpp"
#include "support/random.hpp"
#include "support/scalars.hpp"

namespace tessera::test {
namespace {

template <class Scalar>
double norm2(const std::vector<double>& x) {
  using Kernel = kernels::SquareNorm<Device, Scalar>;
  const Buffer<Scalar> in(x);
  const auto partial = Buffer<double>::unwritten(Kernel::blocks(x.size()));
  const Buffer<double> total(std::vector<double>{1e300});  // is overwritten, not added to
  Kernel{.x = in.vector(), .partial = partial.vector(), .total = total.value()}.launch(instance());
  return total.values()[0];
}

template <class Scalar>
struct SquareNorm : ::testing::Test {
  static constexpr int kBlock = static_cast<int>(kernels::SquareNorm<Device, Scalar>::kBlock);
};
TYPED_TEST_SUITE(SquareNorm, GradientScalars, ScalarNames);

TYPED_TEST(SquareNorm, matches_reference_for_ragged_lengths) {
  for (const int n : {1, 2, 31, 1009, this->kBlock - 1, this->kBlock, this->kBlock + 1, 5 * this->kBlock + 77}) {
    const auto x = uniform_as<TypeParam>(n, n);
    EXPECT_TRUE(
        all_close<double>({norm2<TypeParam>(x)}, {reference::square_norm(x)}, {.relative = tolerance<double>(n)}))
        << n;
  }
}

TYPED_TEST(SquareNorm, of_nothing_is_zero) { EXPECT_EQ(norm2<TypeParam>({}), 0); }

TYPED_TEST(SquareNorm, does_not_overflow_where_the_square_of_a_float_would) {
  EXPECT_TRUE(all_close<double>({norm2<TypeParam>({1e30, -1e30})},
                                {2 * std::pow(static_cast<double>(static_cast<TypeParam>(1e30)), 2)},
                                {.relative = tolerance<double>(2)}));
}

TYPED_TEST(SquareNorm, non_finite_values_come_through) {
  for (const double bad : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    for (const int at : {0, this->kBlock + 3, 2 * this->kBlock}) {
      auto x = uniform_as<TypeParam>(2 * this->kBlock + 1, 1);
      x[at] = bad;
      EXPECT_FALSE(std::isfinite(norm2<TypeParam>(x))) << bad << " at " << at;
    }
  }
}

TYPED_TEST(SquareNorm, repeats_bit_for_bit) {
  const auto x = uniform_as<TypeParam>(3 * this->kBlock + 5, 1);
  EXPECT_EQ(norm2<TypeParam>(x), norm2<TypeParam>(x));
}

TYPED_TEST(SquareNorm, launches_under_its_name_on_the_callers_instance) {
  const OtherInstance other;
  const LaunchRecorder recorder;
  norm2<TypeParam>({1, 2, 3});
  EXPECT_TRUE(launched_under(recorder, "tessera::norm2::", instance()));
}

TYPED_TEST(SquareNorm, refuses_a_short_workspace_and_a_missing_total) {
  using Kernel = kernels::SquareNorm<Device, TypeParam>;
  const auto x = Buffer<TypeParam>::zeros(this->kBlock + 1);
  const auto partial = Buffer<double>::zeros(2);
  EXPECT_NO_THROW((Kernel{x.vector(), partial.vector(), partial.value()}.launch(instance())));
  EXPECT_THROW((Kernel{x.vector(), partial.first(1), partial.value()}.launch(instance())), std::invalid_argument);
  EXPECT_THROW((Kernel{x.vector(), partial.vector(), {}}.launch(instance())), std::invalid_argument);
}

}  // namespace
}  // namespace tessera::test
