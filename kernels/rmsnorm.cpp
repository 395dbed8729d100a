#include "kernels/rmsnorm.hpp"

#include <algorithm>

#include "kernels/core/column_sum.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {

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
  constexpr const char* kLabel = "tessera::rmsnorm::forward";
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(kLabel,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, N, Kokkos::AUTO)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(C))),
                         *this);
  } else {
    const bool fits =
        packets_fit(kPacketWidth<Exec, Scalar>, C, x.data(), delta.data(), residual.data(), gain.data(), y.data());
    constexpr int kLanes = kTeamLanes;
    in_registers<Exec, Scalar, kLanes>("rmsnorm forward", fits, C, [&](auto how, int lanes) {
      using How = decltype(how);
      using Bounds = Kokkos::LaunchBounds<kMostLanes<How, kLanes>, 1024 / kMostLanes<How, kLanes>>;
      Kokkos::parallel_for(kLabel,
                           team_policy<Kokkos::TeamPolicy<Exec, How, Bounds>>(exec, N, lanes)
                               .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(kJoinPad))),
                           *this);
    });
  }
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
template <int kWidth, int kSlots>
KOKKOS_FUNCTION void RmsnormForward<Exec, Scalar>::operator()(InRegisters<kWidth, kSlots>, const Member& team) const {
  const int n = team.league_rank(), C = x.extent_int(1);
  const RowShare<kWidth, kSlots> share(team, C);
  Pad<Real, Exec> pad(team.team_scratch(0), kJoinPad);
  Packet<Scalar, kWidth> h[kSlots], other[kSlots];  // the row; delta, then the gain

  // 1. every load first, then the sum as it will be stored
  share.load_row(&x(n, 0), h);
  if (delta.data()) {
    share.load_row(&delta(n, 0), other);
    share.each([&](int slot, int) {
      for (int i = 0; i < kWidth; ++i) h[slot].set(i, h[slot][i] + other[slot][i]);
    });
  }
  if (residual.data()) share.store_row(&residual(n, 0), h);
  share.load_row(&gain(0), other);
  Real sum_sq = 0;
  share.each([&](int slot, int) {
    for (int i = 0; i < kWidth; ++i) sum_sq += h[slot][i] * h[slot][i];
  });
  const Real r =
      Real(1) / kernels::sqrt(join_lanes<Kokkos::Sum<Real>>(team, sum_sq, pad.data()) / static_cast<Real>(C) + eps);

  // 2. scale and write
  share.each([&](int slot, int) {
    for (int i = 0; i < kWidth; ++i) h[slot].set(i, h[slot][i] * r * other[slot][i]);
  });
  share.store_row(&y(n, 0), h);
  Kokkos::single(Kokkos::PerTeam(team), [&] { rrms(n) = r; });
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
  int groups = std::min(kPartials, (N + kMinGroupRows - 1) / kMinGroupRows);
  constexpr const char* kLabel = "tessera::rmsnorm::backward::rows";
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(kLabel,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, groups, Kokkos::AUTO)
                             .set_scratch_size(0, Kokkos::PerTeam(3 * Pad<Real, Exec>::shmem_size(C))),
                         *this);
  } else {
    const bool fits = packets_fit(kPacketWidth<Exec, Scalar>, C, x.data(), gain.data(), d_y.data(), d_residual.data(),
                                  d_x.data(), partial.data());
    in_registers<Exec, Scalar, kTeamLanes>("rmsnorm backward", fits, C, [&](auto how, int lanes) {
      using How = decltype(how);
      constexpr int kTeams = How::kSlotsOf == 1 ? 4 : How::kSlotsOf == 2 ? 3 : How::kSlotsOf == 4 ? 2 : 1;
      constexpr int kMost = kMostLanes<How, kTeamLanes>;
      using Policy = Kokkos::TeamPolicy<Exec, How, Kokkos::LaunchBounds<kMost, kTeams>>;
      groups = std::min(groups, teams_at_once(lanes, kTeams * kMost));
      Kokkos::parallel_for(kLabel,
                           team_policy<Policy>(exec, groups, lanes)
                               .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(2 * kJoinPad))),
                           *this);
    });
  }
  ColumnSum<Exec, Real, Grad>{.partial = partial, .rows = groups, .out = d_gain, .accumulate = true}.launch(
      exec, "tessera::rmsnorm::backward::d_gain");
}

template <class Exec, class Scalar, class Grad>
KOKKOS_FUNCTION void RmsnormBackward<Exec, Scalar, Grad>::operator()(Staged, const Member& team) const {
  const int C = x.extent_int(1), group = team.league_rank();
  const Kokkos::pair<int, int> rows = rows_of(group, team.league_size());
  const int first = rows.first, last = rows.second;
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

    // 2. d_x, completed in the pad: d_x may be d_residual, and a loop that might overlap itself does not vectorise
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
template <int kWidth, int kSlots>
KOKKOS_FUNCTION void RmsnormBackward<Exec, Scalar, Grad>::operator()(InRegisters<kWidth, kSlots>,
                                                                     const Member& team) const {
  const int C = x.extent_int(1), group = team.league_rank();
  const Kokkos::pair<int, int> rows = rows_of(group, team.league_size());
  const int first = rows.first, last = rows.second;
  const RowShare<kWidth, kSlots> share(team, C);
  Pad<Real, Exec> pad(team.team_scratch(0), 2 * kJoinPad);
  Packet<Scalar, kWidth> gain_c[kSlots], x_n[kSlots], d_y_n[kSlots], d_residual_n[kSlots];
  Packet<Real, kWidth> dg[kSlots] = {};  // d_gain of this group

  share.load_row(&gain(0), gain_c);
  for (int n = first; n < last; ++n) {
    // 1. every load of the row first, then the sums
    share.load_row(&x(n, 0), x_n);
    share.load_row(&d_y(n, 0), d_y_n);
    if (d_residual.data()) share.load_row(&d_residual(n, 0), d_residual_n);
    const Real r = rrms(n);
    Real sum_gz = 0;
    share.each([&](int slot, int) {
      for (int i = 0; i < kWidth; ++i) {
        const Real dy_z = d_y_n[slot][i] * (x_n[slot][i] * r);
        dg[slot].element[i] += dy_z;
        sum_gz += dy_z * gain_c[slot][i];
      }
    });
    const Real mean_gz =
        join_lanes<Kokkos::Sum<Real>>(team, sum_gz, pad.data() + (n - first) % 2 * kJoinPad) / static_cast<Real>(C);

    // 2. d_x
    share.each([&](int slot, int column) {
      Packet<Scalar, kWidth> d;
      for (int i = 0; i < kWidth; ++i) {
        const Real past = d_residual.data() ? d_residual_n[slot][i] : Real(0);
        d.set(i, r * (d_y_n[slot][i] * gain_c[slot][i] - x_n[slot][i] * r * mean_gz) + past);
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
