/// Which library sums over the ranks: what a deck asks for, as far as the machine has it.
#pragma once

#include "config/settings.hpp"
#include "parallel/device.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {

/// The collectives that a deck asks for, in use while this lives: from Kokkos' start on the rank's device to before its
/// end. automatic: NCCL where the build has it and each of several ranks has a GPU of its own, else MPI.
class CollectivesChoice {
 public:
  /// Collective. Throws Failure(Exit::environment) where NCCL, or a way of summing, is asked for and cannot be.
  CollectivesChoice(World& world, const config::Parallel& choice, const DeviceChoice& device);
  ~CollectivesChoice();
  CollectivesChoice(const CollectivesChoice&) = delete;
  CollectivesChoice& operator=(const CollectivesChoice&) = delete;

 private:
  World& world_;
};

}  // namespace tessera::parallel
