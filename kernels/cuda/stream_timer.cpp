#include "kernels/core/stream_timer.hpp"  // the contract is there; here is how on CUDA: events of the stream

#include <Kokkos_Core.hpp>

#include <stdexcept>
#include <vector>

#include "kernels/cuda/event.hpp"

namespace tessera::kernels {
namespace {

struct Mark {
  cuda::Event event;
  bool was_made = false;
};

}  // namespace

template <>
struct StreamTimer<Kokkos::Cuda>::Marks {
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
  Mark& mark = marks_->list.at(index);
  mark.event.stamp(exec.cuda_stream());
  mark.was_made = true;
}

template <>
bool StreamTimer<Kokkos::Cuda>::has_passed(int index) const {
  const Mark& mark = marks_->list.at(index);
  return mark.was_made && mark.event.has_happened();
}

template <>
double StreamTimer<Kokkos::Cuda>::seconds(int from, int to) const {
  const Mark &first = marks_->list.at(from), &last = marks_->list.at(to);
  if (!first.was_made || !last.was_made) throw std::logic_error("stream timer: a mark that was never made");
  CUDA_CHECK(cudaEventSynchronize(first.event));
  CUDA_CHECK(cudaEventSynchronize(last.event));
  return 1e-3 * static_cast<double>(last.event.milliseconds_since(first.event));
}

template class StreamTimer<Kokkos::Cuda>;

}  // namespace tessera::kernels
