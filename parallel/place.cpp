#include "parallel/place.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "kernels/core/words.hpp"

namespace tessera::parallel {

std::vector<Host> hosts_of(std::span<const Place> places) {
  std::map<std::string, int> ranks;
  for (const Place& place : places) ++ranks[place.host];
  std::vector<Host> hosts;
  for (const auto& [name, count] : ranks) hosts.push_back({name, count});
  return hosts;
}

std::string device_name(const Place& place) { return fmt::format("{}: {} at {}", place.host, place.gpu, place.bus_id); }

int count_devices(std::span<const Place> places) {
  std::set<std::string> names;
  for (const Place& place : places) {
    if (!place.gpu.empty()) names.insert(device_name(place));
  }
  return static_cast<int>(names.size());
}

int count_ranks_on_device(std::span<const Place> places, const Place& place) {
  if (place.gpu.empty()) return 1;
  return static_cast<int>(std::count_if(places.begin(), places.end(),
                                        [&](const Place& other) { return device_name(other) == device_name(place); }));
}

std::string hosts_text(std::span<const Place> places) {
  std::vector<std::string> texts;
  for (const Host& host : hosts_of(places)) texts.push_back(host.name + ": " + counted(host.ranks, "rank"));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string devices_text(std::span<const Place> places) {
  std::vector<std::string> texts;
  for (const Place& place : places) {
    if (!place.gpu.empty()) texts.push_back(fmt::format("rank {} on {}", place.rank, device_name(place)));
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

}  // namespace tessera::parallel
