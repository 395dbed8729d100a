/// FlashAttention-2, backward, in registers: what Flash2Backward (backward.hpp) computes, for GPUs without tensor cores
/// for the dtype and the head width.
///
///   Keys      a team owns a tile of keys of one (b,h), walks the tiles of queries that see them, and writes d_k and
///             d_v
///   Queries   a team owns a tile of queries, walks the tiles of keys that they see, and writes d_q
///
/// As in RegisterForward a team's threads share the scores of a pair of tiles and the gradients, in private arrays.
/// A gradient stays in its team's registers until it is complete, so no team shares one. The price is that both
/// launches recompute the scores: seven tile products per pair of tiles instead of five.
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 2, as two passes.
/// Numerics   all arithmetic in Accum<Scalar>; the three gradients are rounded to Scalar once. Scores carry a factor
///            1/ln 2, so exponentials are powers of two.
/// Error      eps<Scalar> + 8 eps<Accum>, relative, plus as much times the largest entry of each gradient.
/// Order      fixed for given shapes and device: bitwise repeatable. No atomics.
/// Memory     pads, level 0: keys_pad_bytes and queries_pad_bytes (register_tiles.hpp). No workspace.
/// Cost       14*B*H*Tq*Tk*D flop (about half when causal).
/// Edges      any Tq, Tk >= 0; a query that sees no key gets d_q 0; a key that no query sees gets d_k = d_v = 0.
/// Async      returns after two enqueues on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree, the last stride is not 1, or D is not in 1..kMaxHead.
#pragma once

#include "kernels/attention/flash2/register_tiles.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct RegisterBackward {
  BackwardTask<Exec, Scalar> task;

  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
