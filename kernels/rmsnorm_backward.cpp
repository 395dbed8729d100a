#include "kernels/rmsnorm.hpp"  // the contract is there; here is how

#include <algorithm>

#include "kernels/core/column_sum.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::kernels {
namespace {

constexpr const char* kLabel = "tessera::rmsnorm::backward::rows";

}  // namespace

template <class Exec, class Scalar, class Grad>
void RmsnormBackward<Exec, Scalar, Grad>::launch(const Exec& exec) const {
  const int N = x.extent_int(0), C = x.extent_int(1);
  require_shape("rmsnorm backward: gain must be [C]", gain, C);
  require_shape("rmsnorm backward: rrms must be [N]", rrms, N);
  require_shape("rmsnorm backward: d_y must be [N,C] like x", d_y, N, C);
  if (d_residual.data()) require_shape("rmsnorm backward: d_residual must be [N,C] like x, or empty", d_residual, N, C);
  require_shape("rmsnorm backward: d_x must be [N,C] like x", d_x, N, C);
  require_shape("rmsnorm backward: d_gain must be [C]", d_gain, C);
  TESSERA_REQUIRE(partial.extent_int(0) >= kPartials && partial.extent_int(1) == C,
                  "rmsnorm backward: partial must be [kPartials,C]", partial.extent(0), partial.extent(1), C);
  if (N == 0 || C == 0) return;
  int groups = std::min(kPartials, ceil_div(N, kMinGroupRows));
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(kLabel,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, groups, host_team_size)
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
  Kokkos::parallel_for(kLabel,
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

TESSERA_INSTANTIATE_KERNEL(RmsnormBackward);
template struct RmsnormBackward<Device, bfloat16, bfloat16>;

}  // namespace tessera::kernels
