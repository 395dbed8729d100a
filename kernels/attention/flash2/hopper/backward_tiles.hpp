/// Shared by the three kernels of HopperBackward: the division of the work into tiles and places.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/flash2/hopper/sizes.hpp"
#include "kernels/core/math.hpp"
#include "kernels/cuda/device.hpp"
#include "kernels/cuda/tma.hpp"

namespace tessera::kernels::detail::hopper_backward {

using namespace cuda;

inline constexpr int kKeyTile = 128;       // keys of a place of BackwardMain, 64 for each consumer
inline constexpr int kEveryKey = 1 << 29;  // "diagonal" of a mask that hides nothing

/// How a head width is cut into tiles.
template <int D>
struct BackwardTiles {
  static constexpr bool kIsWide = D > 128;               // the main kernel is BackwardWide, not BackwardMain
  static constexpr int kKeys = kIsWide ? 64 : kKeyTile;  // of a place
  static constexpr int kQueries = backward_queries(D);   // rows of q and d_out in one step

  // Rings, as far as the pad has room. The second tile of k is the next place's: the last share of d_q of a place then
  // need not wait for the other consumer; it is computed in the next place's first step. The third tile of q hides the
  // latency of its load, because both consumers hold q to the end of a step, one of them half a step later.
  static constexpr int kKTiles = D == 128 ? 1 : 2;
  static constexpr int kQTiles = D == 128 ? 3 : 2;
  static constexpr int kDOutTiles = 2;
  static constexpr int kDsTiles = D == 64 ? 2 : 3;
  static constexpr int kStages = D == 64 || D == 128 ? 1 : 2;  // shares of d_q that may wait to be added

  // A step's share of d_q, [kQueries, D], is one product of 64 rows for each consumer: over 64 of the queries or, if
  // there are only 64, over some of the panels of k.
  static constexpr bool kSplitsColumns = kQueries == 64;
  static constexpr int kColumns0 = kSplitsColumns ? HeadPanels<D>::kWidth * ((HeadPanels<D>::kCount + 1) / 2) : D;
  static constexpr int kColumns1 = kSplitsColumns ? D - kColumns0 : D;
};

/// Shapes of a launch, and the assignment of work to teams.
struct BackwardShape {
  int heads, H, Tq, Tk;  // heads = B*H
  int query_tiles = 0, key_tiles = 0;
  int query_tile = 0, keys_of_tile = 0;  // rows of a tile
  int diagonal = 0;                      // query i sees the keys j <= i + diagonal
  int heads_per_group = 0;               // heads that are worked on together, so that they share the level-2 cache
  bool is_descending = false;            // key tiles are taken last one first
  bool is_ring = false;                  // BackwardWide, unmasked: walks start at different tiles and wrap round

  TESSERA_DEVICE int first_query_tile(int key_tile) const {
    return max(key_tile * keys_of_tile - diagonal, 0) / query_tile;
  }
  /// Last tile of keys that some query of the tile sees, -1 for none.
  TESSERA_DEVICE int last_key_tile(int tile) const {
    const int last_key = (tile + 1) * query_tile - 1 + diagonal;
    return last_key < 0 ? -1 : min(last_key / keys_of_tile, key_tiles - 1);
  }

  struct Place {
    int key_tile, head;
  };
  /// Places in the order in which they are taken.
  TESSERA_DEVICE Place place(int number) const {
    const int group = number / (heads_per_group * key_tiles);
    const int first_head = group * heads_per_group;
    const int rank = number - first_head * key_tiles;
    const int members = min(heads_per_group, heads - first_head);
    const int key_tile = rank / members;
    return {is_descending ? key_tiles - 1 - key_tile : key_tile, first_head + rank % members};
  }
};

/// Position of column c of 16, such that the four that a lane needs (2t, 2t+1, 2t+8, 2t+9) are neighbours.
TESSERA_DEVICE int fragment_position(int c) { return 4 * ((c & 7) >> 1) + 2 * (c >> 3) + (c & 1); }

}  // namespace tessera::kernels::detail::hopper_backward
