/// FlashAttention-2, backward, on the tensor cores of any GPU from sm_80 on; the contract of backward.hpp for 16 bits.
///
///   p_ij  = exp(scale q_i.k_j - lse_i)        delta_i = sum_d d_out_id out_id
///   ds_ij = p_ij (d_out_i.v_j - delta_i)      d_q_i = scale sum_j ds_ij k_j
///   d_v_j = sum_i p_ij d_out_i                d_k_j = scale sum_i ds_ij q_i
///
/// Three kernels: the rows (delta, lse in powers of two); the keys, where one team owns a tile of keys, keeps its d_k
/// and d_v in registers and walks the queries, so that every score is recomputed once; the sums, which rounds d_q. What
/// a tile of keys gives to d_q is added to float sums in the workspace: one tile of keys after the other, in a fixed
/// order that counters hold, or by whoever comes first.
///
/// Source     Dao 2023, arXiv:2307.08691, Alg. 2.
/// Numerics   products of Scalar, sums and exponentials in float; p and ds are rounded to Scalar before they meet
///            d_out, q and k; the three gradients are rounded once.
/// Error      eps<Scalar>, and 2 eps<Scalar> of the largest of each gradient.
/// Order      DqOrder::fixed: bitwise repeatable. DqOrder::any: d_k and d_v are, d_q is not (atomic additions).
/// Memory     scratch: tiles of k, v, q, d_out, p and ds, 97 to 225 KiB (less on chips that have less);
///            workspace: workspace_bytes(), 4 bytes for each element of d_q and a little more.
/// Cost       10*B*H*Tq*Tk*D flop (about half when causal), D rounded up to the next width that is compiled.
/// Edges      any Tq, Tk >= 0; a query that sees no key gets d_q 0; a key that no query sees gets d_k = d_v = 0.
/// Async      returns after enqueue on `exec`; never fences, allocates nothing, can be captured in a graph.
/// Throws     std::invalid_argument when shapes disagree, D is not supported, scale is not positive, a row of a tensor
///            does not start at a multiple of 16 bytes, or the workspace is too small or not aligned to 16 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/flash2/tuned_cuda_dq_order.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Scalar>
struct AmpereBackward {
  using Exec = Kokkos::Cuda;

  HeadTensor<const Scalar, Exec> q;      // [B,H,Tq,D]  in
  HeadTensor<const Scalar, Exec> k;      // [B,H,Tk,D]  in
  HeadTensor<const Scalar, Exec> v;      // [B,H,Tk,D]  in
  HeadTensor<const Scalar, Exec> out;    // [B,H,Tq,D]  in   saved by the forward pass
  HeadRows<const float, Exec> lse;       // [B,H,Tq]    in   saved by the forward pass
  HeadTensor<const Scalar, Exec> d_out;  // [B,H,Tq,D]  in
  HeadTensor<Scalar, Exec> d_q;          // [B,H,Tq,D]  out
  HeadTensor<Scalar, Exec> d_k;          // [B,H,Tk,D]  out
  HeadTensor<Scalar, Exec> d_v;          // [B,H,Tk,D]  out
  float scale;                           // usually 1/sqrt(D); > 0
  bool causal;                           // bottom-right: query i sees the keys j <= i + Tk - Tq
  DqOrder order;
  /// At least workspace_bytes(), on a multiple of 16 bytes; what it holds before does not matter. Launches that share
  /// one must not run at the same time.
  Vector<std::byte, Exec> workspace;

  /// Head widths: the multiples of 8 up to 256; up to 160 where a team has only 99 KiB of scratch (sm_86, sm_89,
  /// sm_12x).
  static bool supports(int D);
  static std::int64_t workspace_bytes(int B, int H, int Tq, int D);

  void launch(const Exec& exec) const;
};

}  // namespace tessera::kernels
