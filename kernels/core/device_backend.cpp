// What a device must offer beside Kokkos, where there is only Kokkos (TESSERA_VENDOR=OFF): facts that Kokkos prints.
// Its streams and its clock: kokkos_backend.cpp.
#include <Kokkos_Core.hpp>
#include <impl/Kokkos_DeviceManagement.hpp>  // get_visible_devices

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

#include "kernels/core/device_info.hpp"
#include "kernels/core/side_stream.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

static_assert(!kIsHost<Device>, "hosts have host_backend.cpp");

/// Kokkos::Cuda and Kokkos::HIP print "Kokkos::Cuda[ 0 ] NVIDIA H200 : Selected" and, below, "Total Global Memory:
/// 139.8 GiB". Kokkos does not tell what is free: all, so that a plan that is too large fails at its allocation.
DeviceInfo device_info() {
  std::ostringstream text;
  Device().print_configuration(text);
  const std::string all = text.str();
  DeviceInfo info{Device::name(), INT64_MAX, INT64_MAX};
  const std::size_t selected = all.find(" : Selected");
  if (selected == std::string::npos) return info;
  const std::size_t begin = all.rfind("] ", selected);
  if (begin != std::string::npos) info.name = all.substr(begin + 2, selected - begin - 2);
  constexpr std::string_view kMemory = "Total Global Memory: ";
  const std::size_t memory = all.find(kMemory, selected);
  if (memory == std::string::npos) return info;
  double amount = 0;
  std::string unit;
  std::istringstream(all.substr(memory + kMemory.size(), 32)) >> amount >> unit;
  const int power = unit.starts_with('G') ? 30 : unit.starts_with('M') ? 20 : 10;
  info.total_bytes = info.free_bytes = static_cast<std::int64_t>(std::ldexp(amount, power));
  return info;
}

/// Without a driver Kokkos throws, and num_devices(), which is noexcept, ends the program.
int device_count() try {
  return static_cast<int>(Kokkos::Impl::get_visible_devices().size());
} catch (const std::runtime_error&) {
  return 0;
}

/// Kokkos cannot tell. Its copies take host addresses where they expect a device's: both are in one address space.
bool is_device_memory(const void* data) { return data != nullptr; }

Device make_instance() { return Kokkos::Experimental::partition_space(Device(), 1)[0]; }

}  // namespace tessera::kernels
