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
  Kokkos::parallel_for(
      "tessera::rmsnorm::forward",
      Policy(exec, N, Kokkos::AUTO).set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(C))), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void RmsnormForward<Exec, Scalar>::operator()(const Member& team) const {
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
void RmsnormBackward<Exec, Scalar>::launch(const Exec& exec) const {
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
  const int groups = std::min(kPartials, (N + kMinGroupRows - 1) / kMinGroupRows);
  Kokkos::parallel_for(
      "tessera::rmsnorm::backward::rows",
      Policy(exec, groups, Kokkos::AUTO).set_scratch_size(0, Kokkos::PerTeam(3 * Pad<Real, Exec>::shmem_size(C))),
      *this);
  ColumnSum<Exec, Real>{.partial = partial, .rows = groups, .out = d_gain, .accumulate = true}.launch(
      exec, "tessera::rmsnorm::backward::d_gain");
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void RmsnormBackward<Exec, Scalar>::operator()(const Member& team) const {
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

#define TESSERA_INSTANTIATE(Exec, Scalar)       \
  template struct RmsnormForward<Exec, Scalar>; \
  template struct RmsnormBackward<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
