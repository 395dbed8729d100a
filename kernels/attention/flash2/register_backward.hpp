/// FlashAttention-2, backward, in registers: what Flash2Backward (backward.hpp) computes, for GPUs without tensor cores
/// for the dtype and the head width.
///
///   Rows      the log-sum-exp and delta_i = d_out_i . out_i of each query, for all tiles of keys
///   Keys      a team owns a tile of keys of one (b,h), walks the tiles of queries that see them, last queries first,
///             and sums d_k and d_v; to d_q of each tile of queries it adds its share
///
/// As in RegisterForward a team's threads share the scores of a pair of tiles and the gradients, in private arrays. One
/// half of the threads owns d_v and the other d_k, so that a thread's block is as large as its registers allow.
///
/// d_q is summed in memory, by the tiles of keys in their order: each waits for its turn at a tile of queries, which is
/// a counter in the workspace. All walk the queries the same way, so each follows just behind the one before it. A team
/// takes its number as it starts and waits only for lower numbers, which have started: no order of teams deadlocks.
///
/// The contract is task.hpp's, and:
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 2.
/// Numerics   all arithmetic in Accum<Scalar>; the three gradients are rounded to Scalar once. Scores carry a factor
///            1/ln 2, so exponentials are powers of two. Of fp32 and fp64, runs of 256 queries are summed apart and
///            join in d_k and d_v.
/// Order      as in task.hpp; atomics count turns only.
/// Memory     pad, level 0: backward_pad_bytes (register_tiles.hpp). Workspace: RegisterRows.
/// Throws     std::invalid_argument if the workspace is too small or not aligned to 16 bytes.
#pragma once

#include <cstddef>

#include "kernels/attention/flash2/register_tiles.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct RegisterBackward {
  BackwardTask<Exec, Scalar> task;
  Vector<std::byte, Exec> workspace;  // [RegisterRows::bytes], aligned to 16 bytes

  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
