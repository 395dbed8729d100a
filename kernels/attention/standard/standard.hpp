/// Standard attention: the scores of all pairs of query and key are stored, normalised, then multiplied by v.
///
///   forward    S = scale q k^T (masked)   P = softmax(S)   out = P v
///   backward   d_v = P^T d_out   d_P = d_out v^T   d_S = P (d_P - rowsum(P d_P))
///              d_q = scale d_S k   d_k = scale d_S^T q
///
/// The baseline for FlashAttention: the same sums, but O(Tq*Tk) memory per head, saved from forward to backward. Masks
/// and edge cases as in Flash2Forward.
///
/// Source     Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
/// Numerics   sums in Accum<Scalar>; S, P, d_P and d_S are rounded to Scalar, as a framework that stores them does.
/// Error      2 eps<Scalar> + 8 eps<Accum>, relative, plus as much times the largest entry of each result.
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     probabilities [B,H,Tq,Tk] Scalar, kept for backward; d_scores, the same again, during backward.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree.
#pragma once

#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct StandardForward {
  ForwardTask<Exec, Scalar> task;
  HeadTensor<Scalar, Exec> probabilities;  // [B,H,Tq,Tk]  out, kept for backward

  void launch(const Exec& exec) const;
};

template <class Exec, class Scalar>
struct StandardBackward {
  BackwardTask<Exec, Scalar> task;               // out, lse and causal are not read: probabilities suffice
  HeadTensor<const Scalar, Exec> probabilities;  // [B,H,Tq,Tk]  in, saved by the forward pass
  HeadTensor<Scalar, Exec> d_scores;             // [B,H,Tq,Tk]  workspace

  void launch(const Exec& exec) const;
};

/// Row softmax in place over scores [B,H,Tq,Tk], masked when causal; one team per row.
template <class Exec, class Scalar>
struct SoftmaxRows {
  using Real = Accum<Scalar>;

  HeadTensor<Scalar, Exec> scores;  // [B,H,Tq,Tk]  in: scores, out: probabilities
  HeadRows<Real, Exec> lse;         // [B,H,Tq]     out
  bool causal;

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

/// d_S = P (d_P - rowsum(P d_P)) in place over d_P; one team per row.
template <class Exec, class Scalar>
struct SoftmaxRowsBackward {
  using Real = Accum<Scalar>;

  HeadTensor<const Scalar, Exec> probabilities;  // [B,H,Tq,Tk]  in
  HeadTensor<Scalar, Exec> d_scores;             // [B,H,Tq,Tk]  in: d_P, out: d_S

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
