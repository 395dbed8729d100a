/// Collectives between NVIDIA GPUs through NCCL, one rank per GPU.
///
/// One communicator, whose unique id travels over MPI, and one stream of its own for everything it does, of high
/// priority, so that its few blocks are placed beside the backward pass. An all-reduce forks off the compute stream by
/// an event and joins it by another; the host only enqueues, and a capture of the compute stream takes the
/// communication stream along. Elements that cross the network in bf16 are rounded and widened on the communication
/// stream, too.
///
/// Where the ranks share a host and reach each other's memory, sums go by copy engines (parallel/copy_engine.hpp), and
/// NCCL is left with broadcasts and with finding out who is lost; else they go round NCCL's ring.
///
/// Order   the ring: NCCL_ALGO=Ring is set unless the user set it, so that sums repeat bit for bit.
/// Limits  NCCL_NVLS_ENABLE and all the other variables of NCCL are the user's.
/// Source  NCCL 2.28 user guide, "CUDA Stream Semantics" and "Using NCCL with CUDA Graphs".
#pragma once

#include <memory>

#include "parallel/collective.hpp"

namespace tessera::parallel {

class World;

/// Whether this build can.
#ifdef TESSERA_HAVE_NCCL
inline constexpr bool kHasNccl = true;
#else
inline constexpr bool kHasNccl = false;
#endif

/// Collective. After Kokkos has started on the rank's device; goes before Kokkos ends, while `world` lives, and on
/// every rank, which then waits for the others, as in MPI_Finalize: for a lost one without end, unless NCCL knows of it
/// or an exception ends this one. Throws EnvironmentError when the ranks cannot be connected, or not by the
/// method that is asked for.
std::unique_ptr<Collectives> make_nccl_collectives(const World& world, AllReduceMethod method);

}  // namespace tessera::parallel
