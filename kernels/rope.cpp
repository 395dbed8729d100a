#include "kernels/rope.hpp"

#include <cmath>

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

template <class Real>
void fill_rope_table(Real* table, int T, int D, double theta) {
  const int pairs = D / 2;
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < pairs; ++i) {
      const double angle = t * std::pow(theta, -2.0 * i / D);
      Real* entry = table + 2 * (static_cast<std::size_t>(t) * pairs + i);
      entry[0] = static_cast<Real>(std::cos(angle));
      entry[1] = static_cast<Real>(std::sin(angle));
    }
  }
}
template void fill_rope_table<float>(float*, int, int, double);
template void fill_rope_table<double>(double*, int, int, double);

template <class Exec, class Scalar>
void Rope<Exec, Scalar>::launch(const Exec& exec) const {
  const int B = x.extent_int(0), T = x.extent_int(2), D = x.extent_int(3);
  TESSERA_REQUIRE(D % 2 == 0, "rope: the head width D must be even", D);
  TESSERA_REQUIRE(D <= 1 || x.stride(3) == 1, "rope: the last index of x must be contiguous", x.stride(3));
  TESSERA_REQUIRE(table.extent_int(1) == D / 2 && table.extent_int(2) == 2, "rope: table must be [positions,D/2,2]",
                  table.extent(1), table.extent(2), D);
  TESSERA_REQUIRE(first_position >= 0 && first_position + T <= table.extent_int(0),
                  "rope: the table must reach the last position", first_position, T, table.extent(0));
  if (B == 0 || T == 0 || D == 0) return;
  const char* label = direction == RopeDirection::forward ? "tessera::rope::forward" : "tessera::rope::backward";
  const bool fits = rows_fit_packets(x) && packets_fit(1, 1, table.data());
  in_packets<Exec, Scalar>(fits, [&]<int kAtOnce>(InPackets<kAtOnce>) {
    using Policy = Kokkos::TeamPolicy<Exec, InPackets<kAtOnce>>;
    const int lanes = lanes_for(std::int64_t{x.extent_int(1)} * D / (kAtOnce > 1 ? kAtOnce : 2));
    Kokkos::parallel_for(label, team_policy<Policy>(exec, std::int64_t{B} * T, lanes), *this);
  });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void Rope<Exec, Scalar>::operator()(InPackets<1>, const Member& team) const {
  const int H = x.extent_int(1), T = x.extent_int(2), D = x.extent_int(3);
  const int b = team.league_rank() / T, t = team.league_rank() % T;
  const Real* angles = &table(first_position + t, 0, 0);
  const Real sign = direction == RopeDirection::forward ? Real(1) : Real(-1);
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, H), [&](int h) {
    Scalar* head = &x(b, h, t, 0);
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D / 2), [&](int i) {
      const Real cos = angles[2 * i], sin = sign * angles[2 * i + 1];
      const Real even = static_cast<Real>(head[2 * i]), odd = static_cast<Real>(head[2 * i + 1]);
      head[2 * i] = static_cast<Scalar>(even * cos - odd * sin);
      head[2 * i + 1] = static_cast<Scalar>(even * sin + odd * cos);
    });
  });
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void Rope<Exec, Scalar>::operator()(InPackets<kWidth>, const Member& team) const {
  const int H = x.extent_int(1), T = x.extent_int(2), packets = x.extent_int(3) / kWidth;  // of a head
  const int b = team.league_rank() / T, t = team.league_rank() % T;
  const Real* angles = &table(first_position + t, 0, 0);
  const Real sign = direction == RopeDirection::forward ? Real(1) : Real(-1);
  Scalar* token = &x(b, 0, t, 0);
  const std::int64_t head = x.stride(1);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, H * packets), [&](int i) {
    const int h = i / packets, p = i % packets;
    Scalar* at = token + h * head + p * kWidth;
    const auto angles_p = load<kWidth>(angles + p * kWidth);
    auto x_p = load<kWidth>(at);
    for (int j = 0; j < kWidth; j += 2) {
      const Real cos = angles_p[j], sin = sign * angles_p[j + 1], even = x_p[j], odd = x_p[j + 1];
      x_p.set(j, even * cos - odd * sin);
      x_p.set(j + 1, even * sin + odd * cos);
    }
    store(at, x_p);
  });
}

TESSERA_INSTANTIATE_KERNEL(Rope);

}  // namespace tessera::kernels
