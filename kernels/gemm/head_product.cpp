#include "kernels/gemm/head_product.hpp"  // the contract is there; here is how

#include "kernels/core/instantiate.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar, class Left, class Result>
void HeadProduct<Exec, Scalar, Left, Result>::launch(const Exec& exec) const {
  detail::require_head_product(a, b, c);
  const int row_tiles = ceil_div(c.extent_int(2), kTile), column_tiles = ceil_div(c.extent_int(3), kTile);
  const int teams = league_of(std::int64_t{c.extent_int(0)} * c.extent_int(1) * row_tiles * column_tiles);
  if (teams == 0) return;
  Kokkos::parallel_for(
      label,
      Policy(exec, teams, team_size_of<Exec>())
          .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(std::size_t{3} * kTile * kTile))),
      *this);
}

template <class Exec, class Scalar, class Left, class Result>
KOKKOS_FUNCTION void HeadProduct<Exec, Scalar, Left, Result>::operator()(const Member& team) const {
  const int M = c.extent_int(2), N = c.extent_int(3), K = a.extent_int(3);
  const int row_tiles = ceil_div(M, kTile), column_tiles = ceil_div(N, kTile);
  const int column = team.league_rank() % column_tiles * kTile;
  const int row = team.league_rank() / column_tiles % row_tiles * kTile;
  const int head = team.league_rank() / column_tiles / row_tiles;
  const int i_b = head / c.extent_int(1), i_h = head % c.extent_int(1);
  const int rows = M - row < kTile ? M - row : kTile;
  const int columns = N - column < kTile ? N - column : kTile;
  const int lanes = round_up(columns, TileProduct<Exec, Real>::kLaneBlock);

  Real* a_pad = static_cast<Real*>(team.team_scratch(0).get_shmem(sizeof(Real) * 3 * kTile * kTile));  // [rows, kTile]
  Real* b_pad = a_pad + kTile * kTile;                                                                 // [kTile, lanes]
  Real* c_pad = b_pad + kTile * kTile;                                                                 // [rows, lanes]
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, rows * lanes), [&](int i) { c_pad[i] = 0; });

  for (int inner = 0; inner < K; inner += kTile) {
    const int depth = K - inner < kTile ? K - inner : kTile;
    team.team_barrier();  // the previous tiles have been read
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, rows), [&](int i) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, depth),
                           [&](int j) { a_pad[i * kTile + j] = static_cast<Real>(a(i_b, i_h, row + i, inner + j)); });
    });
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, depth), [&](int i) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, lanes), [&](int j) {
        b_pad[i * lanes + j] = j < columns ? static_cast<Real>(b(i_b, i_h, inner + i, column + j)) : Real(0);
      });
    });
    team.team_barrier();  // tiles are complete
    TileProduct<Exec, Real>{a_pad, kTile, 1, b_pad, lanes, c_pad, lanes, true}.run(team, rows, lanes, depth);
  }
  team.team_barrier();  // sums are complete
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, rows), [&](int i) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, columns), [&](int j) {
      Result& to = c(i_b, i_h, row + i, column + j);
      const Real before = accumulate ? static_cast<Real>(to) : Real(0);
      to = static_cast<Result>(before + factor * c_pad[i * lanes + j]);
    });
  });
}

TESSERA_INSTANTIATE_KERNEL(HeadProduct);
template struct HeadProduct<Device, bfloat16, bfloat16, float>;
template struct HeadProduct<Device, bfloat16, float, float>;
template struct HeadProduct<Device, float16, float16, float>;
template struct HeadProduct<Device, float16, float, float>;

}  // namespace tessera::kernels
