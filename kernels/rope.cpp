#include "kernels/rope.hpp"

#include <algorithm>
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
  constexpr int kWidth = kPacketWidth<Exec, Scalar>;
  const char* label = direction == RopeDirection::forward ? "tessera::rope::forward" : "tessera::rope::backward";
  const bool fits = D % kWidth == 0 && x.stride(0) % kWidth == 0 && x.stride(1) % kWidth == 0 &&
                    x.stride(2) % kWidth == 0 && packets_fit(kWidth, D, x.data(), table.data());
  in_packets<Exec, Scalar>(fits, [&](auto how) {
    // On GPUs the vector lanes of a thread share a head; a power of two, and the fewest that cover it.
    int lanes = 1;
    while (!kIsHost<Exec> && lanes < kVectorLanes && lanes * kWidth < D) lanes *= 2;
    using Policy = Kokkos::TeamPolicy<Exec, decltype(how)>;
    if constexpr (kIsHost<Exec>) {
      Kokkos::parallel_for(label, Policy(exec, B * T, Kokkos::AUTO), *this);
    } else {
      const int threads = std::min(x.extent_int(1), kTeamLanes / lanes);
      Kokkos::parallel_for(label, Policy(exec, B * T, threads, lanes), *this);
    }
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
  const int H = x.extent_int(1), T = x.extent_int(2), D = x.extent_int(3);
  const int b = team.league_rank() / T, t = team.league_rank() % T;
  const Real sign = direction == RopeDirection::forward ? Real(1) : Real(-1);
  Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D / kWidth), [&](int p) {
    const auto angles = load<kWidth>(&table(first_position + t, p * kWidth / 2, 0));
    Scalar* first = &x(b, 0, t, p * kWidth);
    const std::int64_t head = x.stride(1);
    for (int h = team.team_rank(); h < H; h += kHeadsAtOnce * team.team_size()) {
      Packet<Scalar, kWidth> x_h[kHeadsAtOnce];
      TESSERA_UNROLL
      for (int j = 0; j < kHeadsAtOnce; ++j) {
        if (h + j * team.team_size() < H) x_h[j] = load<kWidth>(first + (h + j * team.team_size()) * head);
      }
      TESSERA_UNROLL
      for (int j = 0; j < kHeadsAtOnce; ++j) {
        if (h + j * team.team_size() >= H) continue;
        Packet<Scalar, kWidth> turned;
        for (int i = 0; i < kWidth; i += 2) {
          const Real cos = angles[i], sin = sign * angles[i + 1], even = x_h[j][i], odd = x_h[j][i + 1];
          turned.set(i, even * cos - odd * sin);
          turned.set(i + 1, even * sin + odd * cos);
        }
        store(first + (h + j * team.team_size()) * head, turned);
      }
    }
  });
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Rope<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
