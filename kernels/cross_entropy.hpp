/// Cross-entropy of a chunk of tokens against their targets; the logits become their own gradient.
///
///   row_loss[i]  = log(sum_v exp(logits[i,v])) - logits[i, targets[i]]           (nats)
///   logits[i,v] <- grad_scale * (softmax_v(logits[i,:]) - [v == targets[i]])     when write_gradient
///
/// One team per row. On hosts the row is walked in tiles of kTile columns staged in the pad, with a running maximum and
/// a running sum, so any vocabulary fits and no exponential overflows; a second walk writes the gradient over the
/// logits. On GPUs a row stays in the team's registers (kernels/core/team.hpp) or, a longer one, in the pad; the
/// longest, and rows that are not made of packets, are read twice. Each lane has a maximum and a sum of its own. A
/// target of -1 is ignored: loss 0, gradient 0. Columns from V on are padding: they take no part in the loss and get
/// gradient 0, so that products over the padded matrix stay right.
///
/// Source     running softmax: Milakov & Gimelshein 2018, arXiv:1805.02867.
/// Numerics   all arithmetic in Real = Accum<Scalar>; a NaN logit makes its row's loss NaN. On GPUs logits below
///            -1.7e38 count as that.
/// Order      fixed for given V: bitwise repeatable. No atomics.
/// Memory     pad: level 0, Real kTile; on GPUs two Real per thread.
/// Cost       reads the logits once for the loss; reads and writes them once more for the gradient (GPUs, rows of up
///            to kHeldPackets: reads and writes them once).
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree, or grad_scale is missing where a gradient is wanted.
/// Limits     targets are -1 or in [0,V): the data room refuses others; here only builds with assertions look.
#pragma once

#include "kernels/core/math.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct CrossEntropy {
  using Real = Accum<Scalar>;

  Matrix<Scalar, Exec> logits;         // [n,>=V]  in; out: d_logits when write_gradient
  Vector<const int, Exec> targets;     // [n]    in
  Vector<Real, Exec> row_loss;         // [n]    out
  Value<const Real, Exec> grad_scale;  // in: 1 / tokens, times the loss scale; read when write_gradient
  bool write_gradient;
  int vocabulary = 0;  // V; 0: all columns of logits

  static constexpr int kTile = 1024;                  // columns staged at a time
  static constexpr std::int64_t kHeldPackets = 2048;  // of 16 bytes: the longest row that a GPU keeps in registers

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  struct Staged {};
  template <int kWidth>
  struct Walked {};
  KOKKOS_FUNCTION void operator()(Staged, const Member& team) const;
  template <int kWidth, int kSlots>
  KOKKOS_FUNCTION void operator()(InRegisters<kWidth, kSlots>, const Member& team) const;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(Walked<kWidth>, const Member& team) const;

 private:
  KOKKOS_FUNCTION bool is_ignored(const Member& team) const;
  template <int kWidth>
  KOKKOS_FUNCTION Packet<Scalar, kWidth> load_masked(const Scalar* row, int column) const;
  struct RowGradient {  // what a row's gradient is made of
    ShiftedExp<Scalar> exp;
    Real softmax_scale, scale, target_logit;  // scale / sum of exponentials; grad_scale
    int target;
  };
  template <int kWidth>
  KOKKOS_FUNCTION void store_gradient(Scalar* row, int column, const Packet<Scalar, kWidth>& logit,
                                      const RowGradient& of) const;
  /// "No maximum yet": below every logit, and still finite when multiplied by log2(e).
  static constexpr Real kNothingYet = -(sizeof(Real) == 4 ? Real(1.7e38) : Real(8e307));
  KOKKOS_FUNCTION int V() const { return vocabulary > 0 ? vocabulary : logits.extent_int(1); }
};

/// total += sum_i row_loss[i], in double, by one team: fixed order, and the total stays on the device.
template <class Exec, class Scalar>
struct LossSum {
  using Real = Accum<Scalar>;

  Vector<const Real, Exec> row_loss;  // [n]  in
  Value<double, Exec> total;          // in and out: added to

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
