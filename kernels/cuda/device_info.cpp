#include "kernels/core/device_info.hpp"  // the contract is there; here is how on CUDA

#include <Kokkos_Core.hpp>

#include "kernels/cuda/check.hpp"

namespace tessera::kernels {

template <>
DeviceInfo device_info<Kokkos::Cuda>() {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {properties.name, static_cast<std::int64_t>(total), static_cast<std::int64_t>(free)};
}

}  // namespace tessera::kernels
