/// The scalar types of typed tests, and their error bounds.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <type_traits>

#include "kernels/core/scalar.hpp"

namespace tessera::test {

using AllScalars = ::testing::Types<double, float, bfloat16, float16>;
using RealScalars = ::testing::Types<double, float>;
using GradientScalars = ::testing::Types<double, float, bfloat16>;  // storage types of parameter gradients

struct ScalarNames {  // "Rmsnorm/fp32" instead of "Rmsnorm/1"
  template <class Scalar>
  static std::string GetName(int) {
    return std::string(kScalarName<Scalar>);
  }
};

/// Relative error that a result of `Scalar` may have after a sum of `length` terms in Accum<Scalar>: one rounding to
/// Scalar, a handful of operations, and rounding errors of the sum that add up like a random walk
/// (Higham & Mary 2019, doi:10.1137/18M1226312, with a constant of 2).
template <class Scalar>
double tolerance(double length = 1) {
  return kEpsilon<Scalar> + kEpsilon<Accum<Scalar>> * (8 + 2 * std::sqrt(length));
}

/// Spacing of the subnormal numbers of `Scalar`, for which no relative bound can hold. It matters for float16, whose
/// normal numbers end at 6e-5; no test comes near those of the other types.
template <class Scalar>
constexpr double kSmallest = std::is_same_v<Scalar, float16> ? 0x1p-24 : 0;

}  // namespace tessera::test
