#include "kernels/rmsnorm.hpp"  // the contract is there; here is how

#include "kernels/core/compat.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"

namespace tessera::kernels {
namespace {

constexpr const char* kLabel = "tessera::rmsnorm::forward";

}  // namespace

template <class Exec, class Scalar>
void RmsnormForward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = x.extent_int(0), C = x.extent_int(1);
  require_shape("rmsnorm forward: gain must be [C]", gain, C);
  require_shape("rmsnorm forward: y must be [N,C] like x", y, N, C);
  require_shape("rmsnorm forward: rrms must be [N]", rrms, N);
  if (delta.data()) require_shape("rmsnorm forward: delta must be [N,C] like x, or empty", delta, N, C);
  if (residual.data()) require_shape("rmsnorm forward: residual must be [N,C] like x, or empty", residual, N, C);
  if (N == 0) return;
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(kLabel,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, N, host_team_size)
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
  const int C = x.extent_int(1);
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
  Kokkos::parallel_for(kLabel,
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

TESSERA_INSTANTIATE_KERNEL(RmsnormForward);

}  // namespace tessera::kernels
