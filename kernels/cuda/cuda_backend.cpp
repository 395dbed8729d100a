// What a device must offer beside Kokkos, on CUDA: its facts, its streams and its clock.

#include <Kokkos_Core.hpp>

#include <stdexcept>
#include <vector>

#include "kernels/core/device_info.hpp"
#include "kernels/core/side_stream.hpp"
#include "kernels/core/stream_timer.hpp"
#include "kernels/cuda/event.hpp"
#include "kernels/cuda/stream.hpp"

namespace tessera::kernels {

template <>
DeviceInfo device_info<Kokkos::Cuda>() {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {properties.name, static_cast<std::int64_t>(total), static_cast<std::int64_t>(free)};
}

template <>
bool is_device_memory<Kokkos::Cuda>(const void* data) {
  cudaPointerAttributes attributes{};
  if (data == nullptr || cudaPointerGetAttributes(&attributes, data) != cudaSuccess) return false;
  return attributes.type == cudaMemoryTypeDevice;
}

// --- side_stream.hpp: streams and events ---------------------------------------------------------------------------

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
  struct Point : cuda::Event {
    Point() : cuda::Event(cudaEventDisableTiming) {}
  };
  explicit Points(int count) : events(count) {}
  std::vector<Point> events;
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

// --- stream_timer.hpp: events of the stream ------------------------------------------------------------------------

template <>
struct StreamTimer<Kokkos::Cuda>::Marks {
  struct Mark {
    cuda::Event event;
    bool was_made = false;
  };
  explicit Marks(int count) : list(count) {}
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
  Marks::Mark& mark = marks_->list.at(index);
  mark.event.stamp(exec.cuda_stream());
  mark.was_made = true;
}

template <>
bool StreamTimer<Kokkos::Cuda>::has_passed(int index) const {
  const Marks::Mark& mark = marks_->list.at(index);
  return mark.was_made && mark.event.has_happened();
}

template <>
double StreamTimer<Kokkos::Cuda>::seconds(int from, int to) const {
  const Marks::Mark &first = marks_->list.at(from), &last = marks_->list.at(to);
  if (!first.was_made || !last.was_made) throw std::logic_error("stream timer: a mark that was never made");
  CUDA_CHECK(cudaEventSynchronize(first.event));
  CUDA_CHECK(cudaEventSynchronize(last.event));
  return 1e-3 * static_cast<double>(last.event.milliseconds_since(first.event));
}

template class StreamTimer<Kokkos::Cuda>;

}  // namespace tessera::kernels
