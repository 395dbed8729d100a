/// Draws the next token of each sequence from its logits.
///
///   p[b,v] = exp(logits[b,v] / temperature) / sum over the kept tokens,   kept: the top_k largest (0: all)
///   token  = the first v, in the order of the vocabulary, at which the running sum of p exceeds u
///   u      = uniform(mix(mix(seed, b), drawn[b])), in (0,1]                         (kernels/core/random.hpp)
///
/// Temperature 0 takes the largest logit. Of equal logits the lower index counts as larger. A team per sequence reads
/// its row a few times, from the cache: nothing is sorted, and nothing leaves the device. The k-th largest logit is
/// found by bisection over the bits of the numbers, counting the logits that are not smaller. To find where a running
/// sum exceeds a target, the row is cut into kSegments parts, and the part where it happens is cut into parts
/// again.
///
/// Source     inverse transform sampling; top-k: Fan, Lewis & Dauphin 2018, arXiv:1805.04833.
/// Numerics   logits as stored; exponentials in Real = Accum<Scalar>, sums in double.
/// Error      a token's probability is exact to E<Real>(1), times the largest |logit| / temperature where that is above
///            1 (kernels/core/scalar.hpp).
/// Order      fixed for given V: the same seed, counters and logits give the same tokens. No atomics.
/// Memory     pad: level 0, double kSegments.
/// Cost       reads V logits about 3 times, with top_k 10 to 25 times.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree, V is 0, or the temperature or top_k is negative.
/// Limits     with a NaN among the logits, the token is in the vocabulary, but otherwise unspecified.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct SampleTokens {
  using Real = Accum<Scalar>;

  Matrix<const Scalar, Exec> logits;  // [B,V]  in
  Vector<int, Exec> drawn;            // [B]    in and out: tokens drawn for this sequence before; grows by 1
  Vector<int, Exec> tokens;           // [B]    out
  double temperature;                 // 0: the largest
  std::int64_t top_k;                 // 0: all
  std::uint64_t seed;

  static constexpr int kSegments = 32;
  static constexpr int kLanes = 1024;   // of a team, on GPUs
  static constexpr int kStrips = 1024;  // of a row, whose maxima bound the k-th largest logit from below

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;

 private:
  template <int kWidth>
  struct Row;
};

}  // namespace tessera::kernels
