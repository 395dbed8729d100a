#include "kernels/norm2.hpp"

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void SquareNorm<Exec, Scalar>::launch(const Exec& exec) const {
  launch_blocks(exec);
  const Vector<const double, Exec> sums(partial.data(), blocks(x.extent(0)));
  SquareNormTotal<Exec>{.partial = sums, .total = total}.launch(exec);
}

template <class Exec, class Scalar>
void SquareNorm<Exec, Scalar>::launch_blocks(const Exec& exec) const {
  TESSERA_REQUIRE(partial.extent(0) >= blocks(x.extent(0)), "square norm: partial must be [blocks(n)]",
                  partial.extent(0), blocks(x.extent(0)));
  if (x.extent(0) == 0) return;
  const int league = static_cast<int>(blocks(x.extent(0)));
  in_packets<Exec, Scalar>(packets_fit(1, 1, x.data()), [&](auto how) {
    Kokkos::parallel_for("tessera::norm2::blocks", team_policy<Policy<decltype(how)>>(exec, league), *this);
  });
}

template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void SquareNorm<Exec, Scalar>::operator()(InPackets<kWidth>, const Member& team) const {
  const std::size_t first = team.league_rank() * kBlock, n = x.extent(0);
  const int count = static_cast<int>(n - first < kBlock ? n - first : kBlock), packets = count / kWidth;
  const Scalar* block = &x(first);
  double in_packets = 0, behind = 0;  // `behind`: after the last whole packet
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, packets),
      [&](int p, double& sum) {
        const auto packet = load<kWidth>(block + p * kWidth);
        for (int i = 0; i < kWidth; ++i) {
          const double value = static_cast<double>(packet[i]);
          sum += value * value;
        }
      },
      in_packets);
  for (int i = packets * kWidth; i < count; ++i) {
    behind += static_cast<double>(block[i]) * static_cast<double>(block[i]);
  }
  Kokkos::single(Kokkos::PerTeam(team), [&] { partial(team.league_rank()) = in_packets + behind; });
}

template <class Exec>
void SquareNormTotal<Exec>::launch(const Exec& exec) const {
  TESSERA_REQUIRE(total.data(), "square norm: total is missing");
  Kokkos::parallel_for("tessera::norm2::total", team_policy<Kokkos::TeamPolicy<Exec>>(exec, 1, 1024), *this);
}

template <class Exec>
KOKKOS_FUNCTION void SquareNormTotal<Exec>::operator()(const Member& team) const {
  constexpr int kInFlight = 8;  // one team has to hide the memory's latency by itself
  const int n = partial.extent_int(0), apart = static_cast<int>(ceil_div(n, kInFlight));
  double all = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, apart),
      [&](int first, double& sum) {
        double read[kInFlight];
        TESSERA_UNROLL
        for (int j = 0; j < kInFlight; ++j) {
          const int i = first + j * apart;
          read[j] = i < n ? partial(i) : 0.0;
        }
        TESSERA_UNROLL
        for (int j = 0; j < kInFlight; ++j) sum += read[j];
      },
      all);
  Kokkos::single(Kokkos::PerTeam(team), [&] { total() = scale * all; });
}

TESSERA_INSTANTIATE_KERNEL(SquareNorm);
template struct SquareNormTotal<Device>;

}  // namespace tessera::kernels
