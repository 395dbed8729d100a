/// to[i] = from[i] in another dtype (rounded to nearest even where it is narrower).
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

  /// Elements that one lane converts: a packet of the narrower type.
  static constexpr int kWidth = std::max(kPacketWidth<Exec, From>, kPacketWidth<Exec, To>);

  void launch(const Exec& exec) const {
    TESSERA_REQUIRE(from.extent(0) == to.extent(0), "cast copy: both must be [n]", from.extent(0), to.extent(0));
    const auto n = static_cast<std::int64_t>(from.extent(0));
    const bool fit = packets_fit(1, 1, from.data(), to.data());
    const std::int64_t packets = fit ? n / kWidth : 0;
    run<InPackets<kWidth>>(exec, 0, packets);
    run<InPackets<1>>(exec, packets * kWidth, n);
  }

  template <int kAtOnce>
  KOKKOS_FUNCTION void operator()(InPackets<kAtOnce>, std::int64_t p) const {
    const auto read = load<kAtOnce>(&from(p * kAtOnce));
    Packet<To, kAtOnce> converted;
    for (int i = 0; i < kAtOnce; ++i) converted.set(i, read[i]);
    store(&to(p * kAtOnce), converted);
  }

 private:
  template <class How>
  void run(const Exec& exec, std::int64_t first, std::int64_t last) const {
    if (first == last) return;
    using Policy = Kokkos::RangePolicy<Exec, How, Kokkos::IndexType<std::int64_t>>;
    Kokkos::parallel_for("tessera::core::cast_copy", Policy(exec, first, last), *this);
  }
};

}  // namespace tessera::kernels
