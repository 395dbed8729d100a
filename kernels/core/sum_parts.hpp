/// out[i] = part[0][i] + part[1][i] + ..., in this order: the sum of the ranks' values.
///
/// One of the parts may be `out` itself: a lane reads a packet of all parts before it writes the sum.
///
/// Numerics   added in Accum<Scalar> (16-bit numbers in fp32) and rounded once.
/// Order      that of the parts: bitwise repeatable.
/// Async      returns after enqueue on `exec`; never fences.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct SumParts {
  static constexpr int kMaxParts = 16;
  static constexpr int kTogether = 4;  // parts that a lane has in flight

  Kokkos::Array<const Scalar*, kMaxParts> part;  // [parts] of [n]  in
  int parts;
  Vector<Scalar, Exec> out;  // [n]  out

  void launch(const Exec& exec) const {
    TESSERA_REQUIRE(parts >= 1 && parts <= kMaxParts, "sum of parts: 1 to 16 of them", parts);
    bool fit = packets_fit(1, 1, out.data());
    for (int p = 0; p < parts; ++p) fit = fit && packets_fit(1, 1, part[p]);
    for_packets<kPacketWidth<Exec, Scalar>>("tessera::core::sum_parts", exec, fit, out.extent(0), *this);
  }

  template <int kAtOnce>
  KOKKOS_FUNCTION void operator()(InPackets<kAtOnce>, std::int64_t packet) const {
    const std::int64_t first = packet * kAtOnce;
    Accum<Scalar> sum[kAtOnce] = {};
    for (int p = 0; p < parts; p += kTogether) {
      Packet<Scalar, kAtOnce> read[kTogether];
      for (int j = 0; j < kTogether; ++j) {
        if (p + j < parts) read[j] = load<kAtOnce>(part[p + j] + first);
      }
      for (int j = 0; j < kTogether; ++j) {
        for (int i = 0; i < kAtOnce && p + j < parts; ++i) sum[i] += read[j][i];
      }
    }
    Packet<Scalar, kAtOnce> rounded;
    for (int i = 0; i < kAtOnce; ++i) rounded.set(i, sum[i]);
    store(out.data() + first, rounded);
  }
};

}  // namespace tessera::kernels
