/// Transfers between NVIDIA GPUs through NCCL's ring, one rank per GPU, on one stream. The host only enqueues.
///
/// Groups  make_group(group), with group >= 0, waits for the transfers in progress and splits the communicator. A group
///         has its own communicator and stream, for which NCCL takes device memory, and belongs to the same family.
///         Groups may be destroyed in any order, the same on every rank, also after the collectives that made them.
/// Order   sums repeat bit for bit: make_nccl_collectives() sets NCCL_ALGO=Ring unless the user set NCCL_ALGO.
/// Limits  all other NCCL variables are left to the user. A transfer occupies part of the GPU while it waits for other
///         ranks, so transfers of different groups that may be in flight together must start in the same order on all
///         ranks; one started from the instance() of another group's collectives follows the transfers there.
/// Source  NCCL 2.28 user guide, "CUDA Stream Semantics", "Using NCCL with CUDA Graphs", "Creating a communicator",
///         "Fault tolerance" and "Using multiple NCCL communicators concurrently".
#pragma once

#include <memory>
#include <string>

#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

class Family;
class TransferStream;
class World;

inline constexpr char kRingMovesAll[] = "transfers by the ring";

/// Collective. Create it after Kokkos has started on the rank's device; destroy it on every rank before Kokkos ends and
/// while `world` exists. The destructor waits for the other ranks unless the family ends in disorder (family.hpp).
/// `role`, which ends description(): what moves the bytes of these ranks' transfers.
///
/// Throws  EnvironmentError if the ranks cannot be connected; MemoryError if NCCL finds no memory.
std::unique_ptr<Collectives> make_nccl_collectives(const World& world, std::shared_ptr<TransferStream> stream,
                                                   std::shared_ptr<Family> family, std::string role = kRingMovesAll);

}  // namespace tessera::parallel
