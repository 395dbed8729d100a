/// The transfers of a communicator, recorded by the GPU itself, in each launch and in each replay of a graph.
///
/// Single-thread kernels in the log's own stream, which waits for the transfers' events, write into a lane of the
/// flight recorder (watch/flight_recorder.hpp), whose memory CUDA pins and maps. In a capture they become nodes that no
/// captured work depends on, so neither the transfer nor later work waits for them.
///
/// Order   a transfer's start is written when the transfer may start and its predecessors have ended, even if it never
///         ends; then its end; then the next one's start. If a graph is launched right behind a transfer outside it,
///         that transfer's last line may come after the graph's first, and their numbers be exchanged.
/// Cost    two kernels for each transfer; on the host two waits for events and two launches, none in a replay.
/// Async   start() and end() enqueue, and may be captured. The end is written before that of its replay. A
///         replay must have ended before the log is destroyed.
/// Source  CUDA C++ Programming Guide, "Memory Fence Functions"; CUDA Runtime API, cudaHostRegister and
///         cudaStreamGetCaptureInfo; PTX ISA, %globaltimer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/event.hpp"
#include "kernels/cuda/stream.hpp"
#include "parallel/watch/flight_recorder.hpp"

namespace tessera::parallel {

class StreamLog {
 public:
  /// For transfers on the current device. Waits for the device, to compare the clocks. Records nothing if the recorder
  /// has a single rank, no free lane, or memory that CUDA cannot map; its report mentions the latter two.
  explicit StreamLog(FlightRecorder& recorder);
  ~StreamLog();
  StreamLog(const StreamLog&) = delete;
  StreamLog& operator=(const StreamLog&) = delete;

  FlightRecorder& recorder() const { return recorder_; }

  // Before and after the transfer; the event was stamped on its stream just before.
  void start(const kernels::cuda::Event& begun, cudaStream_t stream, std::uint32_t name, std::int64_t bytes);
  void end(const kernels::cuda::Event& ended, cudaStream_t stream);

 private:
  using Lane = FlightRecorder::Lane;
  using Number = unsigned long long;  // as CUDA counts

  template <class... Arguments>
  void enqueue(const kernels::cuda::Event& after, cudaStream_t stream, void (*kernel)(Arguments...),
               std::type_identity_t<Arguments>... arguments);

  FlightRecorder& recorder_;
  int priority_;
  kernels::cuda::Stream own_;
  Lane* lane_ = nullptr;              // the host's address
  Lane* mapped_ = nullptr;            // the GPU's; null: nothing is recorded
  Number* counts_ = nullptr;          // [2] of starts and of ends, on the device
  std::int64_t ahead_ns_ = 0;         // host's clock minus GPU's
  Number capture_ = 0;                // CUDA's number of the latest capture, and
  cudaGraphNode_t latest_ = nullptr;  // the log's latest node in it
};

}  // namespace tessera::parallel
