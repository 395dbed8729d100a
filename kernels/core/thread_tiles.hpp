/// Products of tiles in scratch-pad memory whose results stay in the registers of a team's threads.
///
/// A team of kDown x kAcross threads of one lane each shares a tile of results. Thread (y, x) owns kRows rows of it,
/// y + kDown i, and of each row either kColumns columns one apart in the team, x + kAcross j, or kChannels channels in
/// packets of 16 bytes, packet x + kAcross g. Whatever it accumulates lives in a private array of constant size, so it
/// stays in registers across the team's barriers. On a host a team of one thread owns all.
///
///   multiply_rows     c[i, j] += sum_d a[i, d] b[j, d]     a and b as rows in the pad; d runs to a multiple of kDepth
///   multiply_columns  c[i, c] += sum_n a[n, i] b[n, c]     a transposed, in the order of `position`; b as rows
///   multiply_stored   c[i, c] += sum_n a[i, n] b[n, c]     a as store_column of Columns wrote it, a tile of as many
///                                                          columns as those have rows; b as rows
///
/// All reads of the pad are packets. Threads that neighbour each other form patches of 8 x 4 (y, x), so that 32 lanes
/// ask for 8 packets of a and 4 of b: an H200 then reads 16 bytes per lane in 2 cycles, and in 4 where each eight lanes
/// ask for 8 packets. Rows an odd number of packets apart lie in different banks. Loops take several packets at once:
/// loads of the next travel under the multiply-adds of one. Every sum runs in an order that the tiles fix.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/compat.hpp"
#include "kernels/core/packet.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::kernels {

template <class Real, int kDownThreads, int kAcrossThreads, int kRowsPerThread>
struct ThreadTiles {
  static constexpr int kDown = kDownThreads, kAcross = kAcrossThreads, kRows = kRowsPerThread;
  static constexpr int kThreads = kDown * kAcross;
  static constexpr int kTileRows = kDown * kRows;
  static constexpr int kPack = kPacketElements<Real>;
  static constexpr int kDepth = 4 * kPack;  // numbers that multiply_rows takes at once, at most
  using Pack = Packet<Real, kPack>;

  /// A patch of neighbouring threads.
  static constexpr int kPatchDown = kDown % 8 == 0 && kAcross % 4 == 0 ? 8 : 1;
  static constexpr int kPatchAcross = kPatchDown == 8 ? 4 : kAcross;
  static constexpr int kPatch = kPatchDown * kPatchAcross, kPatchesAcross = kAcross / kPatchAcross;

  int y, x;

  KOKKOS_FORCEINLINE_FUNCTION explicit constexpr ThreadTiles(int rank)
      : y(rank / kPatch / kPatchesAcross * kPatchDown + rank % kPatch / kPatchAcross),
        x(rank / kPatch % kPatchesAcross * kPatchAcross + rank % kPatchAcross) {}

  /// The tile's row that is this thread's row i, its column j, and the first of its packet g of channels.
  KOKKOS_FORCEINLINE_FUNCTION constexpr int row(int i) const { return y + kDown * i; }
  KOKKOS_FORCEINLINE_FUNCTION constexpr int column(int j) const { return x + kAcross * j; }
  KOKKOS_FORCEINLINE_FUNCTION constexpr int channel(int g) const { return kPack * (x + kAcross * g); }
  /// Where row(i) stands in a row of a transposed tile: packets of rows of one thread, thread after thread.
  KOKKOS_FORCEINLINE_FUNCTION constexpr int position(int i) const {
    return (i / kPack * kDown + y) * kPack + i % kPack;
  }
  /// The row whose place is the first of a packet; the next ones are kDown apart.
  KOKKOS_FORCEINLINE_FUNCTION static constexpr int row_of_packet(int packet) {
    return packet / kDown * kPack * kDown + packet % kDown;
  }

  template <int kColumns>
  KOKKOS_FORCEINLINE_FUNCTION void multiply_rows(const Real* a, int a_pitch, const Real* b, int b_pitch, int depth,
                                                 Real (&c)[kRows][kColumns]) const {
    constexpr int kAtOnce = kRows * kColumns > 32 ? 2 : 4;
    const Real* a_y = a + y * a_pitch;
    const Real* b_x = b + x * b_pitch;
    for (int first = 0; first < depth; first += kAtOnce * kPack) {
      TESSERA_UNROLL_ON_DEVICE
      for (int d = first; d < first + kAtOnce * kPack; d += kPack) {
        Pack a_d[kRows];
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < kRows; ++i) a_d[i] = load<kPack>(a_y + i * kDown * a_pitch + d);
        TESSERA_UNROLL_ON_DEVICE
        for (int j = 0; j < kColumns; ++j) {
          const Pack b_d = load<kPack>(b_x + j * kAcross * b_pitch + d);
          TESSERA_UNROLL_ON_DEVICE
          for (int e = 0; e < kPack; ++e) {
            TESSERA_UNROLL_ON_DEVICE
            for (int i = 0; i < kRows; ++i) c[i][j] = fma(a_d[i].element[e], b_d.element[e], c[i][j]);
          }
        }
      }
    }
  }

  template <int kPacks, int kCount>
  KOKKOS_FORCEINLINE_FUNCTION void multiply_columns(const Real* a, int a_pitch, const Real* b, int b_pitch,
                                                    Real (&c)[kRows][kPacks * kPack]) const {
    static_assert(kRows % kPack == 0, "a thread's rows of a transposed tile are whole packets");
    constexpr int kMost = kRows * kPacks * kPack > 64 ? 2 : 8;  // operands wait in registers: fewer beside many sums
    constexpr int kAtOnce = kCount % kMost == 0 ? kMost : 1;
    const Real* a_y = a + position(0);
    const Real* b_x = b + channel(0);
    for (int first = 0; first < kCount; first += kAtOnce) {
      TESSERA_UNROLL_ON_DEVICE
      for (int n = first; n < first + kAtOnce; ++n) {
        Pack a_n[kRows / kPack];
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < kRows; i += kPack) a_n[i / kPack] = load<kPack>(a_y + n * a_pitch + i * kDown);
        TESSERA_UNROLL_ON_DEVICE
        for (int g = 0; g < kPacks; ++g) {
          const Pack b_n = load<kPack>(b_x + n * b_pitch + g * kAcross * kPack);
          TESSERA_UNROLL_ON_DEVICE
          for (int e = 0; e < kPack; ++e) {
            TESSERA_UNROLL_ON_DEVICE
            for (int i = 0; i < kRows; ++i)
              c[i][g * kPack + e] = fma(a_n[i / kPack].element[i % kPack], b_n.element[e], c[i][g * kPack + e]);
          }
        }
      }
    }
  }

  template <class Columns, int kPacks>
  KOKKOS_FORCEINLINE_FUNCTION void multiply_stored(const Real* a, int a_pitch, const Real* b, int b_pitch,
                                                   Real (&c)[kRows][kPacks * kPack]) const {
    constexpr int kAtOnce = Columns::kTileRows / kPack % 2 == 0 ? 2 : 1;
    const Real* a_y = a + y * a_pitch;
    const Real* b_x = b + channel(0);
    for (int first = 0; first < Columns::kTileRows / kPack; first += kAtOnce) {
      TESSERA_UNROLL_ON_DEVICE
      for (int packet = first; packet < first + kAtOnce; ++packet) {
        const Real* b_n = b_x + Columns::row_of_packet(packet) * b_pitch;
        Pack a_n[kRows];
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < kRows; ++i) a_n[i] = load<kPack>(a_y + i * kDown * a_pitch + packet * kPack);
        TESSERA_UNROLL_ON_DEVICE
        for (int n = 0; n < kPack; ++n) {
          TESSERA_UNROLL_ON_DEVICE
          for (int g = 0; g < kPacks; ++g) {
            const Pack b_g = load<kPack>(b_n + n * Columns::kDown * b_pitch + g * kAcross * kPack);
            TESSERA_UNROLL_ON_DEVICE
            for (int e = 0; e < kPack; ++e) {
              TESSERA_UNROLL_ON_DEVICE
              for (int i = 0; i < kRows; ++i)
                c[i][g * kPack + e] = fma(a_n[i].element[n], b_g.element[e], c[i][g * kPack + e]);
            }
          }
        }
      }
    }
  }

  /// Column j of c, to a row of a transposed tile.
  template <int kColumns>
  KOKKOS_FORCEINLINE_FUNCTION void store_column(const Real (&c)[kRows][kColumns], int j, Real* row) const {
    static_assert(kRows % kPack == 0, "a thread's rows of a transposed tile are whole packets");
    TESSERA_UNROLL_ON_DEVICE
    for (int i = 0; i < kRows; i += kPack) {
      Pack pack;
      TESSERA_UNROLL_ON_DEVICE
      for (int e = 0; e < kPack; ++e) pack.element[e] = c[i + e][j];
      store(row + position(i), pack);
    }
  }
};

}  // namespace tessera::kernels
