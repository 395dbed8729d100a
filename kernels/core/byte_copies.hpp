/// Clears and copies of arrays on the device, without the type of their elements: Kokkos' code for them is compiled once.
#pragma once

#include <cstddef>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Sets bytes on the device to zero.
/// Async  returns after enqueue on `exec`.
void clear_bytes(const Device& exec, void* array, std::size_t bytes);

/// Async  fences.
void upload_bytes(const void* from_host, void* to, std::size_t bytes);
void download_bytes(const void* from, void* to_host, std::size_t bytes);

}  // namespace tessera::kernels
