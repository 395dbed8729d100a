/// The transfers of a stream, recorded by the stream itself, in each launch and in each replay of a graph.
///
/// Single-thread kernels before and after a transfer write into a lane of the flight recorder
/// (parallel/flight_recorder.hpp), whose memory CUDA pins and maps and the other ranks of the host read. The number of
/// the latest transfer lies in the device's memory, so that the kernels read nothing across the bus.
///
/// Cost    two kernels on the stream for each transfer, which write seven numbers across the bus; none on the host in a
///         replay.
/// Async   start() and end() enqueue, and may be captured.
/// Source  CUDA C++ Programming Guide, "Memory Fence Functions"; CUDA Runtime API, cudaHostRegister; PTX ISA,
///         %globaltimer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "parallel/flight_recorder.hpp"

namespace tessera::parallel {

class StreamLog {
 public:
  /// The stream's transfers must run one after the other. Waits for the stream, to compare the clocks. Records nothing
  /// if the recorder is that of a single rank, has no free lane or has memory that CUDA cannot map; the recorder's
  /// report mentions the latter two.
  StreamLog(FlightRecorder& recorder, cudaStream_t stream);
  ~StreamLog();
  StreamLog(const StreamLog&) = delete;
  StreamLog& operator=(const StreamLog&) = delete;

  FlightRecorder& recorder() const { return recorder_; }

  void start(std::uint32_t name, std::int64_t bytes) const;
  void end() const;

 private:
  FlightRecorder& recorder_;
  cudaStream_t stream_;
  FlightRecorder::Lane* lane_ = nullptr;    // the host's address
  FlightRecorder::Lane* mapped_ = nullptr;  // the GPU's; null: nothing is recorded
  std::uint64_t* number_ = nullptr;         // of the latest transfer, on the device
  std::int64_t ahead_ns_ = 0;               // host's clock minus GPU's
};

}  // namespace tessera::parallel
