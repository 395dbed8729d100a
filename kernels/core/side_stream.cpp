#include "kernels/core/side_stream.hpp"

#include <Kokkos_Core.hpp>

namespace tessera::kernels {

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

}  // namespace tessera::kernels
