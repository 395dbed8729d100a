/// FlashAttention-1, forward: softmax(scale * q k^T) v as its paper has it, the keys in the outer loop.
///
/// One team owns one (b,h). For each tile of keys it walks the tiles of queries that see it: it loads the tile of q and
/// its output so far, adds what these keys contribute, and stores the output again. With the maximum m' of a row's
/// scores for the tile's keys and the sum l' of their exponentials,
///
///   m_new = max(m, m')   l_new = exp(m - m_new) l + exp(m' - m_new) l'
///   out_new = (l exp(m - m_new) out + exp(m' - m_new) P' v) / l_new
///
/// Every score exists once, on chip, but the output crosses memory once per tile of keys. FlashAttention-2 exchanges
/// the loops: that saves the traffic, and every tile of queries gets a team. `kSteps`: ladder_sizes.hpp. The backward
/// pass is flash2's, which reads out and lse. The contract is task.hpp's, and:
///
/// Source     Dao et al. 2022, arXiv:2205.14135, Alg. 1 (line numbers in forward.cpp).
/// Departs    no dropout; causal: tiles wholly above the diagonal are skipped.
/// Numerics   products of Scalar, sums and exponentials in Accum<Scalar>. Between tiles of keys, out is kept normalised
///            in Accum<Scalar> (for 16-bit Scalar in the workspace) and rounded to Scalar once, at the end: if it were
///            stored in 16 bits, its error would grow with the number of tiles.
/// Memory     pad, level 0: ladder::Pads. Workspace, aligned to 16 bytes: flash1_workspace_bytes.
/// Cost       moves q and twice out Tk/key_tile times.
/// Async      Kokkos allocates scratch when a pad is larger than any earlier one of the process.
/// Throws     std::invalid_argument if a tile is no multiple of 16, the pad larger than the device's scratch, or the
///            workspace too small.
/// Limits     B*H teams: a GPU with more SMs than that is partly idle.
#pragma once

#include "kernels/attention/ladder_sizes.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Bytes of workspace: for 16-bit tensors the output so far, float [B,H,Tq,D]; the running sums, Accum [B,H,Tq].
constexpr std::int64_t flash1_workspace_bytes(Dtype dtype, std::int64_t B, std::int64_t H, std::int64_t Tq, int D) {
  const std::int64_t real_bytes = dtype == Dtype::fp64 ? 8 : 4;
  return B * H * Tq * real_bytes * (bytes_of(dtype) == 2 ? D + 1 : 1);
}

template <class Exec, class Scalar, int kSteps>
struct Flash1Forward {
  using Real = Accum<Scalar>;

  ForwardTask<Exec, Scalar> task;
  int query_tile, key_tile;                 // B_r and B_c in the paper, multiples of 16; 0: ladder::default_tile
  Vector<std::byte, Exec> workspace;        // [flash1_workspace_bytes]
  HeadTensor<Real, Exec> running_out = {};  // set by launch: [B,H,Tq,D]  the output so far
  HeadRows<Real, Exec> running_sum = {};    // set by launch: [B,H,Tq]    l; m waits in lse
  bool fits_packets = false;                // set by launch: rows start and end at multiples of 16 bytes

  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
