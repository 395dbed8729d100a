/// Checks gradients against finite differences in double.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "support/close.hpp"

namespace tessera::test {

/// Compares `gradient` with central differences of `loss` around `x`, entry by entry.
///
/// A step of 1e-5 has errors of about 1e-10 |loss'''| (truncation) and 1e-11 |loss| (rounding), hence a bound of 1e-7
/// of the largest entry for losses and curvatures of order 1 to 100.
inline ::testing::AssertionResult is_gradient_of(const std::function<double(const std::vector<double>&)>& loss,
                                                 const std::vector<double>& x, const std::vector<double>& gradient) {
  constexpr double step = 1e-5;
  std::vector<double> moved = x, differences(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    moved[i] = x[i] + step;
    const double above = loss(moved);
    moved[i] = x[i] - step;
    const double below = loss(moved);
    moved[i] = x[i];
    differences[i] = (above - below) / (2 * step);
  }
  return all_close<double>(gradient, differences, {.of_max = 1e-7, .absolute = 1e-9});
}

/// sum_i a[i] b[i]: turns an output into a loss whose gradient with respect to the output is b.
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace tessera::test
