#include "memory/arena.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "errors.hpp"

namespace tessera::memory {
namespace {

std::optional<std::int64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // absent, or the word "max"
}

std::optional<std::int64_t> mem_available() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::int64_t kib = 0;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace

std::int64_t available_host_bytes() {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  if (const auto system = mem_available()) least = *system;
  // Version 2 of control groups, then version 1; a limit counts what is used already.
  const std::pair<const char*, const char*> groups[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  for (const auto& [limit, usage] : groups) {
    if (const auto bytes = number_in(limit)) least = std::min(least, *bytes - number_in(usage).value_or(0));
  }
  return least;
}

void require_host_memory(const Layout& layout, int ranks_on_host, const std::string& advice) {
  const std::int64_t needed = layout.arena_bytes() * ranks_on_host, available = available_host_bytes();
  if (needed <= available) return;
  throw Failure(Exit::out_of_memory,
                fmt::format("this deck needs {} of memory on this host ({} ranks x {}), and {} are available\n{}{}",
                            readable_bytes(needed), ranks_on_host, readable_bytes(layout.arena_bytes()),
                            readable_bytes(available), layout.table(), advice));
}

}  // namespace tessera::memory
