/// The newest token enters the cache: its query and key are rotated, its key and value stored at its position.
///
///   q[b,h,:]                     <-  rotated by positions[b]       (rotary position embedding, kernels/rope.hpp)
///   keys[b,h,positions[b],:]     <-  k[b,h,:], rotated by positions[b]
///   values[b,h,positions[b],:]   <-  v[b,h,:]
///
/// One launch instead of a rotation and two copies. Positions are read from the device's memory, so that a launch, or a
/// graph that contains it, does not depend on them.
///
/// Numerics   the rotation in Real = Accum<Scalar>, as in Rope; values are copied.
/// Error      E<Scalar>(1) times the largest element (kernels/core/scalar.hpp).
/// Order      element-wise: bitwise repeatable.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when D is odd or shapes disagree.
/// Limits     positions[b] is 0 to capacity - 1, and has a row in the table.
#pragma once

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct CacheAppend {
  using Real = Accum<Scalar>;

  HeadTensor<Scalar, Exec> q;             // [B,H,1,D]         in and out
  HeadTensor<const Scalar, Exec> k;       // [B,H,1,D]         in
  HeadTensor<const Scalar, Exec> v;       // [B,H,1,D]         in
  HeadRows<const Real, Exec> table;       // [positions,D/2,2] in: cos, sin (fill_rope_table)
  Vector<const int, Exec> positions;      // [B]               in
  HeadTensor<Scalar, Exec> keys, values;  // [B,H,capacity,D]  out: a row of each

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
