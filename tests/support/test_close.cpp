/// The matcher itself: what it accepts, what it rejects, and what it reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/close.hpp"

namespace tessera::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(AllClose, accepts_equal_values_without_any_tolerance) {
  EXPECT_TRUE(all_close<float>({}, {}, {}));
  EXPECT_TRUE(all_close<float>({0, -0.0, 1, kInf, -kInf, kNan}, {0, 0.0, 1, kInf, -kInf, kNan}, {}));
}

TEST(AllClose, measures_against_entry_maximum_and_absolute) {
  EXPECT_TRUE(all_close<float>({1.01, 100}, {1, 100}, {.relative = 0.011}));
  EXPECT_FALSE(all_close<float>({1.01, 100}, {1, 100}, {.relative = 0.009}));
  EXPECT_TRUE(all_close<float>({1.9, 100}, {1, 100}, {.of_max = 0.01}));
  EXPECT_FALSE(all_close<float>({2.1, 100}, {1, 100}, {.of_max = 0.01}));
  EXPECT_TRUE(all_close<float>({1e-9}, {0}, {.absolute = 1e-8}));
  EXPECT_FALSE(all_close<float>({1e-7}, {0}, {.absolute = 1e-8}));
}

TEST(AllClose, refuses_nan_and_infinity_where_a_number_is_expected_and_the_reverse) {
  const Closeness generous{.relative = 10, .of_max = 10, .absolute = 10};
  EXPECT_FALSE(all_close<float>({kNan}, {1}, generous));
  EXPECT_FALSE(all_close<float>({1}, {kNan}, generous));
  EXPECT_FALSE(all_close<float>({kInf}, {1}, generous));
  EXPECT_FALSE(all_close<float>({1}, {kInf}, generous));
  EXPECT_FALSE(all_close<float>({kInf}, {-kInf}, generous));
}

TEST(AllClose, an_infinity_does_not_widen_the_tolerance_of_the_others) {
  EXPECT_FALSE(all_close<float>({kInf, 2}, {kInf, 1}, {.of_max = 0.1}));
}

TEST(AllClose, refuses_another_length) { EXPECT_FALSE(all_close<float>({1, 2}, {1}, {.absolute = 10})); }

TEST(AllClose, names_the_three_worst_entries_by_index_value_and_ulp) {
  const std::vector<double> expected = {1, 1, 1, 1, 1, 1};
  std::vector<double> values = expected;
  values[1] = 1 + 2 * kEpsilon<float>;
  values[2] = 1 + 3 * kEpsilon<float>;
  values[4] = 1 + 5 * kEpsilon<float>;
  values[5] = 1 + 4 * kEpsilon<float>;
  const auto result = all_close<float>(values, expected, {.relative = kEpsilon<float>}, {2, 3});
  ASSERT_FALSE(result);
  const std::string text = result.message();
  EXPECT_THAT(text, HasSubstr("4 of 6 entries"));
  EXPECT_THAT(text, HasSubstr("[1,1]  value 1.00000059"));
  EXPECT_THAT(text, HasSubstr("off by 5 ulp of fp32"));
  EXPECT_LT(text.find("[1,1]"), text.find("[1,2]"));
  EXPECT_LT(text.find("[1,2]"), text.find("[0,2]"));
  EXPECT_THAT(text, Not(HasSubstr("[0,1]")));
}

TEST(Ulps, are_those_of_the_storage_type) {
  EXPECT_DOUBLE_EQ(ulps<float>(1 + 0x1p-23, 1), 1);
  EXPECT_DOUBLE_EQ(ulps<bfloat16>(1 + 0x1p-6, 1), 2);
  EXPECT_DOUBLE_EQ(ulps<double>(2, 2), 0);
}

}  // namespace
}  // namespace tessera::test
