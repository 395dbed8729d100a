/// Sizes of the sm_80 attention kernels: their widths, the scratch of backward's teams and its workspace. Compiled in
/// every build, since a plan for such a GPU asks for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/round_up.hpp"
#include "kernels/core/target.hpp"

/// The narrowest width of backward; it serves narrower rows as well.
#define TESSERA_AMPERE_MIN_BACKWARD 32

namespace tessera::kernels::ampere {

inline constexpr int kMinForward = 16, kMinBackward = TESSERA_AMPERE_MIN_BACKWARD;

/// Calls launch.operator()<kWidth>() for the narrowest width from kMin on that holds D.
template <int kMin, class Launch>
constexpr void for_width(int D, const Launch& launch) {
  if constexpr (kMin <= 16) {
    if (D <= 16) return launch.template operator()<16>();
  }
  if (D <= 32) return launch.template operator()<32>();
  if (D <= 64) return launch.template operator()<64>();
  if (D <= 80) return launch.template operator()<80>();
  if (D <= 96) return launch.template operator()<96>();
  if (D <= 128) return launch.template operator()<128>();
  if (D <= 160) return launch.template operator()<160>();
  if (D <= 192) return launch.template operator()<192>();
  return launch.template operator()<256>();
}

/// What the backward kernels share besides the tensors, laid out in the workspace. Rows of queries are padded to whole
/// tiles, so that tiles are copied without bounds checks.
struct BackwardRows {
  static constexpr int kPadding = 128;  // rows of a head are a multiple of this
  static constexpr int kTurns = 4;      // largest number of tiles in so many rows

  float* log_sum;       // [B*H, rows]  lse in powers of two; +inf past Tq and where no key is seen, so that p = 0
  float* delta;         // [B*H, rows]  sum_d d_out out; 0 past Tq
  float* d_q;           // [B*H, rows, width]  sums of d_q / scale, each tile in the order of its warps' accumulators
  std::int32_t* turns;  // [B*H, tiles of rows]  tiles of keys that have added their share to a tile of d_q
  int rows, width;

  static constexpr std::int64_t rows_of(int Tq) { return round_up(std::int64_t{Tq}, std::int64_t{kPadding}); }
  static constexpr std::int64_t bytes(int B, int H, int Tq, int width) {
    return rows_of(Tq) * B * H * (2 + width) * 4 + rows_of(Tq) / kPadding * B * H * kTurns * 4;
  }
  static BackwardRows in(std::byte* workspace, int B, int H, int Tq, int width) {
    const std::int64_t rows = rows_of(Tq), all = rows * B * H;
    float* first = reinterpret_cast<float*>(workspace);
    return {first,
            first + all,
            first + 2 * all,
            reinterpret_cast<std::int32_t*>(first + (2 + width) * all),
            static_cast<int>(rows),
            width};
  }
};

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

/// Bytes of a tile in scratch (tile.hpp).
constexpr int tile_bytes(int width, int rows) { return rows * width * 2; }

/// The same of a tile of float (float_tile.hpp).
constexpr int float_tile_bytes(int width, int rows) { return rows * (width + 4) * 4; }

/// Bytes of a team's scratch: k, v; the stages of q and d_out; p, ds; log_sum, delta.
template <int kWidth, class Cut>
constexpr int keys_scratch_bytes() {
  constexpr int kKeys = 32 * Cut::kKeyWarps, kQueries = Cut::kQueryTile;
  return tile_bytes(kWidth, 2 * kKeys + 2 * Cut::kStages * kQueries) + tile_bytes(kQueries, 2 * kKeys) +
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

/// How the work of a forward kernel is cut: rows of q of a warp (in 16s), warps, keys of a tile, tiles in the ring,
/// teams that share a multiprocessor, steps over the width for which a warp keeps q in registers.
template <int kRowTiles_, int kWarps_, int kKeyTile_, int kStages_, int kTeams_, int kHeld_ = 0>
struct ForwardCut {
  static constexpr int kRowTiles = kRowTiles_, kWarps = kWarps_, kKeyTile = kKeyTile_, kStages = kStages_,
                       kTeams = kTeams_, kHeld = kHeld_;
};

/// Best: what measured best on an H100 (causal, B*T = 16,384, T = 4096). Lean: for chips with less shared memory.
template <int kProducts, int kWidth>
struct FloatForwardCuts {
  using Best = std::conditional_t<
      kWidth <= 32, ForwardCut<2, 4, 64, 1, kProducts == 3 ? 2 : 3, kProducts == 3 ? 0 : kWidth / 8>,
      std::conditional_t<kWidth <= 128, ForwardCut<2, 4, 32, 1, 2>,
                         std::conditional_t<kWidth <= 192, ForwardCut<1, 4, 32, 1, 2>, ForwardCut<1, 8, 16, 1, 1>>>>;
  using Lean = ForwardCut<1, 4, 16, 1, 2>;
};
template <>
struct FloatForwardCuts<3, 128> : FloatForwardCuts<3, 96> {
  using Best = ForwardCut<2, 4, 16, 1, 2>;
};
template <>
struct FloatForwardCuts<1, 64> : FloatForwardCuts<3, 64> {
  using Best = ForwardCut<2, 4, 32, 1, 2, 8>;
};
template <>
struct FloatForwardCuts<1, 80> : FloatForwardCuts<3, 80> {
  using Best = ForwardCut<2, 4, 32, 1, 2, 5>;
};

/// Bytes of a team's scratch in the forward pass of float: the tile of queries, the ring of k and v.
template <int kWidth, class Cut>
constexpr int float_forward_bytes() {
  return float_tile_bytes(kWidth, 16 * Cut::kRowTiles * Cut::kWarps + 2 * Cut::kStages * Cut::kKeyTile);
}

/// How AmpereFloatBackward divides its work: a team owns 16 * kRowTiles * kWarps keys; kHalves warps share
/// 16 * kRowTiles of them, each with its share of the columns; kStages tiles of queries are in scratch; kHolds: k and v
/// stay in registers.
template <int kRowTiles_, int kWarps_, int kQueryTile_, int kStages_, int kTeams_, int kHalves_ = 1,
          bool kHolds_ = false>
struct FloatKeysCut {
  static constexpr int kRowTiles = kRowTiles_, kWarps = kWarps_, kQueryTile = kQueryTile_, kStages = kStages_,
                       kTeams = kTeams_, kHalves = kHalves_;
  static constexpr bool kHolds = kHolds_;
  static_assert(kStages == 1 || kStages == 2);
};

/// Bytes of a team's scratch: k, v; the stages of q, d_out, log_sum and delta; ds.
template <int kWidth, class Cut>
constexpr int float_backward_bytes() {
  constexpr int kKeys = 16 * Cut::kRowTiles * Cut::kWarps, kQueries = Cut::kQueryTile;
  return float_tile_bytes(kWidth, 2 * kKeys + 2 * Cut::kStages * kQueries) + Cut::kStages * 2 * kQueries * 4 +
         float_tile_bytes(kQueries, kKeys);
}

/// The first that fits: Best, as measured, Few, Lean.
template <int kProducts, int kWidth>
struct FloatKeysCuts {
  static constexpr int kHalves = kWidth > 128 ? 2 : 1;
  using Few = FloatKeysCut<1, 4, 32, 1, 1, kHalves>;
  using Lean = FloatKeysCut<1, 2, 32, 1, 1, kHalves>;
  using Best = std::conditional_t<kHalves == 2, Few, FloatKeysCut<1, 8, 32, 2, 1>>;
};
template <>
struct FloatKeysCuts<3, 32> : FloatKeysCuts<3, 128> {
  using Best = FloatKeysCut<2, 4, 32, 2, 2>;
};
template <>
struct FloatKeysCuts<1, 32> : FloatKeysCuts<3, 128> {
  using Best = FloatKeysCut<2, 4, 32, 2, 2, 1, true>;
};
template <>
struct FloatKeysCuts<3, 64> : FloatKeysCuts<3, 128> {
  using Best = FloatKeysCut<1, 4, 32, 1, 3>;
};
template <>
struct FloatKeysCuts<1, 64> : FloatKeysCuts<3, 128> {
  using Best = FloatKeysCut<2, 4, 32, 1, 2>;
};
template <>
struct FloatKeysCuts<1, 80> : FloatKeysCuts<3, 128> {
  using Best = FloatKeysCut<1, 4, 32, 2, 2>;
};
template <>
struct FloatKeysCuts<1, 96> : FloatKeysCuts<3, 128> {
  using Best = FloatKeysCut<1, 4, 32, 1, 2>;
};

/// Whether the target grants a team so much scratch.
constexpr bool fits(const Target& target, int bytes) {
  return bytes + 512 <= target.team_scratch_kib * 1024;  // 512: alignment, and what Kokkos takes
}

/// Whether the kernels take heads of width D.
constexpr bool supports_forward(int D) { return D >= 8 && D <= 256 && D % 8 == 0; }

/// And whether a team gets bytes.operator()<kWidth>() of scratch, for the width of at least kLeast that holds D.
template <int kLeast, class Bytes>
constexpr bool supports(const Target& target, int D, const Bytes& bytes) {
  bool has_room = false;
  if (supports_forward(D))
    for_width<kLeast>(D, [&]<int kWidth>() { has_room = fits(target, bytes.template operator()<kWidth>()); });
  return has_room;
}
constexpr bool supports_backward(const Target& target, int D) {
  return supports<kMinBackward>(target, D, []<int kWidth>() {
    return std::min(keys_scratch_bytes<kWidth, typename KeysCuts<kWidth>::Best>(),
                    keys_scratch_bytes<kWidth, typename KeysCuts<kWidth>::Lean>());
  });
}

/// Of float, for three TF32 products and for one.
constexpr bool supports_float_forward(const Target& target, int D) {
  return supports<kMinForward>(target, D, []<int kWidth>() {
    return std::max(float_forward_bytes<kWidth, typename FloatForwardCuts<1, kWidth>::Lean>(),
                    float_forward_bytes<kWidth, typename FloatForwardCuts<3, kWidth>::Lean>());
  });
}
constexpr bool supports_float_backward(const Target& target, int D) {
  return supports<kMinBackward>(target, D, []<int kWidth>() {
    return std::max(float_backward_bytes<kWidth, typename FloatKeysCuts<1, kWidth>::Lean>(),
                    float_backward_bytes<kWidth, typename FloatKeysCuts<3, kWidth>::Lean>());
  });
}

constexpr std::int64_t float_workspace_bytes(int B, int H, int Tq) { return BackwardRows::bytes(B, H, Tq, 0); }
constexpr std::int64_t backward_workspace_bytes(int B, int H, int Tq, int D) {
  std::int64_t bytes = 0;
  for_width<kMinBackward>(D, [&]<int kWidth>() { bytes = BackwardRows::bytes(B, H, Tq, kWidth); });
  return bytes;
}

}  // namespace tessera::kernels::ampere
