/// HopperBackward's main kernel for wide heads: one team, 64 keys of one head, and every tile of 64 queries that sees
/// them.
///
/// The sums d_k and d_v of 64 keys take both consumers' registers, so the consumers share the keys: each takes 32 of
/// the queries for the scores, and half of the columns for the products with p and ds. Those products need all of p and
/// ds: each consumer multiplies its own from registers at once, and the other's from the pad when they have arrived.
///
/// Warp 0 loads k and the tiles of q, warp 1 v and those of d_out. A step's d_q is as large as everything that the step
/// reads: it is added to the sums in two shares, half a step apart, by warps 2 and 3, so that additions are in flight
/// all the time. The next scores overlap the store of the first share, the second share overlaps ds of the next step.
///
/// Without a mask and in any order, walks of a head start at different tiles and wrap round: walks in step would add to
/// the same sums at the same time.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/attention/flash2/hopper/backward_fragments.hpp"
#include "kernels/attention/flash2/hopper/backward_tiles.hpp"
#include "kernels/cuda/barrier.hpp"
#include "kernels/cuda/registers.hpp"
#include "kernels/cuda/shared.hpp"
#include "kernels/cuda/ticket.hpp"
#include "kernels/cuda/tma.hpp"
#include "kernels/cuda/wgmma.hpp"

namespace tessera::kernels::detail::hopper_backward {

using namespace cuda;

template <class Scalar, int D>
struct BackwardWide {
  using Tiles = BackwardTiles<D>;
  static constexpr int kQueries = Tiles::kQueries, kKeys = Tiles::kKeys;
  static constexpr int kOwnQueries = kQueries / 2;    // of a consumer's scores
  static constexpr int kColumns = D / 2;              // of a consumer's sums of d_k and d_v
  static constexpr int kShareColumns = kColumns / 2;  // of a consumer's share of d_q
  static constexpr int kPanelBytes = HeadPanels<D>::kBytes, kDsTiles = 3;
  static constexpr int kWarps = kWarpgroupWarps * (1 + kConsumers);
  static_assert(kConsumers == 2 && kQueries == 64 && kKeys == 64 && kShareColumns == HeadPanels<D>::kWidth);

  CUtensorMap q, k, v, d_out;
  HeadTensor<Scalar, Kokkos::Cuda> d_k, d_v;
  BackwardShape shape;
  BackwardSums sums;
  float scale;
  bool in_order;

  // The pad. Tiles are aligned to 1024 bytes, as the swizzle requires.
  static constexpr int kTileBytes = 64 * D * 2, kScoreBytes = 64 * kPanelBytes, kRowBytes = kQueries * 4;
  static constexpr int kShareBytes = 64 * kShareColumns * 4;  // a consumer's
  static constexpr int kK = 0, kV = kK + kTileBytes, kQ = kV + kTileBytes, kDOut = kQ + 2 * kTileBytes,
                       kP = kDOut + kTileBytes, kDs = kP + kScoreBytes, kShare = kDs + kDsTiles * kScoreBytes,
                       kLse = kShare + kConsumers * kShareBytes, kDelta = kLse + kRowBytes,
                       kBarriers = kDelta + kRowBytes;
  enum Barrier {  // each of two is a ring
    kKeysFull,
    kValuesFull,
    kQFull,
    kQEmpty = kQFull + 2,
    kScoresFull = kQEmpty + 2,  // p and ds of both consumers
    kDOutFull = kScoresFull + 2,
    kDOutEmpty,
    kShareFull,  // the first and the second of a step
    kShareEmpty = kShareFull + 2,
    kBarrierCount
  };
  static constexpr int kPadBytes = kBarriers + kBarrierCount * kBarrierBytes;

  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kWarps * kWarpLanes, 1>>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

  /// One team's work: the pad, and the tiles of queries that it walks.
  struct Walk {
    SharedAddress pad;
    int key_tile, head;
    int first, count;  // tiles of queries

    TESSERA_DEVICE SharedAddress barrier(int which) const { return pad + kBarriers + which * kBarrierBytes; }
  };

  __device__ void run(const Member& team) const {
#ifdef TESSERA_HOPPER_CODE
    const void* scratch = team.team_scratch(0).get_shmem_aligned(kPadBytes + 0, 1024);
    const int warp = warp_of_team(), lane = threadIdx.x;
    const auto [key_tile, head] = shape.place(team.league_rank());
    const int first = shape.is_ring ? static_cast<int>(std::int64_t{key_tile} * shape.query_tiles / shape.key_tiles)
                                    : min(shape.first_query_tile(key_tile), shape.query_tiles);
    const Walk walk{shared_address(scratch), key_tile, head, first,
                    shape.is_ring ? shape.query_tiles : shape.query_tiles - first};

    if (warp == 0 && lane == 0) initialise_barriers(walk);
    team.team_barrier();  // barriers are initialised

    if (warp < kWarpgroupWarps) {
      give_registers<24>();
      if (lane == 0 && walk.count > 0) {
        if (warp == 0) {
          load_tiles<2>(walk, k, q, kK, kQ, kKeysFull, kQFull, kQEmpty);
        } else if (warp == 1) {
          load_tiles<1>(walk, v, d_out, kV, kDOut, kValuesFull, kDOutFull, kDOutEmpty);
        } else {
          add_shares(walk, warp - 2);
        }
      }
    } else {
      take_registers<240>();
      differentiate(walk, warp / kWarpgroupWarps - 1, warp % kWarpgroupWarps);
    }
#endif
  }

#ifdef TESSERA_HOPPER_CODE
 private:
  /// The next tile of queries of a walk.
  TESSERA_DEVICE int tile_after(int tile) const { return tile + 1 < shape.query_tiles ? tile + 1 : 0; }

  static TESSERA_DEVICE void initialise_barriers(const Walk& walk) {
    constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
    for (int one : {kKeysFull + 0, kValuesFull + 0, kQFull + 0, kQFull + 1, kDOutFull + 0, kShareEmpty + 0}) {
      barrier_init(walk.barrier(one), 1);
    }
    for (int one : {kQEmpty + 0, kQEmpty + 1, kScoresFull + 0, kScoresFull + 1, kShareFull + 0, kShareFull + 1}) {
      barrier_init(walk.barrier(one), kConsumerWarps);
    }
    barrier_init(walk.barrier(kDOutEmpty), kConsumerWarps * kWarpLanes);  // each lane has read rows
    fence_barrier_init();
  }

  /// A producer lane: loads its tile of keys once, then the tiles of queries, those of d_out with lse and delta.
  template <int kSlots>
  TESSERA_DEVICE void load_tiles(const Walk& walk, const CUtensorMap& keys, const CUtensorMap& queries, int keys_at,
                                 int queries_at, int keys_full, int queries_full, int queries_empty) const {
    const int h = walk.head % shape.H, b = walk.head / shape.H;
    barrier_arrive_expecting(walk.barrier(keys_full), kTileBytes);
    load_head_tile(walk.pad + keys_at, keys, walk.barrier(keys_full), walk.key_tile * kKeys, h, b);
    const std::size_t head_row = std::size_t(walk.head) * shape.query_tiles * kQueries;
    constexpr bool kLoadsRows = kSlots == 1;
  #pragma unroll 1
    for (int step = 0, tile = walk.first; step < walk.count; ++step, tile = tile_after(tile)) {
      const int slot = step % kSlots, first_query = tile * kQueries;
      const SharedAddress full = walk.barrier(queries_full + slot);
      barrier_wait(walk.barrier(queries_empty + slot), (step / kSlots & 1) ^ 1);
      barrier_arrive_expecting(full, kTileBytes + (kLoadsRows ? 2 * kRowBytes : 0));
      load_head_tile(walk.pad + queries_at + slot * kTileBytes, queries, full, first_query, h, b);
      if (kLoadsRows) {
        load_bytes(walk.pad + kLse, sums.lse2 + head_row + first_query, kRowBytes, full);
        load_bytes(walk.pad + kDelta, sums.delta + head_row + first_query, kRowBytes, full);
      }
    }
  }

  /// A lane that adds both consumers' first or second shares of d_q to the sums, in the order of tickets or of arrival.
  TESSERA_DEVICE void add_shares(const Walk& walk, int half) const {
    const std::size_t head_tile = std::size_t(walk.head) * shape.query_tiles;
    const SharedAddress from = walk.pad + kShare;
    constexpr int kNext = kQueries * kColumns;  // floats of a consumer
    int seen = 0;
  #pragma unroll 1
    for (int step = 0, tile = walk.first; step < walk.count; ++step, tile = tile_after(tile)) {
      float* to = sums.d_q + (head_tile + tile) * kQueries * D + half * (kShareBytes / 4);
      std::int32_t* ticket = sums.tickets + (head_tile + tile) * 2 + half;
      barrier_wait(walk.barrier(kShareFull + half), step & 1);
      const int turn = shape.last_key_tile(tile) - walk.key_tile;  // as in BackwardMain
      if (in_order && seen != turn) wait_for_turn(ticket, turn);
      if (in_order && turn == 0) {
        store_bytes(to, from, kShareBytes);
        store_bytes(to + kNext, from + kShareBytes, kShareBytes);
      } else {
        add_floats(to, from, kShareBytes);
        add_floats(to + kNext, from + kShareBytes, kShareBytes);
      }
      bulk_commit();
      bulk_wait_read<0>();
      barrier_arrive(walk.barrier(kShareEmpty));
      if (in_order) {
        seen = step + 1 < walk.count ? read_ticket(ticket + 2) : 0;  // while the copy engine adds
        bulk_wait<0>();
        pass_ticket(ticket);
      }
    }
    bulk_wait<0>();
  }

  using Products = BackwardProducts<Scalar, D, kKeys, kQueries>;
  using Numbers = QueryNumbers<kOwnQueries, true>;
  using Scores = float[kOwnQueries / 2];          // [64 keys, 32 queries] of a warpgroup, or their gradient
  using Packed = std::uint32_t[kOwnQueries / 4];  // the same as an operand
  using Sum = float[kColumns / 2];                // [64, kColumns] of a warpgroup
  using Share = float[kShareColumns / 2];         // [64, kShareColumns] of a warpgroup

  /// gradient[64 keys, kColumns] += weights[64 keys, 32 queries] rows[32 queries, kColumns], the weights from a tile.
  static TESSERA_DEVICE void key_product(Sum& gradient, SharedAddress weights, SharedAddress rows) {
    const TileDescriptor<kPanelBytes> a(same_in_warp(weights)), b(same_in_warp(rows), kQueries * kPanelBytes);
  #pragma unroll
    for (int slice = 0; slice < kOwnQueries / 16; ++slice) {
      Wgmma<Scalar, kColumns>::template from_shared<false, true>(gradient, a + slice * 32, b + slice * 16 * kPanelBytes,
                                                                 true);
    }
  }

  /// p = 0 where the query does not see the key, or there is no key. Applied after the exponential, because a masked
  /// one may be infinite.
  TESSERA_DEVICE void hide(Scores& p, int first_key, int first_query) const {
    const int key = first_key + static_cast<int>(threadIdx.x) / 4;
    const int query = first_query + 2 * (threadIdx.x & 3);
  #pragma unroll
    for (int i = 0; i < kOwnQueries / 2; ++i) {
      const int its_key = key + 8 * (i >> 1 & 1), its_query = query + 8 * (i >> 2) + (i & 1);
      if (its_key >= shape.Tk || its_key > its_query + shape.diagonal) p[i] = 0;
    }
  }

  /// Stores a share of d_q for the lane that adds it.
  static TESSERA_DEVICE void hand_over(const Share& d_q, const Walk& walk, int consumer, int thread, int lane,
                                       int share) {
    const SharedAddress to = walk.pad + kShare + consumer * kShareBytes + 16 * thread;
    barrier_wait(walk.barrier(kShareEmpty), (share & 1) ^ 1);
  #pragma unroll
    for (int i = 0; i < kShareColumns / 2; i += 4) {
      shared_store(to + i / 4 * 16 * kWarpgroupLanes, d_q[i], d_q[i + 1], d_q[i + 2], d_q[i + 3]);
    }
    fence_shared_for_async();
    __syncwarp();
    if (lane == 0) barrier_arrive(walk.barrier(kShareFull + (share & 1)));
  }

  /// A consumer: the 64 keys against every tile of queries.
  TESSERA_DEVICE void differentiate(const Walk& walk, int consumer, int warp) const {
    const int lane = lane_of_warp(), thread = warp * kWarpLanes + lane;
    const int first_key = walk.key_tile * kKeys + 16 * warp;  // of this warp
    const SharedAddress keys = walk.pad + kK, values = walk.pad + kV;
    const int own = consumer * kOwnQueries, other = kOwnQueries - own;  // first query of the tile
    const int own_panels = consumer * 2 * 64 * kPanelBytes;             // where this consumer's columns of a tile begin
    // p and ds go to [key, query], 16-byte chunks exchanged by the swizzle; this lane gives the address of one row of
    // 8x8s.
    const int row = 16 * warp + (lane & 15);
    const SharedAddress scores_write =
        walk.pad + ((row * kPanelBytes + ((lane >> 4 ^ (row & 7)) << 4)) ^ consumer << 6);
    const bool is_last_incomplete = (walk.key_tile + 1) * kKeys > shape.Tk;

    Sum d_k_sum, d_v_sum;
  #pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) d_k_sum[i] = d_v_sum[i] = 0;

    Scores p, d_p;
    const auto start_p = [&](int step) {  // transposed: [key, query], as d_p
      const int slot = step & 1, parity = step >> 1 & 1;
      barrier_wait(walk.barrier(kQFull + slot), parity);
      warpgroup_fence();
      Products::of_scores(p, keys, walk.pad + kQ + slot * kTileBytes + own * kPanelBytes);
      warpgroup_commit();
    };
    const auto start_d_p = [&](int step) {
      barrier_wait(walk.barrier(kDOutFull), step & 1);
      warpgroup_fence();
      Products::of_scores(d_p, values, walk.pad + kDOut + own * kPanelBytes);
      warpgroup_commit();
    };

    const SharedAddress first_share_keys = keys + own_panels, second_share_keys = first_share_keys + 64 * kPanelBytes;
    int ds_at = 0, previous_ds_at = 2 * kScoreBytes;  // in the ring of kDsTiles
    const auto advance = [&]<bool kIsLast>(int step) {
      const int slot = step & 1;
      const int first_query = (walk.first + step) * kQueries;  // where the mask needs it: then there is no ring
      const SharedAddress queries = walk.pad + kQ + slot * kTileBytes + own_panels;
      const SharedAddress d_outs = walk.pad + kDOut + own_panels;
      const SharedAddress p_tile = walk.pad + kP, ds_tile = walk.pad + kDs + ds_at;

      // 1. p and ds, for the other consumer as well. This step's d_out shows that it has read the previous p: d_out is
      // not loaded before. Its previous ds shows that it has read the ds that is overwritten.
      Packed p_packed, ds_packed;
      const Numbers lse2(walk.pad + kLse + own * 4);
      warpgroup_wait<1>(p);
      exponentiate(p, lse2, scale);
      const Numbers delta(walk.pad + kDelta + own * 4);
      if (is_last_incomplete || first_query + own + shape.diagonal < walk.key_tile * kKeys + kKeys - 1) {
        hide(p, first_key, first_query + own);
      }
      round_weights<Scalar>(p, p_packed);
  #pragma unroll
      for (int slice = 0; slice < kOwnQueries / 16; ++slice) {
        store_matrices((scores_write ^ slice << 5) + kP, p_packed[4 * slice], p_packed[4 * slice + 1],
                       p_packed[4 * slice + 2], p_packed[4 * slice + 3]);
      }
      warpgroup_wait<0>(d_p);
      weigh<Scalar>(p, d_p, delta, ds_packed);
  #pragma unroll
      for (int slice = 0; slice < kOwnQueries / 16; ++slice) {
        store_matrices((scores_write ^ slice << 5) + kDs + ds_at, ds_packed[4 * slice], ds_packed[4 * slice + 1],
                       ds_packed[4 * slice + 2], ds_packed[4 * slice + 3]);
      }
      fence_shared_for_async();
      __syncwarp();
      if (lane == 0) barrier_arrive(walk.barrier(kScoresFull + slot));

      // 2. d_v += p^T d_out and d_k += ds^T q over this consumer's queries, then over the other's; between them the
      // second share of the previous step's d_q (meaningless in step 0, and not stored)
      Share second_d_q, first_d_q;
      warpgroup_fence();
      Products::of_keys(d_v_sum, p_packed, d_outs + own * kPanelBytes);
      Products::of_keys(d_k_sum, ds_packed, queries + own * kPanelBytes);
      Products::of_queries(second_d_q, walk.pad + kDs + previous_ds_at, second_share_keys);
      warpgroup_commit();
      barrier_wait(walk.barrier(kScoresFull + slot), step >> 1 & 1);
      warpgroup_fence();
      key_product(d_v_sum, p_tile + other * 2, d_outs + other * kPanelBytes);
      warpgroup_commit();
      key_product(d_k_sum, ds_tile + other * 2, queries + other * kPanelBytes);
      Products::of_queries(first_d_q, ds_tile, first_share_keys);
      warpgroup_commit();
      warpgroup_wait<2>(second_d_q);
      if (step > 0) hand_over(second_d_q, walk, consumer, thread, lane, 2 * step - 1);
      warpgroup_wait<1>();
      barrier_arrive(walk.barrier(kDOutEmpty));

      // 3. the next scores, overlapped with this step's first share of d_q
      if constexpr (!kIsLast) start_p(step + 1);
      warpgroup_wait<(kIsLast ? 0 : 1)>(first_d_q);
      if (lane == 0) barrier_arrive(walk.barrier(kQEmpty + slot));
      if constexpr (!kIsLast) start_d_p(step + 1);
      hand_over(first_d_q, walk, consumer, thread, lane, 2 * step);
      previous_ds_at = ds_at;
      ds_at = ds_at == (kDsTiles - 1) * kScoreBytes ? 0 : ds_at + kScoreBytes;
    };

    if (walk.count > 0) {
      barrier_wait(walk.barrier(kKeysFull), 0);
      barrier_wait(walk.barrier(kValuesFull), 0);
      start_p(0);
      start_d_p(0);
  #pragma unroll 1
      for (int step = 0; step + 1 < walk.count; ++step) advance.template operator()<false>(step);
      advance.template operator()<true>(walk.count - 1);
      Share d_q;
      warpgroup_fence();
      Products::of_queries(d_q, walk.pad + kDs + previous_ds_at, second_share_keys);
      warpgroup_commit();
      warpgroup_wait<0>(d_q);
      hand_over(d_q, walk, consumer, thread, lane, 2 * walk.count - 1);
    }

    // 4. d_k and d_v
    touch(d_k_sum);
    touch(d_v_sum);
    write_keys(d_k, d_k_sum, shape, walk.head, first_key, consumer * kColumns, scale);
    write_keys(d_v, d_v_sum, shape, walk.head, first_key, consumer * kColumns, 1.0f);
  }

#endif
};

}  // namespace tessera::kernels::detail::hopper_backward
