/// AdamW with decoupled weight decay, over any list of spans of the flat parameter arrays.
///
///   g  = grad_scale * grad[i]
///   m  = beta1 m + (1 - beta1) g,      v = beta2 v + (1 - beta2) g^2
///   p  = p (1 - learning_rate * weight_decay)                                    (blocks that decay)
///   p -= learning_rate / bias1 * m / (sqrt(v) / sqrt(bias2) + eps),   bias_k = 1 - beta_k^step
///   param[i] = round(p)
///
/// The values that change with the step (learning rate, bias corrections, clip factor, overflow flag) are read from
/// device memory, so a captured step can be replayed. One team per block of at most kAdamwBlock elements, processed in
/// packets (kernels/core/packet.hpp) if the block starts at a packet boundary.
///
/// Source     Loshchilov & Hutter 2019, arXiv:1711.05101, Alg. 2, in the arrangement of torch.optim.AdamW.
/// Numerics   master weights, moments and arithmetic in Real = Accum<Scalar>; `param` is the working copy that the
///            model reads, rounded to Scalar (bf16: the upper half of the master weight, see master_weights.hpp).
///            Moments in bfloat16, and weights in bfloat16 without a master, are rounded stochastically
///            (core/stochastic_rounding.hpp) by random bits that depend on `noise` and the element's index alone.
///            1 - beta is formed in double, so that betas near 1 lose no digits.
/// Error      E<Real>(1) per step (kernels/core/scalar.hpp): absolute for weights of about 1; of the larger of |m| and
///            |g| for m; relative for v.
/// Order      element-wise: bitwise repeatable, however the spans are cut.
/// Cost       moves 7 Real per element in fp32 and fp64, 30 bytes in fp16, 28 in bf16 (26 with bf16 gradients);
///            memory-bound. Moments in bf16 save 8 bytes per element, no master saves 4.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument if extents of the state disagree.
/// Limits     blocks lie inside the arrays and do not overlap (make_adamw_blocks checks the latter).
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/core/packet.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/master_weights.hpp"

namespace tessera::kernels {

struct AdamwSpan {                  // a tensor, or the part of it that this rank owns
  std::int64_t param, grad, state;  // first element: of the weights; of the gradients; of m, v and a separate master
  std::int64_t count;
  bool decay;
  std::int64_t index = 0;  // of its first element among all parameters: the counter of the random numbers
};

struct AdamwBlock {  // the work of one team
  std::int64_t param, grad, state;
  std::int32_t count;
  bool decay;
  std::int64_t index;
};

struct AdamwScalars {  // in device memory
  double learning_rate;
  double bias1, bias2;      // 1 - beta1^step, 1 - beta2^step; steps count from 1
  double grad_scale;        // clip factor / loss scale
  int skip;                 // non-zero: change nothing (an fp16 overflow)
  std::uint64_t noise = 0;  // of this step's stochastic rounding
};

inline constexpr std::int64_t kAdamwBlock = 8192;  // elements per team

/// Blocks that make_adamw_blocks makes of a span of `count` elements.
constexpr std::int64_t adamw_blocks(std::int64_t count) { return ceil_div(count, kAdamwBlock); }

/// Cuts spans into blocks of at most `kAdamwBlock` elements, on the host.
/// Throws  std::invalid_argument for a negative span, or spans whose weights or states overlap.
std::vector<AdamwBlock> make_adamw_blocks(const std::vector<AdamwSpan>& spans);

/// Moment: Accum<Scalar> or bfloat16. kHasMaster false: bfloat16 weights without a master; `master` is empty.
template <class Exec, class Scalar, class Grad = Accum<Scalar>, class Moment = Accum<Scalar>, bool kHasMaster = true>
struct AdamwUpdate {
  using Real = Accum<Scalar>;

  Vector<const AdamwBlock, Exec> blocks;    // [blocks]  in
  Vector<MasterWord<Scalar>, Exec> master;  // [n]  in and out (master_weights.hpp); [p] if it is the working copy
  Vector<Scalar, Exec> param;               // [p]  out (bf16: in and out): working copy; empty if it is the master
  Vector<const Grad, Exec> grad;            // [g]  in
  Vector<Moment, Exec> m;                   // [n]  in and out
  Vector<Moment, Exec> v;                   // [n]  in and out
  Value<const AdamwScalars, Exec> scalars;  // in
  double beta1, beta2;
  Real eps, weight_decay;

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;

 private:
  static constexpr bool kHasHalves = kHasMaster && MasterWeights<Exec, Scalar>::kAreHalves;
  static constexpr bool kHasNarrowMoments = !std::is_same_v<Moment, Real>;
  static constexpr bool kRoundsAfterwards = kIsHost<Exec> && kHasMaster && !kHasHalves;
  static_assert(kHasMaster || std::is_same_v<Scalar, bfloat16>);
  struct Factors {
    Real keep, step, root_scale, grad_scale;
    Real beta1, rest1, beta2, rest2;  // rest: 1 - beta
    std::uint64_t noise;
  };
  template <int kWidth>
  KOKKOS_FUNCTION void update(const Factors& by, const AdamwBlock& block, std::int64_t i) const;
  /// Where the master of a block begins: at the index of the moments, unless it is the working copy.
  KOKKOS_FUNCTION std::int64_t master_of(const AdamwBlock& block) const {
    return param.data() ? block.state : block.param;
  }
};

}  // namespace tessera::kernels
