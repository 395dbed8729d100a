#include "kernels/core/device_info.hpp"

#include <unistd.h>

#include <Kokkos_Core.hpp>

#include <cmath>
#include <fstream>
#include <string_view>

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

struct Peak {
  std::string_view device;  // part of its name
  double tf32, bf16, fp16;  // [TFLOP/s] dense
};
constexpr Peak kPeaks[] = {
    {"H100 PCIe", 378, 756, 756}, {"H100", 494.5, 989, 989}, {"H200", 494.5, 989, 989}, {"A100", 156, 312, 312}};

}  // namespace

template <>
DeviceInfo device_info<Kokkos::DefaultHostExecutionSpace>() {
  const std::string model = proc_value("/proc/cpuinfo", "model name");
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  return {model.empty() ? "unknown processor" : model, page * sysconf(_SC_PHYS_PAGES),
          page * sysconf(_SC_AVPHYS_PAGES)};
}

double dense_peak_tflops(const std::string& device_name, const std::string& format) {
  for (const Peak& peak : kPeaks) {
    if (device_name.find(peak.device) == std::string::npos) continue;
    if (format == "bf16") return peak.bf16;
    if (format == "fp16") return peak.fp16;
    if (format == "tf32") return peak.tf32;
  }
  return std::nan("");
}

}  // namespace tessera::kernels
