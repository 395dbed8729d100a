/// Teams of the memory-bound kernels: their size per backend, rows held in registers, sums over all lanes.
///
/// On a host a team is what Kokkos makes of it (one thread that vectorises) and a row is staged in the pad. On a GPU a
/// team has a few hundred lanes, and a row that is needed twice stays in their registers: lane l of n holds its packets
/// l, l + n, l + 2n, ... That needs the number of packets per lane (the slots) at compile time, and it is why a kernel
/// that reduces over a row has two bodies.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/packet.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {

inline constexpr int kVectorLanes = 32;  // on a GPU: lanes that exchange values without a barrier
inline constexpr int kTeamLanes = 256;   // on a GPU: lanes of a team, unless a kernel has a reason

/// `league` teams of about `lanes` lanes on a GPU, of Kokkos' choice on a host.
template <class Policy, class Exec>
Policy team_policy(const Exec& exec, int league, [[maybe_unused]] std::int64_t lanes = kTeamLanes) {
  if constexpr (kIsHost<Exec>) {
    return Policy(exec, league, Kokkos::AUTO);
  } else {
    const std::int64_t most = lanes < 1 ? 1 : (lanes < 1024 ? lanes : 1024);
    return Policy(exec, league, static_cast<int>((most + kVectorLanes - 1) / kVectorLanes), kVectorLanes);
  }
}

/// Lanes for an element-wise walk over `packets`: the fewest that need as many rounds as kTeamLanes would.
inline int lanes_for(std::int64_t packets) {
  const std::int64_t rounds = (packets + kTeamLanes - 1) / kTeamLanes;
  return static_cast<int>(rounds < 1 ? 1 : (packets + rounds - 1) / rounds);
}

// --- rows in registers (GPUs) --------------------------------------------------------------------------------------

/// Work tag: packets of kWidth elements, kSlots of them per lane.
template <int kWidth, int kSlots>
struct InRegisters {
  static constexpr int kSlotsOf = kSlots;
};

/// Teams of `lanes` lanes that a GPU holds at once when each of its processors has room for `lanes_at_once`: a league
/// of that size walks many rows without a second wave. 132 processors, as in an H100 or H200; elsewhere a fair guess.
inline int teams_at_once(int lanes, int lanes_at_once) {
  constexpr int kProcessors = 132;
  return kProcessors * (lanes_at_once / ((lanes + kVectorLanes - 1) / kVectorLanes * kVectorLanes));
}

/// Lanes of a team at most, when a lane has kSlots slots and kLanes are wanted.
template <class How, int kLanes>
inline constexpr int kMostLanes = How::kSlotsOf == 8 ? 1024 : kLanes;

/// Calls launch(InRegisters<width, slots>{}, lanes) with the fewest slots that need no more than kLanes lanes, or with
/// eight, for rows of `columns` elements. Few lanes with many slots keep more bytes under way per team and wait less
/// for each other; many lanes leave registers for other things. Throws std::invalid_argument when the row is longer
/// than 8 packets of 1024 lanes.
template <class Exec, class Scalar, int kLanes, class Launch>
void in_registers(const char* kernel, bool fit, std::int64_t columns, const Launch& launch) {
  constexpr int kWidest = kPacketWidth<Exec, Scalar>;
  const auto lanes = [&](std::int64_t packets, int slots) { return static_cast<int>((packets + slots - 1) / slots); };
  const std::int64_t packets = fit ? columns / kWidest : columns;
  TESSERA_REQUIRE(packets <= 8 * 1024, "a row is too long for the registers of a team", kernel, columns);
  if (!fit) return launch(InRegisters<1, 8>{}, lanes(packets, 8));
  if (packets <= kLanes) return launch(InRegisters<kWidest, 1>{}, lanes(packets, 1));
  if (packets <= 2 * kLanes) return launch(InRegisters<kWidest, 2>{}, lanes(packets, 2));
  if (packets <= 4 * kLanes) return launch(InRegisters<kWidest, 4>{}, lanes(packets, 4));
  launch(InRegisters<kWidest, 8>{}, lanes(packets, 8));
}

/// This lane's number in its thread, and in its team. Only where a team has kVectorLanes lanes per thread.
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
  /// The row is the whole team's.
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

/// Joins one value of every lane of a thread, in a fixed order, by a reducer; all its lanes get the result.
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

/// Joins one value of every lane of a team, in a fixed order, by a reducer (Kokkos::Sum<Real>, Kokkos::Max<Real>); all
/// lanes get the result. One barrier. `pad` holds a value per thread of the team and is free for other use only after
/// another barrier: two reductions in a row take two pads in turn.
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

/// Values in such a pad, for any team.
inline constexpr int kJoinPad = 1024 / kVectorLanes;

}  // namespace tessera::kernels
