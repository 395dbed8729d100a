#include "kernels/cross_entropy.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/portable.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {
namespace detail {

// A float maximum that respects NaN does not vectorise. The bits of a float, read as an integer with the magnitude bits
// of negative numbers flipped, sort in the order of the floats, and an integer maximum does vectorise.
template <class Real>
using OrderKey = std::conditional_t<sizeof(Real) == 4, std::int32_t, std::int64_t>;

template <class Real>
KOKKOS_INLINE_FUNCTION OrderKey<Real> flip_negative(OrderKey<Real> bits) {
  constexpr int sign = 8 * sizeof(Real) - 1;
  return bits ^ ((bits >> sign) & ~(OrderKey<Real>(1) << sign));
}
template <class Real>
KOKKOS_INLINE_FUNCTION OrderKey<Real> order_key(Real value) {
  return flip_negative<Real>(std::bit_cast<OrderKey<Real>>(value));
}
template <class Real>
KOKKOS_INLINE_FUNCTION Real value_of_key(OrderKey<Real> key) {
  return std::bit_cast<Real>(flip_negative<Real>(key));
}

// --- rows on GPUs --------------------------------------------------------------------------------------------------

template <class Scalar, int kWidth>
KOKKOS_FORCEINLINE_FUNCTION Accum<Scalar> largest(const Packet<Scalar, kWidth>& packet) {
  Accum<Scalar> max = packet[0];
  for (int j = 1; j < kWidth; ++j) max = larger(max, packet[j]);
  return max;
}

/// Largest logit so far, and the sum of exponentials relative to it.
template <class Scalar>
struct RunningSum {
  using Real = Accum<Scalar>;
  /// "No maximum yet": below every logit, and its differences from logits are finite.
  static constexpr Real kNothingYet = -(sizeof(Real) == 4 ? Real(1.7e38) : Real(8e307));

  Real max = kNothingYet, sum = 0;

  KOKKOS_FORCEINLINE_FUNCTION void raise(Real new_max) {
    sum *= ShiftedExp<Scalar>{Real(0)}(max - new_max);
    max = new_max;
  }
  KOKKOS_FORCEINLINE_FUNCTION void add(Real logit) {
    raise(larger(max, logit));
    sum += ShiftedExp<Scalar>{max}(logit);
  }
  template <int kWidth>
  KOKKOS_FORCEINLINE_FUNCTION void add(const Packet<Scalar, kWidth>& logits) {
    raise(larger(max, largest(logits)));
    const ShiftedExp<Scalar> exp{max};
    Real of_packet = 0;
    for (int j = 0; j < kWidth; ++j) of_packet += exp(logits[j]);
    sum += of_packet;
  }
  KOKKOS_FORCEINLINE_FUNCTION Real loss(Real target_logit) const { return kernels::log(sum) - (target_logit - max); }
};

/// All-reduces the lanes' states over the team. One barrier; `pad` as in join_lanes, but with two values per thread.
template <class Scalar, class Member>
KOKKOS_FORCEINLINE_FUNCTION RunningSum<Scalar> join_lanes(const Member& team, RunningSum<Scalar> mine,
                                                          Accum<Scalar>* pad) {
  const auto join = [&] {
    mine.raise(max_over_lanes(team, mine.max));
    mine.sum = sum_over_lanes(team, mine.sum);
  };
  join();
  if (team.team_size() == 1) {
    team.team_barrier();  // callers rely on one
    return mine;
  }
  Kokkos::single(Kokkos::PerThread(team), [&] {
    pad[2 * team.team_rank()] = mine.max;
    pad[2 * team.team_rank() + 1] = mine.sum;
  });
  team.team_barrier();
  mine = {};
  if (const int thread = lane_of(team) % kVectorLanes; thread < team.team_size()) {
    mine = {pad[2 * thread], pad[2 * thread + 1]};
  }
  join();
  return mine;
}

/// What a gradient has less at the target: `scale`, or NaN where the loss is infinite, though the gradient would be
/// finite: so all ranks, which add gradients up, see that the step is unusable.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real scale_at_target(Real scale, Real target_logit, Real row_max) {
  return scale + Real(0) * (target_logit - row_max);
}

/// A row of V numbers of any alignment: whole packets, at aligned addresses, and before and after them fewer than
/// kWidth single numbers, at most one per lane.
template <class Scalar, int kWidth>
struct CutRow {
  Scalar* begin;
  int before, packets, behind;

  KOKKOS_FORCEINLINE_FUNCTION CutRow(Scalar* row, int V) : begin(row) {
    const auto numbers_to_row = reinterpret_cast<std::uintptr_t>(row) / sizeof(Scalar);
    before = static_cast<int>((0 - numbers_to_row) % kWidth);
    before = before < V ? before : V;
    packets = (V - before) / kWidth;
    behind = V - before - packets * kWidth;
  }
  KOKKOS_FORCEINLINE_FUNCTION int column(int packet) const { return before + packet * kWidth; }
  /// Column of the lane's single number, or -1.
  KOKKOS_FORCEINLINE_FUNCTION int single(int lane) const {
    return lane < before ? lane : lane < before + behind ? packets * kWidth + lane : -1;
  }
};

/// numbers[place] -= what, if `place` is in range.
template <class Real, int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void subtract_at(int place, Real (&numbers)[kWidth], Real what) {
  if (place < 0 || place >= kWidth) return;
  TESSERA_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    if (j == place) numbers[j] -= what;
  }
}

/// Stores numbers rounded to Scalar.
template <class Scalar, int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void store_rounded(Scalar* to, const Accum<Scalar> (&numbers)[kWidth]) {
  Packet<Scalar, kWidth> packet;
  for (int j = 0; j < kWidth; ++j) packet.set(j, numbers[j]);
  store(to, packet);
}

}  // namespace detail

template <class Exec, class Scalar>
void CrossEntropy<Exec, Scalar>::launch(const Exec& exec) const {
  const int n = logits.extent_int(0);
  require_shape("cross entropy: targets must be [n], one per row of logits", targets, n);
  require_shape("cross entropy: row_loss must be [n], one per row of logits", row_loss, n);
  TESSERA_REQUIRE(!write_gradient || grad_scale.data(), "cross entropy: a gradient needs grad_scale");
  if (n == 0) return;
  const int columns = logits.extent_int(1);
  TESSERA_REQUIRE(columns > 0, "cross entropy: the vocabulary is empty", columns);
  TESSERA_REQUIRE(0 <= vocabulary && vocabulary <= columns, "cross entropy: logits must be [n,V] or wider", columns,
                  vocabulary);
  const char* label = write_gradient ? "tessera::cross_entropy::loss_and_gradient" : "tessera::cross_entropy::loss";
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(label,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, n, host_team_size)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(kTile))),
                         *this);
  } else {
    constexpr int kWidth = kPacketWidth<Exec, Scalar>;
    const std::int64_t packets = ceil_div(V(), kWidth);
    if (launch_held<Held<kWidth>>(exec, label, packets)) return;
    if constexpr (kTargetOf<Exec>.is_portable && kWidth == 4) {
      if (launch_held<Held<kWidth, 8>>(exec, label, packets)) return;
    }
    if (!launch_streamed<kWidth, 256>(exec, label, packets) && !launch_streamed<kWidth, 512>(exec, label, packets))
      launch_streamed<kWidth, 1024>(exec, label, packets);
  }
}

/// No gradient in row i from column `first` on.
template <class Exec, class Scalar>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::clear(const Member& team, int i, int first) const {
  if (first == logits.extent_int(1)) return;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, first, logits.extent_int(1)),
                       [&](int v) { logits(i, v) = Scalar(Real(0)); });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::ignore_row(const Member& team, int i) const {
  if (write_gradient) clear(team, i, 0);
  Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = Real(0); });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::operator()(Staged, const Member& team) const {
  using Key = detail::OrderKey<Real>;
  const int i = team.league_rank(), V = this->V(), target = targets(i);
  KOKKOS_ASSERT(-1 <= target && target < V);
  if (target < 0) return ignore_row(team, i);
  const Real target_logit = static_cast<Real>(logits(i, target));

  // 1. running maximum and sum of exponentials, tile by tile; the most negative number stands for "nothing yet"
  //    because -infinity - (-infinity) would be NaN
  Pad<Real, Exec> tile(team.team_scratch(0), kTile);
  Real row_max = Kokkos::reduction_identity<Real>::max(), row_sum = 0;
  for (int first = 0; first < V; first += kTile) {
    const int columns = V - first < kTile ? V - first : kTile;
    Key max_key;
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, columns),
        [&](int v, Key& best) {
          tile(v) = static_cast<Real>(logits(i, first + v));
          const Key key = detail::order_key(tile(v));
          best = key > best ? key : best;
        },
        Kokkos::Max<Key>(max_key));
    const Real tile_max = detail::value_of_key<Real>(max_key), new_max = tile_max > row_max ? tile_max : row_max;
    Real tile_sum = 0;  // exponentials first, then their sum: only apart do both loops vectorise
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int v) { tile(v) = fast_exp(tile(v) - new_max); });
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, columns), [&](int v, Real& sum) { sum += tile(v); }, tile_sum);
    row_sum = row_sum * fast_exp(row_max - new_max) + tile_sum;
    row_max = new_max;
  }
  Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = kernels::log(row_sum) - (target_logit - row_max); });
  if (!write_gradient) return;

  // 2. the gradient, in place; the barrier: every lane has read the target's logit
  team.team_barrier();
  const Real scale = grad_scale(), softmax_scale = scale / row_sum;
  const Real at_target = detail::scale_at_target(scale, target_logit, row_max);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, V), [&](int v) {
    const Real probability = softmax_scale * fast_exp(static_cast<Real>(logits(i, v)) - row_max);
    logits(i, v) = static_cast<Scalar>(probability - (v == target ? at_target : Real(0)));
  });
  clear(team, i, V);
}

// --- on GPUs -------------------------------------------------------------------------------------------------------

/// A row per team, the smallest that holds it. False if rows do not suit it.
template <class Exec, class Scalar>
template <class How>
bool CrossEntropy<Exec, Scalar>::launch_held(const Exec& exec, const char* label, std::int64_t packets) const {
  if (!How::suits(packets)) return false;
  using Policy = Kokkos::TeamPolicy<Exec, How, Kokkos::LaunchBounds<How::kMaxLanes, 1024 / How::kMaxLanes>>;
  Kokkos::parallel_for(label,
                       team_policy<Policy>(exec, logits.extent_int(0), How::lanes(packets))
                           .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(2 * kJoinPad))),
                       *this);
  return true;
}

template <class Exec, class Scalar>
template <int kWidth, int kSlots>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::operator()(Held<kWidth, kSlots>, const Member& team) const {
  constexpr Real kNone = -static_cast<Real>(__builtin_inff());
  const int i = team.league_rank(), lane = lane_of(team), lanes = team.team_size() * kVectorLanes;
  const detail::CutRow<Scalar, kWidth> row(&logits(i, 0), V());
  Scalar* const first = row.begin + row.column(lane);  // of the lane's packets, `lanes` packets apart
  Pad<Real, Exec> pad(team.team_scratch(0), 2 * kJoinPad);

  // 1. issue the row's loads before the target is waited for
  Packet<Scalar, kWidth> logit[kSlots];
  TESSERA_UNROLL
  for (int slot = 0; slot < kSlots; ++slot) {
    const int p = lane + slot * lanes;
    for (int j = 0; j < kWidth; ++j) logit[slot].set(j, kNone);
    if (p < row.packets) logit[slot] = load<kWidth>(first + slot * lanes * kWidth);
  }
  const int single = row.single(lane), target = targets(i);
  const Real single_logit = single < 0 ? kNone : static_cast<Real>(row.begin[single]);
  const Real target_logit = static_cast<Real>(row.begin[target < 0 ? 0 : target]);
  KOKKOS_ASSERT(-1 <= target && target < V());

  // 2. exponentials relative to the lane's largest logit, and their sum over the row
  detail::RunningSum<Scalar> of_lane;
  of_lane.max = larger(of_lane.max, single_logit);
  TESSERA_UNROLL
  for (int slot = 0; slot < kSlots; ++slot) of_lane.max = larger(of_lane.max, detail::largest(logit[slot]));
  const ShiftedExp<Scalar> exp{of_lane.max};
  const Real single_exp = exp(single_logit);
  of_lane.sum = single_exp;
  Real probability[kSlots][kWidth];  // first relative to the lane's maximum; multiplied by `factor` below
  TESSERA_UNROLL
  for (int slot = 0; slot < kSlots; ++slot) {
    Real sum = 0;
    for (int j = 0; j < kWidth; ++j) {
      probability[slot][j] = exp(logit[slot][j]);
      sum += probability[slot][j];
    }
    of_lane.sum += sum;
  }
  const Real scale = write_gradient ? grad_scale() : Real(0);
  const detail::RunningSum<Scalar> of_row = detail::join_lanes(team, of_lane, pad.data());
  if (target < 0) return ignore_row(team, i);
  if (lane == 0) row_loss(i) = of_row.loss(target_logit);
  if (!write_gradient) return;

  // 3. the gradient, in place; the barrier above: every lane has read the target's logit
  const Real factor = scale / of_row.sum * fast_exp(of_lane.max - of_row.max);
  const Real at_target = detail::scale_at_target(scale, target_logit, of_row.max);
  if (single >= 0) {
    row.begin[single] = static_cast<Scalar>(factor * single_exp - (single == target ? at_target : Real(0)));
  }
  TESSERA_UNROLL
  for (int slot = 0; slot < kSlots; ++slot) {
    const int p = lane + slot * lanes;
    if (p < row.packets) {
      for (int j = 0; j < kWidth; ++j) probability[slot][j] *= factor;
      detail::subtract_at(target - row.column(p), probability[slot], at_target);
      detail::store_rounded(first + slot * lanes * kWidth, probability[slot]);
    }
  }
  clear(team, i, V());
}

/// As many teams as are resident at once, which take the rows in turn, each with the largest pad that leaves room for
/// the others. False if such a pad does not hold a row, unless a team has the whole multiprocessor.
template <class Exec, class Scalar>
template <int kWidth, int kLanes>
bool CrossEntropy<Exec, Scalar>::launch_streamed(const Exec& exec, const char* label, std::int64_t packets) const {
  using Rows = Streamed<kWidth, kLanes>;
  constexpr int kTeamsAtOnce = 1024 / kLanes;
  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<kLanes, kTeamsAtOnce>>;
  allow_large_scratch<Rows, Policy>();
  const std::int64_t room = Policy::scratch_size_max(0) / kTeamsAtOnce - Rows::pad_bytes(0);
  const std::int64_t wanted = ceil_div(packets, kLanes), most = room / (16 * kLanes);
  if (kTeamsAtOnce > 1 && wanted > most) return false;
  const auto slots = static_cast<int>(std::min(wanted, most));
  const int teams = std::min(logits.extent_int(0), teams_at_once(kLanes, 1024));
  Kokkos::parallel_for(
      label, team_policy<Policy>(exec, teams, kLanes).set_scratch_size(0, Kokkos::PerTeam(Rows::pad_bytes(slots))),
      Rows{*this, slots});
  return true;
}

/// Slot s of a lane is the row's packet lane + s kLanes. The copies of a row into its slots are committed in batches,
/// so that the first can be processed while the last are in flight.
template <class Exec, class Scalar>
template <int kWidth, int kLanes>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::Streamed<kWidth, kLanes>::operator()(const Member& team) const {
  using Logits = Packet<Scalar, kWidth>;
  using Row = detail::CutRow<Scalar, kWidth>;
  const int n = loss.logits.extent_int(0), lane = lane_of(team), beyond = lane + slots * kLanes;
  Pad<Real, Exec> join_pad(team.team_scratch(0), 4 * kJoinPad);
  auto* const pad = static_cast<Logits*>(team.team_scratch(0).get_shmem_aligned(
                        std::size_t(slots) * kLanes * sizeof(Logits), sizeof(Logits))) +
                    lane;
  const Real scale = loss.write_gradient ? loss.grad_scale() : Real(0);

  const auto each_slot = [&](int batch, const auto& body) {  // body(index in the pad) for the slots of a batch
    const int first = batch * slots / kBatches, end = (batch + 1) * slots / kBatches;
    for (int slot = first; slot < end; ++slot) body(slot * kLanes);
  };
  const auto each_beyond = [&](const Row& row, const auto& body) {  // body(packet, logits) where the pad ends
    for (int first = beyond; first < row.packets; first += kAtOnce * kLanes) {
      Logits logits[kAtOnce];
      TESSERA_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int p = first + k * kLanes;
        if (p < row.packets) logits[k] = load<kWidth>(row.begin + row.column(p));
      }
      TESSERA_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int p = first + k * kLanes;
        if (p < row.packets) body(p, logits[k]);
      }
    }
  };

  int i = team.league_rank(), target = loss.targets(i);
  {
    const Row row(&loss.logits(i, 0), loss.V());
    for (int batch = 0; batch < kBatches; ++batch) {
      each_slot(batch, [&](int at) {
        if (lane + at < row.packets) copy_ahead(pad + at, row.begin + row.column(lane + at));
      });
      close_batch();
    }
  }
  for (int turn = 0; i < n; turn ^= 1) {
    // 1. the loss: the pad, then what it does not hold
    const Row row(&loss.logits(i, 0), loss.V());
    const int next = i + team.league_size(), last_or_next = next < n ? next : i;
    const int next_target = loss.targets(last_or_next), single = row.single(lane);
    const Real single_logit = single < 0 ? kNone : static_cast<Real>(row.begin[single]);
    const Real target_logit = static_cast<Real>(row.begin[target < 0 ? 0 : target]);
    KOKKOS_ASSERT(-1 <= target && target < loss.V());
    detail::RunningSum<Scalar> of_lane;
    const auto add_batch = [&](int batch) {
      each_slot(batch, [&](int at) {
        if (lane + at < row.packets) of_lane.add(pad[at]);
      });
    };
    static_assert(kBatches == 4);
    wait_for_batches<3>(), add_batch(0);
    wait_for_batches<2>(), add_batch(1);
    wait_for_batches<1>(), add_batch(2);
    wait_for_batches<0>(), add_batch(3);
    each_beyond(row, [&](int, const Logits& logits) { of_lane.add(logits); });
    of_lane.add(single_logit);
    const auto of_row = detail::join_lanes(team, of_lane, join_pad.data() + turn * 2 * kJoinPad);
    if (target < 0) {
      loss.ignore_row(team, i);
    } else if (lane == 0) {
      loss.row_loss(i) = of_row.loss(target_logit);
    }

    // 2. the gradient, in place: first the part beyond the pad, which was read last and may still be in the GPU's
    //    cache; then slot by slot, loading the next row's logits into each slot that is done. The barrier above: every
    //    lane has read the target's logit.
    const bool writes = loss.write_gradient && target >= 0;
    const Real factor = scale / of_row.sum, at_target = detail::scale_at_target(scale, target_logit, of_row.max);
    const ShiftedExp<Scalar> exp{of_row.max};
    const auto write = [&](int p, const Logits& logits) {
      Real probability[kWidth];
      for (int j = 0; j < kWidth; ++j) probability[j] = factor * exp(logits[j]);
      detail::subtract_at(target - row.column(p), probability, at_target);
      detail::store_rounded(row.begin + row.column(p), probability);
    };
    if (writes) each_beyond(row, write);
    const Row next_row(&loss.logits(last_or_next, 0), loss.V());
    const int next_packets = next < n ? next_row.packets : 0;
    for (int batch = 0; batch < kBatches; ++batch) {
      each_slot(batch, [&](int at) {
        if (writes && lane + at < row.packets) write(lane + at, pad[at]);
        if (lane + at < next_packets) copy_ahead(pad + at, next_row.begin + next_row.column(lane + at));
      });
      close_batch();
    }
    if (writes) {
      if (single >= 0) {
        row.begin[single] = static_cast<Scalar>(factor * exp(single_logit) - (single == target ? at_target : Real(0)));
      }
      loss.clear(team, i, loss.V());
    }
    i = next;
    target = next_target;
  }
}

template <class Exec, class Scalar>
void LossSum<Exec, Scalar>::launch(const Exec& exec) const {
  TESSERA_REQUIRE(total.data(), "loss sum: total is missing");
  if (row_loss.extent(0) == 0) return;
  Kokkos::parallel_for("tessera::cross_entropy::loss_sum", team_policy<Policy>(exec, 1, 1024), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void LossSum<Exec, Scalar>::operator()(const Member& team) const {
  double chunk = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, row_loss.extent_int(0)),
      [&](int i, double& sum) { sum += static_cast<double>(row_loss(i)); }, chunk);
  Kokkos::single(Kokkos::PerTeam(team), [&] { total() += chunk; });
}

TESSERA_INSTANTIATE_KERNEL(CrossEntropy);
TESSERA_INSTANTIATE_KERNEL(LossSum);

}  // namespace tessera::kernels
