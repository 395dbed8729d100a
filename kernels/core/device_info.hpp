/// What an execution space runs on, for tables and for the decision whether a case fits.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::kernels {

struct DeviceInfo {
  std::string name;          // "NVIDIA H200", or the processor's
  std::int64_t total_bytes;  // memory of the device; of the host for host spaces
  std::int64_t free_bytes;   // not taken by anyone at the moment of the call; on hosts without what is cache
};

/// Asks the device that Kokkos works on. Kokkos must be initialised; throws std::runtime_error in the device's words.
template <class Exec>
DeviceInfo device_info();

/// Dense floating-point rate of the device's matrix units in TFLOP/s by the vendor's datasheet, for sums in fp32;
/// NaN where none is known. `format` is fp32, tf32, bf16 or fp16. It is the denominator of every MFU that we print.
double dense_peak_tflops(const std::string& device_name, const std::string& format);

}  // namespace tessera::kernels
