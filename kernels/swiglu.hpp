/// SwiGLU: the gated non-linearity of the MLP.
///
///   forward    out[n,f] = silu(gate[n,f]) * up[n,f]          silu(g) = g / (1 + exp(-g))
///   backward   d_gate[n,f] = d_out[n,f] * up[n,f] * silu'(gate[n,f]),   d_up[n,f] = d_out[n,f] * silu(gate[n,f])
///
/// gate and up lie side by side in one matrix (the result of one GEMM): columns [0,F) and [F,2F).
/// One team per row, which walks its row in tiles of kTile columns.
///
/// Source     Shazeer 2020, arXiv:2002.05202.
/// Numerics   all arithmetic in A = Accum<Scalar>; exp by fast_exp (2 ulp).
/// Order      element-wise: bitwise repeatable.
/// Memory     backward: pad, level 0, A 2*kTile, so that d_gate_up may be gate_up.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree.
#pragma once

#include "kernels/core/math.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// 1 / (1 + exp(-x)); 0 and 1 in the far tails, never NaN for a number.
template <class A>
KOKKOS_INLINE_FUNCTION A sigmoid(A x) {
  return A(1) / (A(1) + fast_exp(-x));
}

template <class A>
struct SiluGradient {
  A value;       // silu(x)
  A derivative;  // silu'(x) = s + silu(x) (1 - s), s = sigmoid(x)
};

template <class A>
KOKKOS_INLINE_FUNCTION SiluGradient<A> silu_gradient(A x) {
  const A s = sigmoid(x), value = x * s;
  return {value, s + value * (A(1) - s)};
}

template <class Exec, class Scalar>
struct SwigluForward {
  using A = Accum<Scalar>;

  Matrix<const Scalar, Exec> gate_up;  // [N,2F]  in
  Matrix<Scalar, Exec> out;            // [N,F]   out

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

template <class Exec, class Scalar>
struct SwigluBackward {
  using A = Accum<Scalar>;

  Matrix<const Scalar, Exec> gate_up;  // [N,2F]  in
  Matrix<const Scalar, Exec> d_out;    // [N,F]   in
  Matrix<Scalar, Exec> d_gate_up;      // [N,2F]  out; may be gate_up

  static constexpr int kTile = 256;  // columns staged at a time

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
