// What a device must offer beside Kokkos, where there is only Kokkos (TESSERA_VENDOR=OFF): facts that Kokkos prints,
// streams as its instances, and waits on the host in place of events.
#include <Kokkos_Core.hpp>
#include <impl/Kokkos_DeviceManagement.hpp>  // get_visible_devices

#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/core/device_info.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/profiler.hpp"
#include "kernels/core/side_stream.hpp"
#include "kernels/core/stream_timer.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

static_assert(!kIsHost<Device>, "hosts have host_backend.cpp");

/// Kokkos::Cuda and Kokkos::HIP print "Kokkos::Cuda[ 0 ] NVIDIA H200 : Selected" and, below, "Total Global Memory:
/// 139.8 GiB". Kokkos does not tell what is free: all, so that a plan that is too large fails at its allocation.
template <>
DeviceInfo device_info<Device>() {
  std::ostringstream text;
  Device().print_configuration(text);
  const std::string all = text.str();
  DeviceInfo info{Device::name(), INT64_MAX, INT64_MAX};
  const std::size_t selected = all.find(" : Selected");
  if (selected == std::string::npos) return info;
  const std::size_t begin = all.rfind("] ", selected);
  if (begin != std::string::npos) info.name = all.substr(begin + 2, selected - begin - 2);
  constexpr std::string_view kMemory = "Total Global Memory: ";
  const std::size_t memory = all.find(kMemory, selected);
  if (memory == std::string::npos) return info;
  double amount = 0;
  std::string unit;
  std::istringstream(all.substr(memory + kMemory.size(), 32)) >> amount >> unit;
  const int power = unit.starts_with('G') ? 30 : unit.starts_with('M') ? 20 : 10;
  info.total_bytes = info.free_bytes = static_cast<std::int64_t>(std::ldexp(amount, power));
  return info;
}

/// Without a driver Kokkos throws, and num_devices(), which is noexcept, ends the program.
template <>
int device_count<Device>() try {
  return static_cast<int>(Kokkos::Impl::get_visible_devices().size());
} catch (const std::runtime_error&) {
  return 0;
}

/// Kokkos cannot tell. Its copies take host addresses where they expect a device's: both are in one address space.
template <>
bool is_device_memory<Device>(const void* data) {
  return data != nullptr;
}

template <>
ranges::Sink* listening_profiler<Device>() {
  return nullptr;
}

// --- side_stream.hpp: Kokkos has no priorities, and no events: a wait is the host's --------------------------------

template <>
struct SideStream<Device>::Stream {
  Device exec = Kokkos::Experimental::partition_space(Device(), 1)[0];
};
template <>
SideStream<Device>::SideStream(StreamPriority) : stream_(std::make_unique<Stream>()) {}
template <>
SideStream<Device>::~SideStream() = default;
template <>
const Device& SideStream<Device>::instance() const {
  return stream_->exec;
}

template <>
struct StreamOrder<Device>::Points {
  std::vector<std::optional<Device>> recorded;
};
template <>
StreamOrder<Device>::StreamOrder(int points) : points_(std::make_unique<Points>()) {
  points_->recorded.resize(points);
}
template <>
StreamOrder<Device>::~StreamOrder() = default;
template <>
void StreamOrder<Device>::record(const Device& exec, int point) {
  points_->recorded.at(point) = exec;
}
template <>
void StreamOrder<Device>::wait(const Device&, int point) const {
  if (const std::optional<Device>& exec = points_->recorded.at(point)) exec->fence("tessera::core::stream_order");
}

template class SideStream<Device>;
template class StreamOrder<Device>;

// --- stream_timer.hpp: the host's clock, when the instance has done its work ---------------------------------------

template <>
struct StreamTimer<Device>::Marks {
  std::vector<events::Clock> time_s;  // NaN: not made yet
};
template <>
StreamTimer<Device>::StreamTimer(int marks) : marks_(std::make_unique<Marks>()) {
  marks_->time_s.assign(marks, std::nan(""));
}
template <>
StreamTimer<Device>::~StreamTimer() = default;
template <>
StreamTimer<Device>::StreamTimer(StreamTimer&&) noexcept = default;
template <>
StreamTimer<Device>& StreamTimer<Device>::operator=(StreamTimer&&) noexcept = default;
template <>
void StreamTimer<Device>::mark(const Device& exec, int index) {
  exec.fence("tessera::core::stream_timer");
  marks_->time_s.at(index) = events::now_s();
}
template <>
bool StreamTimer<Device>::has_passed(int index) const {
  return !std::isnan(marks_->time_s.at(index));
}
template <>
double StreamTimer<Device>::seconds(int from, int to) const {
  if (!has_passed(from) || !has_passed(to)) throw std::logic_error("stream timer: a mark that was never made");
  return marks_->time_s[to] - marks_->time_s[from];
}

template class StreamTimer<Device>;

}  // namespace tessera::kernels
