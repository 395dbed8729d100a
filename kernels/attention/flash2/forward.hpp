/// FlashAttention-2, forward: softmax(scale * q k^T) v without ever storing the scores.
///
///   out[b,h,i,:] = sum_j p_ij v[b,h,j,:],   p_ij = exp(scale q_i.k_j - lse_i),   lse_i = log sum_j exp(scale q_i.k_j)
///
/// over the keys j that query i sees: all Tk of them, or j <= i + Tk - Tq when causal (the last query sees
/// every key). One team owns a tile of queries of one (b,h) and walks the keys tile by tile; per query it keeps a
/// running maximum, a running sum and an un-normalised output, rescaled whenever the maximum grows.
///
/// Inside the pads everything is transposed: queries lie along the lanes, keys and channels along the rows. Maximum,
/// exponential and sum of the softmax are then lane-wise, without horizontal reductions, and k and v keep their layout.
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 1; running softmax: Milakov & Gimelshein 2018, arXiv:1805.02867.
/// Departs    no dropout, no split over the keys.
/// Numerics   products, sums and exponentials in Accum<Scalar>; only `out` is rounded to Scalar.
/// Error      out and lse: eps<Scalar> + 8 eps<Accum>, relative, plus as much times the largest entry.
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     pad, level 0, Accum: (kQueryTile + 2*kKeyTile)*D + kKeyTile*kQueryTile + D*kQueryTile + 3*kQueryTile.
/// Cost       4*B*H*Tq*Tk*D flop (about half when causal); key tiles wholly above the diagonal are skipped.
/// Edges      any Tq, Tk >= 0; a query that sees no key gets out 0 and lse -inf.
/// Async      returns after enqueue on `exec`; never fences. Kokkos allocates scratch when a pad is larger than any
///            earlier one of the process.
/// Throws     std::invalid_argument when shapes disagree, the last stride is not 1, or D is not in 1..kMaxHead.
/// Limits     meant for CPUs, and on GPUs for what the tuned kernels lack (fp32, fp64), with smaller tiles there.
#pragma once

#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct Flash2Forward {
  using Real = Accum<Scalar>;

  ForwardTask<Exec, Scalar> task;

  static constexpr int kQueryTile = kIsHost<Exec>       ? 64
                                    : sizeof(Real) == 8 ? 16
                                                        : 32;  // B_r in the paper; along the lanes
  static constexpr int kKeyTile = kQueryTile;                  // B_c: keys staged at a time
  static constexpr int kMaxHead = 256;

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;

 private:
  KOKKOS_FUNCTION static std::size_t pad_reals(int D) {
    return (kQueryTile + 2 * kKeyTile) * D + kKeyTile * kQueryTile + D * kQueryTile + 3 * kQueryTile;
  }
};

}  // namespace tessera::kernels
