#include "kernels/sample.hpp"  // the contract is there; here is how

#include <bit>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/random.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/chain.hpp"

namespace tessera::kernels {
namespace {

/// Numbers as unsigned integers in the same order; 0 and -0 are equal.
template <class Scalar>
using Rank = std::conditional_t<sizeof(Scalar) == 8, std::uint64_t, std::uint32_t>;

template <class Scalar>
KOKKOS_INLINE_FUNCTION Rank<Scalar> rank_of(Scalar x) {
  using Bits = std::conditional_t<sizeof(Scalar) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(Scalar) == 4, std::uint32_t, std::uint16_t>>;
  constexpr Bits kSign = Bits(Bits(1) << (8 * sizeof(Scalar) - 1));
  Bits bits;
  if constexpr (sizeof(Scalar) == 2) {
    bits = x.bits;
  } else {
    bits = std::bit_cast<Bits>(x);
  }
  if (bits == kSign) bits = 0;
  return static_cast<Bits>(bits & kSign ? ~bits : bits | kSign);
}

}  // namespace

template <class Exec, class Scalar>
void SampleTokens<Exec, Scalar>::launch(const Exec& exec) const {
  const int B = logits.extent_int(0), V = logits.extent_int(1);
  TESSERA_REQUIRE(drawn.extent_int(0) == B && tokens.extent_int(0) == B,
                  "sample: drawn and tokens must be [B] for logits [B,V]", drawn.extent(0), tokens.extent(0), B);
  TESSERA_REQUIRE(temperature >= 0 && top_k >= 0, "sample: temperature and top_k must not be negative", temperature,
                  top_k);
  if (B == 0) return;
  TESSERA_REQUIRE(V > 0, "sample: there must be a token to draw", V);
  const bool fits = packets_fit(kPacketWidth<Exec, Scalar>, V, logits.data());
  in_packets<Exec, Scalar>(fits, [&]<int kWidth>(InPackets<kWidth>) {
    using Policy = Kokkos::TeamPolicy<Exec, InPackets<kWidth>, Kokkos::LaunchBounds<kLanes, 1>>;
    Kokkos::parallel_for("tessera::sample",
                         team_policy<Policy>(exec, B, kLanes)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<double, Exec>::shmem_size(kSegments))),
                         *this);
  });
}

/// A team's view of its row. The functions are called by all lanes of the team, which all get the result.
template <class Exec, class Scalar>
template <int kWidth>
struct SampleTokens<Exec, Scalar>::Row {
  const Member& team;
  const Scalar* logits;  // [V]
  int V;
  double* pad;  // [kSegments]

  /// body(packet, index) for packets p, p + stride, ... of the `count` ones from index `begin` on, in this order; on
  /// GPUs several of them are in flight.
  template <class Body>
  KOKKOS_FUNCTION void each_packet(int begin, int count, int p, int stride, const Body& body) const {
    constexpr int kTogether = kIsHost<Exec> ? 1 : 4;
    const auto index = [&](int i) { return begin + (p + i * stride) * kWidth; };
    for (; p < count; p += kTogether * stride) {
      Packet<Scalar, kWidth> read[kTogether];
      TESSERA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        if (p + i * stride < count) read[i] = load<kWidth>(logits + index(i));
      }
      TESSERA_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        if (p + i * stride < count) body(read[i], index(i));
      }
    }
  }

  struct Range {
    Rank<Scalar> low, high;
  };
  /// The largest rank, and the smallest of the maxima of the row's strips (0 if some strips are empty).
  KOKKOS_FUNCTION Range range() const {
    Kokkos::MinMaxScalar<Rank<Scalar>> maxima;
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, int{kStrips}),
        [&](int strip, Kokkos::MinMaxScalar<Rank<Scalar>>& found) {
          Rank<Scalar> top = 0;
          each_packet(0, V / kWidth, strip, kStrips, [&](const auto& logits_p, int) {
            for (int i = 0; i < kWidth; ++i) {
              const Rank<Scalar> rank = rank_of(stored(logits_p, i));
              top = rank > top ? rank : top;
            }
          });
          if (top < found.min_val) found.min_val = top;
          if (top > found.max_val) found.max_val = top;
        },
        Kokkos::MinMax<Rank<Scalar>>(maxima));
    return {V / kWidth < kStrips ? Rank<Scalar>(0) : maxima.min_val, maxima.max_val};
  }

  KOKKOS_FUNCTION int count_from(Rank<Scalar> bound) const {
    const auto reach = [&](const auto& logits_p) {
      int reached = 0;
      for (int i = 0; i < kWidth; ++i) reached += rank_of(stored(logits_p, i)) >= bound ? 1 : 0;
      return reached;
    };
    int count = 0;
    if constexpr (kIsHost<Exec>) {  // a loop over neighbours vectorises
      Kokkos::parallel_reduce(
          Kokkos::TeamVectorRange(team, V / kWidth),
          [&](int p, int& sum) { sum += reach(load<kWidth>(logits + std::int64_t{p} * kWidth)); }, count);
    } else {
      Kokkos::parallel_reduce(
          Kokkos::TeamVectorRange(team, int{kStrips}),
          [&](int strip, int& sum) {
            each_packet(0, V / kWidth, strip, kStrips, [&](const auto& logits_p, int) { sum += reach(logits_p); });
          },
          count);
    }
    return count;
  }

  /// A rank that at least k logits reach; kAll: exactly k do, else it is the largest such rank, and `above` are above
  /// it.
  static constexpr int kAll = -1;
  struct Threshold {
    Rank<Scalar> rank;
    int above;
  };
  KOKKOS_FUNCTION Threshold threshold(const Range& range, int k) const {
    Rank<Scalar> low = k <= kStrips ? range.low : Rank<Scalar>(0), high = range.high;  // at least k reach low
    int above = 0;                                                                     // high, and were counted
    while (low < high) {
      const Rank<Scalar> middle = high - (high - low) / 2;  // above low, without overflow
      const int count = count_from(middle);
      if (count == k) return {middle, kAll};
      if (count > k) {
        low = middle;
      } else {
        high = middle - 1;
        above = count;
      }
    }
    return {low, above};
  }

  /// The first index at which the running sum of weight(logit, index) exceeds `target`, or `target` times the whole
  /// sum; or else the last index whose weight is above 0; -1 if there is none.
  template <bool kIsShare, class Weight>
  KOKKOS_FUNCTION int find(double target, const Weight& weight) const {
    for (int first = 0, last = V;;) {
      const bool has_packets = last - first >= kSegments * kWidth;
      const int width = has_packets ? kWidth : 1;
      const int size = round_up(ceil_div(last - first, kSegments), width);
      // 1. the sum of each segment
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, kSegments), [&](int segment) {
        const int begin = first + segment * size < last ? first + segment * size : last;
        const int end = begin + size < last ? begin + size : last;
        double sum = 0;
        if (has_packets) {
          const int count = (end - begin) / kWidth, lanes = kIsHost<Exec> ? count : kVectorLanes;
          Kokkos::parallel_reduce(
              Kokkos::ThreadVectorRange(team, lanes),
              [&](int lane, double& part) {
                each_packet(begin, count, lane, lanes, [&](const auto& logits_p, int at) {
                  for (int i = 0; i < kWidth; ++i) part += weight(stored(logits_p, i), at + i);
                });
              },
              sum);
        } else {
          Kokkos::parallel_reduce(
              Kokkos::ThreadVectorRange(team, end - begin),
              [&](int i, double& part) { part += weight(logits[begin + i], begin + i); }, sum);
        }
        Kokkos::single(Kokkos::PerThread(team), [&] { pad[segment] = sum; });
      });
      team.team_barrier();  // every segment's sum is in the pad
      // 2. the segment in question; every lane finds the same
      if (kIsShare && first == 0 && last == V) {
        double whole = 0;
        for (int segment = 0; segment < kSegments; ++segment) whole += pad[segment];
        target *= whole;
      }
      int chosen = -1;
      double before = 0, before_chosen = 0;
      for (int segment = 0; segment < kSegments; ++segment) {
        if (!(pad[segment] > 0)) continue;
        chosen = segment;
        before_chosen = before;
        before += pad[segment];
        if (before > target) break;
      }
      team.team_barrier();  // the sums have been read
      if (chosen < 0) return -1;
      target -= before_chosen;
      first += chosen * size;
      last = first + size < last ? first + size : last;
      if (last - first == 1) return first;
    }
  }
};

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void SampleTokens<Exec, Scalar>::operator()(InPackets<kWidth>, const Member& team) const {
  let_successor_start();
  wait_for_predecessor();
  const int b = team.league_rank(), V = logits.extent_int(1);
  double* pad = static_cast<double*>(team.team_scratch(0).get_shmem(sizeof(double) * kSegments));
  const Row<kWidth> row{team, &logits(b, 0), V, pad};
  const auto range = row.range();
  const auto first_of = [&](Rank<Scalar> rank, int number) {  // the index of the number-th logit of this rank, from 0
    return row.template find<false>(number, [&](Scalar x, int) { return rank_of(x) == rank ? 1.0 : 0.0; });
  };
  const int largest = first_of(range.high, 0);
  int token = largest;
  if (temperature > 0) {
    // 1. what is kept: ranks above `low`, and of those equal to it the ones up to index `last_equal`
    Rank<Scalar> low = 0;
    int last_equal = V - 1;
    if (top_k > 0 && top_k < V) {
      const auto bound = row.threshold(range, static_cast<int>(top_k));
      low = bound.rank;
      if (bound.above != Row<kWidth>::kAll) last_equal = first_of(low, static_cast<int>(top_k) - bound.above - 1);
    }

    // 2. the draw
    const double u = uniform(mix(mix(seed, static_cast<std::uint64_t>(b)), static_cast<std::uint64_t>(drawn(b))));
    const Real top = static_cast<Real>(logits(b, largest)), inverse = static_cast<Real>(1 / temperature);
    token = row.template find<true>(u, [&](Scalar x, int v) {
      const Rank<Scalar> rank = rank_of(x);
      const bool is_kept = rank > low || (rank == low && v <= last_equal);
      return is_kept ? static_cast<double>(fast_exp((static_cast<Real>(x) - top) * inverse)) : 0.0;
    });
    if (token < 0) token = largest;  // NaN or infinity among the logits
  }
  team.team_barrier();  // drawn(b) has been read
  Kokkos::single(Kokkos::PerTeam(team), [&] {
    tokens(b) = token;
    drawn(b) += 1;
  });
}

TESSERA_INSTANTIATE_KERNEL(SampleTokens);

}  // namespace tessera::kernels
