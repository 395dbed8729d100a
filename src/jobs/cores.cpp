#include "jobs/cores.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>

namespace tessera::jobs {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

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

}  // namespace tessera::jobs
