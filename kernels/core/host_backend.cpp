// What a device must offer beside Kokkos, on hosts: its facts. Its streams and its clock: kokkos_backend.cpp.

#include <unistd.h>

#include <fstream>
#include <string_view>

#include "kernels/core/device_info.hpp"
#include "kernels/core/side_stream.hpp"

namespace tessera::kernels {
namespace {

/// What follows the colon in the first line of a /proc file that begins with `key`.
std::string proc_value(const char* file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!std::string_view(line).starts_with(key)) continue;
    const std::size_t start = line.find_first_not_of(" \t", line.find(':') + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

}  // namespace

DeviceInfo device_info() {
  const std::string model = proc_value("/proc/cpuinfo", "model name");
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  return {model.empty() ? "unknown processor" : model, page * sysconf(_SC_PHYS_PAGES),
          page * sysconf(_SC_AVPHYS_PAGES)};
}

int device_count() { return 0; }

bool is_device_memory(const void*) { return false; }

Device make_instance() { return {}; }

}  // namespace tessera::kernels
