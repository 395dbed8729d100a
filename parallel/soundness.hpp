/// Whether all ranks may begin: each has checked its device (kernels/device_check.hpp), and they compare the findings.
///
/// Bandwidths are compared among GPUs of one name, with the median of their ranks (of two, the larger): below
/// kLeastBandwidth of it, a GPU holds up all others in every step. They are not compared if ranks share a GPU.
#pragma once

#include <span>
#include <string>

#include "parallel/place.hpp"

namespace tessera::parallel {

class World;

/// What a rank found.
struct Soundness {
  std::string wrong = {};  // which kernel erred and how; empty: none did
  double gbyte_per_s = 0;  // of the device's memory; 0: not measured
  double took_s = 0;       // to find out
};

inline constexpr double kLeastBandwidth = 0.7;

/// Which ranks must not begin and why, with host and UUID of each, and what to do; "" if all may. Both by rank.
std::string unsound_ranks(std::span<const Place> places, std::span<const Soundness> found);

/// Afterwards the places of `world` hold what the check of each rank's device measured. Collective.
/// Throws  the same AgreedError of an EnvironmentError on all ranks, unless all may begin.
void require_sound(World& world, const Soundness& mine);

}  // namespace tessera::parallel
