/// What becomes of a CUDA call that failed: one exception, for everybody who makes such calls but parallel/device.cpp,
/// whose refusals of a GPU say what to do.
///
/// Its message ends in CUDA's own words, by which exit_of (src/errors.hpp) tells memory that has run out (exit code 4)
/// from the rest (3). Whether the GPU is lost (7) is not a matter of the call that noticed: main asks the GPU
/// (parallel::device_fault).
///
///   CUDA_CHECK(cudaEventRecord(event, stream));     the call is its own name
///   check(status, "step graph: recording");         where words say more than the call
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace tessera::kernels::cuda {

/// Throws std::runtime_error "<what>: <CUDA's words>" unless all went well.
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
