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

DeviceInfo device_info() {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  std::size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {properties.name, static_cast<std::int64_t>(total), static_cast<std::int64_t>(free)};
}

bool is_device_memory(const void* data) {
  cudaPointerAttributes attributes{};
  if (data == nullptr || cudaPointerGetAttributes(&attributes, data) != cudaSuccess) return false;
  return attributes.type == cudaMemoryTypeDevice;
}

// --- side_stream.hpp: streams and events ---------------------------------------------------------------------------

struct SideStream::Stream {
  explicit Stream(StreamPriority priority)
      : stream(priority == StreamPriority::raised ? cuda::raised_priority() : cuda::lowest_priority()), exec(stream) {}
  cuda::Stream stream;
  Kokkos::Cuda exec;
};
SideStream::SideStream(StreamPriority priority) : stream_(std::make_shared<Stream>(priority)) {}
const Kokkos::Cuda& SideStream::instance() const { return stream_->exec; }

struct StreamOrder::Points {
  struct Point : cuda::Event {
    Point() : cuda::Event(cudaEventDisableTiming) {}
  };
  explicit Points(int count) : events(count) {}
  std::vector<Point> events;
};
StreamOrder::StreamOrder(int points) : points_(std::make_shared<Points>(points)) {}
void StreamOrder::record(const Kokkos::Cuda& exec, int point) {
  CUDA_CHECK(cudaEventRecord(points_->events.at(point), exec.cuda_stream()));
}
void StreamOrder::wait(const Kokkos::Cuda& exec, int point) const {
  CUDA_CHECK(cudaStreamWaitEvent(exec.cuda_stream(), points_->events.at(point), 0));
}

// --- stream_timer.hpp: events of the stream ------------------------------------------------------------------------

struct StreamTimer::Marks {
  struct Mark {
    cuda::Event event;
    bool was_made = false;
  };
  explicit Marks(int count) : list(count) {}
  std::vector<Mark> list;
};

StreamTimer::StreamTimer(int marks) : marks_(std::make_shared<Marks>(marks)) {}

void StreamTimer::mark(const Kokkos::Cuda& exec, int index) {
  Marks::Mark& mark = marks_->list.at(index);
  mark.event.stamp(exec.cuda_stream());
  mark.was_made = true;
}

bool StreamTimer::has_passed(int index) const {
  const Marks::Mark& mark = marks_->list.at(index);
  return mark.was_made && mark.event.has_happened();
}

double StreamTimer::seconds(int from, int to) const {
  const Marks::Mark &first = marks_->list.at(from), &last = marks_->list.at(to);
  if (!first.was_made || !last.was_made) throw std::logic_error("stream timer: a mark that was never made");
  CUDA_CHECK(cudaEventSynchronize(first.event));
  CUDA_CHECK(cudaEventSynchronize(last.event));
  return 1e-3 * static_cast<double>(last.event.milliseconds_since(first.event));
}

}  // namespace tessera::kernels
