/// The order of HopperForward's tiles of queries, and their assignment to teams.
#pragma once

#include "kernels/core/round_up.hpp"
#include "kernels/cuda/device.hpp"

namespace tessera::kernels::detail::hopper_forward {

/// The list of all query tiles, and their assignment to teams.
///
/// Query tile p of a head ends p tiles before its last query; with a causal mask p = 0 is the longest. First come the
/// tiles p < query_tiles - light, `section` heads at a time (their keys and values then share the cache), the longest
/// first inside a section; then the `light` shortest tiles of all heads, which even out the finish.
struct TileOrder {
  int query_tiles;  // of one head
  int heads;        // B*H
  int section;      // heads
  int light;        // query tiles of every head
  bool on_demand;   // teams draw the next tile from a counter; else team r takes tiles r, r + teams, ...

  int tiles() const { return query_tiles * heads; }

  struct Place {
    int p;     // query tile of its head
    int head;  // b*H + h
  };
  TESSERA_DEVICE Place operator()(unsigned tile) const {
    const unsigned heavy = query_tiles - light, heavy_tiles = heavy * heads;
    if (tile >= heavy_tiles) {
      const unsigned rest = tile - heavy_tiles;
      return {static_cast<int>(heavy + rest / heads), static_cast<int>(rest % heads)};
    }
    const unsigned number = tile / (heavy * section), within = tile % (heavy * section);
    const unsigned width = min(section, heads - static_cast<int>(number) * section);
    return {static_cast<int>(within / width), static_cast<int>(number * section + within % width)};
  }
};

/// How tiles are assigned to teams. Without a mask all tiles take the same time, and a fixed stride is best: teams then
/// walk the same keys in step. Tiles of different lengths are drawn on demand, longest first.
template <class Kernel, class Task>
TileOrder tile_order(const Task& a) {
  const int query_tiles = ceil_div(a.q.extent_int(2), Kernel::kQueryTile);
  const int heads = a.q.extent_int(0) * a.q.extent_int(1);
  const bool has_unequal = a.causal || a.q.extent_int(2) % Kernel::kQueryTile != 0;
  return {query_tiles, heads, a.causal ? 4 : 1, a.causal ? query_tiles / 4 : 0, has_unequal};
}

}  // namespace tessera::kernels::detail::hopper_forward
