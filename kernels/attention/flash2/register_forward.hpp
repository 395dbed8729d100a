/// FlashAttention-2, forward, in registers: what Flash2Forward (forward.hpp) computes, for GPUs without tensor cores
/// for the dtype and the head width.
///
/// One team owns a tile of queries of one (b,h) and walks the keys tile by tile. Its threads, of one lane each, share
/// the scores of a pair of tiles and the output: each owns a block of both in private arrays of constant size
/// (core/thread_tiles.hpp). The pad holds what products read: q, k and v as rows,
/// and the exponentials, transposed. Ranks, barriers, scratch and private arrays are all that it needs, so one source
/// serves CUDA and HIP. The contract is task.hpp's, and:
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 1; blocks of results per thread: Volkov & Demmel 2008.
/// Numerics   products, sums and exponentials in Accum<Scalar>; only `out` is rounded to Scalar. Scores carry a factor
///            1/ln 2, so exponentials are powers of two. Of fp32 and fp64, runs of 1024 keys are summed apart and join
///            in `out`, the maxima so far in `lse`.
/// Memory     pad, level 0: forward_pad_bytes (register_tiles.hpp). No workspace.
#pragma once

#include "kernels/attention/flash2/register_tiles.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct RegisterForward {
  ForwardTask<Exec, Scalar> task;
  int steps = -1;  // 4 or 5: a step of the ladder (ladder_sizes.hpp); else the usual kernel

  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
