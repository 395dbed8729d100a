#include "kernels/swiglu.hpp"

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void SwigluForward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = out.extent_int(0), F = out.extent_int(1);
  TESSERA_REQUIRE(gate_up.extent_int(0) == N && gate_up.extent_int(1) == 2 * F,
                  "swiglu forward: gate_up must be [N,2F] for out [N,F]", gate_up.extent(0), gate_up.extent(1), N, F);
  if (N == 0) return;
  Kokkos::parallel_for("tessera::swiglu::forward", Policy(exec, N, Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SwigluForward<Exec, Scalar>::operator()(const Member& team) const {
  const int n = team.league_rank(), F = out.extent_int(1);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, F), [&](int f) {
    const Real gate = static_cast<Real>(gate_up(n, f)), up = static_cast<Real>(gate_up(n, F + f));
    out(n, f) = static_cast<Scalar>(gate * sigmoid(gate) * up);
  });
}

template <class Exec, class Scalar>
void SwigluBackward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = d_out.extent_int(0), F = d_out.extent_int(1);
  TESSERA_REQUIRE(gate_up.extent_int(0) == N && gate_up.extent_int(1) == 2 * F,
                  "swiglu backward: gate_up must be [N,2F] for d_out [N,F]", gate_up.extent(0), gate_up.extent(1), N,
                  F);
  TESSERA_REQUIRE(d_gate_up.extent_int(0) == N && d_gate_up.extent_int(1) == 2 * F,
                  "swiglu backward: d_gate_up must be [N,2F] for d_out [N,F]", d_gate_up.extent(0), d_gate_up.extent(1),
                  N, F);
  if (N == 0) return;
  Kokkos::parallel_for(
      "tessera::swiglu::backward",
      Policy(exec, N, Kokkos::AUTO).set_scratch_size(0, Kokkos::PerTeam(2 * Pad<Real, Exec>::shmem_size(kTile))),
      *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SwigluBackward<Exec, Scalar>::operator()(const Member& team) const {
  const int n = team.league_rank(), F = d_out.extent_int(1);
  Pad<Real, Exec> d_gate(team.team_scratch(0), kTile), d_up(team.team_scratch(0), kTile);

  // The pads stand between reading and writing: a loop that might overlap itself (d_gate_up may be gate_up) would
  // not vectorise. A column keeps its thread in both loops, so there is no barrier.
  for (int first = 0; first < F; first += kTile) {
    const int columns = F - first < kTile ? F - first : kTile;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int f) {
      const Real up = static_cast<Real>(gate_up(n, F + first + f)), d = static_cast<Real>(d_out(n, first + f));
      const auto silu = silu_gradient(static_cast<Real>(gate_up(n, first + f)));
      d_gate(f) = d * up * silu.derivative;
      d_up(f) = d * silu.value;
    });
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int f) {
      d_gate_up(n, first + f) = static_cast<Scalar>(d_gate(f));
      d_gate_up(n, F + first + f) = static_cast<Scalar>(d_up(f));
    });
  }
}

#define TESSERA_INSTANTIATE(Exec, Scalar)      \
  template struct SwigluForward<Exec, Scalar>; \
  template struct SwigluBackward<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
