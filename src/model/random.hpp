/// Counter-based random numbers: a pure function of key and counter, so that nothing depends on who asks first.
#pragma once

#include <cstdint>

namespace tessera::model {

/// A well-mixed 64-bit word (the finaliser of SplitMix64, Steele et al. 2014, doi:10.1145/2660193.2660195).
constexpr std::uint64_t mixed(std::uint64_t word) {
  word += 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

/// A number in (0,1) from a mixed word.
constexpr double uniform(std::uint64_t word) { return (static_cast<double>(word >> 11) + 0.5) * 0x1p-53; }

}  // namespace tessera::model
