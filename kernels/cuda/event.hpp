/// An event in a stream, owned: it orders streams and times what ran in them.
///
/// Source  CUDA Runtime API, "Event Management".
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.hpp"

namespace tessera::kernels::cuda {

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault) { CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

  /// Records when `stream` gets there, for timing. Under capture this makes a node, which every replay records again: a
  /// plain record there is only a dependency, and outside of a capture the flag is refused. Returns whether it is under
  /// capture: then no stream may wait for it in the same capture.
  bool stamp(cudaStream_t stream) const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    const bool is_captured = status == cudaStreamCaptureStatusActive;
    CUDA_CHECK(
        cudaEventRecordWithFlags(event_, stream, is_captured ? cudaEventRecordExternal : cudaEventRecordDefault));
    return is_captured;
  }

  /// Whether the latest record has been reached; true if there was none. Never waits.
  bool has_happened() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) return false;
    check(status, "cudaEventQuery");
    return true;
  }

  /// Both events must have been reached.
  float milliseconds_since(const Event& earlier) const {
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.event_, event_));
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tessera::kernels::cuda
