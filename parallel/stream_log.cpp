#include "parallel/stream_log.hpp"

#include <string>

#include "kernels/core/tensor.hpp"
#include "kernels/cuda/check.hpp"

namespace tessera::parallel {
namespace {

using Entry = FlightRecorder::Entry;
using Lane = FlightRecorder::Lane;
using Memory = kernels::Device::memory_space;

__device__ std::int64_t clock_ns() {
  std::int64_t ns = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void read_clock(std::int64_t* ns) { *static_cast<volatile std::int64_t*>(ns) = clock_ns(); }

__global__ void write_start(Lane* lane, std::uint64_t* number, std::uint64_t name, std::int64_t bytes,
                            std::int64_t ahead_ns) {
  const std::uint64_t n = *number + 1;
  *number = n;
  volatile Entry& entry = lane->ring[n % FlightRecorder::kKept];
  entry.start_ns = clock_ns() + ahead_ns;
  entry.end_ns = 0;
  entry.bytes = bytes;
  entry.name = name;
  __threadfence_system();  // a reader of the number also sees the entry
  *static_cast<volatile std::uint64_t*>(&lane->started) = n;
}

__global__ void write_end(Lane* lane, const std::uint64_t* number, std::int64_t ahead_ns) {
  const std::uint64_t n = *number;
  static_cast<volatile Entry&>(lane->ring[n % FlightRecorder::kKept]).end_ns = clock_ns() + ahead_ns;
  __threadfence_system();
  *static_cast<volatile std::uint64_t*>(&lane->completed) = n;
}

}  // namespace

StreamLog::StreamLog(FlightRecorder& recorder, cudaStream_t stream) : recorder_(recorder), stream_(stream) {
  if (recorder.ranks() == 1) return;
  lane_ = recorder.take_lane();
  if (!lane_) {
    recorder.explain("there are more streams of transfers than lanes");
    return;
  }
  const cudaError_t status = cudaHostRegister(lane_, sizeof *lane_, cudaHostRegisterMapped);
  if (status != cudaSuccess) {
    cudaGetLastError();  // clears it
    recorder.explain(std::string("cudaHostRegister: ") + cudaGetErrorString(status));
    return;
  }
  CUDA_CHECK(cudaHostGetDevicePointer(&mapped_, lane_, 0));
  number_ = static_cast<std::uint64_t*>(Kokkos::kokkos_malloc<Memory>("tessera::parallel::number", sizeof *number_));
  CUDA_CHECK(cudaMemcpy(number_, &lane_->started, sizeof *number_, cudaMemcpyHostToDevice));
  lane_->completed = lane_->started;
  // Loads the kernels: doing so later might wait for transfers that wait for other ranks.
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, write_start));
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, write_end));
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, read_clock));
  // Any entry but the latest serves as a place for the GPU's clock.
  const auto place = (lane_->started + 1) % FlightRecorder::kKept;
  read_clock<<<1, 1, 0, stream>>>(&mapped_->ring[place].start_ns);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaStreamSynchronize(stream));
  ahead_ns_ = FlightRecorder::now_ns() - lane_->ring[place].start_ns;
}

StreamLog::~StreamLog() {
  if (mapped_) {
    cudaStreamSynchronize(stream_);
    cudaHostUnregister(lane_);
  }
  if (number_) Kokkos::kokkos_free<Memory>(number_);
  recorder_.give_back(lane_);
}

void StreamLog::start(std::uint32_t name, std::int64_t bytes) const {
  if (!mapped_) return;
  write_start<<<1, 1, 0, stream_>>>(mapped_, number_, name, bytes, ahead_ns_);
  CUDA_CHECK(cudaGetLastError());
}

void StreamLog::end() const {
  if (!mapped_) return;
  write_end<<<1, 1, 0, stream_>>>(mapped_, number_, ahead_ns_);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::parallel
