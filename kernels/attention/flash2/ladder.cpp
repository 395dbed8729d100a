#include "kernels/attention/flash2/ladder.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/attention/ladder.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar, int kSteps>
void Flash2Ladder<Exec, Scalar, kSteps>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_forward_tensors("flash2 forward", task, kMaxHead);
  const int D = q.extent_int(3), tile = ladder::default_tile(kTargetOf<Exec>, sizeof(Real), D);
  Flash2Ladder kernel = *this;
  if (query_tile == 0) kernel.query_tile = tile;
  if (key_tile == 0) kernel.key_tile = tile;
  const auto pads = ladder::Steps<Scalar, kSteps>::pads(kernel.query_tile, kernel.key_tile, D);
  detail::require_tiles("flash2 forward", kernel.query_tile, kernel.key_tile, ladder::scratch_bytes(pads),
                        kTargetOf<Exec>);
  const int teams = q.extent_int(0) * q.extent_int(1) * ceil_div(q.extent_int(2), kernel.query_tile);
  if (teams == 0) return;

  kernel.fits_packets = rows_fit_packets(q, k, v, out);
  allow_large_scratch<Flash2Ladder, Policy>();
  Kokkos::parallel_for("tessera::attention::flash2::ladder_forward",
                       team_policy<Policy>(exec, teams)
                           .set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(ladder::scratch_bytes(pads)))),
                       kernel);
}

template <class Exec, class Scalar, int kSteps>
KOKKOS_FUNCTION void Flash2Ladder<Exec, Scalar, kSteps>::operator()(const Member& team) const {
  using Steps = ladder::Steps<Scalar, kSteps>;
  const int D = task.q.extent_int(3);
  const QueryTile tile = query_tile_of(task, team.league_rank(), query_tile);
  const int b = tile.b, h = tile.h, first = tile.first, queries = tile.queries, all_keys = tile.all_keys;
  const int diagonal = tile.diagonal;

  const ladder::Pads at = Steps::pads(query_tile, key_tile, D);
  Real* scores = static_cast<Real*>(team.team_scratch(0).get_shmem_aligned(at.bytes(), kPacketBytes));
  Real* out = scores + at.out();                               // [query_tile, D]  un-normalised
  Real* keep = scores + at.rows();                             // [query_tile]     exp(old maximum - new maximum)
  Real* top = keep + query_tile;                               // [query_tile]     m
  Real* sum = top + query_tile;                                // [query_tile]     l
  Scalar* q = reinterpret_cast<Scalar*>(scores + at.reals());  // [query_tile, D]
  Scalar* k = q + at.k();                                      // [key_tile, D]
  Scalar* v = q + at.v();                                      // [key_tile, D]

  // 1. stage the queries once; out = 0, l = 0, m = -inf
  Steps::stage(team, &task.q(b, h, first, 0), task.q.stride(2), queries, D, at.depth(), fits_packets, q, at.pitch());
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, queries * at.out_pitch()), [&](int i) { out[i] = 0; });
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, queries), [&](int i) {
    top[i] = -HUGE_VAL;
    sum[i] = 0;
  });

  for (int first_key = 0; first_key < all_keys; first_key += key_tile) {
    const int keys = all_keys - first_key < key_tile ? all_keys - first_key : key_tile;

    // 2. stage keys and values
    team.team_barrier();  // the previous tiles have been read
    Steps::stage(team, &task.k(b, h, first_key, 0), task.k.stride(2), keys, D, at.depth(), fits_packets, k, at.pitch());
    Steps::stage(team, &task.v(b, h, first_key, 0), task.v.stride(2), keys, D, D, fits_packets, v, at.pitch());
    team.team_barrier();  // tiles and running state are complete

    // 3. S = scale q k^T
    Steps::multiply(team, at, q, k, queries, keys, task.scale, scores);
    team.team_barrier();  // scores are complete

    // 4. m_new, P = exp(S - m_new), l_new
    const auto seen = [&](int i) {  // of this tile's
      return keys_seen(task.causal, first + i + diagonal - first_key, keys);
    };
    const auto update = [&](int i, Real new_top, Real tile_sum) {
      keep[i] = fast_exp(top[i] - finite_top(new_top));
      sum[i] = keep[i] * sum[i] + tile_sum;
      top[i] = new_top;
    };
    Steps::exponentiate(
        team, at, scores, queries, keys, seen, [&](int i) { return top[i]; }, update);
    team.team_barrier();  // exponentials and factors are complete

    // 5. out = exp(m - m_new) out + P v
    Steps::add_values(team, at, scores, v, queries, keys, out,
                      [&](int i, Real so_far, Real values) { return keep[i] * so_far + values; });
  }
  team.team_barrier();  // out is complete

  // 6. normalise and write
  const auto inverse = [&](int i) { return sum[i] == 0 ? Real(0) : 1 / sum[i]; };  // 0: no key was seen; NaN stays NaN
  Steps::write(team, out, at.out_pitch(), queries, D, fits_packets, &task.out(b, h, first, 0), task.out.stride(2),
               inverse);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, queries), [&](int i) {
    task.lse(b, h, first + i) = sum[i] == 0 ? Real(-HUGE_VAL) : top[i] + log(sum[i]);
  });
}

#define TESSERA_INSTANTIATE(Exec, Scalar)        \
  template struct Flash2Ladder<Exec, Scalar, 0>; \
  template struct Flash2Ladder<Exec, Scalar, 1>; \
  template struct Flash2Ladder<Exec, Scalar, 2>; \
  template struct Flash2Ladder<Exec, Scalar, 3>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
