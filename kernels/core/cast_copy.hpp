/// to[i] = from[i] in another dtype, rounded to nearest even if that is narrower.
#pragma once

#include <algorithm>

#include "kernels/core/packet.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class From, class To>
struct CastCopy {
  Vector<const From, Exec> from;  // [n]  in
  Vector<To, Exec> to;            // [n]  out

  /// Elements that a lane converts: a packet of the narrower type.
  static constexpr int kWidth = std::max(kPacketWidth<Exec, From>, kPacketWidth<Exec, To>);

  void launch(const Exec& exec) const {
    TESSERA_REQUIRE(from.extent(0) == to.extent(0), "cast copy: both must be [n]", from.extent(0), to.extent(0));
    const bool fit = packets_fit(1, 1, from.data(), to.data());
    for_packets<kWidth>("tessera::core::cast_copy", exec, fit, from.extent(0), *this);
  }

  template <int kAtOnce>
  KOKKOS_FUNCTION void operator()(InPackets<kAtOnce>, std::int64_t p) const {
    const auto read = load<kAtOnce>(&from(p * kAtOnce));
    Packet<To, kAtOnce> converted;
    for (int i = 0; i < kAtOnce; ++i) converted.set(i, read[i]);
    store(&to(p * kAtOnce), converted);
  }
};

}  // namespace tessera::kernels
