/// FlashAttention-2, forward, on the tensor cores of any GPU from sm_80 on; the contract of forward.hpp for 16 bits.
///
/// One team owns a tile of queries of one (b,h). Each warp keeps 16 or 32 rows of sums and of output in registers and
/// walks the keys, which arrive by asynchronous copies in a ring of tiles: loads of values overlap the products with
/// the keys, loads of the next keys those with the values, and another team on the same multiprocessor computes while
/// this one takes exponentials (D = 80: a deeper ring, exponentials interleaved with the products of the next tile).
/// Warps share nothing but the tiles.
///
/// The running maximum is lazy: scores are taken relative to a bound, which is raised, with sums and output rescaled,
/// only when a score exceeds it by more than 2^8; the result is exact, since the bound cancels in out and lse.
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 1; conditional rescaling as in Zadouri et al. 2026,
///            arXiv:2603.05451 (FlashAttention-4).
/// Numerics   products of Scalar, sums and exponentials in float; probabilities are rounded to Scalar (relative to the
///            bound) before they multiply v, out once at the end.
/// Error      with S as in task.hpp: out eps<Scalar> + (8 + S) eps<float> for v up to 1; lse (32 + S) eps<float>,
///            relative and of the largest entry.
/// Memory     scratch: the tile of queries and a ring of tiles of k and v, 8 to 96 KiB; no workspace.
/// Cost       D is rounded up to the next width that is compiled.
/// Throws     std::invalid_argument if D is not supported, scale is not positive, or a row of q, k, v or out does not
///            start at a multiple of 16 bytes.
#pragma once

#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Scalar>
struct AmpereForward {
  using Exec = Kokkos::Cuda;

  ForwardTask<Exec, Scalar> task;

  /// Head widths: the multiples of 8 up to 256.
  static bool supports(int D) { return ampere::supports_forward(D); }

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
