#include "parallel/device_memory.hpp"

#include <Kokkos_Macros.hpp>

#ifdef KOKKOS_ENABLE_CUDA
  #include <cuda_runtime.h>
#endif

namespace tessera::parallel {

#ifdef KOKKOS_ENABLE_CUDA
bool is_device_memory(const void* data) {
  cudaPointerAttributes attributes{};
  if (data == nullptr || cudaPointerGetAttributes(&attributes, data) != cudaSuccess) return false;
  return attributes.type == cudaMemoryTypeDevice;
}
#else
bool is_device_memory(const void*) { return false; }
#endif

}  // namespace tessera::parallel
