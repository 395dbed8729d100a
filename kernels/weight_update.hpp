/// One step of an element-wise optimizer, over any list of spans of the flat parameter arrays.
///
///   g       = grad_scale * grad[i]
///   update  = the rule's: a function of g and of the moments, which it updates
///   p       = p (1 - learning_rate * weight_decay)                               (blocks that decay)
///   p      -= learning_rate * update
///   param[i] = round(p)
///
/// A rule (adamw.hpp, lion.hpp) is a struct without members:
///   kName, kLaunch       in labels of the plan ("NAME.blocks"); of its launches
///   kMoments             the names of the arrays that it keeps, one to three: "optimizer.NAME" in the plan,
///                        "moments/NAME" in checkpoints
///   kNeedsWholeMatrices  the plan then refuses to divide a tensor among ranks or chunks
///   factors(now, keys)   what depends on the step and not on the element
///   update(factors, g, moments)  updates the moments and returns learning_rate * update
///
/// The values that change with the step (learning rate, bias corrections, clip factor, overflow flag) are read from
/// device memory. One team per block, in packets (kernels/core/packet.hpp) if it starts at a packet boundary.
///
/// Numerics   master weights, moments and arithmetic in Real = Accum<Scalar>; `param` is the working copy that the
///            model reads, rounded to Scalar (bf16: the upper half of the master weight, see master_weights.hpp).
///            Moments in bfloat16, and weights in bfloat16 without a master, are rounded stochastically
///            (master_weights.hpp) by random bits that depend on `noise` and the element's index alone.
/// Order      element-wise: bitwise repeatable, however the spans are cut.
/// Cost       memory-bound. It moves, per element, 3 Real and 2 more for each moment in fp32 and fp64 (AdamW 7);
///            AdamW 30 bytes in fp16, 28 in bf16 (26 with bf16 gradients), Lion 8 less. Moments in bf16 save 4 bytes
///            each, no master saves 4.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument if extents of the state disagree.
/// Limits     blocks lie inside the arrays and do not overlap (make_update_blocks checks the latter).
#pragma once

#include <iterator>
#include <type_traits>

#include "kernels/core/packet.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/master_weights.hpp"
#include "kernels/update_blocks.hpp"

namespace tessera::kernels {

/// Moment: Accum<Scalar> or bfloat16. kHasMaster false: bfloat16 weights without a master; `master` is empty.
template <class Rule, class Exec, class Scalar, class Grad = Accum<Scalar>, class Moment = Accum<Scalar>,
          bool kHasMaster = true>
struct WeightUpdate {
  using Real = Accum<Scalar>;
  static constexpr int kMoments = std::size(Rule::kMoments);

  Vector<const UpdateBlock, Exec> blocks;    // [blocks]  in
  Vector<MasterWord<Scalar>, Exec> master;   // [n]  in and out (master_weights.hpp); [p] if it is the working copy
  Vector<Scalar, Exec> param;                // [p]  out (bf16: in and out): working copy; empty if it is the master
  Vector<const Grad, Exec> grad;             // [g]  in
  Vector<Moment, Exec> moments[kMoments];    // [n]  in and out, in the order of Rule::kMoments
  Value<const UpdateScalars, Exec> scalars;  // in
  Hyperparameters<Real> keys;

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;

 private:
  static constexpr bool kHasHalves = kHasMaster && MasterWeights<Exec, Scalar>::kAreHalves;
  static constexpr bool kHasNarrowMoments = !std::is_same_v<Moment, Real>;
  static constexpr bool kRoundsAfterwards = kIsHost<Exec> && kHasMaster && !kHasHalves;
  static_assert(kHasMaster || std::is_same_v<Scalar, bfloat16>);
  static_assert(kMoments <= 3, "64 random bits round a weight and three moments");
  struct Factors {
    Real keep, grad_scale;
    typename Rule::template Factors<Real> rule;
    std::uint64_t noise;
  };
  template <int kWidth>
  KOKKOS_FUNCTION void update(const Factors& by, const UpdateBlock& block, std::int64_t i) const;
  /// Where the master of a block begins: at the index of the moments, unless it is the working copy.
  KOKKOS_FUNCTION std::int64_t master_of(const UpdateBlock& block) const {
    return param.data() ? block.state : block.param;
  }
};

}  // namespace tessera::kernels
