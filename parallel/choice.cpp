#include "parallel/choice.hpp"

#include <exception>
#include <string>

#include "errors.hpp"
#include "parallel/nccl.hpp"

namespace tessera::parallel {

CollectivesChoice::CollectivesChoice(World& world, const config::Parallel& choice, const DeviceChoice& device)
    : world_(world) {
  const bool can = kHasNccl && device.index() >= 0 && !device.is_shared();
  if (choice.collectives == config::Collectives::nccl && !can) {
    throw Failure(Exit::environment, std::string("parallel.collectives = \"nccl\" wants ") +
                                         (kHasNccl ? "a GPU for each rank and ranks share one"
                                                   : "a build with NCCL and this one has none") +
                                         ": set parallel.collectives = \"mpi\"");
  }
  const bool takes_nccl = choice.collectives == config::Collectives::nccl ||
                          (choice.collectives == config::Collectives::automatic && can && world.size() > 1);
  if (choice.all_reduce != config::AllReduceMethod::automatic && world.size() > 1 && !takes_nccl) {
    throw Failure(Exit::environment,
                  "parallel.all_reduce by name wants a GPU for each rank, joined by NCCL, and these ranks talk through "
                  "MPI: set parallel.all_reduce = \"auto\"");
  }
  if constexpr (kHasNccl) {
    if (takes_nccl) {
      const auto watch = world.watch("connecting the GPUs");
      world.use(make_nccl_collectives(world, choice.all_reduce));
    }
  }
}

CollectivesChoice::~CollectivesChoice() {
  if (std::uncaught_exceptions() > 0) world_.leave();
  world_.use(nullptr);
}

}  // namespace tessera::parallel
