/// Weighted sum of every row: the kernel to read first. It does little, in the form that all the others share.
///
///   forward    y[n]   = sum_d w[d] x[n,d]
///   backward   d_x[n,d] = d_y[n] w[d],      d_w[d] = sum_n d_y[n] x[n,d]
///
/// How to read a kernel: the struct's fields are its contract (shape and direction beside each), `launch` checks them,
/// sizes the pad and enqueues, `operator()` is what one team of threads does. A call names each field:
///
///   WeightedSumForward<Device, float>{.x = x, .w = w, .y = y}.launch(exec);
///
/// Tiling. A team owns kRows rows and walks D in tiles of kColumns. Every row needs w, so its tile is staged in the
/// scratch pad (shared memory on a GPU, a cache-resident buffer on a CPU), converted once; x is needed once and is read
/// from global memory. Backward walks the same tiles: the rows of a tile all add to the same part of d_w, so each team
/// accumulates its share in the pad and writes it to its own row of `partial`; a second kernel sums those rows.
///
///            D: kColumns at a time
///          +--------+--------+--
///   kRows  |  tile  |  next  |      one team;  pad: w[tile] (forward), w[tile] and d_w[tile] (backward)
///          +--------+--------+--
///
/// Source     the example kernel of Stanford's CS336, assignment 2 (there in Triton).
/// Numerics   products and sums in Real = Accum<Scalar>; results rounded once.
/// Error      with x and w up to 1, E as in kernels/core/scalar.hpp: y and d_x eps<Scalar> relative, for y plus
///            E<Real>(D) sqrt(D); d_w E<Real>(N) sqrt(N).
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     pad: level 0, Real kColumns + kRows (forward), Real 2*kColumns (backward).
/// Cost       2*N*D flop forward; moves N*D elements forward, 2*N*D backward; memory-bound.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct WeightedSumForward {
  using Real = Accum<Scalar>;

  Matrix<const Scalar, Exec> x;  // [N,D]  in
  Vector<const Scalar, Exec> w;  // [D]    in
  Vector<Scalar, Exec> y;        // [N]    out

  static constexpr int kRows = 16;       // rows per team
  static constexpr int kColumns = 1024;  // columns staged at a time

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;
};

template <class Exec, class Scalar>
struct WeightedSumBackward {
  using Real = Accum<Scalar>;

  Matrix<const Scalar, Exec> x;    // [N,D]  in
  Vector<const Scalar, Exec> w;    // [D]    in
  Vector<const Scalar, Exec> d_y;  // [N]    in
  Matrix<Scalar, Exec> d_x;        // [N,D]  out
  Vector<Real, Exec> d_w;          // [D]    out
  Matrix<Real, Exec> partial;      // [tiles(N),D]  workspace: d_w of each tile of rows

  static constexpr int kRows = 16;       // rows per team
  static constexpr int kColumns = 1024;  // columns staged at a time
  static constexpr int tiles(int rows) { return ceil_div(rows, kRows); }

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;
};

}  // namespace tessera::kernels
