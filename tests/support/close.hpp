/// The matcher of numeric tests: reports the worst entries, their positions, and their errors in units in the last
/// place.
///
///   EXPECT_TRUE(all_close<Scalar>(y.values(), expected, {.relative = tolerance<Scalar>(C)}, {N, C}));
///
/// An entry is close when |value - expected| <= absolute + relative * |expected| + of_max * max|expected|.
/// Infinities and NaN are close only to themselves, and take no part in the maximum.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/core/scalar.hpp"

namespace tessera::test {

struct Closeness {
  double relative = 0;  // to the expected entry
  double of_max = 0;    // to the largest expected entry: for sums whose terms cancel
  double absolute = 0;
};

/// |value - expected| in units of the last place of `expected` as a Scalar.
template <class Scalar>
double ulps(double value, double expected) {
  if (value == expected) return 0;
  return std::abs(value - expected) / (kEpsilon<Scalar> * std::exp2(std::floor(std::log2(std::abs(expected)))));
}

/// "[2,0,7]" for a flat index into `shape` (row-major), "[19]" without a shape.
inline std::string index_text(std::size_t flat, const std::vector<std::size_t>& shape) {
  std::string text;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    text = std::to_string(axis == 0 ? flat : flat % shape[axis]) + (text.empty() ? "" : ",") + text;
    flat /= std::max<std::size_t>(shape[axis], 1);
  }
  return "[" + (shape.empty() ? std::to_string(flat) : text) + "]";
}

template <class Scalar>
::testing::AssertionResult all_close(const std::vector<double>& values, const std::vector<double>& expected,
                                     Closeness closeness, const std::vector<std::size_t>& shape = {}) {
  if (values.size() != expected.size()) {
    return ::testing::AssertionFailure() << values.size() << " values where " << expected.size() << " are expected";
  }
  double max = 0;
  for (double e : expected) {
    if (std::isfinite(e)) max = std::max(max, std::abs(e));
  }

  struct Offender {
    std::size_t index;
    double excess;  // error / allowed error
  };
  std::vector<Offender> offenders;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double v = values[i], e = expected[i];
    if (v == e || (std::isnan(v) && std::isnan(e))) continue;
    const double allowed = closeness.absolute + closeness.relative * std::abs(e) + closeness.of_max * max;
    const bool is_comparable = std::isfinite(v) && std::isfinite(e);
    const double excess = is_comparable ? std::abs(v - e) / allowed : HUGE_VAL;
    if (excess > 1) offenders.push_back({i, excess});
  }
  if (offenders.empty()) return ::testing::AssertionSuccess();

  std::stable_sort(offenders.begin(), offenders.end(), [](auto a, auto b) { return a.excess > b.excess; });
  auto failure = ::testing::AssertionFailure();
  failure << offenders.size() << " of " << values.size() << " entries differ by more than " << closeness.absolute
          << " + " << closeness.relative << " |expected| + " << closeness.of_max << " * " << max << "; the worst:";
  for (std::size_t i = 0; i < std::min<std::size_t>(3, offenders.size()); ++i) {
    const auto [index, excess] = offenders[i];
    failure << "\n  " << index_text(index, shape) << "  value " << std::setprecision(17) << values[index]
            << "  expected " << expected[index] << std::setprecision(3) << "  off by "
            << ulps<Scalar>(values[index], expected[index]) << " ulp of " << std::string(kScalarName<Scalar>) << ", "
            << excess << " times what is allowed";
  }
  return failure;
}

}  // namespace tessera::test
