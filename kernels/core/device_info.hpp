/// The device that kernels run on: its name for tables, its memory for deciding whether a case fits.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::kernels {

struct DeviceInfo {
  std::string name;          // "NVIDIA H200", or the processor's
  std::int64_t total_bytes;  // memory of the device; of the host for host spaces
  std::int64_t free_bytes;   // free at the time of the call, caches of hosts not counted; all if only Kokkos knows
};

/// Asks the device that Kokkos uses, which must be initialised.
/// Throws std::runtime_error with the device's message.
DeviceInfo device_info();

/// GPUs that Kokkos sees; 0 for host spaces. Of builds without the vendor's parts (parallel/device.cpp).
int device_count();

/// Whether the host must copy memory at this address; what only Kokkos knows, it copies.
bool is_device_memory(const void* data);

}  // namespace tessera::kernels
