#include "jobs/cores.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <utility>

namespace tessera::jobs {
namespace {

namespace fs = std::filesystem;

/// What follows "Cpus_allowed_list:" in what Linux says of this process; "" elsewhere.
std::string allowed_cores() {
  constexpr std::string_view kKey = "Cpus_allowed_list:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(kKey)) continue;
    const std::size_t first = line.find_first_not_of(" \t", kKey.size());
    return first == std::string::npos ? "" : line.substr(first);
  }
  return "";
}

/// The NUMA nodes of this host and their cores; none where Linux does not say.
std::vector<std::pair<int, std::string>> numa_nodes() {
  std::vector<std::pair<int, std::string>> nodes;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename();
    int number = 0;
    if (!name.starts_with("node")) continue;
    const auto [end, fault] = std::from_chars(name.data() + 4, name.data() + name.size(), number);
    if (fault != std::errc() || end != name.data() + name.size()) continue;
    std::string cores;
    std::getline(std::ifstream(entry.path() / "cpulist"), cores);
    nodes.emplace_back(number, cores);
  }
  return nodes;
}

}  // namespace

std::vector<int> cores_in(std::string_view list) {
  std::vector<int> cores;
  const char *at = list.data(), *const end = at + list.size();
  while (at < end) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) return {};
    int last = first;
    if (read.ptr < end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
      if (read.ec != std::errc()) return {};
    }
    for (int core = first; core <= last; ++core) cores.push_back(core);
    if (read.ptr < end && *read.ptr != ',') return {};
    at = read.ptr + 1;
  }
  return cores;
}

int node_of(std::string_view list, const std::vector<std::pair<int, std::string>>& nodes) {
  const std::vector<int> mine = cores_in(list);
  if (mine.empty()) return -1;
  for (const auto& [number, text] : nodes) {
    std::vector<int> cores = cores_in(text);
    std::sort(cores.begin(), cores.end());
    if (std::all_of(mine.begin(), mine.end(),
                    [&](int core) { return std::binary_search(cores.begin(), cores.end(), core); })) {
      return number;
    }
  }
  return -1;
}

std::vector<io::RankPlace> rank_places(const parallel::World& world) {
  const std::string list = allowed_cores();
  const std::vector<std::string> cores = world.all_gather(list),
                                 nodes = world.all_gather(std::to_string(node_of(list, numa_nodes())));
  std::vector<io::RankPlace> ranks;
  for (const parallel::Place& place : world.places()) {
    ranks.push_back(
        {place.host, place.local_rank, place.gpu, place.uuid, std::stoi(nodes[place.rank]), cores[place.rank]});
  }
  return ranks;
}

}  // namespace tessera::jobs
