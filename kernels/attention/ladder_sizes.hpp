/// The ladder: the steps from a plain attention kernel to a tuned one, and the sizes of the tiles on it.
///
///   0  plain: tiles row by row in the pad, element by element, one lane per score, per output and per row of softmax
///   1  rows of the pads start at multiples of 16 bytes, one packet apart more than they need: the same column of
///      consecutive rows lies in different banks
///   2  tiles travel between memory and pad in packets of 16 bytes
///   3  q k^T reads q and k from the pad in packets
/// From here the two part. FlashAttention-1:
///
///   4  the lanes of a thread share a row of scores for its maximum and its sum
///   5  q k^T on tensor cores (mma.sync: bf16 and fp16, NVIDIA GPUs from sm_80 on)
///
/// FlashAttention-2, on GPUs (flash2/register_forward.hpp; its tensor-core form is the mma engine):
///
///   4  a thread is one lane and keeps a block of 4 x 4 scores, and its part of the output, in registers
///   5  blocks as large as the registers allow, up to 8 x 8; the next step is the usual kernel
///
/// A kernel of `steps` has all steps up to it. Sizes are arithmetic only: a plan asks for those of any device.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

#include "kernels/core/dtype.hpp"
#include "kernels/core/packet.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/target.hpp"

namespace tessera::kernels::ladder {

inline constexpr int kAlignedPads = 1, kWideCopies = 2, kWideProducts = 3, kTeamReductions = 4, kTensorCores = 5;

inline constexpr int kFlash1Steps = 5;      // the most that FlashAttention-1 takes
inline constexpr int kFlash2Steps = 5;      // and FlashAttention-2
inline constexpr int kFlash2LaneSteps = 3;  // of them with lanes that share a thread's tiles, as on hosts, too

/// Where the tiles of a team lie in its pad. Offsets and pitches are in elements, the whole in bytes.
struct Pads {
  int steps, scalar_bytes, real_bytes;
  int query_tile, key_tile, D;  // tiles are multiples of 16

  /// Columns of a row that products may read: D, and zeros up to two packets (one depth of mma.sync).
  KOKKOS_FORCEINLINE_FUNCTION constexpr int depth() const {
    return steps < kAlignedPads ? D : round_up(D, 2 * kPacketBytes / scalar_bytes);
  }
  /// From a row to the next: of q, k and v; of the output; of the scores.
  KOKKOS_FORCEINLINE_FUNCTION constexpr int pitch() const {
    return steps < kAlignedPads ? D : depth() + kPacketBytes / scalar_bytes;
  }
  KOKKOS_FORCEINLINE_FUNCTION constexpr int out_pitch() const { return padded(D); }
  KOKKOS_FORCEINLINE_FUNCTION constexpr int score_pitch() const { return padded(key_tile); }

  /// Reals: scores [query_tile, key_tile], output [query_tile, D], four numbers of each query.
  KOKKOS_FORCEINLINE_FUNCTION constexpr int out() const { return query_tile * score_pitch(); }
  KOKKOS_FORCEINLINE_FUNCTION constexpr int rows() const { return out() + query_tile * out_pitch(); }
  KOKKOS_FORCEINLINE_FUNCTION constexpr int reals() const { return rows() + 4 * query_tile; }
  /// Scalars, behind them: q [query_tile, D], k and v [key_tile, D].
  KOKKOS_FORCEINLINE_FUNCTION constexpr int k() const { return query_tile * pitch(); }
  KOKKOS_FORCEINLINE_FUNCTION constexpr int v() const { return k() + key_tile * pitch(); }
  KOKKOS_FORCEINLINE_FUNCTION constexpr int scalars() const { return v() + key_tile * pitch(); }

  KOKKOS_FORCEINLINE_FUNCTION constexpr std::int64_t bytes() const {
    return std::int64_t{reals()} * real_bytes + std::int64_t{scalars()} * scalar_bytes;
  }

 private:
  KOKKOS_FORCEINLINE_FUNCTION constexpr int padded(int columns) const {
    const int packet = kPacketBytes / real_bytes;
    return steps < kAlignedPads ? columns : round_up(columns, 2 * packet) + packet;
  }
};

/// What a launch asks for: the tiles, and the way to a multiple of 16 bytes.
constexpr std::int64_t scratch_bytes(const Pads& pads) { return pads.bytes() + kPacketBytes; }

/// Queries, and keys, of a tile unless the caller chooses: on a GPU those whose pads take 60 to 140 KiB, or half; with
/// 48 KiB the largest that fit on every step.
constexpr int default_tile(const Target& target, int real_bytes, int D) {
  if (target.is_portable) {
    for (const int tile : {64, 32}) {
      if (scratch_bytes({kFlash1Steps, real_bytes, real_bytes, tile, tile, D}) <= scratch_limit(target)) return tile;
    }
    return 16;
  }
  const int row_bytes = target.is_host ? 0 : round_up(D * real_bytes, 2 * kPacketBytes);
  return row_bytes <= 256 ? 64 : row_bytes <= 512 ? 32 : 16;
}

}  // namespace tessera::kernels::ladder
