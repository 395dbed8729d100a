#include "kernels/norm2.hpp"

#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void SquareNorm<Exec, Scalar>::launch(const Exec& exec) const {
  TESSERA_REQUIRE(partial.extent(0) >= blocks(x.extent(0)), "square norm: partial must be [blocks(n)]",
                  partial.extent(0), blocks(x.extent(0)));
  TESSERA_REQUIRE(total.data(), "square norm: total is missing");
  if (x.extent(0) > 0) {
    Kokkos::parallel_for("tessera::norm2::blocks",
                         Policy<Blocks>(exec, static_cast<int>(blocks(x.extent(0))), Kokkos::AUTO), *this);
  }
  Kokkos::parallel_for("tessera::norm2::total", Policy<Total>(exec, 1, Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SquareNorm<Exec, Scalar>::operator()(Blocks, const Member& team) const {
  const std::size_t first = team.league_rank() * kBlock, n = x.extent(0);
  const int count = static_cast<int>(n - first < kBlock ? n - first : kBlock);
  double block_sum = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, count),
      [&](int i, double& sum) {
        const double value = static_cast<double>(x(first + i));
        sum += value * value;
      },
      block_sum);
  Kokkos::single(Kokkos::PerTeam(team), [&] { partial(team.league_rank()) = block_sum; });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SquareNorm<Exec, Scalar>::operator()(Total, const Member& team) const {
  const int count = static_cast<int>(blocks(x.extent(0)));
  double all = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, count), [&](int i, double& sum) { sum += partial(i); }, all);
  Kokkos::single(Kokkos::PerTeam(team), [&] { total() = all; });
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct SquareNorm<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
