/// Which library sums over the ranks: what a deck asks for, as far as the machine has it.
#pragma once

#include "parallel/collective.hpp"
#include "parallel/device.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {

enum class Library { automatic, mpi, nccl };

struct CollectivesOptions {
  Library library = Library::automatic;
  TransferMethod all_reduce = TransferMethod::automatic;
};

/// The collectives that are asked for, in use while this lives: from Kokkos' start on the rank's device to before its
/// end. automatic: NCCL where the build has it and each of several ranks has a GPU of its own, else MPI.
class CollectivesChoice {
 public:
  /// Collective. Throws EnvironmentError where NCCL, or a way of summing, is asked for and cannot be.
  CollectivesChoice(World& world, const CollectivesOptions& options, const DeviceChoice& device);
  ~CollectivesChoice();
  CollectivesChoice(const CollectivesChoice&) = delete;
  CollectivesChoice& operator=(const CollectivesChoice&) = delete;

 private:
  World& world_;
};

}  // namespace tessera::parallel
