#include "kernels/attention/flash1/forward.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/attention/ladder.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/scratch.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar, int kSteps>
void Flash1Forward<Exec, Scalar, kSteps>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_forward_tensors("flash1 forward", task, kMaxHead);
  const int B = q.extent_int(0), H = q.extent_int(1), Tq = q.extent_int(2), D = q.extent_int(3);
  detail::require_workspace("flash1 forward: workspace must have flash1_workspace_bytes, aligned to 16", workspace,
                            flash1_workspace_bytes(kDtype<Scalar>, B, H, Tq, D), 16);
  const int tile = ladder::default_tile(kTargetOf<Exec>, sizeof(Real), D);
  Flash1Forward kernel = *this;
  if (query_tile == 0) kernel.query_tile = tile;
  if (key_tile == 0) kernel.key_tile = tile;
  const auto pads = ladder::Steps<Scalar, kSteps>::pads(kernel.query_tile, kernel.key_tile, D);
  detail::require_tiles("flash1 forward", kernel.query_tile, kernel.key_tile, ladder::scratch_bytes(pads),
                        kTargetOf<Exec>);
  if (B == 0 || H == 0 || Tq == 0) return;

  Real* rows = reinterpret_cast<Real*>(workspace.data());
  if constexpr (std::is_same_v<Real, Scalar>) {
    kernel.running_out = out;
  } else {
    kernel.running_out = contiguous_heads<Exec>(rows, B, H, Tq, D);
    rows += kernel.running_out.size();
  }
  kernel.running_sum = HeadRows<Real, Exec>(rows, B, H, Tq);
  kernel.fits_packets = rows_fit_packets(q, k, v, out, kernel.running_out);
  allow_large_scratch<Flash1Forward, Policy>();
  Kokkos::parallel_for("tessera::attention::flash1::forward",
                       team_policy<Policy>(exec, B * H)
                           .set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(ladder::scratch_bytes(pads)))),
                       kernel);
}

template <class Exec, class Scalar, int kSteps>
KOKKOS_FUNCTION void Flash1Forward<Exec, Scalar, kSteps>::operator()(const Member& team) const {
  using Steps = ladder::Steps<Scalar, kSteps>;
  const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
  const int h = team.league_rank() % task.q.extent_int(1);
  const int b = team.league_rank() / task.q.extent_int(1);
  const int diagonal = Tk - Tq;  // causal: query i sees keys j <= i + diagonal

  const ladder::Pads at = Steps::pads(query_tile, key_tile, D);
  Real* scores = static_cast<Real*>(team.team_scratch(0).get_shmem_aligned(at.bytes(), kPacketBytes));
  Real* out = scores + at.out();                               // [query_tile, D]
  Real* keep = scores + at.rows();                             // [query_tile]     factor of the output so far
  Real* add = keep + query_tile;                               // [query_tile]     factor of this tile's values
  Scalar* q = reinterpret_cast<Scalar*>(scores + at.reals());  // [query_tile, D]
  Scalar* k = q + at.k();                                      // [key_tile, D]
  Scalar* v = q + at.v();                                      // [key_tile, D]
  const auto running = [&](int i) { return &running_out(b, h, i, 0); };
  const auto as_it_is = [](int) { return Real(1); };

  // 1. out = 0, l = 0, m = -inf                                                     (Algorithm 1, line 2)
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, Tq), [&](int i) {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, D), [&](int d) { running(i)[d] = 0; });
    Kokkos::single(Kokkos::PerThread(team), [&] {
      running_sum(b, h, i) = 0;
      task.lse(b, h, i) = -HUGE_VAL;
    });
  });

  for (int first_key = 0; first_key < Tk; first_key += key_tile) {  // (line 5)
    const int keys = Tk - first_key < key_tile ? Tk - first_key : key_tile;
    const int first_seeing = task.causal && first_key > diagonal ? first_key - diagonal : 0;

    // 2. stage keys and values                                                      (line 6)
    team.team_barrier();  // the previous tiles have been read
    Steps::stage(team, &task.k(b, h, first_key, 0), task.k.stride(2), keys, D, at.depth(), fits_packets, k, at.pitch());
    Steps::stage(team, &task.v(b, h, first_key, 0), task.v.stride(2), keys, D, D, fits_packets, v, at.pitch());

    for (int first = first_seeing / query_tile * query_tile; first < Tq; first += query_tile) {  // (line 7)
      const int queries = Tq - first < query_tile ? Tq - first : query_tile;

      // 3. stage queries and the output that they have so far                       (line 8)
      team.team_barrier();  // the previous tile has been written
      Steps::stage(team, &task.q(b, h, first, 0), task.q.stride(2), queries, D, at.depth(), fits_packets, q,
                   at.pitch());
      Steps::stage(team, running(first), running_out.stride(2), queries, D, D, fits_packets, out, at.out_pitch());
      team.team_barrier();  // tiles are complete

      // 4. S = scale q k^T                                                          (line 9)
      Steps::multiply(team, at, q, k, queries, keys, task.scale, scores);
      team.team_barrier();  // scores are complete

      // 5. m', P' = exp(S - m'), l'; then m_new, l_new and the factors of out       (lines 10, 11)
      const auto seen = [&](int i) {  // of this tile's
        return keys_seen(task.causal, first + i + diagonal - first_key, keys);
      };
      const auto update = [&](int i, Real tile_top, Real tile_sum) {
        const Real top = task.lse(b, h, first + i), sum = running_sum(b, h, first + i);
        const Real new_top = larger(top, tile_top);
        const Real bound = finite_top(new_top);
        const Real old_sum = fast_exp(top - bound) * sum, factor = fast_exp(tile_top - bound);
        const Real new_sum = old_sum + factor * tile_sum;
        keep[i] = new_sum == 0 ? Real(0) : old_sum / new_sum;
        add[i] = new_sum == 0 ? Real(0) : factor / new_sum;
        task.lse(b, h, first + i) = new_top;
        running_sum(b, h, first + i) = new_sum;
      };
      Steps::exponentiate(
          team, at, scores, queries, keys, seen, [](int) { return Real(-HUGE_VAL); }, update);
      team.team_barrier();  // exponentials and factors are complete

      // 6. out = (l exp(m - m_new) out + exp(m' - m_new) P' v) / l_new, written back    (lines 12, 13)
      Steps::add_values(team, at, scores, v, queries, keys, out,
                        [&](int i, Real so_far, Real values) { return keep[i] * so_far + add[i] * values; });
      team.team_barrier();  // the tile of out is complete
      Steps::write(team, out, at.out_pitch(), queries, D, fits_packets, running(first), running_out.stride(2),
                   as_it_is);
    }
  }
  team.team_barrier();  // out, m and l are complete

  // 7. lse = m + log l; out is rounded if it was kept in the workspace
  if constexpr (!std::is_same_v<Real, Scalar>) {
    Steps::write(team, running(0), running_out.stride(2), Tq, D, fits_packets, &task.out(b, h, 0, 0),
                 task.out.stride(2), as_it_is);
  }
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, Tq), [&](int i) {
    const Real sum = running_sum(b, h, i);
    task.lse(b, h, i) = sum == 0 ? Real(-HUGE_VAL) : task.lse(b, h, i) + log(sum);
  });
}

#define TESSERA_INSTANTIATE(Exec, Scalar)         \
  template struct Flash1Forward<Exec, Scalar, 0>; \
  template struct Flash1Forward<Exec, Scalar, 1>; \
  template struct Flash1Forward<Exec, Scalar, 2>; \
  template struct Flash1Forward<Exec, Scalar, 3>; \
  template struct Flash1Forward<Exec, Scalar, 4>;
TESSERA_FOR_EACH_EXEC_SCALAR(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

#define TESSERA_INSTANTIATE(Exec, Scalar) template struct Flash1Forward<Exec, Scalar, 5>;
TESSERA_FOR_EACH_TILE_SCORES(TESSERA_INSTANTIATE)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::kernels
