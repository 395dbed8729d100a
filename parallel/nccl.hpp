/// Collectives between NVIDIA GPUs through NCCL, one rank per GPU.
///
/// One communicator, whose unique id is broadcast over MPI, and one communication stream, of high priority, so that its
/// few blocks are scheduled beside the backward pass. An all-reduce forks off the compute stream by an event and joins
/// it by another; the host only enqueues, and a capture of the compute stream includes the communication stream.
/// Elements that cross the network in bf16 are rounded and widened on the communication stream, too.
///
/// If the ranks share a host and can access each other's memory, copy engines do the sums (parallel/copy_engine.hpp),
/// and NCCL only broadcasts and detects lost ranks; otherwise NCCL's ring does them.
///
/// Order   the ring: NCCL_ALGO=Ring is set unless the user set it, so that sums repeat bit for bit.
/// Limits  NCCL_NVLS_ENABLE and all other variables of NCCL are left to the user.
/// Source  NCCL 2.28 user guide, "CUDA Stream Semantics" and "Using NCCL with CUDA Graphs".
#pragma once

#include <memory>

#include "parallel/collective.hpp"

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
/// NCCL reports it or an exception is unwinding the stack. Throws EnvironmentError when the ranks cannot be connected,
/// or not by the requested method.
std::unique_ptr<Collectives> make_nccl_collectives(const World& world, TransferMethod method);

}  // namespace tessera::parallel
