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

/// Dense rate of the device's matrix units in TFLOP/s by the vendor's datasheet, with sums in fp32; NaN if unknown.
/// `format` is fp32, tf32, bf16 or fp16. It is the denominator of every MFU that we print.
double dense_peak_tflops(const std::string& device_name, const std::string& format);

}  // namespace tessera::kernels
