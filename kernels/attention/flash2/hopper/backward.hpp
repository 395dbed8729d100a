/// FlashAttention backward for Hopper (sm_90a): what flash2/backward.hpp computes, on wgmma and the copy engine; the
/// contract of task.hpp. Three kernels:
///
///   1. prepare  delta_i and lse_i in base 2, one row of out and d_out after the other; sums of d_q cleared, where
///               their first share is added, not stored (any order with a mask, or D = 256).
///   2. main     one team per multiprocessor takes one place after the other, a tile of 128 keys of a head, and walks
///               the tiles of queries that see them. d_k and d_v stay in registers; a place's shares of d_q are added
///               to sums in memory by the copy engine.
///   3. finish   sums of d_q, scaled and rounded.
///
/// In the main kernel one warp takes the places and loads k and q, one loads v and d_out, two add shares of d_q to the
/// sums; two warpgroups of 64 keys each do the arithmetic, on transposed scores, so that p and ds go from registers
/// straight into d_v and d_k. The share of d_q needs ds of both warpgroups: it is computed one step late, so that
/// neither waits for the other and one's exponentials overlap the other's products. A place's first loads overlap the
/// end of the previous place. Heads of 256 have a separate main kernel, BackwardWide: one team per place, tiles of 64
/// keys, whose sums both warpgroups share; in fixed order it relies on teams that start in the order of their ranks
/// (kernels/cuda/ticket.hpp).
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 2; Shah et al. 2024, arXiv:2407.08608 (warp roles).
/// Numerics   products of Scalar summed in float; p in float until ds is formed; p and ds rounded to Scalar for the
///            products that follow; the three gradients rounded once. Relative error (Frobenius, standard normal
///            inputs) against double 2.3e-3 to 2.6e-3 in bf16, 3.0e-4 to 3.2e-4 in fp16, that of a FlashAttention-2
///            with the same roundings.
/// Error      eps<Scalar> relative, plus 2 eps<Scalar> times the largest entry of each gradient.
/// Order      DqOrder::fixed: a ticket per tile of queries orders the additions to d_q, and all else is in program
///            order: bitwise repeatable. DqOrder::any: additions in order of arrival, without a mask (and D up to 128)
///            after a first share, which the head's first place stores; d_k and d_v are still repeatable. A place
///            waits only for places taken before it (BackwardWide: of a lower rank), so any number of teams may run at
///            once.
/// Memory     pad: level 0, 184 to 226 KiB by head width (kernels/cuda/large_scratch.hpp); workspace_bytes() from the
///            caller, about twice the size of q.
/// Throws     std::invalid_argument if runs_on() or accepts() is false, D is not supported, the scale not above 0, or
///            the workspace too small.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/flash2/dq_order.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Scalar is bfloat16 or float16.
template <class Scalar>
struct HopperBackward {
  using Exec = Kokkos::Cuda;

  BackwardTask<Exec, Scalar> task;
  DqOrder order;
  /// At least workspace_bytes(), aligned to 128 bytes; its previous content does not matter. Launches that share one
  /// must not run concurrently.
  Vector<std::byte, Exec> workspace;

  /// Whether both this build and this device are sm_90a.
  static bool runs_on(const Exec& exec);

  /// Whether there is a kernel for this head width: 32, 64, 80, 96, 128, 256.
  static bool supports(int D);

  /// Whether the copy engine can serve these tensors: addresses and strides are multiples of 16 bytes.
  bool accepts() const;

  static std::int64_t workspace_bytes(int B, int H, int Tq, int D);

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
