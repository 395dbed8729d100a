#include "parallel/watch/stream_log.hpp"

#include <string>
#include <vector>

#include "kernels/core/tensor.hpp"
#include "kernels/cuda/check.hpp"

namespace tessera::parallel {
namespace {

using Entry = FlightRecorder::Entry;
using Lane = FlightRecorder::Lane;
using Memory = kernels::Device::memory_space;
using kernels::cuda::Event;

__device__ std::int64_t clock_ns() {
  std::int64_t ns = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void read_clock(std::int64_t* ns) { *static_cast<volatile std::int64_t*>(ns) = clock_ns(); }

__global__ void write_start(Lane* lane, unsigned long long* starts, std::uint64_t name, std::int64_t bytes,
                            std::int64_t ahead_ns) {
  const std::uint64_t n = atomicAdd(starts, 1ull) + 1;
  volatile Entry& entry = lane->ring[n % FlightRecorder::kKept];
  entry.start_ns = clock_ns() + ahead_ns;
  entry.end_ns = 0;
  entry.bytes = bytes;
  entry.name = name;
  __threadfence_system();  // a reader of the number also sees the entry
  *static_cast<volatile std::uint64_t*>(&lane->started) = n;
}

__global__ void write_end(Lane* lane, unsigned long long* ends, std::int64_t ahead_ns) {
  const std::uint64_t n = atomicAdd(ends, 1ull) + 1;
  static_cast<volatile Entry&>(lane->ring[n % FlightRecorder::kKept]).end_ns = clock_ns() + ahead_ns;
  __threadfence_system();
  *static_cast<volatile std::uint64_t*>(&lane->completed) = n;
}

/// Where a stream is in its capture: what it captures next will depend on `before`. Outside of one `graph` is null.
struct CapturePoint {
  explicit CapturePoint(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t* nodes = nullptr;
    std::size_t count = 0;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData* edges =
        nullptr;  // without them it refuses edges of other kinds; ours wait for all of a node
    CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &number, &graph, &nodes, &edges, &count));
#else
    CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, &number, &graph, &nodes, &count));
#endif
    if (status == cudaStreamCaptureStatusInvalidated) {
      kernels::cuda::check(cudaErrorStreamCaptureInvalidated, "stream log");
    }
    before.assign(nodes, nodes + count);
  }

  unsigned long long number = 0;
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> before;
};

}  // namespace

StreamLog::StreamLog(FlightRecorder& recorder)
    : recorder_(recorder), priority_(kernels::cuda::highest_priority()), own_(priority_) {
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
  const Number counts[2] = {lane_->started, lane_->started};
  lane_->completed = lane_->started;
  counts_ = static_cast<Number*>(Kokkos::kokkos_malloc<Memory>("tessera::parallel::counts", sizeof counts));
  CUDA_CHECK(cudaMemcpy(counts_, counts, sizeof counts, cudaMemcpyHostToDevice));
  // Loads the kernels: doing so later might wait for transfers that wait for other ranks.
  cudaFuncAttributes attributes{};
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, write_start));
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, write_end));
  CUDA_CHECK(cudaFuncGetAttributes(&attributes, read_clock));
  // Any entry but the latest serves as a place for the GPU's clock.
  const auto place = (lane_->started + 1) % FlightRecorder::kKept;
  read_clock<<<1, 1, 0, own_>>>(&mapped_->ring[place].start_ns);
  CUDA_CHECK(cudaGetLastError());
  CUDA_CHECK(cudaStreamSynchronize(own_));
  ahead_ns_ = FlightRecorder::now_ns() - lane_->ring[place].start_ns;
}

StreamLog::~StreamLog() {
  if (mapped_) cudaStreamSynchronize(own_);
  if (counts_) Kokkos::kokkos_free<Memory>(counts_);  // waits for the device, on which a graph may write still
  if (mapped_) cudaHostUnregister(lane_);
  recorder_.give_back(lane_);
}

void StreamLog::start(const Event& begun, cudaStream_t stream, std::uint32_t name, std::int64_t bytes) {
  if (mapped_) enqueue(begun, stream, write_start, mapped_, counts_, name, bytes, ahead_ns_);
}

void StreamLog::end(const Event& ended, cudaStream_t stream) {
  if (mapped_) enqueue(ended, stream, write_end, mapped_, counts_ + 1, ahead_ns_);
}

template <class... Arguments>
void StreamLog::enqueue(const Event& after, cudaStream_t stream, void (*kernel)(Arguments...),
                        std::type_identity_t<Arguments>... arguments) {
  CapturePoint point(stream);
  if (!point.graph) {
    CUDA_CHECK(cudaStreamWaitEvent(own_, after, 0));
    kernel<<<1, 1, 0, own_>>>(arguments...);
    CUDA_CHECK(cudaGetLastError());
    return;
  }
  if (point.number == capture_) point.before.push_back(latest_);
  void* addresses[] = {&arguments...};
  cudaKernelNodeParams node{};
  node.func = reinterpret_cast<void*>(kernel);
  node.gridDim = node.blockDim = dim3(1);
  node.kernelParams = addresses;
  CUDA_CHECK(cudaGraphAddKernelNode(&latest_, point.graph, point.before.data(), point.before.size(), &node));
  capture_ = point.number;
  cudaLaunchAttributeValue value{};
  value.priority = priority_;
  CUDA_CHECK(cudaGraphKernelNodeSetAttribute(latest_, cudaLaunchAttributePriority, &value));
}

}  // namespace tessera::parallel
