/// The main kernel of AmpereFloatBackward for one width of rows: what a team does that owns a tile of keys.
#pragma once

#include <algorithm>

#include "kernels/attention/flash2/ampere/float_tile.hpp"
#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/flash2/dq_order.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/large_scratch.hpp"
#include "kernels/cuda/ticket.hpp"

namespace tessera::kernels::ampere {

/// d_k and d_v of a tile of keys, walking the tiles of queries that see them, last queries first; and the tile's share
/// of d_q. A warp owns 16 or 32 keys, whose probabilities and score gradients, transposed, stay in its registers as the
/// a operands of d_v and d_k; only for d_q do the warps exchange score gradients through scratch. Of wide rows two
/// warps share 16 keys: each computes a half of the columns of the gradients, so that they fit in registers, and all
/// scores.
///
/// In the fixed order the teams of a head take turns at each tile of d_q, first keys first: see BackwardKeysTeam.
template <int kProducts, int kWidth, class Cut>
struct FloatBackwardTeam {
  BackwardTask<Kokkos::Cuda, float> task;
  DqOrder order;
  BackwardRows rows;
  int heads_of_group;

  static constexpr int kRowTiles = Cut::kRowTiles, kHalves = Cut::kHalves, kWarps = Cut::kWarps * kHalves;
  static constexpr int kThreads = kWarps * cuda::kWarpLanes, kColumns = kWidth / kHalves;  // of a warp's gradients
  static constexpr int kWarpKeys = 16 * kRowTiles, kKeyTile = kWarpKeys * Cut::kWarps, kQueryTile = Cut::kQueryTile;
  static constexpr int kHeld = Cut::kHolds ? kWidth / 8 : 0;
  static constexpr int kPart = 32;  // depth that tensor cores sum from zero, see float_tile.hpp
  static constexpr bool kHasStages = Cut::kStages == 2;

  using Layout = FloatTile<kWidth>;
  using Scores = FloatTile<kQueryTile>;  // [key, query]
  using Reader = typename Layout::Reader;
  static constexpr int kKeyBytes = Layout::bytes(kKeyTile), kQueryBytes = Layout::bytes(kQueryTile);
  static constexpr int kNumberBytes = 2 * kQueryTile * 4, kStageBytes = 2 * kQueryBytes + kNumberBytes;
  static constexpr int kScratchBytes = float_backward_bytes<kWidth, Cut>();
  static_assert(kScratchBytes == 2 * kKeyBytes + Cut::kStages * kStageBytes + Scores::bytes(kKeyTile));

  // The tile's share of d_q by warps: groups of kQueryWarps share the queries, the warps of a group the blocks of 16
  // columns.
  static constexpr int kBlocks = kWidth / 16;
  static constexpr int kQueryWarps = kBlocks < kWarps || kBlocks % kWarps != 0 ? kQueryTile / 16 : 1;
  static constexpr int kColumnWarps = kWarps / kQueryWarps, kGroupTiles = kQueryTile / 16 / kQueryWarps;
  static_assert(kQueryTile % 32 == 0 && kWarps % kQueryWarps == 0 && kColumns % 16 == 0);
  static_assert(BackwardRows::kPadding <= BackwardRows::kTurns * kQueryTile);

  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kThreads, Cut::kTeams>>;
  using Member = typename Policy::member_type;

  static void launch(const Kokkos::Cuda& exec, const BackwardTask<Kokkos::Cuda, float>& task, DqOrder order,
                     const BackwardRows& rows) {
    const int heads = task.q.extent_int(0) * task.q.extent_int(1);
    const int tiles = ceil_div(task.k.extent_int(2), kKeyTile);
    if (heads * tiles == 0) return;
    const int group = std::max(heads_in_cache(task.q.extent(2), 2 * task.q.extent(3), heads), std::min(16, heads));
    cuda::enable_large_scratch<FloatBackwardTeam, Policy>();
    Kokkos::parallel_for("tessera::attention::flash2::ampere_float_backward::keys",
                         Policy(exec, heads * tiles, kWarps, cuda::kWarpLanes)
                             .set_scratch_size(0, Kokkos::PerTeam(cuda::aligned_scratch_bytes(kScratchBytes, 128))),
                         FloatBackwardTeam{task, order, rows, group});
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

 private:
  using PartScores = Sums<kRowTiles, kQueryTile>;
  using Weights = Factors<kProducts, 4>[kRowTiles][kQueryTile / 8];

  TESSERA_DEVICE bool in_order() const { return order == DqOrder::fixed; }

  TESSERA_DEVICE void run(const Member& team) const {
    const int warp = cuda::warp_of_team(), lane = threadIdx.x, thread = warp * cuda::kWarpLanes + lane;
    const int H = task.q.extent_int(1), Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
    const int heads = task.q.extent_int(0) * H, tiles = ceil_div(Tk, kKeyTile);

    // 1. which tile: groups of heads; inside a group in the order of keys (most queries see the first), heads fastest
    const TilePlace place = place_of(team.league_rank(), heads_of_group, heads, tiles);
    const int head = place.head, b = head / H, h = head % H;
    const int first_key = place.tile * kKeyTile, keys = min(kKeyTile, Tk - first_key);
    const int before = task.causal ? Tk - Tq : Tk;  // key j is seen by the queries i >= j - before
    const int first_tile = max(0, first_key - before) / kQueryTile, end_tile = ceil_div(Tq, kQueryTile);
    const int key_warp = warp % Cut::kWarps, half = warp / Cut::kWarps, first_column = half * kColumns;
    const int first_warp_key = first_key + key_warp * kWarpKeys;

    const SharedAddress k_tile = cuda::shared_address(team.team_scratch(0).get_shmem_aligned(kScratchBytes + 0, 128));
    const SharedAddress v_tile = k_tile + kKeyBytes, stages = v_tile + kKeyBytes;
    const SharedAddress ds_tile = stages + Cut::kStages * kStageBytes;
    const auto copy_queries = [&](int tile, SharedAddress to) {
      if (tile < first_tile) return;
      const int first = tile * kQueryTile;
      Layout::template copy_rows<kQueryTile, kThreads>(to, row_of(task.q, b, h, first), task.q.stride(2), Tq - first, D,
                                                       thread);
      Layout::template copy_rows<kQueryTile, kThreads>(to + kQueryBytes, row_of(task.d_out, b, h, first),
                                                       task.d_out.stride(2), Tq - first, D, thread);
      constexpr int kPieces = kQueryTile / 4;  // 16 bytes of one of the rows of numbers
      static_assert(2 * kPieces <= kThreads);
      if (thread < 2 * kPieces) {
        const float* numbers = thread < kPieces ? rows.log_sum : rows.delta;
        cuda::copy_16(to + 2 * kQueryBytes + thread * 16,
                      numbers + static_cast<std::int64_t>(head) * rows.rows + first + thread % kPieces * 4);
      }
    };

    // 2. start the copies: k and v, and the first queries
    Layout::template copy_rows<kKeyTile, kThreads>(k_tile, row_of(task.k, b, h, first_key), task.k.stride(2), keys, D,
                                                   thread);
    Layout::template copy_rows<kKeyTile, kThreads>(v_tile, row_of(task.v, b, h, first_key), task.v.stride(2), keys, D,
                                                   thread);
    copy_queries(end_tile - 1, stages);
    cuda::commit_copies();

    Sums<kRowTiles, kColumns> d_k, d_v;
    clear(d_k);
    clear(d_v);
    const float factor = task.scale * kLog2e<>;
    const auto k_rows = Reader::as_rows(k_tile + Layout::bytes(key_warp * kWarpKeys), lane);
    const auto v_rows = Reader::as_rows(v_tile + Layout::bytes(key_warp * kWarpKeys), lane);
    const auto q_columns = Reader::as_columns(stages, lane);
    const auto q_pairs = Reader::as_pairs(stages + first_column * 4, lane);
    const SharedAddress ds_here = ds_tile + Scores::bytes(key_warp * kWarpKeys + lane / 4) + lane % 4 * 8;
    std::int32_t* turns = rows.turns + head * (rows.rows / kQueryTile);
    const auto pass_turn = [&](int tile) {  // after a barrier that follows the adding; the warps pass by turns
      if (in_order() && warp == tile % kWarps && lane == 0) cuda::pass_ticket(turns + tile);
    };

    RowFactors<kProducts, kRowTiles, kHeld> k_held, v_held;
    if constexpr (kHeld > 0) {
      cuda::wait_for_copies<0>();
      team.team_barrier();  // k and v have arrived
      k_held.hold(k_rows);
      v_held.hold(v_rows);
    }

    int here = 0;  // offset of the stage in use
    for (int tile = end_tile - 1; tile >= first_tile; --tile) {
      cuda::wait_for_copies<0>();
      team.team_barrier();  // this tile has arrived; what is overwritten from here on has been read
      if constexpr (kHasStages) {
        copy_queries(tile - 1, stages + (kStageBytes - here));
        cuda::commit_copies();
      }

      // 3. scores, transposed: keys down, queries across; they become probabilities
      PartScores p, ds;
      multiply_rows<kWidth, kPart>(k_held, k_rows, q_columns.of_tile(here), p, [](int) {});
      const int first_query = tile * kQueryTile;
      if (keys < kKeyTile || first_query + before < first_warp_key + kWarpKeys - 1) {
        hide(p, first_warp_key + lane / 4, Tk, before + first_query + lane % 4 * 2);
      }
      const SharedAddress numbers = stages + here + 2 * kQueryBytes + lane % 4 * 8;
      Weights weights;
      TESSERA_UNROLL
      for (int n = 0; n < kQueryTile / 8; ++n) {
        const float2 log_sum = cuda::shared_load_float2(numbers + n * 32);
        TESSERA_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i) {
            p[m][n][i] = cuda::exp2_approx(fmaf(p[m][n][i], factor, -(i % 2 == 0 ? log_sum.x : log_sum.y)));
          }
          weights[m][n].set_sums(p[m][n]);
        }
      }

      // 4. d_v += p^T d_out
      multiply_weights(weights, q_pairs.of_tile(here + kQueryBytes), d_v);

      // 5. gradients of the scores; d_k += ds^T q
      multiply_rows<kWidth, kPart>(v_held, v_rows, q_columns.of_tile(here + kQueryBytes), ds, [](int) {});
      TESSERA_UNROLL
      for (int n = 0; n < kQueryTile / 8; ++n) {
        const float2 delta = cuda::shared_load_float2(numbers + kQueryTile * 4 + n * 32);
        TESSERA_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          TESSERA_UNROLL
          for (int i = 0; i < 4; ++i) ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - (i % 2 == 0 ? delta.x : delta.y));
          weights[m][n].set_sums(ds[m][n]);
          if (half > 0) continue;
          const SharedAddress here = ds_here + Scores::bytes(m * 16) + n * 32;
          cuda::shared_store_float2(here, ds[m][n][0], ds[m][n][1]);
          cuda::shared_store_float2(here + Scores::bytes(8), ds[m][n][2], ds[m][n][3]);
        }
      }
      multiply_weights(weights, q_pairs.of_tile(here), d_k);
      team.team_barrier();  // all score gradients are complete; the queries have been read
      if constexpr (kHasStages) {
        here = kStageBytes - here;
      } else {
        copy_queries(tile - 1, stages);
        cuda::commit_copies();
      }
      if (tile + 1 < end_tile) pass_turn(tile + 1);

      // 6. the tile's share of d_q = ds k
      const int early = in_order() ? cuda::peek_ticket(turns + tile) : 0;
      query_gradient(ds_tile, k_tile, warp, lane, [&](const auto& d_q) {
        if (in_order() && early != place.tile) cuda::wait_for_turn(turns + tile, place.tile);
        add_query_gradient(d_q, row_of(task.d_q, b, h, first_query), Tq - first_query, D, warp, lane);
      });
    }

    // 7. write
    cuda::wait_for_copies<0>();
    team.team_barrier();  // the last share of d_q has been added
    if (first_tile < end_tile) pass_turn(first_tile);
    const float scale = task.scale;
    float factors[kRowTiles][2], ones[kRowTiles][2];
    TESSERA_UNROLL
    for (int i = 0; i < 2 * kRowTiles; ++i) factors[i / 2][i % 2] = scale, ones[i / 2][i % 2] = 1;
    write_sums(d_k, factors, row_of(task.d_k, b, h, first_warp_key) + first_column, task.d_k.stride(2),
               Tk - first_warp_key, D - first_column, lane);
    write_sums(d_v, ones, row_of(task.d_v, b, h, first_warp_key) + first_column, task.d_v.stride(2),
               Tk - first_warp_key, D - first_column, lane);
  }

  /// Scores of keys that do not exist, or that a query must not see, become -inf. `key` is the lane's first key; query
  /// n of the tile lies n queries after the lane's first, which sees the keys up to `seen`.
  static TESSERA_DEVICE void hide(PartScores& p, int key, int Tk, int seen) {
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = key + m * 16 + half * 8;
        const int seeing = row < Tk ? row - seen : kQueryTile;  // the first query that sees the key
        TESSERA_UNROLL
        for (int n = 0; n < kQueryTile / 8; ++n) {
          if (n * 8 < seeing) p[m][n][2 * half] = -HUGE_VALF;
          if (n * 8 + 1 < seeing) p[m][n][2 * half + 1] = -HUGE_VALF;
        }
      }
    }
  }

  static constexpr int kWarpBlocks = ceil_div(kBlocks, kColumnWarps);
  static constexpr int kAtATime = kWarpBlocks > 1 && kHalves == 1 ? 2 : 1;  // blocks that share a load of ds
  using PieceSums = float[kGroupTiles][2 * kAtATime][4];

  struct Piece {
    PieceSums sums;
    int first;  // of the warp's blocks
  };
  static TESSERA_DEVICE int block_of(int warp, int number) { return warp % kColumnWarps + number * kColumnWarps; }

  /// d_q = ds k / scale over the tile's keys, some of this warp's blocks after the other: use(piece).
  template <class Use>
  static TESSERA_DEVICE void query_gradient(SharedAddress ds_tile, SharedAddress k_tile, int warp, int lane,
                                            const Use& use) {
    const int first_row = warp / kColumnWarps * (kGroupTiles * 16);
    const auto ds = Scores::Reader::as_pairs(ds_tile + first_row * 4, lane);
    const auto k_pairs = Reader::as_pairs(k_tile, lane);
    TESSERA_UNROLL
    for (int first = 0; first < kWarpBlocks; first += kAtATime) {
      Piece piece{.first = first};
      PieceSums part, rest;
      clear(piece.sums);
      clear(part);
      clear(rest);
      TESSERA_UNROLL
      for (int step = 0; step < kKeyTile / 8; ++step) {
        if (kProducts == 3 && step > 0 && step % (kPart / 8) == 0) {
          add(piece.sums, part);
          clear(part);
        }
        Factors<kProducts, 4> a[kGroupTiles];
        TESSERA_UNROLL
        for (int m = 0; m < kGroupTiles; ++m) {  // rows g and g+8 are queries 2g and 2g+1
          const float2 even = cuda::shared_load_float2(ds(step * 8, m * 16));
          const float2 odd = cuda::shared_load_float2(ds(step * 8 + 1, m * 16));
          a[m].set(0, even.x);
          a[m].set(1, even.y);
          a[m].set(2, odd.x);
          a[m].set(3, odd.y);
        }
        TESSERA_UNROLL
        for (int n = 0; n < kAtATime; ++n) {
          if (block_of(warp, first + n) >= kBlocks) continue;
          PairFactors<kProducts> pair;
          pair.load(k_pairs.of_tile(block_of(warp, first + n) * 64), step * 8, 0);
          TESSERA_UNROLL
          for (int m = 0; m < kGroupTiles; ++m) {
            auto& sums = kProducts == 3 ? part[m] : piece.sums[m];
            multiply_add(sums[2 * n], rest[m][2 * n], a[m], pair.of[0]);
            multiply_add(sums[2 * n + 1], rest[m][2 * n + 1], a[m], pair.of[1]);
          }
        }
      }
      if constexpr (kProducts == 3) {
        add(rest, part);
        add(piece.sums, rest);
      }
      use(piece);
    }
  }

  TESSERA_DEVICE void add_query_gradient(const Piece& piece, float* d_q, int count, int D, int warp, int lane) const {
    const int first_row = warp / kColumnWarps * (kGroupTiles * 16) + lane / 4 * 2;
    TESSERA_UNROLL
    for (int n = 0; n < kAtATime; ++n) {
      const int block = block_of(warp, piece.first + n), column = block * 16 + lane % 4 * 4;
      if (block >= kBlocks || column >= D) continue;
      TESSERA_UNROLL
      for (int m = 0; m < kGroupTiles; ++m) {
        TESSERA_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int row = first_row + m * 16 + half;
          if (row < count) {
            const float4 x = four_of(piece.sums[m][2 * n], piece.sums[m][2 * n + 1], half, task.scale);
            cuda::add_to_global(d_q + row * task.d_q.stride(2) + column, {x.x, x.y, x.z, x.w});
          }
        }
      }
    }
  }
};

}  // namespace tessera::kernels::ampere
