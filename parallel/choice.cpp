#include "parallel/choice.hpp"

#include <exception>
#include <optional>

#include "parallel/errors.hpp"

namespace tessera::parallel {

CollectivesChoice::CollectivesChoice(World& world, const CollectivesOptions& options, const DeviceChoice& device)
    : world_(world) {
  const bool can = kHasNccl && device.index() >= 0 && !device.is_shared();
  if (options.library == Library::nccl && !can) {
    throw EnvironmentError(
        "parallel.collectives = \"nccl\" needs {}: set parallel.collectives = \"mpi\"",
        kHasNccl ? "a GPU for each rank, but ranks share one" : "a build with NCCL, but this one has none");
  }
  const bool takes_nccl =
      options.library == Library::nccl || (options.library == Library::automatic && can && world.size() > 1);
  if (options.transfers != TransferMethod::automatic && world.size() > 1 && !takes_nccl) {
    throw EnvironmentError(
        "parallel.transfers by name needs a GPU for each rank, joined by NCCL, but these ranks communicate "
        "through MPI: set parallel.transfers = \"auto\"");
  }
  if constexpr (kHasNccl) {
    if (takes_nccl) {
      const auto watch = world.watch("connecting the GPUs");
      const bool takes_ring = options.transfers == TransferMethod::automatic && options.forms_groups;
      world.use(make_gpu_collectives(world, takes_ring ? TransferMethod::ring : options.transfers));
    }
  }
}

/// All ranks come here except one that an exception unwinds, which ends the launch. Rank 0 may first work alone for
/// long; only what follows that wait is watched.
CollectivesChoice::~CollectivesChoice() {
  std::optional<World::Watch> watch;
  if (std::uncaught_exceptions() > 0) {
    world_.leave();
  } else if (world_.collectives().is_asynchronous()) {
    try {
      world_.barrier();
      watch.emplace(world_, "disconnecting the GPUs", 1);
    } catch (const LossError&) {  // the collectives find the same
    }
  }
  world_.use(nullptr);
}

}  // namespace tessera::parallel
