#include "kernels/attention/tiled/tiled.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/gemm/head_product.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/team.hpp"
#include "kernels/cuda/target.hpp"

namespace tessera::kernels {
namespace {

/// Rows [first, first + count) of every head.
template <class Heads>
Heads rows_of(const Heads& heads, int first, int count) {
  return Kokkos::subview(heads, Kokkos::ALL, Kokkos::ALL, Kokkos::pair<int, int>(first, first + count), Kokkos::ALL);
}

}  // namespace

template <class Exec, class Scalar>
void TiledForward<Exec, Scalar>::launch(const Exec& exec) const {
  using Real = Accum<Scalar>;
  using Rows = TiledRows<Exec, Scalar>;
  const auto& [q, k, v, out, lse, scale, causal] = task;
  detail::require_forward_tensors("tiled forward", task, kMaxHead);
  const int B = q.extent_int(0), H = q.extent_int(1), Tq = q.extent_int(2), Tk = k.extent_int(2), D = q.extent_int(3);
  const int query_step = query_tile == 0 ? kTiledTile : query_tile, key_step = key_tile == 0 ? kTiledTile : key_tile;
  detail::require_tiles("tiled forward", query_step, key_step, 0, kTargetOf<Exec>);
  detail::require_workspace("tiled forward: workspace must have tiled_workspace_bytes, aligned to 16", workspace,
                            tiled_workspace_bytes(kDtype<Scalar>, B, H, Tq, D, query_tile, key_tile), 16);
  if (B == 0 || H == 0 || Tq == 0) return;

  for (int first = 0; first < Tq; first += query_step) {
    // 1. cut the workspace for this tile of queries
    const int queries = std::min(query_step, Tq - first);
    const std::int64_t rows = std::int64_t{B} * H * queries;
    Real* const top = reinterpret_cast<Real*>(workspace.data());
    Real* const running = top + 3 * rows;
    Real* const values = running + rows * D;
    Real* const scores = values + rows * D;
    const int diagonal = Tk - Tq;  // causal: query i sees keys j <= i + diagonal
    const int all_keys = keys_seen(causal, first + queries - 1 + diagonal, Tk);
    Rows tile{.scores = {},
              .values = contiguous_heads<Exec>(values, B, H, queries, D),
              .running = contiguous_heads<Exec>(running, B, H, queries, D),
              .top = HeadRows<Real, Exec>(top, B, H, queries),
              .sum = HeadRows<Real, Exec>(top + rows, B, H, queries),
              .keep = HeadRows<Real, Exec>(top + 2 * rows, B, H, queries),
              .out = rows_of(out, first, queries),
              .lse = lse,
              .first_query = first,
              .seen = 0,
              .is_first = true,
              .has_keys = all_keys > 0};

    for (int first_key = 0; first_key < all_keys; first_key += key_step) {
      // 2. the four launches of a pair of tiles
      const int keys = std::min(key_step, all_keys - first_key);
      tile.scores = contiguous_heads<Exec>(scores, B, H, queries, keys);
      tile.seen = causal ? first + diagonal - first_key + 1 : keys;
      tile.is_first = first_key == 0;
      HeadProduct<Exec, Scalar, Scalar, Real>{"tessera::attention::tiled::scores", rows_of(q, first, queries),
                                              transposed(rows_of(k, first_key, keys)), tile.scores, scale}
          .launch(exec);
      tile.template launch<typename Rows::Softmax>("tessera::attention::tiled::softmax", exec);
      HeadProduct<Exec, Scalar, Real, Real>{"tessera::attention::tiled::values", tile.scores,
                                            rows_of(v, first_key, keys), tile.values, Real(1)}
          .launch(exec);
      tile.template launch<typename Rows::Rescale>("tessera::attention::tiled::rescale", exec);
    }

    // 3. normalise and write
    tile.template launch<typename Rows::Finish>("tessera::attention::tiled::out", exec);
  }
}

template <class Exec, class Scalar>
template <class Step>
void TiledRows<Exec, Scalar>::launch(const char* label, const Exec& exec) const {
  const int rows = out.extent_int(0) * out.extent_int(1) * out.extent_int(2);
  Kokkos::parallel_for(label, team_policy<Policy<Step>>(exec, rows, kVectorLanes), *this);
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void TiledRows<Exec, Scalar>::operator()(Softmax, const Member& team) const {
  const int H = scores.extent_int(1), queries = scores.extent_int(2), keys = scores.extent_int(3);
  const int i = team.league_rank() % queries, h = team.league_rank() / queries % H,
            b = team.league_rank() / queries / H;
  const int end = keys_seen(true, seen + i - 1, keys);
  Real* row = &scores(b, h, i, 0);

  Real largest = -HUGE_VAL;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, end), [&](int j, Real& most) { most = larger(most, row[j]); },
      Kokkos::Max<Real>(largest));
  const Real old_top = is_first ? Real(-HUGE_VAL) : top(b, h, i);
  const Real new_top = end > 0 ? larger(old_top, largest) : old_top;
  const Real bound = finite_top(new_top);
  Real tile_sum = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, keys),
      [&](int j, Real& total) {
        row[j] = j < end ? fast_exp(row[j] - bound) : Real(0);
        total += row[j];
      },
      tile_sum);
  team.team_barrier();  // the maximum has been read
  Kokkos::single(Kokkos::PerTeam(team), [&] {
    const Real shrink = fast_exp(old_top - bound);
    keep(b, h, i) = shrink;
    sum(b, h, i) = is_first ? tile_sum : shrink * sum(b, h, i) + tile_sum;
    top(b, h, i) = new_top;
  });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void TiledRows<Exec, Scalar>::operator()(Rescale, const Member& team) const {
  const int H = out.extent_int(1), queries = out.extent_int(2), D = out.extent_int(3);
  const int i = team.league_rank() % queries, h = team.league_rank() / queries % H,
            b = team.league_rank() / queries / H;
  const Real shrink = keep(b, h, i);
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, D), [&](int d) {
    running(b, h, i, d) = is_first ? values(b, h, i, d) : shrink * running(b, h, i, d) + values(b, h, i, d);
  });
}

template <class Exec, class Scalar>
KOKKOS_FUNCTION void TiledRows<Exec, Scalar>::operator()(Finish, const Member& team) const {
  const int H = out.extent_int(1), queries = out.extent_int(2), D = out.extent_int(3);
  const int i = team.league_rank() % queries, h = team.league_rank() / queries % H,
            b = team.league_rank() / queries / H;
  const Real total = has_keys ? sum(b, h, i) : Real(0);
  const bool is_empty = total == 0;  // no key was seen; NaN stays NaN
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, D), [&](int d) {
    out(b, h, i, d) = static_cast<Scalar>(is_empty ? Real(0) : running(b, h, i, d) / total);
  });
  Kokkos::single(Kokkos::PerTeam(team),
                 [&] { lse(b, h, first_query + i) = is_empty ? Real(-HUGE_VAL) : top(b, h, i) + log(total); });
}

TESSERA_INSTANTIATE_KERNEL(TiledForward);
TESSERA_INSTANTIATE_KERNEL(TiledRows);

}  // namespace tessera::kernels
