/// Clears and copies of arrays on the device, without the type of their elements: Kokkos' code for them is compiled
/// once.
#pragma once

#include <cstddef>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Sets bytes on the device to zero.
/// Async  returns after enqueue on `exec`.
void clear_bytes(const Device& exec, void* array, std::size_t bytes);

/// Copies within the device's memory: on a GPU by a kernel of short blocks if addresses and size are multiples of 16
/// bytes, else by CUDA. Next to kernels of higher priority, the short blocks fill idle SMs; CUDA's copies occupy SMs,
/// too, and for longer.
/// Async  returns after enqueue on `exec`; may be captured in a graph.
/// Limits  the arrays must not overlap.
void copy_bytes(const Device& exec, const void* from, void* to, std::size_t bytes);

/// Copies from pinned host memory, and to it.
/// Async  returns after enqueue on `exec`.
void send_bytes(const Device& exec, const void* from_pinned, void* to, std::size_t bytes);
void fetch_bytes(const Device& exec, const void* from, void* to_pinned, std::size_t bytes);

/// Async  fences.
void upload_bytes(const void* from_host, void* to, std::size_t bytes);
void download_bytes(const void* from, void* to_host, std::size_t bytes);

}  // namespace tessera::kernels
