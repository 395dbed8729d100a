/// Cross-entropy of a chunk of tokens against their targets; the logits become their own gradient.
///
///   row_loss[i]  = log(sum_v exp(logits[i,v])) - logits[i, targets[i]]           (nats)
///   logits[i,v] <- grad_scale * (softmax_v(logits[i,:]) - [v == targets[i]])     when write_gradient
///
/// One team per row at a time. On hosts the row is processed in tiles of kTile columns staged in the pad, with a
/// running maximum and a running sum, so any vocabulary fits and no exponential overflows; a second pass writes the
/// gradient over the logits. On GPUs each lane keeps its own maximum and sum, reduced once per row, and logits are read
/// once: a row that suits Held stays in its team's registers, as exponentials; a longer row is staged in the pad, and
/// while its gradient is written, the next row's logits are loaded into the slots already freed. Only the part that
/// exceeds the pad is read twice. Rows need no alignment: all but a few elements at either end move in packets.
///
/// A target of -1 is ignored: loss 0, gradient 0. Columns from V on are padding: they do not enter the loss and get
/// gradient 0, so that products over the padded matrix stay correct.
///
/// Source     running softmax: Milakov & Gimelshein 2018, arXiv:1805.02867.
/// Numerics   all arithmetic in Real = Accum<Scalar>; a NaN logit makes its row's loss NaN. Where a loss is not
///            finite, neither is its row's gradient. On GPUs a row of logits below -1.7e38 has no finite loss.
/// Error      E as in kernels/core/scalar.hpp: row_loss 20 E<Real>(1); a gradient E<Scalar>(V) + 12 eps<Real> relative,
///            plus E<Real>(V) grad_scale.
/// Order      fixed for given V and alignment of a row's first logit within a packet: bitwise repeatable. No atomics.
/// Memory     pad: level 0, Real kTile; on GPUs two or four Real per thread and, for long rows, up to all the rest.
/// Cost       hosts: reads the logits once for the loss; reads and writes them once more for the gradient. GPUs: reads
///            and writes them once, except for the part of a row beyond the pad (208 KiB on Hopper).
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree, or grad_scale is missing where a gradient is wanted.
/// Limits     targets are -1 or in [0,V): src/data refuses others; here only builds with assertions check.
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

  static constexpr int kTile = 1024;  // columns staged at a time

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  struct Staged {};
  /// A row in the registers of the smallest team that holds it, kSlots packets per lane; 1024 lanes fill a
  /// multiprocessor. Without the vendor's parts fp32 takes up to eight: faster than a pad of 48 KiB without
  /// asynchronous copies.
  template <int kWidth, int kSlotsOfLane = 4>
  struct Held {
    static constexpr int kSlots = kSlotsOfLane, kMaxLanes = 512;
    static std::int64_t lanes(std::int64_t packets) {
      return (packets + kSlots * kVectorLanes - 1) / (kSlots * kVectorLanes) * kVectorLanes;
    }
    /// Whether the row fits, and teams of that size leave less than a quarter of a multiprocessor idle.
    static bool suits(std::int64_t packets) {
      return lanes(packets) <= kMaxLanes && 1024 / lanes(packets) * lanes(packets) > 768;
    }
  };
  KOKKOS_FUNCTION void operator()(Staged, const Member& team) const;
  template <int kWidth, int kSlots>
  KOKKOS_FUNCTION void operator()(Held<kWidth, kSlots>, const Member& team) const;

  /// Rows that pass through a team's pad, which holds `slots` packets per lane.
  template <int kWidth, int kLanes>
  struct Streamed {
    CrossEntropy loss;
    int slots;

    static constexpr int kBatches = 4, kAtOnce = 3;
    static constexpr Real kNone = -static_cast<Real>(__builtin_inff());
    static std::size_t pad_bytes(int slots) {
      return Pad<Real, Exec>::shmem_size(4 * kJoinPad) + std::size_t(16) * (1 + slots * kLanes);
    }
    KOKKOS_FUNCTION void operator()(const Member& team) const;
  };

 private:
  template <class How>
  bool launch_held(const Exec& exec, const char* label, std::int64_t packets) const;
  template <int kWidth, int kLanes>
  bool launch_streamed(const Exec& exec, const char* label, std::int64_t packets) const;
  KOKKOS_FUNCTION int V() const { return vocabulary > 0 ? vocabulary : logits.extent_int(1); }
  KOKKOS_FUNCTION void clear(const Member& team, int i, int first) const;
  KOKKOS_FUNCTION void ignore_row(const Member& team, int i) const;
};

/// total += sum_i row_loss[i], in double, by one team: in a fixed order; the total stays in device memory.
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
