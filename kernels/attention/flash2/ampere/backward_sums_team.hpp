/// The last kernel of AmpereBackward for one width of rows: d_q from its sums.
#pragma once

#include "kernels/attention/flash2/ampere/backward_cut.hpp"
#include "kernels/attention/flash2/ampere/backward_rows.hpp"
#include "kernels/attention/flash2/ampere/tile.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/large_scratch.hpp"

namespace tessera::kernels::ampere {

/// d_q from the sums that BackwardKeysTeam left in the workspace: a team per tile of queries.
template <class Scalar, int kWidth, class Cut>
struct BackwardSumsTeam {
  BackwardTask<Kokkos::Cuda, Scalar> task;
  BackwardRows rows;

  using Piece = QueryPiece<kWidth, Cut>;
  using Layout = TileLayout<kWidth>;
  static constexpr int kWarps = Piece::kWarps, kThreads = kWarps * cuda::kWarpLanes;
  static constexpr int kScratchBytes = Layout::bytes(Cut::kSumTile);
  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kThreads>>;
  using Member = typename Policy::member_type;

  static void launch(const Kokkos::Cuda& exec, const BackwardTask<Kokkos::Cuda, Scalar>& task,
                     const BackwardRows& rows) {
    const int heads = task.q.extent_int(0) * task.q.extent_int(1);
    const int tiles = ceil_div(task.q.extent_int(2), Cut::kSumTile);
    if (heads * tiles == 0) return;
    cuda::enable_large_scratch<BackwardSumsTeam, Policy>();
    Kokkos::parallel_for("tessera::attention::flash2::ampere_backward::sums",
                         Policy(exec, heads * tiles, kWarps, cuda::kWarpLanes)
                             .set_scratch_size(0, Kokkos::PerTeam(cuda::aligned_scratch_bytes(kScratchBytes, 128))),
                         BackwardSumsTeam{task, rows});
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

 private:
  TESSERA_DEVICE void run(const Member& team) const {
    const int warp = cuda::warp_of_team(), lane = threadIdx.x;
    const int H = task.q.extent_int(1), Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
    const int tiles = ceil_div(Tq, Cut::kSumTile);
    const int head = team.league_rank() / tiles, tile = team.league_rank() % tiles, b = head / H, h = head % H;
    const int first_query = tile * Cut::kSumTile, queries = min(Cut::kSumTile, Tq - first_query);
    const bool is_seeing =
        Tk > 0 && (!task.causal || first_query + queries - 1 + Tk - Tq >= 0);  // else nothing was added
    const SharedAddress staging = cuda::shared_address(team.team_scratch(0).get_shmem_aligned(kScratchBytes + 0, 128));
    const auto piece = Piece::of_warp(warp);
    const float* sums = rows.d_q + static_cast<std::int64_t>(head) * rows.rows * kWidth + Piece::offset_of(tile, warp);
    TESSERA_UNROLL
    for (int n = 0; n < Piece::kColumns / 8; ++n) {
      TESSERA_UNROLL
      for (int m = 0; m < Piece::kRowTiles; ++m) {
        float4 d_q = make_float4(0, 0, 0, 0);
        if (is_seeing) d_q = *reinterpret_cast<const float4*>(sums + Piece::offset(m, n) + lane * 4);
        const int row = (piece.group * Piece::kRowTiles + m) * 16 + lane / 4;
        cuda::shared_store_word(staging + Layout::offset(row, piece.chunk(n)) + lane % 4 * 4,
                                cuda::pack<Scalar>(task.scale * d_q.x, task.scale * d_q.y));
        cuda::shared_store_word(staging + Layout::offset(row + 8, piece.chunk(n)) + lane % 4 * 4,
                                cuda::pack<Scalar>(task.scale * d_q.z, task.scale * d_q.w));
      }
    }
    team.team_barrier();  // all pieces are complete
    write_rows<Layout, kThreads>(staging, row_of(task.d_q, b, h, first_query), task.d_q.stride(2), queries, D,
                                 warp * cuda::kWarpLanes + lane);
  }
};

}  // namespace tessera::kernels::ampere
