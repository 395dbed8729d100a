#include "kernels/core/stream_timer.hpp"

#include <Kokkos_Core.hpp>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "kernels/core/events.hpp"

namespace tessera::kernels {

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
