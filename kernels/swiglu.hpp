/// SwiGLU: the gated non-linearity of the MLP.
///
///   forward    out[n,f] = silu(gate[n,f]) * up[n,f]          silu(g) = g / (1 + exp(-g))
///   backward   d_gate[n,f] = d_out[n,f] * up[n,f] * silu'(gate[n,f]),   d_up[n,f] = d_out[n,f] * silu(gate[n,f])
///
/// gate and up are the columns [0,F) and [F,2F) of one matrix, the result of one GEMM.
/// One team per row, which it processes in packets (kernels/core/packet.hpp). Backward recomputes silu, so it can also
/// return the forward result for a later product: only gate and up are saved between the passes.
/// Backward has a separate body for hosts, which processes the row in tiles of kTile columns: a loop whose output may
/// alias its input (d_gate_up may be gate_up) does not vectorise, while a lane of a GPU reads its packets before it
/// writes them.
///
/// Source     Shazeer 2020, arXiv:2002.05202.
/// Numerics   all arithmetic in Real = Accum<Scalar>; exp by fast_exp (2 ulp).
/// Error      E<Scalar>(1) relative (kernels/core/scalar.hpp), but results below 1e-36 may become 0; for gradients plus
///            8 E<Real>(1), where the terms of silu' cancel.
/// Order      element-wise: bitwise repeatable.
/// Memory     backward on hosts: pad, level 0, Real 2*kTile.
/// Cost       moves 3*N*F elements forward, 5*N*F backward (6 with out).
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree.
#pragma once

#include "kernels/core/math.hpp"
#include "kernels/core/packet.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// 1 / (1 + exp(-x)); 0 and 1 in the far tails, NaN only for NaN.
template <class Real>
KOKKOS_INLINE_FUNCTION Real sigmoid(Real x) {
  return Real(1) / (Real(1) + fast_exp(-x));
}

template <class Real>
struct SiluGradient {
  Real value;       // silu(x)
  Real derivative;  // silu'(x) = s + silu(x) (1 - s), s = sigmoid(x)
};

template <class Real>
KOKKOS_INLINE_FUNCTION SiluGradient<Real> silu_gradient(Real x) {
  const Real s = sigmoid(x), value = x * s;
  return {value, s + value * (Real(1) - s)};
}

template <class Exec, class Scalar>
struct SwigluForward {
  using Real = Accum<Scalar>;

  Matrix<const Scalar, Exec> gate_up;  // [N,2F]  in
  Matrix<Scalar, Exec> out;            // [N,F]   out

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;
};

template <class Exec, class Scalar>
struct SwigluBackward {
  using Real = Accum<Scalar>;

  Matrix<const Scalar, Exec> gate_up;  // [N,2F]  in
  Matrix<const Scalar, Exec> d_out;    // [N,F]   in
  Matrix<Scalar, Exec> d_gate_up;      // [N,2F]  out; may be gate_up
  Matrix<Scalar, Exec> out = {};       // [N,F]   out, optional: forward's result, recomputed; may be d_out

  static constexpr int kTile = 256;  // columns staged at a time

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  struct Staged {};
  KOKKOS_FUNCTION void operator()(Staged, const Member& team) const;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;
};

}  // namespace tessera::kernels
