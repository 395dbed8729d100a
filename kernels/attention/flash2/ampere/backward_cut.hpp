/// How AmpereBackward divides its work for one width of rows in this build, and the layout of d_q.
#pragma once

#include <type_traits>

#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/flash2/ampere/tile.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels::ampere {

template <int kWidth>
using KeysCutOf = std::conditional_t<fits(kBuiltTarget, keys_scratch_bytes<kWidth, typename KeysCuts<kWidth>::Best>()),
                                     typename KeysCuts<kWidth>::Best, typename KeysCuts<kWidth>::Lean>;

/// A warp's piece of d_q: of kSumTile queries the rows of group `group`, and every kColumnWarps-th block of 16 columns
/// from `column` on; remaining blocks are divided in halves.
template <int kWidth, class Cut>
struct QueryPiece {
  static constexpr int kWarps = Cut::kKeyWarps * Cut::kParts, kColumnWarps = kWarps / Cut::kQueryWarps;
  static constexpr int kRowTiles = Cut::kSumTile / 16 / Cut::kQueryWarps;
  static constexpr int kBlocks = kWidth / 16 / kColumnWarps;
  static constexpr bool kHasHalf = kWidth / 16 % kColumnWarps != 0;
  static constexpr int kColumns = kBlocks * 16 + (kHasHalf ? 8 : 0);
  static constexpr int kFloats = kRowTiles * 16 * kColumns;
  static_assert(kRowTiles > 0 && kFloats * kWarps == kWidth * Cut::kSumTile);
  static_assert(BackwardRows::kPadding <= BackwardRows::kTurns * Cut::kSumTile);
  using Sums = float[kRowTiles][kColumns / 8][4];

  int group, column;

  static TESSERA_DEVICE QueryPiece of_warp(int warp) { return {warp / kColumnWarps, warp % kColumnWarps}; }
  TESSERA_DEVICE int chunk(int n) const {
    return n < 2 * kBlocks ? (n / 2 * kColumnWarps + column) * 2 + n % 2 : kBlocks * kColumnWarps * 2 + column;
  }
  /// Offset of the accumulators of row tile m, column tile n in a warp's piece; lanes side by side, four floats each.
  static TESSERA_DEVICE int offset(int m, int n) { return (n * kRowTiles + m) * cuda::kWarpLanes * 4; }
  /// Offset of a warp's piece in the sums of a head, of whose kSumTile queries it is the `tile`-th.
  static TESSERA_DEVICE std::int64_t offset_of(int tile, int warp) {
    return (static_cast<std::int64_t>(tile) * kWarps + warp) * kFloats;
  }
  template <class Visit>
  static TESSERA_DEVICE void for_each(const Visit& visit) {
    TESSERA_UNROLL
    for (int n = 0; n < kColumns / 8; ++n) {
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) visit(m, n);
    }
  }
};

}  // namespace tessera::kernels::ampere
