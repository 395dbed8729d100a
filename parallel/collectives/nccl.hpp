/// Transfers between NVIDIA GPUs through NCCL, one rank per GPU.
///
/// One communicator, whose unique id is broadcast over MPI, and one communication stream. With NCCL's ring it has the
/// highest priority, so that the few blocks that move bytes are scheduled beside the backward pass. With copy engines
/// it has the lowest: their sums then fill what kernels of raised streams leave idle, instead of delaying them.
/// A transfer forks off the compute stream by one event and joins it by another; the host only enqueues, and a capture
/// of the compute stream includes the communication stream. Elements that cross the network in bf16 are rounded and
/// widened on the communication stream, too; a reduce-scatter widens only this rank's part. All-reduces by copy engines
/// beside work do all this on a stream of their channel, and the communication stream waits for them: it passes the ends
/// of all transfers in the order of their starts.
///
/// If the ranks share a host and can access each other's memory, copy engines do the transfers
/// (collectives/copy_engine.hpp), and NCCL only broadcasts and detects lost ranks; otherwise NCCL's ring does them.
///
/// Groups  make_group(group), with group >= 0, waits for the transfers in progress of this rank's collectives and
///         splits their communicator. A group has its own communicator and stream, for which NCCL takes its own device
///         memory, and always uses the ring: copy engines serve only all ranks together.
///         The collectives of all ranks and every group made from them, or from a group, form a family: fault() and
///         abandon() of any member apply to all, so that a watcher of one need not know the others. They may be
///         destroyed in any order that is the same on every rank; a group may outlive what it was made from.
/// Order   the ring: NCCL_ALGO=Ring is set unless the user set NCCL_ALGO, so that sums repeat bit for bit.
/// Limits  NCCL_NVLS_ENABLE and all other NCCL variables are left to the user. A transfer occupies a part of the GPU
///         while it waits for the other ranks. Transfers of different groups that may be under way together are
///         therefore started in the same order on all ranks, and rely on a GPU's room for the kernels of both; one that
///         is started from the instance() of another group's collectives runs after what is under way there.
/// Source  NCCL 2.28 user guide, "CUDA Stream Semantics", "Using NCCL with CUDA Graphs", "Creating a communicator" and
///         "Using multiple NCCL communicators concurrently".
#pragma once

#include <memory>

#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

class World;

/// Whether this build has NCCL.
#ifdef TESSERA_HAVE_NCCL
inline constexpr bool kHasNccl = true;
#else
inline constexpr bool kHasNccl = false;
#endif

/// Collective. Create it after Kokkos has started on the rank's device; destroy it on every rank before Kokkos ends and
/// while `world` exists. The destructor waits for the other ranks, as MPI_Finalize does: forever for a lost one, unless
/// NCCL reports it, the family was abandoned, or an exception is unwinding the stack; the same holds for groups.
///
/// Throws  EnvironmentError if the ranks cannot be connected, or not by the requested method.
std::unique_ptr<Collectives> make_nccl_collectives(const World& world, TransferMethod method);

}  // namespace tessera::parallel
