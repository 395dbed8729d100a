#include "kernels/rmsnorm.hpp"

#include <algorithm>

#include "kernels/core/column_sum.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::kernels {
namespace {

constexpr const char *kForward = "tessera::rmsnorm::forward", *kBackward = "tessera::rmsnorm::backward::rows";

}  // namespace

template <class Exec, class Scalar>
void RmsnormForward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = x.extent_int(0), C = x.extent_int(1);
  TESSERA_REQUIRE(gain.extent_int(0) == C, "rmsnorm forward: gain must be [C]", gain.extent(0), C);
  TESSERA_REQUIRE(y.extent_int(0) == N && y.extent_int(1) == C, "rmsnorm forward: y must be [N,C] like x", y.extent(0),
                  y.extent(1), N, C);
  TESSERA_REQUIRE(rrms.extent_int(0) == N, "rmsnorm forward: rrms must be [N]", rrms.extent(0), N);
  TESSERA_REQUIRE(!delta.data() || (delta.extent_int(0) == N && delta.extent_int(1) == C),
                  "rmsnorm forward: delta must be [N,C] like x, or empty", delta.extent(0), delta.extent(1), N, C);
  TESSERA_REQUIRE(!residual.data() || (residual.extent_int(0) == N && residual.extent_int(1) == C),
                  "rmsnorm forward: residual must be [N,C] like x, or empty", residual.extent(0), residual.extent(1), N,
                  C);
  if (N == 0) return;
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(kForward,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, N, Kokkos::AUTO)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(C))),
                         *this);
  } else if (delta.data()) {
    launch_in_registers<true>(exec);
  } else {
    launch_in_registers<false>(exec);
  }
}

template <class Exec, class Scalar>
template <bool kAdds>
void RmsnormForward<Exec, Scalar>::launch_in_registers(const Exec& exec) const {
  const int N = x.extent_int(0), C = x.extent_int(1);
  constexpr int kWidest = kPacketWidth<Exec, Scalar>, kMaxSlots = 16;
  const bool fits = packets_fit(kWidest, C, x.data(), delta.data(), residual.data(), gain.data(), y.data());
  const int packets = fits ? C / kWidest : C, slots = ceil_div(packets, kVectorLanes);

  // A row per thread. The launch bounds (lanes of a team, resident teams of a multiprocessor) leave a lane just the
  // registers for its packets, so that as many lanes as possible are resident.
  if (fits && slots <= 4) return launch_teams<Row<true, kWidest, 4, kAdds>, 256, (kAdds ? 4 : 5)>(exec, 256);
  constexpr int kLanes = kAdds ? 128 : 256;
  if (fits && slots <= 8) return launch_teams<Row<true, kWidest, 8, kAdds>, kLanes, (kAdds ? 5 : 4)>(exec, kLanes);
  if (fits && slots <= kMaxSlots) return launch_teams<Row<true, kWidest, kMaxSlots, kAdds>, 128, 4>(exec, 128);

  // A row per team
  const int lanes = ceil_div(packets, kMaxSlots);
  TESSERA_REQUIRE(lanes <= 512, "rmsnorm forward: a row is too long for the registers of a team", C);
  if (fits) return launch_teams<Row<false, kWidest, kMaxSlots, kAdds>, 512, 1>(exec, lanes);
  launch_teams<Row<false, 1, kMaxSlots, kAdds>, 512, 1>(exec, lanes);
}

template <class Exec, class Scalar>
template <class How, int kMaxLanes, int kTeams>
void RmsnormForward<Exec, Scalar>::launch_teams(const Exec& exec, int lanes) const {
  using Policy = Kokkos::TeamPolicy<Exec, How, Kokkos::LaunchBounds<kMaxLanes, kTeams>>;
  const int rows = How::kIsPerThread ? lanes / kVectorLanes : 1, teams = ceil_div(x.extent_int(0), rows);
  Kokkos::parallel_for(kForward,
                       team_policy<Policy>(exec, teams, lanes)
                           .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(kJoinPad))),
                       *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void RmsnormForward<Exec, Scalar>::operator()(Staged, const Member& team) const {
  const int n = team.league_rank(), C = x.extent_int(1);
  Pad<Real, Exec> row(team.team_scratch(0), C);

  // 1. stage the row once, as it will be stored, squaring on the way in
  Real sum_sq = 0;
  if (delta.data()) {
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, C),
        [&](int c, Real& sum) {
          row(c) = static_cast<Real>(static_cast<Scalar>(static_cast<Real>(x(n, c)) + static_cast<Real>(delta(n, c))));
          sum += row(c) * row(c);
        },
        sum_sq);
  } else {
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, C),
        [&](int c, Real& sum) {
          row(c) = static_cast<Real>(x(n, c));
          sum += row(c) * row(c);
        },
        sum_sq);
  }
  const Real r = Real(1) / kernels::sqrt(sum_sq / static_cast<Real>(C) + eps);
  team.team_barrier();  // the pad is complete before any lane reads it

  // 2. scale and write; the pad, not x, is read, so residual may overwrite x
  if (residual.data()) {
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C),
                         [&](int c) { residual(n, c) = static_cast<Scalar>(row(c)); });
  }
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C),
                       [&](int c) { y(n, c) = static_cast<Scalar>(row(c) * r * static_cast<Real>(gain(c))); });
  Kokkos::single(Kokkos::PerTeam(team), [&] { rrms(n) = r; });
}

template <class Exec, class Scalar>
template <bool kPerThread, int kWidth, int kSlots, bool kAdds>
KOKKOS_FUNCTION void RmsnormForward<Exec, Scalar>::operator()(Row<kPerThread, kWidth, kSlots, kAdds>,
                                                              const Member& team) const {
  const int n = kPerThread ? team.league_rank() * team.team_size() + team.team_rank() : team.league_rank();
  const int C = x.extent_int(1);
  if (n >= x.extent_int(0)) return;  // a thread without a row; no barrier follows
  const auto share =
      kPerThread ? RowShare<kWidth, kSlots>(lane_of_thread(team), kVectorLanes, C) : RowShare<kWidth, kSlots>(team, C);
  const Scalar *x_row = &x(n, 0), *delta_row = kAdds ? &delta(n, 0) : nullptr;
  Scalar *residual_row = residual.data() ? &residual(n, 0) : nullptr, *y_row = &y(n, 0);

  // 1. issue every load of x, then form the sum as it will be stored; delta, and the gain below, a few packets at a
  //    time, to save registers
  Packet<Scalar, kWidth> h[kSlots];
  share.load_row(x_row, h);
  if constexpr (kAdds) {
    constexpr int kAtOnce = 4;
    TESSERA_UNROLL
    for (int first = 0; first < kSlots; first += kAtOnce) {
      Packet<Scalar, kWidth> delta_p[kAtOnce];
      share.each(first, kAtOnce,
                 [&](int slot, int column) { delta_p[slot - first] = load<kWidth>(delta_row + column); });
      share.each(first, kAtOnce, [&](int slot, int) {
        for (int i = 0; i < kWidth; ++i) h[slot].set(i, h[slot][i] + delta_p[slot - first][i]);
      });
      if (residual_row) {
        share.each(first, kAtOnce, [&](int slot, int column) { store(residual_row + column, h[slot]); });
      }
    }
  } else if (residual_row) {
    share.store_row(residual_row, h);
  }
  constexpr int kGains = 2;
  Packet<Scalar, kWidth> gain_p[2][kGains];  // those in use, and the next
  const auto load_gain = [&](int first) {
    share.each(first, kGains,
               [&](int slot, int column) { gain_p[first / kGains % 2][slot - first] = load<kWidth>(&gain(column)); });
  };
  load_gain(0);
  Real sum_sq = 0;
  share.each([&](int slot, int) {
    for (int i = 0; i < kWidth; ++i) sum_sq += h[slot][i] * h[slot][i];
  });
  if constexpr (kPerThread) {
    sum_sq = join_lanes_of_thread<Kokkos::Sum<Real>>(team, sum_sq);
  } else {
    sum_sq = join_lanes<Kokkos::Sum<Real>>(team, sum_sq, Pad<Real, Exec>(team.team_scratch(0), kJoinPad).data());
  }
  const Real r = Real(1) / kernels::sqrt(sum_sq / static_cast<Real>(C) + eps);

  // 2. scale and write
  TESSERA_UNROLL
  for (int first = 0; first < kSlots; first += kGains) {
    load_gain(first + kGains);
    share.each(first, kGains, [&](int slot, int column) {
      const auto& gain_c = gain_p[first / kGains % 2][slot - first];
      for (int i = 0; i < kWidth; ++i) h[slot].set(i, h[slot][i] * r * gain_c[i]);
      store(y_row + column, h[slot]);
    });
  }
  if (share.lane == 0) rrms(n) = r;
}

template <class Exec, class Scalar, class Grad>
void RmsnormBackward<Exec, Scalar, Grad>::launch(const Exec& exec) const {
  const int N = x.extent_int(0), C = x.extent_int(1);
  TESSERA_REQUIRE(gain.extent_int(0) == C, "rmsnorm backward: gain must be [C]", gain.extent(0), C);
  TESSERA_REQUIRE(rrms.extent_int(0) == N, "rmsnorm backward: rrms must be [N]", rrms.extent(0), N);
  TESSERA_REQUIRE(d_y.extent_int(0) == N && d_y.extent_int(1) == C, "rmsnorm backward: d_y must be [N,C] like x",
                  d_y.extent(0), d_y.extent(1), N, C);
  TESSERA_REQUIRE(!d_residual.data() || (d_residual.extent_int(0) == N && d_residual.extent_int(1) == C),
                  "rmsnorm backward: d_residual must be [N,C] like x, or empty", d_residual.extent(0),
                  d_residual.extent(1), N, C);
  TESSERA_REQUIRE(d_x.extent_int(0) == N && d_x.extent_int(1) == C, "rmsnorm backward: d_x must be [N,C] like x",
                  d_x.extent(0), d_x.extent(1), N, C);
  TESSERA_REQUIRE(d_gain.extent_int(0) == C, "rmsnorm backward: d_gain must be [C]", d_gain.extent(0), C);
  TESSERA_REQUIRE(partial.extent_int(0) >= kPartials && partial.extent_int(1) == C,
                  "rmsnorm backward: partial must be [kPartials,C]", partial.extent(0), partial.extent(1), C);
  if (N == 0) return;
  int groups = std::min(kPartials, ceil_div(N, kMinGroupRows));
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(kBackward,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, groups, Kokkos::AUTO)
                             .set_scratch_size(0, Kokkos::PerTeam(3 * Pad<Real, Exec>::shmem_size(C))),
                         *this);
  } else {
    groups = d_residual.data() ? launch_in_registers<true>(exec) : launch_in_registers<false>(exec);
  }
  ColumnSum<Exec, Real, Grad>{.partial = partial, .rows = groups, .out = d_gain, .accumulate = true}.launch(
      exec, "tessera::rmsnorm::backward::d_gain");
}

/// Launches the groups on a GPU and returns how many there are.
template <class Exec, class Scalar, class Grad>
template <bool kAdds>
int RmsnormBackward<Exec, Scalar, Grad>::launch_in_registers(const Exec& exec) const {
  const int C = x.extent_int(1);
  constexpr int kWidest = kPacketWidth<Exec, Scalar>;
  const bool fits =
      packets_fit(kWidest, C, x.data(), gain.data(), d_y.data(), d_residual.data(), d_x.data(), partial.data());
  const int packets = fits ? C / kWidest : C;
  const auto lanes = [&](int slots) { return ceil_div(packets, slots); };
  if (fits && lanes(2) <= 128) return launch_teams<Rows<kWidest, 2, kAdds>, 128, (kAdds ? 5 : 6)>(exec, lanes(2));
  if (fits && lanes(2) <= 256) return launch_teams<Rows<kWidest, 2, kAdds>, 256, (kAdds ? 2 : 3)>(exec, lanes(2));
  if (fits && lanes(2) <= 512) return launch_teams<Rows<kWidest, 2, kAdds>, 512, 1>(exec, lanes(2));
  TESSERA_REQUIRE(lanes(8) <= 1024, "rmsnorm backward: a row is too long for the registers of a team", C);
  if (fits) return launch_teams<Rows<kWidest, 8, kAdds>, 1024, 1>(exec, lanes(8));
  return launch_teams<Rows<1, 8, kAdds>, 1024, 1>(exec, lanes(8));
}

template <class Exec, class Scalar, class Grad>
template <class How, int kMaxLanes, int kTeams>
int RmsnormBackward<Exec, Scalar, Grad>::launch_teams(const Exec& exec, int lanes) const {
  using Policy = Kokkos::TeamPolicy<Exec, How, Kokkos::LaunchBounds<kMaxLanes, kTeams>>;
  const int groups =
      std::min({kPartials, ceil_div(x.extent_int(0), kMinGroupRows), teams_at_once(lanes, kTeams * kMaxLanes)});
  Kokkos::parallel_for(kBackward,
                       team_policy<Policy>(exec, groups, lanes)
                           .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(2 * kJoinPad))),
                       *this);
  return groups;
}

template <class Exec, class Scalar, class Grad>
KOKKOS_FUNCTION void RmsnormBackward<Exec, Scalar, Grad>::operator()(Staged, const Member& team) const {
  const int C = x.extent_int(1), group = team.league_rank();
  const std::int64_t N = x.extent_int(0), groups = team.league_size();
  const int first = static_cast<int>(N * group / groups), last = static_cast<int>(N * (group + 1) / groups);
  Pad<Real, Exec> z(team.team_scratch(0), C);   // the normalised row
  Pad<Real, Exec> g(team.team_scratch(0), C);   // d_y * gain, then d_x
  Pad<Real, Exec> dg(team.team_scratch(0), C);  // d_gain of this group

  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C), [&](int c) { dg(c) = Real(0); });
  for (int n = first; n < last; ++n) {
    // 1. stage the row; a column keeps its thread in every loop, so the reduction is the only synchronisation
    //    (two loops: a compiler stops checking for overlap, and vectorising, at three outputs and three inputs)
    const Real r = rrms(n);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C), [&](int c) {
      z(c) = static_cast<Real>(x(n, c)) * r;
      dg(c) += static_cast<Real>(d_y(n, c)) * z(c);
    });
    Real sum_gz = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, C),
        [&](int c, Real& sum) {
          g(c) = static_cast<Real>(d_y(n, c)) * static_cast<Real>(gain(c));
          sum += g(c) * z(c);
        },
        sum_gz);
    const Real mean_gz = sum_gz / static_cast<Real>(C);

    // 2. d_x, completed in the pad: d_x may alias d_residual, and a loop whose output may alias its input does not
    //    vectorise
    if (d_residual.data()) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C),
                           [&](int c) { g(c) = r * (g(c) - z(c) * mean_gz) + static_cast<Real>(d_residual(n, c)); });
    } else {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C), [&](int c) { g(c) = r * (g(c) - z(c) * mean_gz); });
    }
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C), [&](int c) { d_x(n, c) = static_cast<Scalar>(g(c)); });
  }
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, C), [&](int c) { partial(group, c) = dg(c); });
}

template <class Exec, class Scalar, class Grad>
template <int kWidth, int kSlots, bool kAdds>
KOKKOS_FUNCTION void RmsnormBackward<Exec, Scalar, Grad>::operator()(Rows<kWidth, kSlots, kAdds>,
                                                                     const Member& team) const {
  const int N = x.extent_int(0), C = x.extent_int(1), group = team.league_rank(), groups = team.league_size();
  const RowShare<kWidth, kSlots> share(team, C);
  Pad<Real, Exec> pad(team.team_scratch(0), 2 * kJoinPad);
  Packet<Scalar, kWidth> gain_c[kSlots], d_residual_n[kSlots];
  Packet<Real, kWidth> dg[kSlots] = {};  // d_gain of this group
  struct {
    Packet<Scalar, kWidth> x[kSlots], d_y[kSlots];
    Real rrms;
  } row, next;
  const auto read = [&](int n, auto& to) {
    share.load_row(&x(n, 0), to.x);
    share.load_row(&d_y(n, 0), to.d_y);
    to.rrms = rrms(n);
  };
  constexpr bool kReadsAhead = kSlots <= 2;  // more would not stay in registers

  share.load_row(&gain(0), gain_c);
  if constexpr (kReadsAhead) read(group, next);
  for (int n = group, turn = 0; n < N; n += groups, turn ^= 1) {
    // 1. issue every load, those of the next row included, then sum
    if constexpr (kReadsAhead) {
      row = next;
    } else {
      read(n, row);
    }
    if constexpr (kAdds) share.load_row(&d_residual(n, 0), d_residual_n);
    if (kReadsAhead && n + groups < N) read(n + groups, next);
    const Real r = row.rrms;
    Real sum_gz = 0;
    share.each([&](int slot, int) {
      for (int i = 0; i < kWidth; ++i) {
        const Real dy_z = row.d_y[slot][i] * (row.x[slot][i] * r);
        dg[slot].element[i] += dy_z;
        sum_gz += dy_z * gain_c[slot][i];
      }
    });
    const Real mean_gz =
        join_lanes<Kokkos::Sum<Real>>(team, sum_gz, pad.data() + turn * kJoinPad) / static_cast<Real>(C);

    // 2. d_x
    share.each([&](int slot, int column) {
      Packet<Scalar, kWidth> d;
      for (int i = 0; i < kWidth; ++i) {
        const Real past = kAdds ? d_residual_n[slot][i] : Real(0);
        d.set(i, r * (row.d_y[slot][i] * gain_c[slot][i] - row.x[slot][i] * r * mean_gz) + past);
      }
      store(&d_x(n, column), d);
    });
  }
  share.store_row(&partial(group, 0), dg);
}

#define TESSERA_INSTANTIATE(Exec, Scalar)       \
  template struct RmsnormForward<Exec, Scalar>; \
  template struct RmsnormBackward<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE
template struct RmsnormBackward<Device, bfloat16, bfloat16>;

}  // namespace tessera::kernels
