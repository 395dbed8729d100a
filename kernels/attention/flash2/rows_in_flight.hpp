/// Rows on their way from memory to the pad, in the registers of a team's threads.
///
/// `fetch` issues the loads and `put` writes what has arrived; a kernel computes in between. Neighbouring lanes move
/// neighbouring packets of 16 bytes of a row.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/compat.hpp"
#include "kernels/core/packet.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// A tile of kRows rows of kWidth numbers, which kThreads threads share. Rows from `count` on, columns from D on are 0.
template <class Scalar, int kRows, int kWidth, int kThreads>
struct RowsInFlight {
  using Real = Accum<Scalar>;
  static constexpr int kElements = kPacketElements<Scalar>;
  static constexpr int kPackets = kWidth / kElements;  // of a row
  static constexpr int kSlots = ceil_div(kRows * kPackets, kThreads);
  static_assert(kWidth % kElements == 0);

  Packet<Scalar, kElements> packet[kSlots];

  KOKKOS_FORCEINLINE_FUNCTION void fetch(int rank, const Scalar* rows, long stride, int count, int D,
                                         bool fits_packets) {
    if (fits_packets) {
      each_packet(rank, [&](int s, int n, int p) {
        packet[s] = {};
        if (n < count && p * kElements < D) packet[s] = load<kElements>(rows + n * stride + p * kElements);
      });
    } else {
      each_packet(rank, [&](int s, int n, int p) {
        packet[s] = {};
        if (n >= count) return;
        TESSERA_UNROLL_ON_DEVICE
        for (int e = 0; e < kElements; ++e) {
          if (p * kElements + e < D) set_stored(packet[s], e, rows[n * stride + p * kElements + e]);
        }
      });
    }
  }

  /// body(slot, n, packet) for each of this thread's packets: packet number `packet` of row n. Where the threads fill
  /// whole rows, a thread's packets have the same number in all of them.
  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void each_packet(int rank, const Body& body) const {
    if constexpr (kThreads % kPackets == 0) {
      constexpr int kStep = kThreads / kPackets;
      const int first = rank / kPackets, number = rank % kPackets;
      TESSERA_UNROLL_ON_DEVICE
      for (int s = 0; s < kSlots; ++s) {
        if (kRows % kStep == 0 || first + s * kStep < kRows) body(s, first + s * kStep, number);
      }
    } else {
      TESSERA_UNROLL_ON_DEVICE
      for (int s = 0; s < kSlots; ++s) {
        const int p = rank + s * kThreads;
        if ((kRows * kPackets) % kThreads == 0 || p < kRows * kPackets) body(s, p / kPackets, p % kPackets);
      }
    }
  }

  /// pad[n, d] = factor * rows[n, d]
  KOKKOS_FORCEINLINE_FUNCTION void put(int rank, Real factor, Real* pad, int pitch) const {
    constexpr int kPack = kPacketElements<Real>;
    each_packet(rank, [&](int s, int n, int p) {
      TESSERA_UNROLL_ON_DEVICE
      for (int first = 0; first < kElements; first += kPack) {
        Packet<Real, kPack> reals;
        TESSERA_UNROLL_ON_DEVICE
        for (int e = 0; e < kPack; ++e) reals.element[e] = factor * packet[s][first + e];
        store(pad + n * pitch + p * kElements + first, reals);
      }
    });
  }
};

/// values[..] += factor * row[c], for the channels c < D of a row that a thread owns (core/thread_tiles.hpp).
template <class Tiles, class Real, int kColumns>
KOKKOS_FORCEINLINE_FUNCTION void add_channels(const Tiles& own, const Real* row, Real factor, int D, bool fits_packets,
                                              Real (&values)[kColumns]) {
  constexpr int kPack = Tiles::kPack;
  TESSERA_UNROLL_ON_DEVICE
  for (int g = 0; g < kColumns / kPack; ++g) {
    const int c = own.channel(g);
    if (fits_packets) {
      if (c >= D) continue;
      const auto packet = load<kPack>(row + c);
      TESSERA_UNROLL_ON_DEVICE
      for (int e = 0; e < kPack; ++e) values[g * kPack + e] += factor * packet.element[e];
    } else {
      TESSERA_UNROLL_ON_DEVICE
      for (int e = 0; e < kPack; ++e) {
        if (c + e < D) values[g * kPack + e] += factor * row[c + e];
      }
    }
  }
}

/// row[c] = factor * values[..], for the same channels.
template <class Tiles, class Real, int kColumns, class Scalar>
KOKKOS_FORCEINLINE_FUNCTION void write_channels(const Tiles& own, const Real (&values)[kColumns], Real factor, int D,
                                                bool fits_packets, Scalar* row) {
  constexpr int kPack = Tiles::kPack;
  TESSERA_UNROLL_ON_DEVICE
  for (int g = 0; g < kColumns / kPack; ++g) {
    const int c = own.channel(g);
    if (fits_packets) {
      if (c >= D) continue;
      Packet<Scalar, kPack> packet{};
      TESSERA_UNROLL_ON_DEVICE
      for (int e = 0; e < kPack; ++e) packet.set(e, values[g * kPack + e] * factor);
      store(row + c, packet);
    } else {
      TESSERA_UNROLL_ON_DEVICE
      for (int e = 0; e < kPack; ++e) {
        if (c + e < D) row[c + e] = static_cast<Scalar>(values[g * kPack + e] * factor);
      }
    }
  }
}

}  // namespace tessera::kernels
