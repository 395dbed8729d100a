/// FlashAttention-2, forward, on the ladder: the pieces of FlashAttention-1 with the two loops exchanged.
///
/// One team owns a tile of queries of one (b,h) and walks the keys tile by tile. q, the output and the running maximum
/// and sum stay in the pad until the last key; out is divided by the sum once, at the end. Apart from having a team for
/// every tile of queries, that is all that distinguishes it from Flash1Forward. With the maximum m_new of the scores up
/// to and including a tile of keys,
///
///   l_new = exp(m - m_new) l + sum_j exp(s_ij - m_new)   out_new = exp(m - m_new) out + sum_j exp(s_ij - m_new) v_j
///
/// `kSteps`, 0 to 3: ladder_sizes.hpp. Flash2Forward, on hosts, and RegisterForward, on GPUs, compute the same with
/// products blocked in registers. The contract is task.hpp's, and:
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 1.
/// Numerics   products of Scalar, sums and exponentials in Accum<Scalar>; only `out` is rounded to Scalar.
/// Memory     pad, level 0: ladder::Pads. No workspace.
/// Async      Kokkos allocates scratch when a pad is larger than any earlier one of the process.
/// Throws     std::invalid_argument if a tile is no multiple of 16, or the pad larger than the device's scratch.
#pragma once

#include "kernels/attention/ladder_sizes.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar, int kSteps>
struct Flash2Ladder {
  using Real = Accum<Scalar>;

  ForwardTask<Exec, Scalar> task;
  int query_tile, key_tile;   // B_r and B_c in the paper, multiples of 16; 0: ladder::default_tile
  bool fits_packets = false;  // set by launch: rows start and end at multiples of 16 bytes

  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
