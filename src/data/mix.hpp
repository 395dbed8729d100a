/// One 64-bit number into another that looks unrelated: the source of every random choice about data.
///
/// Source  the output function of SplitMix64, Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
///         generators". Integers only, so the same on every platform.
#pragma once

#include <cstdint>

namespace tessera::data {

constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) { return mix(mix(a) ^ b); }

}  // namespace tessera::data
