#include "kernels/attention/standard/standard.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void StandardForward<Exec, Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_same_heads("standard forward: v must have k's shape", k, v);
  detail::require_same_heads("standard forward: out must have q's shape", q, out);
  detail::require_head_rows("standard forward: lse must be [B,H,Tq]", q, lse);
  HeadProduct<Exec, Scalar>{"tessera::attention::standard::scores", q, transposed(k), probabilities, scale}.launch(
      exec);
  SoftmaxRows<Exec, Scalar>{probabilities, lse, causal}.launch(exec);
  HeadProduct<Exec, Scalar>{"tessera::attention::standard::out", probabilities, v, out, Accum<Scalar>(1)}.launch(exec);
}

template <class Exec, class Scalar>
void SoftmaxRows<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_head_rows("softmax rows: lse must be [B,H,Tq]", scores, lse);
  const int rows = league_of(std::int64_t{scores.extent_int(0)} * scores.extent_int(1) * scores.extent_int(2));
  if (rows == 0) return;
  Kokkos::parallel_for("tessera::attention::standard::softmax", Policy(exec, rows, Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SoftmaxRows<Exec, Scalar>::operator()(const Member& team) const {
  const int H = scores.extent_int(1), Tq = scores.extent_int(2), Tk = scores.extent_int(3);
  const int i = team.league_rank() % Tq, h = team.league_rank() / Tq % H, b = team.league_rank() / Tq / H;
  const int limit = i + 1 + Tk - Tq;  // causal: keys before it are seen
  const int seen = !causal || limit > Tk ? Tk : (limit < 0 ? 0 : limit);

  Real top = -HUGE_VAL;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, seen),
      [&](int j, Real& most) {
        const Real score = static_cast<Real>(scores(b, h, i, j));
        most = score > most ? score : most;
      },
      Kokkos::Max<Real>(top));
  Real sum = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, seen),
      [&](int j, Real& total) { total += fast_exp(static_cast<Real>(scores(b, h, i, j)) - top); }, sum);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, Tk), [&](int j) {
    scores(b, h, i, j) =
        static_cast<Scalar>(j < seen ? fast_exp(static_cast<Real>(scores(b, h, i, j)) - top) / sum : Real(0));
  });
  Kokkos::single(Kokkos::PerTeam(team), [&] { lse(b, h, i) = seen > 0 ? top + log(sum) : Real(-HUGE_VAL); });
}

template <class Exec, class Scalar>
void StandardBackward<Exec, Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, d_out, d_q, d_k, d_v, scale, causal] = task;
  detail::require_same_heads("standard backward: v must have k's shape", k, v);
  detail::require_same_heads("standard backward: d_out must have q's shape", q, d_out);
  detail::require_same_heads("standard backward: d_q must have q's shape", q, d_q);
  detail::require_same_heads("standard backward: d_k must have k's shape", k, d_k);
  detail::require_same_heads("standard backward: d_v must have k's shape", k, d_v);
  using Product = HeadProduct<Exec, Scalar>;
  Product{"tessera::attention::standard::d_v", transposed(probabilities), d_out, d_v, Accum<Scalar>(1)}.launch(exec);
  Product{"tessera::attention::standard::d_probabilities", d_out, transposed(v), d_scores, Accum<Scalar>(1)}.launch(
      exec);
  SoftmaxRowsBackward<Exec, Scalar>{probabilities, d_scores}.launch(exec);
  Product{"tessera::attention::standard::d_q", d_scores, k, d_q, scale}.launch(exec);
  Product{"tessera::attention::standard::d_k", transposed(HeadTensor<const Scalar, Exec>(d_scores)), q, d_k, scale}
      .launch(exec);
}

template <class Exec, class Scalar>
void SoftmaxRowsBackward<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_same_heads("softmax rows backward: d_scores must have the probabilities' shape", probabilities,
                             d_scores);
  const int rows = league_of(std::int64_t{d_scores.extent_int(0)} * d_scores.extent_int(1) * d_scores.extent_int(2));
  if (rows == 0) return;
  Kokkos::parallel_for("tessera::attention::standard::softmax_backward", Policy(exec, rows, Kokkos::AUTO), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void SoftmaxRowsBackward<Exec, Scalar>::operator()(const Member& team) const {
  const int H = d_scores.extent_int(1), Tq = d_scores.extent_int(2), Tk = d_scores.extent_int(3);
  const int i = team.league_rank() % Tq, h = team.league_rank() / Tq % H, b = team.league_rank() / Tq / H;
  Real delta = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, Tk),
      [&](int j, Real& sum) {
        sum += static_cast<Real>(probabilities(b, h, i, j)) * static_cast<Real>(d_scores(b, h, i, j));
      },
      delta);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, Tk), [&](int j) {
    const Real p = static_cast<Real>(probabilities(b, h, i, j));
    d_scores(b, h, i, j) = static_cast<Scalar>(p * (static_cast<Real>(d_scores(b, h, i, j)) - delta));
  });
}

template <class Exec, class Scalar, class Left, class Result>
void HeadProduct<Exec, Scalar, Left, Result>::launch(const Exec& exec) const {
  TESSERA_REQUIRE(a.extent(0) == c.extent(0) && b.extent(0) == c.extent(0) && a.extent(1) == c.extent(1) &&
                      b.extent(1) == c.extent(1),
                  "head product: a, b and c must have the same B and H", a.extent(0), b.extent(0), c.extent(0),
                  a.extent(1), b.extent(1), c.extent(1));
  TESSERA_REQUIRE(a.extent(2) == c.extent(2) && b.extent(3) == c.extent(3) && a.extent(3) == b.extent(2),
                  "head product: shapes must be [M,K] x [K,N] = [M,N]", a.extent(2), a.extent(3), b.extent(2),
                  b.extent(3), c.extent(2), c.extent(3));
  const int row_tiles = ceil_div(c.extent_int(2), kTile), column_tiles = ceil_div(c.extent_int(3), kTile);
  const int teams = league_of(std::int64_t{c.extent_int(0)} * c.extent_int(1) * row_tiles * column_tiles);
  if (teams == 0) return;
  Kokkos::parallel_for(
      label,
      Policy(exec, teams, Kokkos::AUTO)
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
      c(i_b, i_h, row + i, column + j) = static_cast<Result>(factor * c_pad[i * lanes + j]);
    });
  });
}

TESSERA_INSTANTIATE_KERNEL(StandardForward);
TESSERA_INSTANTIATE_KERNEL(SoftmaxRows);
TESSERA_INSTANTIATE_KERNEL(StandardBackward);
TESSERA_INSTANTIATE_KERNEL(SoftmaxRowsBackward);
TESSERA_INSTANTIATE_KERNEL(HeadProduct);
template struct HeadProduct<Device, bfloat16, bfloat16, float>;
template struct HeadProduct<Device, bfloat16, float, float>;
template struct HeadProduct<Device, float16, float16, float>;
template struct HeadProduct<Device, float16, float, float>;

}  // namespace tessera::kernels
