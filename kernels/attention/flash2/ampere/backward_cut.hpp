/// How AmpereBackward divides its work for one width of rows: tiles, warps and scratch, and the layout of d_q.
#pragma once

#include <string_view>
#include <type_traits>

#include "kernels/attention/flash2/ampere/backward_rows.hpp"
#include "kernels/attention/flash2/ampere/tile.hpp"

namespace tessera::kernels::ampere {

/// How d_k and d_v are divided. A team of kKeyWarps * kParts warps owns 32 * kKeyWarps keys. The kParts warps that
/// share 32 keys each compute the probabilities of their part of the queries, then their part of the columns of d_k and
/// d_v. For the tile's share of d_q the warps are divided the other way: kQueryWarps groups share the queries, the
/// warps of a group the columns; one kPasses-th of the tile after the other.
///
/// kStages tiles of queries are in scratch: of two, one is being loaded while the other is in use; a single one is
/// replaced tensor by tensor as soon as its last product is done. kKept: what else a warp keeps in registers.
template <int kKeyWarps_, int kParts_, int kQueryTile_, int kQueryWarps_, int kTeams_, int kStages_ = 2,
          unsigned kKept_ = 0, int kPasses_ = 1>
struct KeysCut {
  static constexpr int kKeyWarps = kKeyWarps_, kParts = kParts_, kQueryTile = kQueryTile_, kQueryWarps = kQueryWarps_,
                       kTeams = kTeams_, kStages = kStages_, kPasses = kPasses_, kSumTile = kQueryTile / kPasses;
  static constexpr unsigned kKept = kKept_;
  static_assert(kStages == 1 || kStages == 2);
};

/// What a warp may keep in registers instead of loading it again: its keys and values over the width; its own part's
/// probabilities and score gradients.
inline constexpr unsigned kKeepKeys = 1, kKeepP = 2, kKeepDs = 4;

/// Bytes of a team's scratch: k, v; the stages of q and d_out; p, ds; log_sum, delta.
template <int kWidth, class Cut>
constexpr int keys_scratch_bytes() {
  constexpr int kKeys = 32 * Cut::kKeyWarps, kQueries = Cut::kQueryTile;
  return TileLayout<kWidth>::bytes(2 * kKeys + 2 * Cut::kStages * kQueries) + TileLayout<kQueries>::bytes(2 * kKeys) +
         2 * kQueries * static_cast<int>(sizeof(float));
}

/// Best: what measured best on an H200 (B*T = 16,384, T = 4096). Lean: for chips with less shared memory.
template <int kWidth>
struct KeysCuts;
template <>
struct KeysCuts<32> {
  using Best = KeysCut<4, 2, 128, 4, 1, 2, kKeepKeys>;
  using Lean = KeysCut<2, 2, 64, 2, 3>;
};
template <>
struct KeysCuts<64> {
  using Best = KeysCut<4, 2, 64, 2, 1, 2, kKeepKeys | kKeepDs>;
  using Lean = KeysCut<2, 2, 64, 2, 2>;
};
template <>
struct KeysCuts<80> {
  using Best = KeysCut<4, 2, 64, 4, 1, 2, kKeepP | kKeepDs>;
  using Lean = KeysCut<2, 2, 64, 2, 2>;
};
template <>
struct KeysCuts<96> {
  using Best = KeysCut<4, 2, 64, 4, 1>;
  using Lean = KeysCut<2, 2, 64, 2, 2>;
};
template <>
struct KeysCuts<128> {
  using Best = KeysCut<4, 2, 64, 2, 1>;
  using Lean = Best;
};
template <>
struct KeysCuts<160> {
  using Best = KeysCut<2, 4, 64, 2, 1>;
  using Lean = Best;
};
template <>
struct KeysCuts<192> {
  using Best = KeysCut<2, 4, 64, 2, 1>;
  using Lean = Best;
};
template <>
struct KeysCuts<256> {
  using Best = KeysCut<2, 4, 128, 2, 1, 1, 0, 2>;
  using Lean = KeysCut<2, 4, 64, 2, 1, 1>;
};

/// Whether the architecture of this build has that much scratch (CUDA Programming Guide, technical specifications).
constexpr bool fits(int bytes) {
  constexpr std::string_view kArch = TESSERA_CUDA_ARCH;
  constexpr bool kIsSmall = kArch == "86" || kArch == "89" || kArch.starts_with("12");
  constexpr int kKiB = kArch == "80" || kArch == "87" ? 163 : kIsSmall ? 99 : 227;
  return bytes + 512 <= kKiB * 1024;  // 512: alignment, and what Kokkos takes
}

template <int kWidth>
using KeysCutOf = std::conditional_t<fits(keys_scratch_bytes<kWidth, typename KeysCuts<kWidth>::Best>()),
                                     typename KeysCuts<kWidth>::Best, typename KeysCuts<kWidth>::Lean>;
template <int kWidth>
inline constexpr bool kKeysFit = fits(keys_scratch_bytes<kWidth, KeysCutOf<kWidth>>());

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
