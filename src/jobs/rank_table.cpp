#include "jobs/rank_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "io/rank_steps.hpp"  // kMostRanks
#include "kernels/core/words.hpp"
#include "parallel/device.hpp"

namespace tessera::jobs {
namespace {

using Numbers = std::vector<std::size_t>;  // of ranks

std::map<std::string, Numbers> ranks_by_host(std::span<const RankPlace> ranks) {
  std::map<std::string, Numbers> hosts;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) hosts[ranks[rank].host].push_back(rank);
  return hosts;
}

std::string words(const Numbers& ranks) {
  constexpr std::size_t kNamed = 8;
  const std::span<const std::size_t> named(ranks.data(), std::min(ranks.size(), kNamed));
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(named, ", "),
                     ranks.size() > kNamed ? ", ..." : "");
}

/// A warning with the first of several findings; "" if there is none.
std::string warning(const std::vector<std::string>& findings, const std::string& fix) {
  if (findings.empty()) return "";
  const std::string more = findings.size() == 1 ? "" : fmt::format(" (and {} more like it)", findings.size() - 1);
  return fmt::format("warning    {}{}: {}\n", findings[0], more, fix);
}

std::string warning_of_shared_cores(std::span<const RankPlace> ranks) {
  std::vector<std::string> findings;
  for (const auto& [host, here] : ranks_by_host(ranks)) {
    std::set<std::set<int>> bindings;
    for (const std::size_t rank : here) bindings.insert(ranks[rank].physical_cores);
    for (const std::set<int>& cores : bindings) {
      Numbers inside;  // ranks that have no core outside of these
      for (const std::size_t rank : here) {
        const std::set<int>& own = ranks[rank].physical_cores;
        if (std::includes(cores.begin(), cores.end(), own.begin(), own.end()) && !own.empty()) inside.push_back(rank);
      }
      if (inside.size() <= cores.size()) continue;
      findings.push_back(fmt::format("{} on {} share {}", words(inside), host, counted(std::ssize(cores), "core")));
      break;  // a larger set may hold this one
    }
  }
  return warning(findings,
                 "start no more ranks than cores, or bind each to its own (srun --cpu-bind=cores, mpirun "
                 "--bind-to core)");
}

std::string warning_of_far_gpus(std::span<const RankPlace> ranks) {
  std::vector<std::string> findings;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankPlace& place = ranks[rank];
    if (place.gpu_socket < 0 || place.sockets.empty() || place.sockets.contains(place.gpu_socket)) continue;
    findings.push_back(fmt::format("rank {} on {} runs on socket {}, its GPU is at socket {}", rank, place.host,
                                   fmt::join(place.sockets, ", "), place.gpu_socket));
  }
  return warning(findings,
                 "bind ranks near their GPUs (srun --gpu-bind=closest, mpirun --map-by ppr:N:socket with N "
                 "GPUs at a socket)");
}

std::string warning_of_idle_gpus(std::span<const RankPlace> ranks) {
  std::vector<std::string> findings;
  bool uses_gpus = false;
  for (const auto& [host, here] : ranks_by_host(ranks)) {
    std::set<std::string> used;
    int gpus = 0;
    for (const std::size_t rank : here) {
      gpus = std::max(gpus, ranks[rank].host_gpus);
      if (!ranks[rank].gpu.empty()) used.insert(ranks[rank].bus_id);
    }
    uses_gpus = uses_gpus || !used.empty();
    if (std::ssize(used) >= gpus) continue;
    findings.push_back(fmt::format("{} has {}, of which its {} use {}", host, counted(gpus, "GPU"),
                                   counted(std::ssize(here), "rank"),
                                   used.empty() ? "none" : fmt::to_string(used.size())));
  }
  return warning(findings, uses_gpus ? "start one rank per GPU (sbatch --ntasks-per-node, scripts/run -n), or ask for "
                                       "fewer GPUs"
                                     : "this build computes on CPUs; scripts/build cuda makes one for GPUs");
}

}  // namespace

std::vector<RankPlace> rank_places(const parallel::World& world, const Cores& cores, int host_gpus) {
  const int socket_of_gpu = cores.socket_of_gpu(world.places()[world.rank()].bus_id);
  const std::vector<std::string> all =
      world.all_gather(fmt::format("{}\n{}\n{}\n{}\n{}\n{}", cores.allowed(), fmt::join(cores.physical(), ","),
                                   fmt::join(cores.sockets(), ","), cores.numa_node(), socket_of_gpu, host_gpus));
  std::vector<RankPlace> ranks;
  for (const parallel::Place& place : world.places()) {
    std::istringstream lines(all[place.rank]);
    std::string allowed, physical, sockets;
    std::getline(std::getline(std::getline(lines, allowed), physical), sockets);
    RankPlace rank{{place.host, place.local_rank, place.gpu, place.bus_id, place.uuid, -1, allowed},
                   numbers_in(physical),
                   numbers_in(sockets)};
    lines >> rank.numa_node >> rank.gpu_socket >> rank.host_gpus;
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

int host_gpus(const parallel::World& world) {
  if (const char* const slurms = std::getenv("SLURM_GPUS_ON_NODE")) return std::atoi(slurms);
  return world.size() > 1 ? parallel::visible_devices() : 0;
}

std::string rank_table(std::span<const RankPlace> ranks) {
  const std::span<const RankPlace> shown = ranks.first(std::min(ranks.size(), io::kMostRanks));
  std::size_t width = 4;
  for (const RankPlace& place : shown) width = std::max(width, place.host.size());
  std::string text = fmt::format("{:<10} {:<{}}  local rank  NUMA node  runs on\n", "rank", "host", width);
  for (std::size_t rank = 0; rank < shown.size(); ++rank) {
    const RankPlace& place = shown[rank];
    const std::string cores = place.cores.empty() ? "unknown cores" : "cores " + place.cores;
    text += fmt::format("{:<10} {:<{}}  {:>10}  {:>9}  {}\n", rank, place.host, width, place.local_rank,
                        place.numa_node < 0 ? "-" : fmt::to_string(place.numa_node),
                        place.gpu.empty() ? cores : place.gpu + " at " + place.bus_id);
  }
  if (shown.size() < ranks.size()) {
    text += fmt::format("...        {} more: /ranks of run.h5\n", ranks.size() - shown.size());
  }
  return text;
}

std::string warnings_of(std::span<const RankPlace> ranks) {
  return warning_of_shared_cores(ranks) + warning_of_far_gpus(ranks) + warning_of_idle_gpus(ranks);
}

}  // namespace tessera::jobs
