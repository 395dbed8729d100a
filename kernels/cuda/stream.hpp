/// A stream, owned, whose work runs concurrently with that of others.
///
/// Source  CUDA Runtime API, "Stream Management".
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/check.hpp"

namespace tessera::kernels::cuda {

/// The priority of streams whose blocks are scheduled before those of all others.
inline int highest_priority() {
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return highest;
}

/// The priority of streams made without one, Kokkos' included.
inline int lowest_priority() {
  int lowest = 0, highest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return lowest;
}

/// One above the lowest; smaller numbers go first.
inline int raised_priority() { return std::max(lowest_priority() - 1, highest_priority()); }

class Stream {
 public:
  /// On the current device.
  explicit Stream(int priority) { CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace tessera::kernels::cuda
