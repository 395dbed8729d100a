/// Teams of the memory-bound kernels: their size per backend, rows held in registers, sums over all lanes.
///
/// On a host a team is one thread that vectorises, and a row is staged in the pad. On a GPU a team has a few hundred
/// lanes, and a row that is needed twice stays in their registers: lane l of n holds its packets l, l + n, l + 2n, ...
/// The number of packets per lane (its slots) must be known at compile time, so a kernel that reduces over a row has
/// two bodies.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <limits>

#include "kernels/core/gpus.hpp"
#include "kernels/core/packet.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::kernels {

inline constexpr int kVectorLanes = 32;  // on a GPU: lanes that exchange values without a barrier
inline constexpr int kTeamLanes = 256;   // on a GPU: lanes of a team, unless a kernel has a reason
inline constexpr int kProcessors = find_gpu("H200")->processors;  // a fair guess for other GPUs

/// The size of a league of `teams` teams. Throws std::invalid_argument from 2^31 on: teams are numbered with int.
inline int league_of(std::int64_t teams) {
  TESSERA_REQUIRE(teams <= std::numeric_limits<int>::max(),
                  "a kernel needs 2^31 teams or more: split the tensors into smaller batches", teams);
  return static_cast<int>(teams);
}

/// Threads of a host's team. Tests set more, where Exec has threads, and so see races that a GPU would have.
inline int host_team_size = 1;

/// The team size of a policy for hosts and GPUs alike: theirs is Kokkos' choice.
template <class Exec>
auto team_size_of() {
  if constexpr (kIsHost<Exec>) {
    return host_team_size;
  } else {
    return Kokkos::AUTO;
  }
}

/// A policy of `teams` teams: of about `lanes` lanes on a GPU, of host_team_size threads on a host.
template <class Policy, class Exec>
Policy team_policy(const Exec& exec, std::int64_t teams, [[maybe_unused]] std::int64_t lanes = kTeamLanes) {
  const int league = league_of(teams);
  if constexpr (kIsHost<Exec>) {
    return Policy(exec, league, host_team_size);
  } else {
    const std::int64_t clamped = lanes < 1 ? 1 : (lanes < 1024 ? lanes : 1024);
    return Policy(exec, league, static_cast<int>(ceil_div(clamped, kVectorLanes)), kVectorLanes);
  }
}

/// Lanes for an element-wise loop over `packets`: the fewest that need no more rounds than kTeamLanes would.
inline int lanes_for(std::int64_t packets) {
  const std::int64_t rounds = ceil_div(packets, kTeamLanes);
  return static_cast<int>(rounds < 1 ? 1 : ceil_div(packets, rounds));
}

// --- rows in registers (GPUs) --------------------------------------------------------------------------------------

/// Teams of `lanes` lanes that a GPU holds at once if each multiprocessor has room for `lanes_at_once` lanes: a league
/// of that size processes any number of rows in one wave.
inline int teams_at_once(int lanes, int lanes_at_once) {
  return kProcessors * (lanes_at_once / round_up(lanes, kVectorLanes));
}

/// This lane's number in its thread, and in its team. Only for teams of kVectorLanes lanes per thread.
template <class Member>
KOKKOS_FORCEINLINE_FUNCTION int lane_of_thread(const Member& team) {
  int lane = 0;
  Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, kVectorLanes), [&](int i) { lane = i; });
  return lane;
}
template <class Member>
KOKKOS_FORCEINLINE_FUNCTION int lane_of(const Member& team) {
  return team.team_rank() * kVectorLanes + lane_of_thread(team);
}

/// A lane's share of a row.
template <int kWidth, int kSlots>
struct RowShare {
  int lane, lanes, packets;

  KOKKOS_FORCEINLINE_FUNCTION RowShare(int lane_, int lanes_, int columns)
      : lane(lane_), lanes(lanes_), packets(columns / kWidth) {}
  /// Of a row that the whole team shares.
  template <class Member>
  KOKKOS_FORCEINLINE_FUNCTION RowShare(const Member& team, int columns)
      : RowShare(lane_of(team), team.team_size() * kVectorLanes, columns) {}

  /// body(slot, column) for each of this lane's packets; or only for those of the `count` slots from `first` on.
  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void each(const Body& body) const {
    each(0, kSlots, body);
  }
  template <class Body>
  KOKKOS_FORCEINLINE_FUNCTION void each(int first, int count, const Body& body) const {
    TESSERA_UNROLL
    for (int slot = first; slot < first + count; ++slot) {
      const int p = lane + slot * lanes;
      if (slot < kSlots && p < packets) body(slot, p * kWidth);
    }
  }
  template <class Scalar>
  KOKKOS_FORCEINLINE_FUNCTION void load_row(const Scalar* row, Packet<Scalar, kWidth> (&to)[kSlots]) const {
    each([&](int slot, int column) { to[slot] = load<kWidth>(row + column); });
  }
  template <class Scalar>
  KOKKOS_FORCEINLINE_FUNCTION void store_row(Scalar* row, const Packet<Scalar, kWidth> (&from)[kSlots]) const {
    each([&](int slot, int column) { store(row + column, from[slot]); });
  }
};

/// Reduces one value per lane of a thread, in a fixed order; all its lanes get the result.
template <class Reducer, class Member>
KOKKOS_FORCEINLINE_FUNCTION typename Reducer::value_type join_lanes_of_thread(const Member& team,
                                                                              typename Reducer::value_type mine) {
  typename Reducer::value_type of_thread;
  const Reducer join(of_thread);
  Kokkos::parallel_reduce(
      Kokkos::ThreadVectorRange(team, kVectorLanes),
      [&](int, typename Reducer::value_type& value) { join.join(value, mine); }, join);
  return of_thread;
}

/// Reduces one value per lane of a team, in a fixed order, by a reducer (Kokkos::Sum<Real>, Kokkos::Max<Real>); all
/// lanes get the result. One barrier. `pad` has a value per thread of the team and may be reused only after another
/// barrier: consecutive reductions alternate between two pads.
template <class Reducer, class Member>
KOKKOS_FORCEINLINE_FUNCTION typename Reducer::value_type join_lanes(const Member& team,
                                                                    const typename Reducer::value_type mine,
                                                                    typename Reducer::value_type* pad) {
  using Value = typename Reducer::value_type;
  const Value of_thread = join_lanes_of_thread<Reducer>(team, mine);
  Value of_team;
  const Reducer join_team(of_team);
  Kokkos::single(Kokkos::PerThread(team), [&] { pad[team.team_rank()] = of_thread; });
  team.team_barrier();
  Kokkos::parallel_reduce(
      Kokkos::ThreadVectorRange(team, team.team_size()),
      [&](int thread, Value& value) { join_team.join(value, pad[thread]); }, join_team);
  return of_team;
}

/// Values in such a pad, enough for any team.
inline constexpr int kJoinPad = 1024 / kVectorLanes;

}  // namespace tessera::kernels
