/// Where the ranks run: the launch as files name it, each rank down to its cores and GPU, as Linux tells of them, and
/// warnings of places that slow a run down.
#pragma once

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.hpp"
#include "io/origin.hpp"
#include "io/trace.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

io::Launch launch_of(const parallel::World& world);

/// The numbers of a list as Linux writes it: "0-2,8" -> 0, 1, 2, 8. Empty if it is none.
std::set<int> numbers_in(std::string_view list);

/// The cores, sockets and NUMA nodes of this host, and which of them this process may use. Where /proc and /sys say
/// nothing, lists are empty and numbers -1.
class Cores {
 public:
  explicit Cores(std::filesystem::path root = "/");  // above proc/ and sys/

  const std::string& allowed() const { return allowed_; }  // hardware threads that this process may use: "0-3,8-11"
  std::set<int> physical() const;               // their cores, each by the number of its first hardware thread
  std::set<int> sockets() const;                // of these cores
  int numa_node() const;                        // the one that has them all; -1 also if several do
  int socket_of_gpu(std::string bus_id) const;  // "0000:1B:00.0"; -1 also if no socket is nearer than the others

 private:
  std::set<int> sockets_of(const std::set<int>& threads) const;

  std::filesystem::path system_;  // /sys
  std::string allowed_;
};

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

/// How many groups of `shard_ranks` consecutive ranks, which share one copy, span several hosts; `hosts` has one name
/// for each rank.
int groups_across_hosts(std::span<const std::string> hosts, int shard_ranks);

/// A line with that number and a better way to start the ranks; "" if numbering them host by host would not reduce it.
std::string note_on_groups(std::span<const std::string> hosts, int shard_ranks);

/// The same for the ranks of `world`; "" if they form no groups.
std::string note_on_groups(const parallel::World& world, const config::Parallel& parallel);

}  // namespace tessera::jobs
