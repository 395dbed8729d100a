/// Token embedding: a row of the table per token, and the gradient of the table.
///
///   forward    out[n,:] = weight[tokens[n],:]
///   backward   d_weight[v,:] += sum_{n: tokens[n]=v} d_out[n,:]        n ascending
///
/// Backward gives each team a slice of kColumns columns of the whole table and walks the rows in order: two equal
/// tokens meet in the same thread, one after the other, so no atomics are needed and the order is fixed.
///
/// Numerics   forward copies; backward sums in Accum<Scalar>.
/// Order      fixed: bitwise repeatable.
/// Cost       moves 2*N*C elements forward; N*C Scalar and 2*N*C Accum<Scalar> backward.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree.
/// Limits     token ids are in [0,V): the data room refuses others; here only builds with assertions look.
#pragma once

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct EmbeddingForward {
  Vector<const int, Exec> tokens;     // [N]    in
  Matrix<const Scalar, Exec> weight;  // [V,C]  in
  Matrix<Scalar, Exec> out;           // [N,C]  out

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

template <class Exec, class Scalar>
struct EmbeddingBackward {
  using Real = Accum<Scalar>;

  Vector<const int, Exec> tokens;    // [N]    in
  Matrix<const Scalar, Exec> d_out;  // [N,C]  in
  Matrix<Real, Exec> d_weight;       // [V,C]  in and out: added to

  static constexpr int kColumns = 32;  // columns per team

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
