// What a device must offer beside Kokkos, on hosts: its facts, its streams and its clock.

#include <unistd.h>

#include <Kokkos_Core.hpp>

#include <cmath>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "kernels/core/device_info.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/side_stream.hpp"
#include "kernels/core/stream_timer.hpp"

namespace tessera::kernels {
namespace {

/// What follows the colon in the first line of a /proc file that begins with `key`.
std::string proc_value(const char* file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!std::string_view(line).starts_with(key)) continue;
    const std::size_t start = line.find_first_not_of(" \t", line.find(':') + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

}  // namespace

template <>
DeviceInfo device_info<Kokkos::DefaultHostExecutionSpace>() {
  const std::string model = proc_value("/proc/cpuinfo", "model name");
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  return {model.empty() ? "unknown processor" : model, page * sysconf(_SC_PHYS_PAGES),
          page * sysconf(_SC_AVPHYS_PAGES)};
}

template <>
int device_count<Kokkos::DefaultHostExecutionSpace>() {
  return 0;
}

template <>
bool is_device_memory<Kokkos::DefaultHostExecutionSpace>(const void*) {
  return false;
}

// --- side_stream.hpp: a launch returns when its work is done -------------------------------------------------------

template <class Exec>
struct SideStream<Exec>::Stream {
  Exec exec;
};
template <class Exec>
SideStream<Exec>::SideStream(StreamPriority) : stream_(std::make_unique<Stream>()) {}
template <class Exec>
SideStream<Exec>::~SideStream() = default;
template <class Exec>
const Exec& SideStream<Exec>::instance() const {
  return stream_->exec;
}

template <class Exec>
struct StreamOrder<Exec>::Points {};
template <class Exec>
StreamOrder<Exec>::StreamOrder(int) {}
template <class Exec>
StreamOrder<Exec>::~StreamOrder() = default;
template <class Exec>
void StreamOrder<Exec>::record(const Exec&, int) {}
template <class Exec>
void StreamOrder<Exec>::wait(const Exec&, int) const {}

template class SideStream<Kokkos::DefaultHostExecutionSpace>;
template class StreamOrder<Kokkos::DefaultHostExecutionSpace>;

// --- stream_timer.hpp ----------------------------------------------------------------------------------------------

template <class Exec>
struct StreamTimer<Exec>::Marks {
  std::vector<events::Clock> time_s;  // NaN: not made yet
};

template <class Exec>
StreamTimer<Exec>::StreamTimer(int marks) : marks_(std::make_unique<Marks>()) {
  marks_->time_s.assign(marks, std::nan(""));
}
template <class Exec>
StreamTimer<Exec>::~StreamTimer() = default;
template <class Exec>
StreamTimer<Exec>::StreamTimer(StreamTimer&&) noexcept = default;
template <class Exec>
StreamTimer<Exec>& StreamTimer<Exec>::operator=(StreamTimer&&) noexcept = default;

template <class Exec>
void StreamTimer<Exec>::mark(const Exec&, int index) {
  marks_->time_s.at(index) = events::now_s();
}

template <class Exec>
bool StreamTimer<Exec>::has_passed(int index) const {
  return !std::isnan(marks_->time_s.at(index));
}

template <class Exec>
double StreamTimer<Exec>::seconds(int from, int to) const {
  if (!has_passed(from) || !has_passed(to)) throw std::logic_error("stream timer: a mark that was never made");
  return marks_->time_s[to] - marks_->time_s[from];
}

template class StreamTimer<Kokkos::DefaultHostExecutionSpace>;

}  // namespace tessera::kernels
