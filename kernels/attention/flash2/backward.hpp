/// FlashAttention-2, backward: gradients of q, k and v from the saved output and log-sum-exp, scores recomputed.
///
///   p_ij  = exp(scale q_i.k_j - lse_i)        delta_i = sum_d d_out_id out_id
///   ds_ij = p_ij (d_out_i.v_j - delta_i)      d_q_i = scale sum_j ds_ij k_j
///   d_v_j = sum_i p_ij d_out_i                d_k_j = scale sum_i ds_ij q_i
///
/// One team owns one (b,h): it walks the tiles of queries, and for each the tiles of keys that those queries see.
/// d_q stays in the pad while a tile of queries is processed; d_k and d_v of the whole head are accumulated in Accum
/// precision in level-1 scratch and rounded once at the end. Every score is recomputed once, so the work is five tile
/// products per pair of tiles, the minimum.
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 2 (with the two loops exchanged, so that no team shares a gradient).
/// Numerics   all arithmetic in Accum<Scalar>; the three gradients are rounded to Scalar once.
/// Error      eps<Scalar> + 8 eps<Accum>, relative, plus as much times the largest entry of each gradient.
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     pads of Accum: level 0, 5*kQueryTile*D + 2*kKeyTile*D + 2*kKeyTile*kQueryTile + 2*kQueryTile;
///            level 1, 2*Tk*D (d_k and d_v of one head), each with D rounded up to a lane block.
/// Cost       10*B*H*Tq*Tk*D flop (about half when causal).
/// Edges      any Tq, Tk >= 0; a query that sees no key gets d_q 0; a key that no query sees gets d_k = d_v = 0.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree, the last stride is not 1, or D is not in 1..kMaxHead.
/// Limits     B*H teams: enough for CPUs; a GPU needs a team per tile, as in the tuned kernels, and holds fp64 pads
///            only up to D of about 240. Level-1 scratch below 2 GiB: Tk*D < 2^28 for fp32.
#pragma once

#include "kernels/attention/task.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct Flash2Backward {
  using Real = Accum<Scalar>;

  BackwardTask<Exec, Scalar> task;

  static constexpr int kQueryTile = kIsHost<Exec> ? 64 : sizeof(Real) == 8 ? 8 : 16;
  static constexpr int kKeyTile = kQueryTile;
  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;

  /// Bytes that Kokkos allocates for scratch. A host runs one team at a time, with both levels in memory; a GPU has
  /// level 0 on the chip, and level 1 for every team that may be resident: for all teams, unless B*H is in the
  /// thousands.
  static std::int64_t scratch_bytes(std::int64_t B, std::int64_t H, std::int64_t Tk, int D) {
    const std::int64_t head = 2 * Tk * width(D);
    const std::int64_t reals = kIsHost<Exec> ? static_cast<std::int64_t>(tile_pad_reals(D)) + head : B * H * head;
    return static_cast<std::int64_t>(sizeof(Real)) * reals;
  }

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;

 private:
  using Product = TileProduct<Exec, Real>;
  KOKKOS_FUNCTION static int width(int D) { return round_up(D, Product::kLaneBlock); }
  KOKKOS_FUNCTION static std::size_t tile_pad_reals(int D) {
    return (3 * kQueryTile + 2 * kKeyTile) * width(D) + 2 * D * kQueryTile + 2 * kKeyTile * kQueryTile + 2 * kQueryTile;
  }
};

}  // namespace tessera::kernels
