#include "kernels/cross_entropy.hpp"

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {
namespace detail {

// A float maximum does not vectorise while NaN keeps its meaning. The bits of a float, read as an integer with the
// magnitude of negative numbers flipped, sort like the floats do, and an integer maximum does vectorise.
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

}  // namespace detail

template <class Exec, class Scalar>
void CrossEntropy<Exec, Scalar>::launch(const Exec& exec) const {
  const int n = logits.extent_int(0);
  TESSERA_REQUIRE(targets.extent_int(0) == n, "cross entropy: targets must be [n], one per row of logits",
                  targets.extent(0), n);
  TESSERA_REQUIRE(row_loss.extent_int(0) == n, "cross entropy: row_loss must be [n], one per row of logits",
                  row_loss.extent(0), n);
  TESSERA_REQUIRE(!write_gradient || grad_scale.data(), "cross entropy: a gradient needs grad_scale");
  if (n == 0) return;
  const int columns = logits.extent_int(1);
  TESSERA_REQUIRE(columns > 0, "cross entropy: the vocabulary is empty", columns);
  TESSERA_REQUIRE(0 <= vocabulary && vocabulary <= columns, "cross entropy: logits must be [n,V] or wider", columns,
                  vocabulary);
  const char* label = write_gradient ? "tessera::cross_entropy::loss_and_gradient" : "tessera::cross_entropy::loss";
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(label,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, n, Kokkos::AUTO)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(kTile))),
                         *this);
  } else {
    const int width = kPacketWidth<Exec, Scalar>;
    const bool fits = packets_fit(width, columns, logits.data());
    const auto pads = Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(2 * kJoinPad));
    if (fits && columns / width <= kHeldPackets) {
      constexpr int kLanes = 64;
      in_registers<Exec, Scalar, kLanes>("cross entropy", fits, columns, [&](auto how, int lanes) {
        using How = decltype(how);
        using Bounds = Kokkos::LaunchBounds<kMostLanes<How, kLanes>, 1024 / kMostLanes<How, kLanes>>;
        using Policy = Kokkos::TeamPolicy<Exec, How, Bounds>;
        Kokkos::parallel_for(label, team_policy<Policy>(exec, n, lanes).set_scratch_size(0, pads), *this);
      });
    } else {
      in_packets<Exec, Scalar>(fits, [&]<int kWidth>(InPackets<kWidth>) {
        using Policy = Kokkos::TeamPolicy<Exec, Walked<kWidth>, Kokkos::LaunchBounds<1024, 1>>;
        const int packets = columns / kWidth, lanes = packets < 4096 ? kTeamLanes : packets < 8192 ? 512 : 1024;
        Kokkos::parallel_for(label, team_policy<Policy>(exec, n, lanes).set_scratch_size(0, pads), *this);
      });
    }
  }
}

/// Whether this row's target is -1; then the row is done.
template <class Exec, class Scalar>
KOKKOS_FUNCTION bool CrossEntropy<Exec, Scalar>::is_ignored(const Member& team) const {
  const int i = team.league_rank(), target = targets(i);
  KOKKOS_ASSERT(-1 <= target && target < V());
  if (target >= 0) return false;
  if (write_gradient) {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, logits.extent_int(1)),
                         [&](int v) { logits(i, v) = Scalar(Real(0)); });
  }
  Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = Real(0); });
  return true;
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::operator()(Staged, const Member& team) const {
  using Key = detail::OrderKey<Real>;
  const int i = team.league_rank(), V = this->V(), target = targets(i);
  if (is_ignored(team)) return;
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

  // 2. the gradient, in place; the barrier keeps it behind every lane's look at the target's logit
  team.team_barrier();
  const Real scale = grad_scale(), softmax_scale = scale / row_sum;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, V), [&](int v) {
    const Real probability = softmax_scale * fast_exp(static_cast<Real>(logits(i, v)) - row_max);
    logits(i, v) = static_cast<Scalar>(probability - (v == target ? scale : Real(0)));
  });
  if (V < logits.extent_int(1)) {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, V, logits.extent_int(1)),
                         [&](int v) { logits(i, v) = Scalar(Real(0)); });
  }
}

/// A packet of a row, -infinity in the columns that are padding.
template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FORCEINLINE_FUNCTION Packet<Scalar, kWidth> CrossEntropy<Exec, Scalar>::load_masked(const Scalar* row,
                                                                                           int column) const {
  auto packet = load<kWidth>(row + column);
  if (column + kWidth > V()) {
    for (int i = 0; i < kWidth; ++i) {
      if (column + i >= V()) packet.set(i, -static_cast<Real>(__builtin_inff()));
    }
  }
  return packet;
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FORCEINLINE_FUNCTION void CrossEntropy<Exec, Scalar>::store_gradient(Scalar* row, int column,
                                                                            const Packet<Scalar, kWidth>& logit,
                                                                            const RowGradient& of) const {
  Packet<Scalar, kWidth> d;
  for (int i = 0; i < kWidth; ++i) d.set(i, of.softmax_scale * of.exp(logit[i]));
  store(row + column, d);
  if (column <= of.target && of.target < column + kWidth) {  // once more, the one that differs
    row[of.target] = static_cast<Scalar>(of.softmax_scale * of.exp(of.target_logit) - of.scale);
  }
}

template <class Exec, class Scalar>
template <int kWidth, int kSlots>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::operator()(InRegisters<kWidth, kSlots>, const Member& team) const {
  const int i = team.league_rank(), target = targets(i);
  const RowShare<kWidth, kSlots> share(team, logits.extent_int(1));
  Pad<Real, Exec> pad(team.team_scratch(0), 2 * kJoinPad);
  Packet<Scalar, kWidth> logit[kSlots];
  Scalar* row = &logits(i, 0);

  // 1. the row, read before anything waits for the target; its maximum, then its sum; a very negative number
  //    stands for "nothing yet"
  share.each([&](int slot, int column) { logit[slot] = load_masked<kWidth>(row, column); });
  if (is_ignored(team)) return;
  const Real target_logit = static_cast<Real>(row[target]), scale = write_gradient ? grad_scale() : Real(0);
  Real lane_max = kNothingYet, lane_sum = 0;
  share.each([&](int slot, int) {
    for (int j = 0; j < kWidth; ++j) lane_max = larger(lane_max, logit[slot][j]);
  });
  const Real row_max = join_lanes<Kokkos::Max<Real>>(team, lane_max, pad.data());
  const ShiftedExp<Scalar> exp{row_max};
  share.each([&](int slot, int) {
    for (int j = 0; j < kWidth; ++j) lane_sum += exp(logit[slot][j]);
  });
  const Real row_sum = join_lanes<Kokkos::Sum<Real>>(team, lane_sum, pad.data() + kJoinPad);
  Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = kernels::log(row_sum) - (target_logit - row_max); });
  if (!write_gradient) return;

  // 2. the gradient, in place; the barriers above keep it behind every lane's look at the target's logit
  const RowGradient of{exp, scale / row_sum, scale, target_logit, target};
  share.each([&](int slot, int column) { store_gradient<kWidth>(row, column, logit[slot], of); });
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void CrossEntropy<Exec, Scalar>::operator()(Walked<kWidth>, const Member& team) const {
  const int i = team.league_rank(), target = targets(i);
  if (is_ignored(team)) return;
  Pad<Real, Exec> pad(team.team_scratch(0), 2 * kJoinPad);
  Scalar* row = &logits(i, 0);
  const Real target_logit = static_cast<Real>(row[target]), scale = write_gradient ? grad_scale() : Real(0);
  const int lane = lane_of(team), lanes = team.team_size() * kVectorLanes, packets = logits.extent_int(1) / kWidth;

  // 1. every lane's own running maximum and sum, brought to one maximum at the end; kAtOnce packets are under way
  constexpr int kAtOnce = 4;
  Real lane_max = kNothingYet, lane_sum = 0;
  for (int first = lane; first < packets; first += kAtOnce * lanes) {
    Packet<Scalar, kWidth> logit[kAtOnce];
    Real new_max = lane_max, sum = 0;
    TESSERA_UNROLL
    for (int slot = 0; slot < kAtOnce; ++slot) {
      const int p = first + slot * lanes;
      if (p < packets) logit[slot] = load_masked<kWidth>(row, p * kWidth);
    }
    TESSERA_UNROLL
    for (int slot = 0; slot < kAtOnce; ++slot) {
      if (first + slot * lanes < packets) {
        for (int j = 0; j < kWidth; ++j) new_max = larger(new_max, logit[slot][j]);
      }
    }
    const ShiftedExp<Scalar> exp{new_max};
    TESSERA_UNROLL
    for (int slot = 0; slot < kAtOnce; ++slot) {
      if (first + slot * lanes < packets) {
        for (int j = 0; j < kWidth; ++j) sum += exp(logit[slot][j]);
      }
    }
    lane_sum = lane_sum * fast_exp(lane_max - new_max) + sum;
    lane_max = new_max;
  }
  const Real row_max = join_lanes<Kokkos::Max<Real>>(team, lane_max, pad.data());
  const Real row_sum =
      join_lanes<Kokkos::Sum<Real>>(team, lane_sum * fast_exp(lane_max - row_max), pad.data() + kJoinPad);
  Kokkos::single(Kokkos::PerTeam(team), [&] { row_loss(i) = kernels::log(row_sum) - (target_logit - row_max); });
  if (!write_gradient) return;

  // 2. the gradient, in place; every lane reads again what it has read, with luck from a cache
  const RowGradient of{{row_max}, scale / row_sum, scale, target_logit, target};
  for (int first = lane; first < packets; first += kAtOnce * lanes) {
    Packet<Scalar, kWidth> logit[kAtOnce];
    TESSERA_UNROLL
    for (int slot = 0; slot < kAtOnce; ++slot) {
      const int p = first + slot * lanes;
      if (p < packets) logit[slot] = load_masked<kWidth>(row, p * kWidth);
    }
    TESSERA_UNROLL
    for (int slot = 0; slot < kAtOnce; ++slot) {
      const int p = first + slot * lanes;
      if (p < packets) store_gradient<kWidth>(row, p * kWidth, logit[slot], of);
    }
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

#define TESSERA_INSTANTIATE(Exec, Scalar)     \
  template struct CrossEntropy<Exec, Scalar>; \
  template struct LossSum<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
