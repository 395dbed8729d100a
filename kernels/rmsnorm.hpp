/// Root-mean-square layer norm, fused with the addition to the residual stream that precedes it.
///
///   forward    h[n,:]   = round(x[n,:] + delta[n,:])                       (delta absent: h = x)
///              rrms[n]  = 1 / sqrt(mean_c h[n,c]^2 + eps)
///              y[n,c]   = h[n,c] * rrms[n] * gain[c]
///   backward   g[c]     = d_y[n,c] * gain[c],   z[c] = h[n,c] * rrms[n]
///              d_x[n,c] = rrms[n] * (g[c] - z[c] * mean_c(g*z)) + d_residual[n,c]
///              d_gain[c] += sum_n d_y[n,c] * z[c]
///
/// Every row is read once, so x, delta and residual may be one tensor. Backward: one team per group of rows; the
/// group's share of d_gain is accumulated on chip and written to one row of `partial`, and a second kernel sums those
/// rows. An optional View that is not wanted is left empty (data() == nullptr). Hosts stage a row in the pad, GPUs hold
/// it in registers (kernels/core/team.hpp): hence two bodies for each kernel.
///
/// On a GPU both kernels are bound by memory, so enough loads must be in flight at all times. Forward therefore gives a
/// row to one thread, whose 32 lanes read all of it and synchronise with no others (a team, if the row is longer than
/// 16 packets per lane). Backward, where d_gain takes too many registers for that, uses a team per row, which loads its
/// next row before it reduces over its lanes.
///
/// Source     Zhang & Sennrich 2019, arXiv:1910.07467.
/// Numerics   all arithmetic in Real = Accum<Scalar>; the norm is that of the sum as rounded to Scalar, which is what
///            backward reads.
/// Error      E as in kernels/core/scalar.hpp: y E<Scalar>(C) and rrms E<Real>(C), relative; d_x eps<Scalar> relative
///            plus E<Real>(C) times its largest term; d_gain E<Real>(N) sqrt(N) times the largest d_y.
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     pad: level 0, Real C (forward), Real 3*C (backward); on GPUs at most two Reals per thread.
/// Cost       moves 2*N*C elements forward (4 with delta and residual), 3*N*C backward (4 with d_residual).
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree, or a row exceeds the limit.
/// Limits     on GPUs a row is at most 8,192 packets of 16 bytes (8,192 elements if C is not a multiple of a packet).
#pragma once

#include "kernels/core/target.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct RmsnormForward {
  using Real = Accum<Scalar>;

  Matrix<const Scalar, Exec> x;      // [N,C]  in
  Matrix<const Scalar, Exec> delta;  // [N,C]  in, optional: added to x
  Matrix<Scalar, Exec> residual;     // [N,C]  out, optional: x + delta; may be x or delta
  Vector<const Scalar, Exec> gain;   // [C]    in
  Matrix<Scalar, Exec> y;            // [N,C]  out
  Vector<Real, Exec> rrms;           // [N]    out: reciprocal root mean square, kept for backward
  Real eps;                          // added to the mean square

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  struct Staged {};
  KOKKOS_FUNCTION void operator()(Staged, const Member& team) const;
  /// Work tag: a row per thread or per team, kSlots packets of kWidth elements per lane, with or without delta.
  template <bool kPerThread, int kWidth, int kSlots, bool kAdds>
  struct Row {
    static constexpr bool kIsPerThread = kPerThread;
  };
  template <bool kPerThread, int kWidth, int kSlots, bool kAdds>
  KOKKOS_FUNCTION void operator()(Row<kPerThread, kWidth, kSlots, kAdds>, const Member& team) const;

 private:
  template <bool kAdds>
  void launch_in_registers(const Exec& exec) const;
  template <class How, int kMaxLanes, int kTeams>
  void launch_teams(const Exec& exec, int lanes) const;
};

/// Rows of RmsnormBackward's workspace: the most groups of rows.
constexpr int rmsnorm_partials(const Target& target) { return target.is_host ? 128 : 8 * kProcessors; }

/// Grad is the storage type of weight gradients.
template <class Exec, class Scalar, class Grad = Accum<Scalar>>
struct RmsnormBackward {
  using Real = Accum<Scalar>;

  Matrix<const Scalar, Exec> x;           // [N,C]  in: the input of forward's norm (its residual, or its x)
  Vector<const Scalar, Exec> gain;        // [C]    in
  Vector<const Real, Exec> rrms;          // [N]    in
  Matrix<const Scalar, Exec> d_y;         // [N,C]  in; may be d_x
  Matrix<const Scalar, Exec> d_residual;  // [N,C]  in, optional: gradient that bypasses the norm; may be d_x
  Matrix<Scalar, Exec> d_x;               // [N,C]  out
  Vector<Grad, Exec> d_gain;              // [C]    in and out: added to
  Matrix<Real, Exec> partial;             // [kPartials,C]  workspace

  // Upper bound on the number of row groups, lower bound on the rows of a group. A GPU gets just enough groups to fill
  // it once (teams_at_once). On a host a group is a contiguous range of rows; on a GPU group g of G has the rows g,
  // g + G, ..., so that rows read at the same time are adjacent.
  static constexpr int kPartials = rmsnorm_partials({.is_host = kIsHost<Exec>});
  static constexpr int kMinGroupRows = kIsHost<Exec> ? 16 : 2;

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  struct Staged {};
  KOKKOS_FUNCTION void operator()(Staged, const Member& team) const;
  /// Work tag: kSlots packets of kWidth elements per lane, with or without d_residual.
  template <int kWidth, int kSlots, bool kAdds>
  struct Rows {};
  template <int kWidth, int kSlots, bool kAdds>
  KOKKOS_FUNCTION void operator()(Rows<kWidth, kSlots, kAdds>, const Member& team) const;

 private:
  template <bool kAdds>
  int launch_in_registers(const Exec& exec) const;
  template <class How, int kMaxLanes, int kTeams>
  int launch_teams(const Exec& exec, int lanes) const;
};

}  // namespace tessera::kernels
