/// Random inputs that are the same on every platform, and rounding to a storage type.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace tessera::test {

/// n numbers, uniform in [low, high).
inline std::vector<double> uniform(std::size_t n, std::uint64_t seed, double low = -1, double high = 1) {
  std::mt19937_64 engine(seed);  // its output is specified; that of the standard's distributions is not
  std::vector<double> values(n);
  for (double& value : values) value = low + (high - low) * static_cast<double>(engine() >> 11) * 0x1p-53;
  return values;
}

/// The same, rounded to `Scalar`: the input of both a kernel and its reference.
template <class Scalar>
std::vector<double> uniform_as(std::size_t n, std::uint64_t seed, double low = -1, double high = 1) {
  std::vector<double> values = uniform(n, seed, low, high);
  for (double& value : values) value = static_cast<double>(static_cast<Scalar>(value));
  return values;
}

/// n integers, uniform in [low, high).
inline std::vector<int> uniform_int(std::size_t n, std::uint64_t seed, int low, int high) {
  std::mt19937_64 engine(seed);
  std::vector<int> values(n);
  for (int& value : values) value = low + static_cast<int>(engine() % static_cast<std::uint64_t>(high - low));
  return values;
}

}  // namespace tessera::test
