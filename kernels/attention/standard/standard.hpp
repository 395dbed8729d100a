/// Standard attention: the scores of all pairs of query and key are stored, normalised, then multiplied by v.
///
///   forward    S = scale q k^T   P = softmax(S), masked   out = P v
///   backward   d_v = P^T d_out   d_P = d_out v^T   d_S = P (d_P - rowsum(P d_P))
///              d_q = scale d_S k   d_k = scale d_S^T q
///
/// The baseline for FlashAttention: the same sums, but O(Tq*Tk) memory per head, saved from forward to backward. Masks
/// and edge cases as in Flash2Forward. Products compute all pairs, seen or not; the softmax reads only what is seen.
/// ProductsBy::library is what one would write with a library, and what tables compare with. ProductsBy::teams is the
/// lesson: the same launches, with products as plain team kernels. The contract is task.hpp's, and:
///
/// Source     Vaswani et al. 2017, arXiv:1706.03762, eq. 1.
/// Numerics   sums in Accum<Scalar>; S, P, d_P and d_S are rounded to Scalar, as a framework that stores them does.
/// Error      as task.hpp's with b = (2 + S) eps<Scalar> + 8 eps<Accum>. tf32: 2^-9 for eps<Scalar>, because tensor
///            cores drop what is beyond 10 fraction bits, up to 2^-10.
/// Order      fixed for given shapes and strides (kernels/gemm/head_gemm.hpp): bitwise repeatable. No atomics.
/// Memory     probabilities [B,H,Tq,Tk] Scalar, kept for backward; d_scores, the same again, during backward.
/// Throws     std::invalid_argument if rows of scores are not contiguous, or tf32 is requested on hosts or for another
///            type than float. Any D, and any strides of the other tensors, will do.
#pragma once

#include "kernels/attention/task.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/gemm/operation.hpp"

namespace tessera::kernels {

enum class ProductsBy { library, teams };  // HeadGemm, HeadProduct

template <class Exec, class Scalar>
struct StandardForward {
  ForwardTask<Exec, Scalar> task;
  HeadTensor<Scalar, Exec> probabilities;  // [B,H,Tq,Tk]  out, kept for backward
  ProductsBy by = ProductsBy::library;
  GemmMath math = GemmMath::full;  // of the library's products

  void launch(const Exec& exec) const;
};

template <class Exec, class Scalar>
struct StandardBackward {
  BackwardTask<Exec, Scalar> task;               // out and lse are not read: probabilities suffice
  HeadTensor<const Scalar, Exec> probabilities;  // [B,H,Tq,Tk]  in, saved by the forward pass
  HeadTensor<Scalar, Exec> d_scores;             // [B,H,Tq,Tk]  workspace
  ProductsBy by = ProductsBy::library;
  GemmMath math = GemmMath::full;

  void launch(const Exec& exec) const;
};

/// Work tags of the row kernels below: rows that are read again at each use, and rows kept in packets of kWidth.
struct RowsOfScores {
  struct Reread {};
  template <bool kPerThread, int kWidth>
  struct Kept {};
};

/// Row softmax in place over scores [B,H,Tq,Tk], masked when causal.
///
/// On a GPU a row is read and written once: its lanes keep what they read in registers, kKept numbers each. A thread
/// owns a short row, a team a longer one; one of more than 512 * kKept keys is read three times, as on a host, where a
/// row stays in the cache.
template <class Exec, class Scalar>
struct SoftmaxRows : RowsOfScores {
  using Real = Accum<Scalar>;

  HeadTensor<Scalar, Exec> scores;  // [B,H,Tq,Tk]  in: scores, out: probabilities
  HeadRows<Real, Exec> lse;         // [B,H,Tq]     out
  bool causal;

  static constexpr int kKept = 128 / sizeof(Real);

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(Reread, const Member& team) const;
  template <bool kPerThread, int kWidth>
  KOKKOS_FUNCTION void operator()(Kept<kPerThread, kWidth>, const Member& team) const;
};

/// d_S = P (d_P - rowsum(P d_P)) in place over d_P, in the same way. Where a query does not see a key, d_P is not read.
template <class Exec, class Scalar>
struct SoftmaxRowsBackward : RowsOfScores {
  using Real = Accum<Scalar>;

  HeadTensor<const Scalar, Exec> probabilities;  // [B,H,Tq,Tk]  in
  HeadTensor<Scalar, Exec> d_scores;             // [B,H,Tq,Tk]  in: d_P, out: d_S
  bool causal;

  static constexpr int kKept = 128 / sizeof(Real);

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(Reread, const Member& team) const;
  template <bool kPerThread, int kWidth>
  KOKKOS_FUNCTION void operator()(Kept<kPerThread, kWidth>, const Member& team) const;
};

}  // namespace tessera::kernels
