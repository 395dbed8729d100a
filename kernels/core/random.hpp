/// Counter-based random numbers: pure functions of a key and a counter, so that nothing depends on who asks first.
///
/// Source  the output function of SplitMix64, Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195. Integers only,
///         so the same on every platform.
#pragma once

#include <cstdint>

namespace tessera {

/// One 64-bit number into another that looks unrelated.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t mix(std::uint64_t key, std::uint64_t counter) { return mix(mix(key) ^ counter); }

/// A number in (0,1) from a mixed one.
constexpr double uniform(std::uint64_t mixed) { return (static_cast<double>(mixed >> 11) + 0.5) * 0x1p-53; }

}  // namespace tessera
