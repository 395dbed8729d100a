/// The device of an execution space: its name for tables, its memory for deciding whether a case fits.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::kernels {

struct DeviceInfo {
  std::string name;          // "NVIDIA H200", or the processor's
  std::int64_t total_bytes;  // memory of the device; of the host for host spaces
  std::int64_t free_bytes;   // free at the time of the call; on hosts, caches not counted as free
};

/// Asks the device that Kokkos uses, which must be initialised.
/// Throws std::runtime_error with the device's message.
template <class Exec>
DeviceInfo device_info();

/// Whether the host must copy memory at this address.
template <class Exec>
bool is_device_memory(const void* data);

}  // namespace tessera::kernels
