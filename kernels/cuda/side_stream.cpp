#include "kernels/core/side_stream.hpp"  // the contract is there; here is how on CUDA: streams and events

#include <Kokkos_Core.hpp>

#include <vector>

#include "kernels/cuda/event.hpp"
#include "kernels/cuda/stream.hpp"

namespace tessera::kernels {
namespace {

struct OrderEvent : cuda::Event {
  OrderEvent() : cuda::Event(cudaEventDisableTiming) {}
};

}  // namespace

template <>
struct SideStream<Kokkos::Cuda>::Stream {
  explicit Stream(StreamPriority priority)
      : stream(priority == StreamPriority::raised ? cuda::raised_priority() : cuda::lowest_priority()), exec(stream) {}
  cuda::Stream stream;
  Kokkos::Cuda exec;
};
template <>
SideStream<Kokkos::Cuda>::SideStream(StreamPriority priority) : stream_(std::make_unique<Stream>(priority)) {}
template <>
SideStream<Kokkos::Cuda>::~SideStream() = default;
template <>
const Kokkos::Cuda& SideStream<Kokkos::Cuda>::instance() const {
  return stream_->exec;
}

template <>
struct StreamOrder<Kokkos::Cuda>::Points {
  explicit Points(int count) : events(count) {}
  std::vector<OrderEvent> events;
};
template <>
StreamOrder<Kokkos::Cuda>::StreamOrder(int points) : points_(std::make_unique<Points>(points)) {}
template <>
StreamOrder<Kokkos::Cuda>::~StreamOrder() = default;
template <>
void StreamOrder<Kokkos::Cuda>::record(const Kokkos::Cuda& exec, int point) {
  CUDA_CHECK(cudaEventRecord(points_->events.at(point), exec.cuda_stream()));
}
template <>
void StreamOrder<Kokkos::Cuda>::wait(const Kokkos::Cuda& exec, int point) const {
  CUDA_CHECK(cudaStreamWaitEvent(exec.cuda_stream(), points_->events.at(point), 0));
}

template class SideStream<Kokkos::Cuda>;
template class StreamOrder<Kokkos::Cuda>;

}  // namespace tessera::kernels
