#include "kernels/attention/flash2/backward.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/attention/pads.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
void Flash2Backward<Exec, Scalar>::launch(const Exec& exec) const {
  detail::require_backward_tensors("flash2 backward", task, kMaxHead);
  const int teams = task.q.extent_int(0) * task.q.extent_int(1);
  if (teams == 0 || (task.q.extent(2) == 0 && task.k.extent(2) == 0)) return;

  const int D = task.q.extent_int(3);
  const int W = round_up(D, lane_block(kHostTarget, sizeof(Real)));
  const std::size_t head_reals = 2 * task.k.extent(2) * W;
  constexpr std::size_t kOfKokkos = 1024;  // of its own, and for alignment
  const std::size_t tile_reals = flash2_backward_pad_reals(kQueryTile, W, D);
  const std::size_t bytes = Pad<Real, Exec>::shmem_size(tile_reals) + Pad<Real, Exec>::shmem_size(head_reals);
  TESSERA_REQUIRE(bytes + kOfKokkos < std::size_t{1} << 31,
                  "flash2 backward: keys of one head need 2 GiB of scratch or more", task.k.extent(2), D);
  const auto enqueue = [&](auto policy) {
    Kokkos::parallel_for("tessera::attention::flash2::backward",
                         policy.set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(tile_reals)))
                             .set_scratch_size(1, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(head_reals))),
                         *this);
  };
#ifdef TESSERA_CPU_LEVELS
  if constexpr (std::is_same_v<Scalar, float>) {
    if (cpu_level() == CpuLevel::v4) return enqueue(Kokkos::TeamPolicy<Exec, V4>(exec, teams, host_team_size));
  }
#endif
  enqueue(Policy(exec, teams, host_team_size));
}

template <class Exec, class Scalar>
template <class Level>
KOKKOS_INLINE_FUNCTION void Flash2Backward<Exec, Scalar>::run(const Member& team) const {
  using Product = TileProduct<Exec, Real, Level>;
  constexpr int kLanes = Product::kLaneBlock;
  const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
  const int W = round_up(D, kLanes);
  const int h = team.league_rank() % task.q.extent_int(1);
  const int b = team.league_rank() / task.q.extent_int(1);
  const int diagonal = Tk - Tq;  // causal: query i sees keys j <= i + diagonal

  Real* pad =
      static_cast<Real*>(team.team_scratch(0).get_shmem(sizeof(Real) * flash2_backward_pad_reals(kQueryTile, W, D)));
  Real* q_pad = pad;                           // [kQueryTile, W]   scaled queries
  Real* d_out_pad = q_pad + kQueryTile * W;    // [kQueryTile, W]
  Real* d_q_pad = d_out_pad + kQueryTile * W;  // [kQueryTile, W]
  Real* k_pad = d_q_pad + kQueryTile * W;      // [kKeyTile, W]
  Real* v_pad = k_pad + kKeyTile * W;          // [kKeyTile, W]
  Real* q_t = v_pad + kKeyTile * W;            // [D, lanes]        scaled queries, transposed
  Real* d_out_t = q_t + D * kQueryTile;        // [D, lanes]
  Real* p_t = d_out_t + D * kQueryTile;        // [kKeyTile, lanes] probabilities
  Real* ds_t = p_t + kKeyTile * kQueryTile;    // [kKeyTile, lanes] gradient of the scaled scores
  Real* top = ds_t + kKeyTile * kQueryTile;    // [lanes]           lse, +inf where a query sees no key
  Real* delta = top + kQueryTile;              // [lanes]
  Real* d_k_head = static_cast<Real*>(team.team_scratch(1).get_shmem(sizeof(Real) * 2 * Tk * W));  // [Tk, W]
  Real* d_v_head = d_k_head + static_cast<long>(Tk) * W;                                           // [Tk, W]

  // 1. clear the gradients of the keys and values
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, 2 * Tk * W), [&](int i) { d_k_head[i] = 0; });

  for (int first_query = 0; first_query < Tq; first_query += kQueryTile) {
    const int queries = Tq - first_query < kQueryTile ? Tq - first_query : kQueryTile;
    const int lanes = round_up(queries, kLanes);
    const int last_key = first_query + queries - 1 + diagonal;
    const int all_keys = keys_seen(task.causal, last_key, Tk);

    // 2. stage this tile of queries, plain and transposed, and delta_i = d_out_i . out_i
    team.team_barrier();  // the previous tile has been written
    detail::stage_rows(team, &task.q(b, h, first_query, 0), task.q.stride(2), queries, D, W, task.scale, q_pad);
    detail::stage_rows(team, &task.d_out(b, h, first_query, 0), task.d_out.stride(2), queries, D, W, Real(1),
                       d_out_pad);
    detail::stage_transposed(team, &task.q(b, h, first_query, 0), task.q.stride(2), queries, D, lanes, task.scale, q_t);
    detail::stage_transposed(team, &task.d_out(b, h, first_query, 0), task.d_out.stride(2), queries, D, lanes, Real(1),
                             d_out_t);
    detail::stage_row_sums(team, task, b, h, first_query, queries, lanes, top, delta);
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, queries * W), [&](int i) { d_q_pad[i] = 0; });

    for (int first_key = 0; first_key < all_keys; first_key += kKeyTile) {
      const int keys = all_keys - first_key < kKeyTile ? all_keys - first_key : kKeyTile;

      // 3. stage keys and values
      team.team_barrier();  // the previous tile has been read
      detail::stage_rows(team, &task.k(b, h, first_key, 0), task.k.stride(2), keys, D, W, Real(1), k_pad);
      detail::stage_rows(team, &task.v(b, h, first_key, 0), task.v.stride(2), keys, D, W, Real(1), v_pad);
      team.team_barrier();  // tiles are complete

      // 4. scores and d_p, both transposed: [j,i]
      Product{k_pad, W, 1, q_t, lanes, p_t, lanes, false}.run(team, keys, lanes, D);
      Product{v_pad, W, 1, d_out_t, lanes, ds_t, lanes, false}.run(team, keys, lanes, D);
      team.team_barrier();  // scores and d_p are complete

      // 5. p = exp(s - lse), ds = p (d_p - delta), lane-wise
      const bool on_diagonal = task.causal && first_key + keys - 1 > first_query + diagonal;
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, keys * (lanes / kLanes)), [&](int block) {
        const int j = block / (lanes / kLanes), lane = block % (lanes / kLanes) * kLanes;
        Real* p = p_t + j * lanes + lane;
        Real* ds = ds_t + j * lanes + lane;
        const int first_seeing = on_diagonal ? first_key + j - diagonal - first_query - lane : 0;
        for (int i = 0; i < kLanes; ++i) {
          const Real probability = fast_exp(i < first_seeing ? Real(-HUGE_VAL) : p[i] - top[lane + i]);
          p[i] = probability;
          ds[i] = probability * (ds[i] - delta[lane + i]);
        }
      });
      team.team_barrier();  // p and ds are complete

      // 6. the three gradients (q_pad carries the scale for d_k; d_q gets it when it is written)
      Real* d_v_tile = d_v_head + static_cast<long>(first_key) * W;
      Real* d_k_tile = d_k_head + static_cast<long>(first_key) * W;
      Product{p_t, lanes, 1, d_out_pad, W, d_v_tile, W, true}.run(team, keys, W, queries);
      Product{ds_t, lanes, 1, q_pad, W, d_k_tile, W, true}.run(team, keys, W, queries);
      Product{ds_t, 1, lanes, k_pad, W, d_q_pad, W, true}.run(team, queries, W, keys);
    }
    team.team_barrier();  // d_q is complete

    // 7. write d_q
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, queries), [&](int i) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D), [&](int d) {
        task.d_q(b, h, first_query + i, d) = static_cast<Scalar>(task.scale * d_q_pad[i * W + d]);
      });
    });
  }
  team.team_barrier();  // d_k and d_v are complete

  // 8. write d_k and d_v
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, Tk), [&](int j) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D), [&](int d) {
      task.d_k(b, h, j, d) = static_cast<Scalar>(d_k_head[static_cast<long>(j) * W + d]);
      task.d_v(b, h, j, d) = static_cast<Scalar>(d_v_head[static_cast<long>(j) * W + d]);
    });
  });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void Flash2Backward<Exec, Scalar>::operator()(const Member& team) const {
  run<BuildLevel>(team);
}
#ifdef TESSERA_CPU_LEVELS
template <class Exec, class Scalar>
TESSERA_V4 void Flash2Backward<Exec, Scalar>::operator()(
    V4, const Member& team) const requires std::is_same_v<Scalar, float> {
  run<V4>(team);
}
#endif

TESSERA_INSTANTIATE_KERNEL(Flash2Backward);

}  // namespace tessera::kernels
