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
/// The contract is task.hpp's, and:
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 2 (with the two loops exchanged, so that no team shares a gradient).
/// Numerics   all arithmetic in Accum<Scalar>; the three gradients are rounded to Scalar once.
/// Memory     pads of Accum: level 0, 5*kQueryTile*D + 2*kKeyTile*D + 2*kKeyTile*kQueryTile + 2*kQueryTile;
///            level 1, 2*Tk*D (d_k and d_v of one head), each with D rounded up to a lane block.
/// Limits     hosts: B*H teams are too few for a GPU, which runs register_backward.hpp. Scratch of both levels below
///            2 GiB, as Kokkos 3 counts it: Tk*D a little below 2^28 for fp32.
#pragma once

#include "kernels/attention/task.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/target.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels {

/// Reals of its level-0 pad, for tiles of `tile` queries and keys and heads of width D stored with row stride `width`.
constexpr std::size_t flash2_backward_pad_reals(int tile, int width, int D) {
  return static_cast<std::size_t>(5 * tile * width + 2 * D * tile + 2 * tile * tile + 2 * tile);
}

/// Queries, and keys, of a tile of Flash2Backward.
inline constexpr int kFlash2BackwardTile = 64;

/// Bytes of a team's scratch on a host, both levels. A GPU has the pads of register_backward.hpp on chip.
template <class Real>
constexpr std::int64_t flash2_backward_scratch_bytes(const Target& target, std::int64_t Tk, int D) {
  if (!target.is_host) return 0;
  const int width = round_up(D, lane_block(target, sizeof(Real)));
  const auto pad = static_cast<std::int64_t>(flash2_backward_pad_reals(kFlash2BackwardTile, width, D));
  return static_cast<std::int64_t>(sizeof(Real)) * (pad + 2 * Tk * width);
}

template <class Exec, class Scalar>
struct Flash2Backward {
  using Real = Accum<Scalar>;

  BackwardTask<Exec, Scalar> task;

  static constexpr int kQueryTile = kFlash2BackwardTile;
  static constexpr int kKeyTile = kQueryTile;
  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
#ifdef TESSERA_CPU_LEVELS
  TESSERA_V4 void operator()(V4, const Member& team) const requires std::is_same_v<Scalar, float>;
#endif

 private:
  template <class Level>
  KOKKOS_INLINE_FUNCTION void run(const Member& team) const;
};

}  // namespace tessera::kernels
