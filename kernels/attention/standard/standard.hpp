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

/// Products of one matrix per head: c[b,h] = factor * a[b,h] * b[b,h], any strides, so a transpose is a swap of two.
///
/// One team owns a kTile x kTile tile of c of one (b,h) and walks the inner dimension tile by tile through the pad.
/// The building block of standard attention, and simple on purpose: standard attention is the baseline. Tiled attention
/// keeps scores and sums in Accum<Scalar>: Left of one product, Result of both.
///
/// Numerics   sums in Accum<Scalar>, c rounded to Result once.
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     pad, level 0, Accum: 3*kTile*kTile.
/// Cost       2*B*H*M*N*K flop.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree.
template <class Exec, class Scalar, class Left = Scalar, class Result = Scalar>
struct HeadProduct {
  using Real = Accum<Scalar>;

  const char* label;                 // "tessera::attention::standard::..."
  HeadTensor<const Left, Exec> a;    // [B,H,M,K]  in
  HeadTensor<const Scalar, Exec> b;  // [B,H,K,N]  in
  HeadTensor<Result, Exec> c;        // [B,H,M,N]  out
  Real factor;

  static constexpr int kTile = kIsHost<Exec> ? 64 : 32;

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

/// The same tensor with its last two dimensions exchanged.
template <class View>
View transposed(const View& heads) {
  return View(heads.data(), Kokkos::LayoutStride(heads.extent(0), heads.stride(0), heads.extent(1), heads.stride(1),
                                                 heads.extent(3), heads.stride(3), heads.extent(2), heads.stride(2)));
}

}  // namespace tessera::kernels
