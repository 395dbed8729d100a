/// FlashAttention-2, backward, with a team for every tile: what Flash2Backward (backward.hpp) computes, for devices
/// that run hundreds of teams at once.
///
///   Keys      a team owns a tile of keys of one (b,h), walks the tiles of queries that see them, and writes d_k and
///             d_v
///   Queries   a team owns a tile of queries, walks the tiles of keys that they see, and writes d_q
///
/// Each gradient stays in its team's pad until it is complete, so no team shares one. The price is that both launches
/// recompute the scores: seven tile products per pair of tiles instead of five.
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 2, as two passes.
/// Numerics   all arithmetic in Accum<Scalar>; the three gradients are rounded to Scalar once.
/// Error      eps<Scalar> + 8 eps<Accum>, relative, plus as much times the largest entry of each gradient.
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     pads of Accum, level 0: at most 8*tile*W + 2*tile*tile + 2*tile, where W is D rounded up to a lane block.
/// Cost       14*B*H*Tq*Tk*D flop (about half when causal).
/// Edges      any Tq, Tk >= 0; a query that sees no key gets d_q 0; a key that no query sees gets d_k = d_v = 0.
/// Async      returns after two enqueues on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree, the last stride is not 1, or D is not in 1..kMaxHead.
#pragma once

#include "kernels/attention/task.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/target.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels {

/// Reals in the pads of a team of keys, which has more of them than one of queries: `rows` are W reals each.
constexpr std::int64_t flash2_backward_by_tile_reals(int tile, int D, int W, int row_pads = 6) {
  return std::int64_t{2} * D * tile + std::int64_t{row_pads} * tile * W + std::int64_t{2} * tile * tile + 2 * tile;
}

/// Queries, and keys, of a tile: as many as leave the pads below 160 KiB, or below what every GPU grants on which code
/// for compute capability 8 runs.
constexpr int flash2_backward_by_tile(const Target& target, int real_bytes, int D) {
  const int block = lane_block(target, real_bytes), W = round_up(D, block);
  const std::int64_t budget = 1024 * (target.is_host || target.team_scratch_kib > 200 ? 160 : 96);
  int tile = 64;
  while (tile > block && real_bytes * flash2_backward_by_tile_reals(tile, D, W) > budget) tile /= 2;
  return tile;
}

template <class Exec, class Scalar>
struct Flash2BackwardByTile {
  using Real = Accum<Scalar>;

  BackwardTask<Exec, Scalar> task;
  int tile = 0;  // queries, and keys; 0: launch() chooses

  static constexpr int kMaxHead = 256;
  static constexpr int kLanes = 128;  // of a team, on GPUs

  void launch(const Exec& exec) const;

  struct Keys {};
  struct Queries {};
  template <class Pass>
  using Policy = Kokkos::TeamPolicy<Exec, Pass>;
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(Keys, const Member& team) const;
  KOKKOS_FUNCTION void operator()(Queries, const Member& team) const;

 private:
  using Product = TileProduct<Exec, Real>;
  static constexpr int kLaneBlock = Product::kLaneBlock;

  /// Where the tiles of a team lie. Rows of queries and keys have W reals; transposed queries are lanes.
  struct Pads {
    Real *q_t, *d_out_t;   // [D, tile]     scaled queries, and d_out, transposed
    Real *k, *v;           // [tile, W]
    Real *p, *ds;          // [tile, tile]  probabilities, and gradients of the scaled scores: [key, query]
    Real *top, *delta;     // [tile]        lse, +inf where a query sees no key; d_out_i . out_i
    Real *q, *d_out;       // [tile, W]     scaled queries, and d_out: of Keys alone
    Real *first, *second;  // [tile, W]     d_k and d_v, or d_q alone
  };
  struct Place {
    int b, h, first;  // of the tile that the team owns
  };

  template <class Pass>
  void launch_pass(const Exec& exec, int rows) const;
  KOKKOS_FUNCTION static constexpr int width(int D) { return round_up(D, kLaneBlock); }
  template <class Pass>
  KOKKOS_FUNCTION std::size_t pad_reals() const {
    const int D = task.q.extent_int(3), row_pads = std::is_same_v<Pass, Keys> ? 6 : 3;
    return static_cast<std::size_t>(flash2_backward_by_tile_reals(tile, D, width(D), row_pads));
  }
  template <class Pass>
  KOKKOS_FUNCTION Pads pads_of(const Member& team) const;
  KOKKOS_FUNCTION Place place_of(int rank, int rows) const;
  KOKKOS_FUNCTION void stage_queries(const Member& team, const Pads& pads, const Place& place, int first, int count,
                                     int lanes) const;
  KOKKOS_FUNCTION void stage_keys(const Member& team, const Pads& pads, const Place& place, int first, int count) const;
  KOKKOS_FUNCTION void recompute(const Member& team, const Pads& pads, int first_query, int lanes, int first_key,
                                 int keys) const;
};

}  // namespace tessera::kernels
