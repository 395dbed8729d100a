#include "kernels/attention/flash2/backward_by_tile.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/attention/pads.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void Flash2BackwardByTile<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_backward_tensors("flash2 backward", task, kMaxHead);
  Flash2BackwardByTile kernel = *this;
  if (tile == 0) kernel.tile = flash2_backward_by_tile(kTargetOf<Exec>, sizeof(Real), task.q.extent_int(3));
  kernel.template launch_pass<Keys>(exec, task.k.extent_int(2));
  kernel.template launch_pass<Queries>(exec, task.q.extent_int(2));
}

/// A team for each tile of the `rows` keys, or queries, of a head.
template <class Exec, class Scalar>
template <class Pass>
void Flash2BackwardByTile<Exec, Scalar>::launch_pass(const Exec& exec, int rows) const {
  const std::int64_t teams = std::int64_t{task.q.extent_int(0)} * task.q.extent_int(1) * ceil_div(rows, tile);
  if (teams == 0) return;
  constexpr bool kOfKeys = std::is_same_v<Pass, Keys>;
  allow_large_scratch<Flash2BackwardByTile, Policy<Pass>>();
  Kokkos::parallel_for(
      kOfKeys ? "tessera::attention::flash2::backward::keys" : "tessera::attention::flash2::backward::queries",
      team_policy<Policy<Pass>>(exec, teams, kLanes)
          .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(pad_reals<Pass>()))),
      *this);
}

template <class Exec, class Scalar>
template <class Pass>
KOKKOS_FUNCTION auto Flash2BackwardByTile<Exec, Scalar>::pads_of(const Member& team) const -> Pads {
  const int D = task.q.extent_int(3), W = width(D);
  Real* next = static_cast<Real*>(team.team_scratch(0).get_shmem(sizeof(Real) * pad_reals<Pass>()));
  const auto take = [&](int reals) {
    Real* mine = next;
    next += reals;
    return mine;
  };
  Pads pads{};
  pads.q_t = take(D * tile);
  pads.d_out_t = take(D * tile);
  pads.k = take(tile * W);
  pads.v = take(tile * W);
  pads.p = take(tile * tile);
  pads.ds = take(tile * tile);
  pads.top = take(tile);
  pads.delta = take(tile);
  pads.first = take(tile * W);
  if constexpr (std::is_same_v<Pass, Keys>) {
    pads.second = take(tile * W);
    pads.q = take(tile * W);
    pads.d_out = take(tile * W);
  }
  return pads;
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION auto Flash2BackwardByTile<Exec, Scalar>::place_of(int rank, int rows) const -> Place {
  const int tiles = ceil_div(rows, tile), head = rank / tiles;
  return {head / task.q.extent_int(1), head % task.q.extent_int(1), rank % tiles * tile};
}

/// Queries first .. first + count - 1, transposed, and as rows where there are pads for them; top and delta.
template <class Exec, class Scalar>
KOKKOS_FUNCTION void Flash2BackwardByTile<Exec, Scalar>::stage_queries(const Member& team, const Pads& pads,
                                                                       const Place& place, int first, int count,
                                                                       int lanes) const {
  const int D = task.q.extent_int(3), W = width(D);
  const Scalar* q = &task.q(place.b, place.h, first, 0);
  const Scalar* d_out = &task.d_out(place.b, place.h, first, 0);
  const long q_stride = task.q.stride(2), d_out_stride = task.d_out.stride(2);
  detail::stage_transposed(team, q, q_stride, count, D, lanes, task.scale, pads.q_t);
  detail::stage_transposed(team, d_out, d_out_stride, count, D, lanes, Real(1), pads.d_out_t);
  if (pads.q) {
    detail::stage_rows(team, q, q_stride, count, D, W, task.scale, pads.q);
    detail::stage_rows(team, d_out, d_out_stride, count, D, W, Real(1), pads.d_out);
  }
  detail::stage_row_sums(team, task, place.b, place.h, first, count, lanes, pads.top, pads.delta);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void Flash2BackwardByTile<Exec, Scalar>::stage_keys(const Member& team, const Pads& pads,
                                                                    const Place& place, int first, int count) const {
  const int D = task.k.extent_int(3), W = width(D);
  detail::stage_rows(team, &task.k(place.b, place.h, first, 0), task.k.stride(2), count, D, W, Real(1), pads.k);
  detail::stage_rows(team, &task.v(place.b, place.h, first, 0), task.v.stride(2), count, D, W, Real(1), pads.v);
}

/// p and ds of the staged tiles. Begins after a barrier, and ends with one.
template <class Exec, class Scalar>
KOKKOS_FUNCTION void Flash2BackwardByTile<Exec, Scalar>::recompute(const Member& team, const Pads& pads,
                                                                   int first_query, int lanes, int first_key,
                                                                   int keys) const {
  const int D = task.q.extent_int(3), W = width(D);
  const int diagonal = task.k.extent_int(2) - task.q.extent_int(2);  // causal: query i sees keys j <= i + diagonal
  Product{pads.k, W, 1, pads.q_t, lanes, pads.p, lanes, false}.run(team, keys, lanes, D);
  Product{pads.v, W, 1, pads.d_out_t, lanes, pads.ds, lanes, false}.run(team, keys, lanes, D);
  team.team_barrier();  // scores and d_p are complete
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, keys * lanes), [&](int at) {
    const int j = at / lanes, i = at % lanes;
    const bool is_seen = !task.causal || first_key + j <= first_query + i + diagonal;
    const Real p = is_seen ? fast_exp(pads.p[at] - pads.top[i]) : Real(0);
    pads.p[at] = p;
    pads.ds[at] = p * (pads.ds[at] - pads.delta[i]);
  });
  team.team_barrier();  // p and ds are complete
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void Flash2BackwardByTile<Exec, Scalar>::operator()(Keys, const Member& team) const {
  const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
  const int W = width(D);
  const Pads pads = pads_of<Keys>(team);
  const Place place = place_of(team.league_rank(), Tk);
  const int keys = Tk - place.first < tile ? Tk - place.first : tile;
  stage_keys(team, pads, place, place.first, keys);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, keys * W), [&](int i) { pads.first[i] = pads.second[i] = 0; });

  const int seeing = task.causal ? place.first - (Tk - Tq) : 0;  // the first query that sees one of these keys
  for (int first = seeing <= 0 ? 0 : seeing / tile * tile; first < Tq; first += tile) {
    const int queries = Tq - first < tile ? Tq - first : tile, lanes = round_up(queries, kLaneBlock);
    team.team_barrier();  // the previous tile has been read
    stage_queries(team, pads, place, first, queries, lanes);
    team.team_barrier();  // tiles are complete
    recompute(team, pads, first, lanes, place.first, keys);
    Product{pads.ds, lanes, 1, pads.q, W, pads.first, W, true}.run(team, keys, W, queries);
    Product{pads.p, lanes, 1, pads.d_out, W, pads.second, W, true}.run(team, keys, W, queries);
  }
  team.team_barrier();  // d_k and d_v are complete; q carries the scale
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, keys), [&](int j) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D), [&](int d) {
      task.d_k(place.b, place.h, place.first + j, d) = static_cast<Scalar>(pads.first[j * W + d]);
      task.d_v(place.b, place.h, place.first + j, d) = static_cast<Scalar>(pads.second[j * W + d]);
    });
  });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void Flash2BackwardByTile<Exec, Scalar>::operator()(Queries, const Member& team) const {
  const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
  const int W = width(D);
  const Pads pads = pads_of<Queries>(team);
  const Place place = place_of(team.league_rank(), Tq);
  const int queries = Tq - place.first < tile ? Tq - place.first : tile, lanes = round_up(queries, kLaneBlock);
  const int all_keys = keys_seen(task.causal, place.first + queries - 1 + Tk - Tq, Tk);
  stage_queries(team, pads, place, place.first, queries, lanes);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, queries * W), [&](int i) { pads.first[i] = 0; });

  for (int first = 0; first < all_keys; first += tile) {
    const int keys = all_keys - first < tile ? all_keys - first : tile;
    team.team_barrier();  // the previous tile has been read
    stage_keys(team, pads, place, first, keys);
    team.team_barrier();  // tiles are complete
    recompute(team, pads, place.first, lanes, first, keys);
    Product{pads.ds, 1, lanes, pads.k, W, pads.first, W, true}.run(team, queries, W, keys);
  }
  team.team_barrier();  // d_q is complete
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, queries), [&](int i) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D), [&](int d) {
      task.d_q(place.b, place.h, place.first + i, d) = static_cast<Scalar>(task.scale * pads.first[i * W + d]);
    });
  });
}

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Flash2BackwardByTile<Exec, Scalar>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
