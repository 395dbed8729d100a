/// Turns a failed CUDA call into an exception, everywhere but in parallel/device.cpp, whose messages say what to do.
///
/// The message ends in CUDA's own, by which exit_of (src/errors.hpp) distinguishes memory that has run out (exit code
/// 4) from the rest (3). Whether the GPU is lost (7) does not depend on the call that noticed: main asks the GPU
/// (parallel::device_fault).
///
///   CUDA_CHECK(cudaEventRecord(event, stream));     the message names the call
///   check(status, "step graph: recording");         where words say more than the call
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace tessera::kernels::cuda {

/// Throws std::runtime_error "<what>: <CUDA's message>" unless the call succeeded.
inline void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// The same for calls of the driver.
inline void check(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  const char* words = nullptr;
  if (cuGetErrorString(status, &words) != CUDA_SUCCESS) words = "an error that the driver has no words for";
  throw std::runtime_error(std::string(what) + ": " + words);
}

}  // namespace tessera::kernels::cuda

#define CUDA_CHECK(call) ::tessera::kernels::cuda::check(call, #call)
