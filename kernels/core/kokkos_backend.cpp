// Streams and clocks by Kokkos alone. On hosts a launch returns when its work is done. On a device without its vendor's
// parts, streams are instances, which have no priorities, and waits are the host's, in place of events.
#include <Kokkos_Core.hpp>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <vector>

#include "kernels/core/events.hpp"
#include "kernels/core/profiler.hpp"
#include "kernels/core/side_stream.hpp"
#include "kernels/core/stream_timer.hpp"

namespace tessera::kernels {
namespace {

template <class Exec>
void finish([[maybe_unused]] const Exec& exec, [[maybe_unused]] const char* label) {
  if constexpr (!kIsHost<Exec>) exec.fence(label);
}

}  // namespace

struct SideStream::Stream {
  Device exec = make_instance();
};
SideStream::SideStream(StreamPriority) : stream_(std::make_shared<Stream>()) {}
const Device& SideStream::instance() const { return stream_->exec; }

struct StreamOrder::Points {
  std::vector<std::optional<Device>> recorded;
};
StreamOrder::StreamOrder(int points) : points_(std::make_shared<Points>()) { points_->recorded.resize(points); }
void StreamOrder::record(const Device& exec, int point) { points_->recorded.at(point) = exec; }
void StreamOrder::wait(const Device&, int point) const {
  if (const std::optional<Device>& exec = points_->recorded.at(point)) finish(*exec, "tessera::core::stream_order");
}

struct StreamTimer::Marks {
  std::vector<events::Clock> time_s;  // NaN: not made yet
};
StreamTimer::StreamTimer(int marks) : marks_(std::make_shared<Marks>()) { marks_->time_s.assign(marks, std::nan("")); }
void StreamTimer::mark(const Device& exec, int index) {
  finish(exec, "tessera::core::stream_timer");
  marks_->time_s.at(index) = events::now_s();
}
bool StreamTimer::has_passed(int index) const { return !std::isnan(marks_->time_s.at(index)); }
double StreamTimer::seconds(int from, int to) const {
  if (!has_passed(from) || !has_passed(to)) throw std::logic_error("stream timer: a mark that was never made");
  return marks_->time_s[to] - marks_->time_s[from];
}

ranges::Sink* listening_profiler() { return nullptr; }

}  // namespace tessera::kernels
