/// The body of Flash2Forward, compiled once for its own tiles and once for chosen ones.
#pragma once

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/forward.hpp"
#include "kernels/attention/pads.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar, class Tiles>
void Flash2Forward<Exec, Scalar, Tiles>::launch(const Exec& exec) const {
  detail::require_forward_tensors("flash2 forward", task, kMaxHead);
  const int D = task.q.extent_int(3);
  const std::size_t reals = flash2_forward_pad_reals(
      round_up(this->query_tile(), lane_block({.is_host = kIsHost<Exec>}, sizeof(Real))), this->key_tile(), D);
  if constexpr (std::is_same_v<Tiles, ChosenTiles>) {
    detail::require_tiles("flash2 forward", this->query_tile(), this->key_tile(), sizeof(Real) * reals,
                          kTargetOf<Exec>);
  }
  const int tiles = ceil_div(task.q.extent_int(2), this->query_tile());
  const int teams = task.q.extent_int(0) * task.q.extent_int(1) * tiles;
  if (teams == 0) return;

  allow_large_scratch<Flash2Forward, Policy>();
  const auto enqueue = [&](auto policy) {
    Kokkos::parallel_for("tessera::attention::flash2::forward",
                         policy.set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(reals))), *this);
  };
#ifdef TESSERA_CPU_LEVELS
  if constexpr (std::is_same_v<Scalar, float>) {
    if (cpu_level() == CpuLevel::v4) return enqueue(Kokkos::TeamPolicy<Exec, V4>(exec, teams, host_team_size));
  }
#endif
  enqueue(Policy(exec, teams, team_size_of<Exec>()));
}

template <class Exec, class Scalar, class Tiles>
template <class Level>
KOKKOS_INLINE_FUNCTION void Flash2Forward<Exec, Scalar, Tiles>::run(const Member& team) const {
  using Product = TileProduct<Exec, Real, Level>;
  constexpr int kLanes = Product::kLaneBlock;
  const int query_tile = this->query_tile(), key_tile = this->key_tile();
  const int most_lanes = round_up(query_tile, lane_block({.is_host = kIsHost<Exec>}, sizeof(Real)));
  const int D = task.q.extent_int(3);
  const QueryTile tile = query_tile_of(task, team.league_rank(), query_tile);
  const int b = tile.b, h = tile.h, first_query = tile.first, queries = tile.queries, all_keys = tile.all_keys;
  const int diagonal = tile.diagonal, lanes = round_up(queries, kLanes);

  Real* pad = static_cast<Real*>(
      team.team_scratch(0).get_shmem(sizeof(Real) * flash2_forward_pad_reals(most_lanes, key_tile, D)));
  Real* q_t = pad;                            // [D, lanes]        scaled queries
  Real* k_pad = q_t + D * most_lanes;         // [key_tile, D]
  Real* v_pad = k_pad + key_tile * D;         // [key_tile, D]
  Real* p_t = v_pad + key_tile * D;           // [key_tile, lanes] scores, then their exponentials
  Real* out_t = p_t + key_tile * most_lanes;  // [D, lanes]      un-normalised output
  Real* top = out_t + D * most_lanes;         // [lanes]           running maximum
  Real* sum = top + most_lanes;               // [lanes]           running sum
  Real* shrink = sum + most_lanes;            // [lanes]           exp(old maximum - new maximum)

  // 1. stage the queries once; clear the running state
  detail::stage_transposed(team, &task.q(b, h, first_query, 0), task.q.stride(2), queries, D, lanes, task.scale, q_t);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, D * lanes), [&](int i) { out_t[i] = 0; });
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, lanes), [&](int i) {
    top[i] = -HUGE_VAL;
    sum[i] = 0;
  });

  for (int first_key = 0; first_key < all_keys; first_key += key_tile) {
    const int keys = all_keys - first_key < key_tile ? all_keys - first_key : key_tile;

    // 2. stage keys and values
    team.team_barrier();  // the previous tile has been read
    detail::stage_rows(team, &task.k(b, h, first_key, 0), task.k.stride(2), keys, D, D, Real(1), k_pad);
    detail::stage_rows(team, &task.v(b, h, first_key, 0), task.v.stride(2), keys, D, D, Real(1), v_pad);
    team.team_barrier();  // tiles and running state are complete

    // 3. scores, transposed: p_t[j,i] = k_j . q_i
    Product{k_pad, D, 1, q_t, lanes, p_t, lanes, false}.run(team, keys, lanes, D);
    team.team_barrier();  // scores are complete

    // 4. running softmax, lane-wise
    const bool on_diagonal = task.causal && first_key + keys - 1 > first_query + diagonal;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, lanes / kLanes), [&](int block) {
      const int lane = block * kLanes;
      Real new_top[kLanes], safe_top[kLanes], tile_sum[kLanes] = {};
      for (int i = 0; i < kLanes; ++i) new_top[i] = top[lane + i];
      for (int j = 0; j < keys; ++j) {
        Real* score = p_t + j * lanes + lane;
        if (on_diagonal) {
          const int first_seeing = first_key + j - diagonal - first_query - lane;  // lanes before it do not see key j
          for (int i = 0; i < kLanes; ++i) score[i] = i < first_seeing ? -HUGE_VAL : score[i];
        }
        for (int i = 0; i < kLanes; ++i) new_top[i] = score[i] > new_top[i] ? score[i] : new_top[i];
      }
      for (int i = 0; i < kLanes; ++i) {
        safe_top[i] = finite_top(new_top[i]);
        shrink[lane + i] = fast_exp(top[lane + i] - safe_top[i]);
      }
      for (int j = 0; j < keys; ++j) {
        Real* score = p_t + j * lanes + lane;
        for (int i = 0; i < kLanes; ++i) {
          score[i] = fast_exp(score[i] - safe_top[i]);
          tile_sum[i] += score[i];
        }
      }
      for (int i = 0; i < kLanes; ++i) {
        top[lane + i] = new_top[i];
        sum[lane + i] = sum[lane + i] * shrink[lane + i] + tile_sum[i];
      }
    });
    team.team_barrier();  // exponentials and shrink factors are complete

    // 5. out = out * shrink + v^T p
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, D), [&](int d) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, lanes), [&](int i) { out_t[d * lanes + i] *= shrink[i]; });
    });
    team.team_barrier();  // rescaled before anything is added
    Product{v_pad, 1, D, p_t, lanes, out_t, lanes, true}.run(team, D, lanes, keys);
  }
  team.team_barrier();  // output complete

  // 6. normalise and write
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, queries), [&](int i) {
    const Real inverse = sum[i] == 0 ? Real(0) : 1 / sum[i];  // 0: no key was seen; NaN stays NaN
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D), [&](int d) {
      task.out(b, h, first_query + i, d) = static_cast<Scalar>(out_t[d * lanes + i] * inverse);
    });
    Kokkos::single(Kokkos::PerThread(team),
                   [&] { task.lse(b, h, first_query + i) = sum[i] == 0 ? Real(-HUGE_VAL) : top[i] + log(sum[i]); });
  });
}

template <class Exec, class Scalar, class Tiles>
KOKKOS_FUNCTION void Flash2Forward<Exec, Scalar, Tiles>::operator()(const Member& team) const {
  run<BuildLevel>(team);
}
#ifdef TESSERA_CPU_LEVELS
template <class Exec, class Scalar, class Tiles>
TESSERA_V4 void Flash2Forward<Exec, Scalar, Tiles>::operator()(
    V4, const Member& team) const requires std::is_same_v<Scalar, float> {
  run<V4>(team);
}
#endif

}  // namespace tessera::kernels
