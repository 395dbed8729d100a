#include "kernels/swiglu.hpp"

#include <type_traits>

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void SwigluForward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = out.extent_int(0), F = out.extent_int(1);
  require_shape("swiglu forward: gate_up must be [N,2F] for out [N,F]", gate_up, N, 2 * F);
  if (N == 0) return;
  const bool fits = packets_fit(kPacketWidth<Exec, Scalar>, F, gate_up.data(), out.data());
  in_packets<Exec, Scalar>(fits, [&]<int kWidth>(InPackets<kWidth>) {
    using Policy = Kokkos::TeamPolicy<Exec, InPackets<kWidth>>;
    Kokkos::parallel_for("tessera::swiglu::forward", team_policy<Policy>(exec, N, lanes_for(F / kWidth)), *this);
  });
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void SwigluForward<Exec, Scalar>::operator()(InPackets<kWidth>, const Member& team) const {
  const int n = team.league_rank(), F = out.extent_int(1);
  const Scalar *gate = &gate_up(n, 0), *up = gate + F;
  Scalar* to = &out(n, 0);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, F / kWidth), [&](int p) {
    const auto gate_p = load<kWidth>(gate + p * kWidth), up_p = load<kWidth>(up + p * kWidth);
    Packet<Scalar, kWidth> out_p;
    for (int i = 0; i < kWidth; ++i) out_p.set(i, gate_p[i] * sigmoid(gate_p[i]) * up_p[i]);
    store(to + p * kWidth, out_p);
  });
}

template <class Exec, class Scalar>
void SwigluBackward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = d_out.extent_int(0), F = d_out.extent_int(1);
  require_shape("swiglu backward: gate_up must be [N,2F] for d_out [N,F]", gate_up, N, 2 * F);
  require_shape("swiglu backward: d_gate_up must be [N,2F] for d_out [N,F]", d_gate_up, N, 2 * F);
  if (out.data()) require_shape("swiglu backward: out must be [N,F] like d_out, or empty", out, N, F);
  if (N == 0) return;
  constexpr const char* kLabel = "tessera::swiglu::backward";
  if constexpr (kIsHost<Exec>) {
    Kokkos::parallel_for(kLabel,
                         Kokkos::TeamPolicy<Exec, Staged>(exec, N, host_team_size)
                             .set_scratch_size(0, Kokkos::PerTeam(2 * Pad<Real, Exec>::shmem_size(kTile))),
                         *this);
  } else {
    const bool fits =
        packets_fit(kPacketWidth<Exec, Scalar>, F, gate_up.data(), d_out.data(), d_gate_up.data(), out.data());
    in_packets<Exec, Scalar>(fits, [&]<int kWidth>(InPackets<kWidth>) {
      using Policy = Kokkos::TeamPolicy<Exec, InPackets<kWidth>>;
      Kokkos::parallel_for(kLabel, team_policy<Policy>(exec, N, lanes_for(F / kWidth)), *this);
    });
  }
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SwigluBackward<Exec, Scalar>::operator()(Staged, const Member& team) const {
  const int n = team.league_rank(), F = d_out.extent_int(1);
  Pad<Real, Exec> d_gate(team.team_scratch(0), kTile), d_up(team.team_scratch(0), kTile);

  // The pads separate reads from writes. A column keeps its thread in the loops of a tile, so one barrier is enough.
  // Compilers do not vectorise loops with many outputs: hence so many loops.
  for (int first = 0; first < F; first += kTile) {
    team.team_barrier();  // the last tile, if it is ragged, gives its columns to other threads
    const int columns = F - first < kTile ? F - first : kTile;
    const auto each = [&](const auto& body) { Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), body); };
    const auto differentiate = [&](auto keeps_silu) {
      each([&](int f) {
        const Real up = static_cast<Real>(gate_up(n, F + first + f)), d = static_cast<Real>(d_out(n, first + f));
        const auto silu = silu_gradient(static_cast<Real>(gate_up(n, first + f)));
        d_gate(f) = d * up * silu.derivative;
        d_up(f) = decltype(keeps_silu)::value ? silu.value : d * silu.value;
      });
    };
    if (!out.data()) {
      differentiate(std::false_type{});
      each([&](int f) {
        d_gate_up(n, first + f) = static_cast<Scalar>(d_gate(f));
        d_gate_up(n, F + first + f) = static_cast<Scalar>(d_up(f));
      });
      continue;
    }
    differentiate(std::true_type{});
    each([&](int f) { d_gate_up(n, first + f) = static_cast<Scalar>(d_gate(f)); });
    const auto& act = d_gate;  // its pad is free again
    each([&](int f) { act(f) = d_up(f) * static_cast<Real>(gate_up(n, F + first + f)); });
    each([&](int f) { d_up(f) *= static_cast<Real>(d_out(n, first + f)); });
    each([&](int f) { out(n, first + f) = static_cast<Scalar>(act(f)); });
    each([&](int f) { d_gate_up(n, F + first + f) = static_cast<Scalar>(d_up(f)); });
  }
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void SwigluBackward<Exec, Scalar>::operator()(InPackets<kWidth>, const Member& team) const {
  const int n = team.league_rank(), F = d_out.extent_int(1);
  const Scalar *gate_row = &gate_up(n, 0), *d_row = &d_out(n, 0);
  Scalar *d_gate_row = &d_gate_up(n, 0), *out_row = out.data() ? &out(n, 0) : nullptr;
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, F / kWidth), [&](int p) {
    const int f = p * kWidth;
    const auto gate = load<kWidth>(gate_row + f), up = load<kWidth>(gate_row + F + f);
    const auto d = load<kWidth>(d_row + f);
    Packet<Scalar, kWidth> d_gate, d_up, act;
    for (int i = 0; i < kWidth; ++i) {
      const auto silu = silu_gradient(gate[i]);
      d_gate.set(i, d[i] * up[i] * silu.derivative);
      d_up.set(i, d[i] * silu.value);
      act.set(i, silu.value * up[i]);
    }
    store(d_gate_row + f, d_gate);
    store(d_gate_row + F + f, d_up);
    if (out_row) store(out_row + f, act);
  });
}

TESSERA_INSTANTIATE_KERNEL(SwigluForward);
TESSERA_INSTANTIATE_KERNEL(SwigluBackward);

}  // namespace tessera::kernels
