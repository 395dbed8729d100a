/// Rotary position embedding: pair i of a head is rotated by the angle position * theta^(-2i/D).
///
///   (x[2i], x[2i+1])  <-  (x[2i] cos - x[2i+1] sin,  x[2i] sin + x[2i+1] cos)        i = 0 .. D/2-1
///
/// Pairs are neighbours, as in the paper (not halves, as in GPT-NeoX). Backward rotates the gradient by the negative
/// angle, since a rotation's transpose is its inverse. One team per (sequence, token): the angles of a position
/// serve all its heads. q and k are adjacent in the fused qkv buffer and are rotated in one launch, as a head tensor of
/// 2H heads (heads_of_q_and_k).
///
/// Source     Su et al. 2021, arXiv:2104.09864, eq. 34.
/// Numerics   angles, sines and cosines in double, rounded once to Real = Accum<Scalar>; the rotation in Real.
/// Error      E<Scalar>(1) times the largest element (kernels/core/scalar.hpp).
/// Order      element-wise: bitwise repeatable.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when D is odd, shapes disagree, or the table is too short.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Fills a host array [T, D/2, 2] with (cos, sin) of position * theta^(-2i/D). Real is float or double.
template <class Real>
void fill_rope_table(Real* table, int T, int D, double theta);

enum class RopeDirection { forward, backward };

template <class Exec, class Scalar>
struct Rope {
  using Real = Accum<Scalar>;

  HeadTensor<Scalar, Exec> x;        // [B,H,T,D]  in and out
  HeadRows<const Real, Exec> table;  // [>= first_position + T, D/2, 2]  in: cos, sin
  int first_position = 0;            // position of x's token 0; above 0 when a KV cache holds earlier tokens
  RopeDirection direction = RopeDirection::forward;

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(InPackets<1>, const Member& team) const;  // pair by pair
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;
};

}  // namespace tessera::kernels
