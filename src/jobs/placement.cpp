#include "jobs/placement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/core/words.hpp"
#include "parallel/device.hpp"

namespace tessera::jobs {

namespace fs = std::filesystem;

namespace {

std::string first_line(const fs::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

/// What follows "Cpus_allowed_list:" in a process's status.
std::string allowed_in(const fs::path& status) {
  constexpr std::string_view kKey = "Cpus_allowed_list:";
  std::ifstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find_first_not_of(" \t", std::min(kKey.size(), line.size()));
    if (line.starts_with(kKey) && first != std::string::npos) return line.substr(first);
  }
  return "";
}

fs::path topology_of(const fs::path& system, int thread) {
  return system / ("devices/system/cpu/cpu" + std::to_string(thread)) / "topology";
}

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

io::Launch launch_of(const parallel::World& world) {
  const std::vector<parallel::Host> hosts = parallel::hosts_of(world.places());
  const auto most = std::max_element(hosts.begin(), hosts.end(), [](auto& a, auto& b) { return a.ranks < b.ranks; });
  io::Launch launch{.hosts = world.hosts(),
                    .devices = world.devices(),
                    .ranks = world.size(),
                    .host_count = std::ssize(hosts),
                    .ranks_per_host = most->ranks,
                    .gpu_count = world.device_count()};
  for (const parallel::Place& place : world.places()) {
    if (place.gpu.empty()) continue;
    const auto known = std::find(launch.gpu_models.begin(), launch.gpu_models.end(), place.gpu);
    if (known == launch.gpu_models.end()) {
      launch.gpu_models.push_back(place.gpu);
      launch.ranks_of_gpu_models.push_back(1);
    } else {
      ++launch.ranks_of_gpu_models[known - launch.gpu_models.begin()];
    }
  }
  return launch;
}

std::set<int> numbers_in(std::string_view list) {
  std::set<int> numbers;
  const char *at = list.data(), *const end = at + list.size();
  while (at < end) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc() || first < 0) return {};
    int last = first;
    if (read.ptr < end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || (read.ptr < end && *read.ptr != ',')) return {};
    for (int number = first; number <= last; ++number) numbers.insert(number);
    at = read.ptr + 1;
  }
  return numbers;
}

Cores::Cores(fs::path root) : system_(root / "sys"), allowed_(allowed_in(root / "proc/self/status")) {}

std::set<int> Cores::physical() const {
  std::set<int> cores;
  for (const int thread : numbers_in(allowed_)) {
    const std::set<int> siblings = numbers_in(first_line(topology_of(system_, thread) / "thread_siblings_list"));
    cores.insert(siblings.empty() ? thread : *siblings.begin());
  }
  return cores;
}

std::set<int> Cores::sockets() const { return sockets_of(numbers_in(allowed_)); }

std::set<int> Cores::sockets_of(const std::set<int>& threads) const {
  std::set<int> sockets;
  for (const int thread : threads) {
    sockets.merge(numbers_in(first_line(topology_of(system_, thread) / "physical_package_id")));
  }
  return sockets;
}

int Cores::numa_node() const {
  const std::set<int> mine = numbers_in(allowed_);
  if (mine.empty()) return -1;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(system_ / "devices/system/node", error)) {
    const std::string name = entry.path().filename();
    const std::set<int> number = numbers_in(std::string_view(name).substr(std::min<std::size_t>(4, name.size())));
    if (!name.starts_with("node") || number.size() != 1) continue;
    const std::set<int> cores = numbers_in(first_line(entry.path() / "cpulist"));
    if (std::includes(cores.begin(), cores.end(), mine.begin(), mine.end())) return *number.begin();
  }
  return -1;
}

int Cores::socket_of_gpu(std::string bus_id) const {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::set<int> near = sockets_of(numbers_in(first_line(system_ / "bus/pci/devices" / bus_id / "local_cpulist")));
  return near.size() == 1 ? *near.begin() : -1;
}

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
    RankPlace rank{{place.host, place.local_rank, place.gpu, place.bus_id, place.uuid, -1, allowed, place.check_s},
                   numbers_in(physical),
                   numbers_in(sockets)};
    if (place.gbyte_per_s > 0) rank.memory_rate = 1e9 * place.gbyte_per_s;
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

int groups_across_hosts(std::span<const std::string> hosts, int shard_ranks) {
  int count = 0;
  for (std::size_t first = 0; first < hosts.size(); first += shard_ranks) {
    const auto group = hosts.subspan(first, std::min<std::size_t>(shard_ranks, hosts.size() - first));
    count += std::any_of(group.begin(), group.end(), [&](const std::string& host) { return host != group[0]; });
  }
  return count;
}

std::string note_on_groups(std::span<const std::string> hosts, int shard_ranks) {
  std::map<std::string, int> order;  // of hosts, by their first ranks
  for (const std::string& host : hosts) order.try_emplace(host, static_cast<int>(order.size()));
  std::vector<std::string> in_blocks(hosts.begin(), hosts.end());
  std::sort(in_blocks.begin(), in_blocks.end(), [&](auto& a, auto& b) { return order.at(a) < order.at(b); });
  const int found = groups_across_hosts(hosts, shard_ranks), least = groups_across_hosts(in_blocks, shard_ranks);
  if (found <= least) return "";
  return fmt::format(
      "note       {} of {} of {} consecutive ranks (parallel.shard_ranks) lie on several hosts each; {} if the ranks "
      "are numbered host by host (srun --distribution=block, mpirun --map-by slot)\n",
      found, counted(std::ssize(hosts) / shard_ranks, "group"), shard_ranks,
      least == 0 ? "none" : std::to_string(least));
}

std::string note_on_groups(const parallel::World& world, const config::Parallel& parallel) {
  if (parallel.shard_ranks <= 1 || parallel.shard_ranks >= world.size()) return "";
  std::vector<std::string> hosts;
  for (const parallel::Place& place : world.places()) hosts.push_back(place.host);
  return note_on_groups(hosts, static_cast<int>(parallel.shard_ranks));
}

}  // namespace tessera::jobs
