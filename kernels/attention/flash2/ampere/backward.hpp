/// FlashAttention-2, backward, on the tensor cores of any GPU from sm_80 on; the contract of backward.hpp for 16 bits.
///
/// Three kernels: the rows (delta, lse in powers of two); the keys, where one team owns a tile of keys, keeps its d_k
/// and d_v in registers and walks the queries, so that every score is recomputed once; the sums, which rounds d_q. The
/// contribution of a tile of keys to d_q is added to float sums in the workspace, either in a fixed order of the tiles,
/// enforced by counters, or in order of arrival.
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 2.
/// Numerics   products of Scalar, sums and exponentials in float; p and ds are rounded to Scalar before they multiply
///            d_out, q and k; the three gradients are rounded once.
/// Error      eps<Scalar> relative, plus 2 eps<Scalar> times the largest entry of each gradient.
/// Order      DqOrder::fixed: bitwise repeatable; relies on teams that start in the order of their ranks
///            (kernels/cuda/ticket.hpp). DqOrder::any: d_k and d_v are, d_q is not (atomic additions).
/// Memory     scratch: tiles of k, v, q, d_out, p and ds, 97 to 225 KiB (less on chips that have less);
///            workspace: workspace_bytes(), 4 bytes for each element of d_q and a little more.
/// Cost       D is rounded up to the next width that is compiled.
/// Throws     std::invalid_argument if D is not supported, scale is not positive, a row of a tensor does not start at a
///            multiple of 16 bytes, or the workspace is too small or not aligned to 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/flash2/dq_order.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Scalar>
struct AmpereBackward {
  using Exec = Kokkos::Cuda;

  BackwardTask<Exec, Scalar> task;
  DqOrder order;
  /// At least workspace_bytes(), aligned to 16 bytes; its previous content does not matter. Launches that share one
  /// must not run concurrently.
  Vector<std::byte, Exec> workspace;

  /// Head widths: the multiples of 8 up to 256; up to 96 where a team has only 99 KiB of scratch (sm_86, sm_89,
  /// sm_12x).
  static bool supports(int D);
  static std::int64_t workspace_bytes(int B, int H, int Tq, int D);

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
