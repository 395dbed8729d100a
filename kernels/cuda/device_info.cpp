#include "kernels/core/device_info.hpp"  // the contract is there; here is how on CUDA

#include <cuda_runtime.h>

#include <Kokkos_Core.hpp>

#include <stdexcept>

namespace tessera::kernels {
namespace {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("device: ") + call + ": " + cudaGetErrorString(status));
}

}  // namespace

template <>
DeviceInfo device_info<Kokkos::Cuda>() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {properties.name, static_cast<std::int64_t>(total), static_cast<std::int64_t>(free)};
}

}  // namespace tessera::kernels
