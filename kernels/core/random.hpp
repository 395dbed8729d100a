/// Counter-based random numbers: pure functions of a key and a counter, independent of the order of calls.
///
/// Source  the output function of SplitMix64, Steele, Lea & Flood 2014, doi:10.1145/2660193.2660195. Integers only,
///         so the same on every platform.
#pragma once

#include <cstdint>

namespace tessera {

/// Hashes a 64-bit number: a bijection whose results look random.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t mix(std::uint64_t key, std::uint64_t counter) { return mix(mix(key) ^ counter); }

/// A uniform number in (0,1] from a result of mix().
constexpr double uniform(std::uint64_t mixed) { return (static_cast<double>(mixed >> 11) + 0.5) * 0x1p-53; }

}  // namespace tessera
