#include "kernels/core/stream_timer.hpp"  // the contract is there; here is how on CUDA: events of the stream

#include <cuda_runtime.h>

#include <Kokkos_Core.hpp>

#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::kernels {
namespace {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("stream timer: ") + call + ": " + cudaGetErrorString(status));
}

struct Mark {
  cudaEvent_t event = nullptr;
  bool was_made = false;
};

}  // namespace

template <>
struct StreamTimer<Kokkos::Cuda>::Marks {
  explicit Marks(int count) : list(count) {
    for (Mark& mark : list) check(cudaEventCreate(&mark.event), "cudaEventCreate");
  }
  ~Marks() {
    for (const Mark& mark : list) {
      if (mark.event) cudaEventDestroy(mark.event);
    }
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  std::vector<Mark> list;
};

template <>
StreamTimer<Kokkos::Cuda>::StreamTimer(int marks) : marks_(std::make_unique<Marks>(marks)) {}
template <>
StreamTimer<Kokkos::Cuda>::~StreamTimer() = default;
template <>
StreamTimer<Kokkos::Cuda>::StreamTimer(StreamTimer&&) noexcept = default;
template <>
StreamTimer<Kokkos::Cuda>& StreamTimer<Kokkos::Cuda>::operator=(StreamTimer&&) noexcept = default;

template <>
void StreamTimer<Kokkos::Cuda>::mark(const Kokkos::Cuda& exec, int index) {
  Mark& mark = marks_->list.at(index);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(exec.cuda_stream(), &status), "cudaStreamIsCapturing");
  // A plain record under capture is a mere dependency, whose event can never be read; an external one is a node. The
  // flag is refused outside of a capture.
  const bool is_captured = status == cudaStreamCaptureStatusActive;
  check(cudaEventRecordWithFlags(mark.event, exec.cuda_stream(),
                                 is_captured ? cudaEventRecordExternal : cudaEventRecordDefault),
        "cudaEventRecord");
  mark.was_made = true;
}

template <>
bool StreamTimer<Kokkos::Cuda>::has_passed(int index) const {
  const Mark& mark = marks_->list.at(index);
  if (!mark.was_made) return false;
  const cudaError_t status = cudaEventQuery(mark.event);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery");
  return true;
}

template <>
double StreamTimer<Kokkos::Cuda>::seconds(int from, int to) const {
  const Mark &first = marks_->list.at(from), &last = marks_->list.at(to);
  if (!first.was_made || !last.was_made) throw std::logic_error("stream timer: a mark that was never made");
  check(cudaEventSynchronize(first.event), "cudaEventSynchronize");
  check(cudaEventSynchronize(last.event), "cudaEventSynchronize");
  float elapsed_ms = 0;
  check(cudaEventElapsedTime(&elapsed_ms, first.event, last.event), "cudaEventElapsedTime");
  return 1e-3 * static_cast<double>(elapsed_ms);
}

template class StreamTimer<Kokkos::Cuda>;

}  // namespace tessera::kernels
