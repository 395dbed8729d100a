/// Where each rank runs, down to its cores and GPU: for /ranks of run.h5, for the table at a run's start, and for
/// warnings of places that slow it down.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "io/trace.hpp"
#include "jobs/cores.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

struct RankPlace : io::RankPlace {
  std::set<int> physical_cores;  // that it may use, each by its first hardware thread
  std::set<int> sockets;         // of these
  int gpu_socket = -1;           // nearest to its GPU; -1: unknown, or on CPUs
  int host_gpus = 0;             // that the launch may use on its host
};

/// By rank. Of each, `cores` are those of its process. Collective.
std::vector<RankPlace> rank_places(const parallel::World& world, const Cores& cores, int host_gpus);

/// GPUs that the launch may use on this host: SLURM_GPUS_ON_NODE; without Slurm those that it sees, if it has several
/// ranks. One rank alone need not use all.
int host_gpus(const parallel::World& world);

/// A line for each rank, of at most io::kMostRanks.
std::string rank_table(std::span<const RankPlace> ranks);

/// A line for each kind of fault, with a way to mend it: several ranks on one core, GPUs far from their ranks' cores,
/// GPUs without a rank. "" if there is none.
std::string warnings_of(std::span<const RankPlace> ranks);

}  // namespace tessera::jobs
