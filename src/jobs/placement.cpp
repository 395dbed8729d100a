#include "jobs/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/core/words.hpp"

namespace tessera::jobs {

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
