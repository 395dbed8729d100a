/// HopperBackward's main kernel: one team, a tile of keys of one head, and every tile of queries that sees it.
///
/// Warp 0 loads k and the tiles of q, warp 1 v and those of d_out, warps 2 and 3 add shares of d_q to the sums; the two
/// warpgroups after them are the consumers, 64 keys each. They meet only at ds: a step's share of d_q takes that of
/// both, and is computed a step late, so neither waits for the other's.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/attention/flash2/tuned_cuda_hopper_backward_tiles.hpp"
#include "kernels/cuda/barrier.hpp"
#include "kernels/cuda/registers.hpp"
#include "kernels/cuda/shared.hpp"
#include "kernels/cuda/ticket.hpp"
#include "kernels/cuda/tma.hpp"
#include "kernels/cuda/wgmma.hpp"

namespace tessera::kernels::detail::hopper_backward {

using namespace cuda;

template <class Scalar, int D>
struct BackwardMain {
  using Tiles = BackwardTiles<D>;
  using Panels = HeadPanels<D>;
  static constexpr int kQueries = Tiles::kQueries, kStages = Tiles::kStages, kDsTiles = Tiles::kDsTiles;
  static constexpr int kPanelBytes = Panels::kBytes;
  static constexpr int kWarps = kWarpgroupWarps * (1 + kConsumers);

  CUtensorMap q, k, v, d_out;
  HeadTensor<Scalar, Kokkos::Cuda> d_k, d_v;
  BackwardShape shape;
  BackwardSums sums;
  float scale;
  bool in_order;

  // The pad. Tiles start on 1024 bytes: the swizzle counts on it.
  static constexpr int kKeyBytes = kKeyTile * D * 2, kQueryBytes = kQueries * D * 2;
  static constexpr int kScoreBytes = kQueries / 64 * kKeyTile * 128;  // ds transposed: panels of 64 queries
  static constexpr int kShareBytes = kQueries * D * 4;                // of d_q, both consumers
  static constexpr int kShareBytes0 = 64 * Tiles::kColumns0 * 4;      // of consumer 0, which lies first
  static constexpr int kRowBytes = kQueries * 4;                      // lse or delta of a tile
  static constexpr int kK = 0, kV = kK + kKeyBytes, kQ = kV + kKeyBytes, kDOut = kQ + 2 * kQueryBytes,
                       kDs = kDOut + 2 * kQueryBytes, kShare = kDs + kDsTiles * kScoreBytes,
                       kLse = kShare + kStages * kShareBytes, kDelta = kLse + 2 * kRowBytes,
                       kBarriers = kDelta + 2 * kRowBytes;
  enum Barrier {  // each of two or more is a ring
    kKeysFull,
    kQueriesFull,
    kQEmpty = kQueriesFull + 2,
    kDOutEmpty = kQEmpty + 2,
    kDsFull = kDOutEmpty + 2,
    kShareFull = kDsFull + 2,
    kShareEmpty = kShareFull + kConsumers * kStages,
    kStart = kShareEmpty + kConsumers * kStages,
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
    const int first = min(shape.first_query_tile(key_tile), shape.query_tiles);
    const Walk walk{shared_address(scratch), key_tile, head, first, shape.query_tiles - first};

    if (warp == 0 && lane == 0) initialise_barriers(walk);
    team.team_barrier();  // barriers are initialised

    if (warp < kWarpgroupWarps) {
      give_registers<24>();
      if (lane == 0) {
        if (warp == 0) {
          load_tiles(walk, k, q, sums.lse2, kK, kQ, kLse, kQEmpty);
        } else if (warp == 1) {
          load_tiles(walk, v, d_out, sums.delta, kV, kDOut, kDelta, kDOutEmpty);
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
  static TESSERA_DEVICE void initialise_barriers(const Walk& walk) {
    constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
    barrier_init(walk.barrier(kKeysFull), 2);
    barrier_init(walk.barrier(kStart), kWarpgroupWarps);
    for (int slot = 0; slot < 2; ++slot) {
      barrier_init(walk.barrier(kQueriesFull + slot), 2);
      barrier_init(walk.barrier(kQEmpty + slot), kConsumerWarps);
      barrier_init(walk.barrier(kDOutEmpty + slot), kConsumerWarps);
    }
    for (int slot = 0; slot < 2; ++slot) barrier_init(walk.barrier(kDsFull + slot), kConsumerWarps);
    for (int slot = 0; slot < kConsumers * kStages; ++slot) {
      barrier_init(walk.barrier(kShareFull + slot), kWarpgroupWarps);
      barrier_init(walk.barrier(kShareEmpty + slot), 1);
    }
    fence_barrier_init();
  }

  /// A lane that feeds the consumers: its tile of keys once, then the tiles of queries with one number per row.
  TESSERA_DEVICE void load_tiles(const Walk& walk, const CUtensorMap& keys, const CUtensorMap& queries,
                                 const float* rows, int keys_at, int queries_at, int rows_at, int queries_empty) const {
    if (walk.count == 0) return;
    const int h = walk.head % shape.H, b = walk.head / shape.H;
    barrier_arrive_expecting(walk.barrier(kKeysFull), kKeyBytes);
    load_head_tile(walk.pad + keys_at, keys, walk.barrier(kKeysFull), walk.key_tile * kKeyTile, h, b);
    const float* head_rows = rows + std::size_t(walk.head) * shape.query_tiles * kQueries;
  #pragma unroll 1
    for (int step = 0; step < walk.count; ++step) {
      const int slot = step & 1, first_query = (walk.first + step) * kQueries;
      const SharedAddress full = walk.barrier(kQueriesFull + slot);
      barrier_wait(walk.barrier(queries_empty + slot), (step >> 1 & 1) ^ 1);
      barrier_arrive_expecting(full, kQueryBytes + kRowBytes);
      load_head_tile(walk.pad + queries_at + slot * kQueryBytes, queries, full, first_query, h, b);
      load_bytes(walk.pad + rows_at + slot * kRowBytes, head_rows + first_query, kRowBytes, full);
    }
  }

  /// A lane that adds one consumer's shares of d_q to the sums, in the order of tickets or as they come.
  TESSERA_DEVICE void add_shares(const Walk& walk, int consumer) const {
    const int bytes = consumer == 0 ? kShareBytes0 : kShareBytes - kShareBytes0;
    const SharedAddress shares = walk.pad + kShare + consumer * kShareBytes0;
    const std::size_t first = std::size_t(walk.head) * shape.query_tiles + walk.first;
    float* to = sums.d_q + first * kQueries * D + consumer * (kShareBytes0 / 4);
    std::int32_t* ticket = sums.tickets + first * kConsumers + consumer;
    int seen = 0, stage = 0, parity = 0;
  #pragma unroll 1
    for (int step = 0; step < walk.count; ++step) {
      const int slot = consumer * kStages + stage;
      const SharedAddress share = shares + stage * kShareBytes;
      barrier_wait(walk.barrier(kShareFull + slot), parity);
      if (in_order) {  // later tiles of keys come first, because a causal team starts at its diagonal
        const int turn = shape.last_key_tile(walk.first + step) - walk.key_tile;
        if (seen != turn) wait_for_turn(ticket, turn);
        if (turn == 0) {
          store_bytes(to, share, bytes);
        } else {
          add_floats(to, share, bytes);
        }
        bulk_commit();
        bulk_wait_read<0>();
        barrier_arrive(walk.barrier(kShareEmpty + slot));
        seen = step + 1 < walk.count ? read_ticket(ticket + kConsumers) : 0;  // while the copy engine adds
        bulk_wait<0>();
        pass_ticket(ticket);
      } else {
        add_floats(to, share, bytes);
        bulk_commit();
        bulk_wait_read<0>();
        barrier_arrive(walk.barrier(kShareEmpty + slot));
      }
      to += kQueries * D;
      ticket += kConsumers;
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
    bulk_wait<0>();
  }

  using Scores = float[kQueries / 2];          // [64 keys, kQueries] of a warpgroup, or their gradient
  using Packed = std::uint32_t[kQueries / 4];  // the same as an operand

  /// scores = keys queries^T: rows of both run along the head width.
  static TESSERA_DEVICE void score_product(Scores& scores, SharedAddress keys, SharedAddress queries) {
    const TileDescriptor<kPanelBytes> a(same_in_warp(keys)), b(same_in_warp(queries));
    constexpr int kSlices = Panels::kWidth / 16;  // of 16 numbers, 32 bytes, in a panel
  #pragma unroll
    for (int slice = 0; slice < D / 16; ++slice) {
      const int panel = slice / kSlices, inside = slice % kSlices * 32;
      const auto a_slice = a + (panel * kKeyTile * kPanelBytes + inside);
      const auto b_slice = b + (panel * kQueries * kPanelBytes + inside);
      if (slice == 0) {
        Wgmma<Scalar, kQueries>::template from_shared_fresh<false, false>(scores, a_slice, b_slice);
      } else {
        Wgmma<Scalar, kQueries>::template from_shared<false, false>(scores, a_slice, b_slice, true);
      }
    }
  }

  /// gradient[64 keys, D] += weights[64 keys, kQueries] rows[kQueries, D].
  static TESSERA_DEVICE void key_product(float (&gradient)[D / 2], const Packed& weights, SharedAddress rows) {
    const TileDescriptor<kPanelBytes> b(same_in_warp(rows), kQueries * kPanelBytes);
  #pragma unroll
    for (int slice = 0; slice < kQueries / 16; ++slice) {
      Wgmma<Scalar, D>::template from_registers<true>(gradient, weights[4 * slice], weights[4 * slice + 1],
                                                      weights[4 * slice + 2], weights[4 * slice + 3],
                                                      b + slice * 16 * kPanelBytes, true);
    }
  }

  /// d_q[64 queries, kColumns] = ds[kKeyTile, 64 queries]^T k[kKeyTile, kColumns].
  template <int kColumns>
  static TESSERA_DEVICE void query_product(float (&d_q)[kColumns / 2], SharedAddress ds, SharedAddress keys) {
    const TileDescriptor<128> a(same_in_warp(ds));
    const TileDescriptor<kPanelBytes> b(same_in_warp(keys), kKeyTile * kPanelBytes);
  #pragma unroll
    for (int slice = 0; slice < kKeyTile / 16; ++slice) {
      if (slice == 0) {
        Wgmma<Scalar, kColumns>::template from_shared_fresh<true, true>(d_q, a, b);
      } else {
        Wgmma<Scalar, kColumns>::template from_shared<true, true>(d_q, a + slice * 16 * 128,
                                                                  b + slice * 16 * kPanelBytes, true);
      }
    }
  }

  /// A number of each query of a tile: of every 16, the four of this lane's columns 2t, 2t+1, 2t+8, 2t+9. Loaded ahead
  /// of a wait where there are registers for it, else when they are used.
  struct Rows {
    static constexpr bool kAhead = kQueries == 64;
    SharedAddress from;
    float4 fours[kAhead ? kQueries / 16 : 1];

    TESSERA_DEVICE explicit Rows(SharedAddress rows) : from(rows + 16 * (threadIdx.x & 3)) {
      if constexpr (kAhead) {
  #pragma unroll
        for (int i = 0; i < kQueries / 16; ++i) fours[i] = shared_load_float4(from + 64 * i);
      }
    }
    TESSERA_DEVICE float4 operator[](int i) const {
      if constexpr (kAhead) return fours[i];
      return shared_load_float4(from + 64 * i);
    }
  };

  /// p = exp2(scale log2e s - lse2), in place.
  TESSERA_DEVICE void exponentiate(Scores& scores, const Rows& lse2) const {
    const float to_base_2 = scale * kLog2e;
  #pragma unroll
    for (int i = 0; i < kQueries / 2; i += 8) {
      const float4 top = lse2[i / 8];
  #pragma unroll
      for (int r = i; r < i + 4; r += 2) {  // rows g and g+8
        scores[r] = exp2_approx(fmaf(scores[r], to_base_2, -top.x));
        scores[r + 1] = exp2_approx(fmaf(scores[r + 1], to_base_2, -top.y));
        scores[r + 4] = exp2_approx(fmaf(scores[r + 4], to_base_2, -top.z));
        scores[r + 5] = exp2_approx(fmaf(scores[r + 5], to_base_2, -top.w));
      }
    }
  }

  /// p = 0 where the query does not see the key, or there is none. After the exponential: a hidden one may be infinite.
  TESSERA_DEVICE void hide(Scores& p, int first_key, int first_query) const {
    const int key = first_key + static_cast<int>(threadIdx.x) / 4;
    const int query = first_query + 2 * (threadIdx.x & 3);
  #pragma unroll
    for (int i = 0; i < kQueries / 2; ++i) {
      const int its_key = key + 8 * (i >> 1 & 1), its_query = query + 8 * (i >> 2) + (i & 1);
      if (its_key >= shape.Tk || its_key > its_query + shape.diagonal) p[i] = 0;
    }
  }

  /// ds = p (d_p - delta); p and ds become operands.
  static TESSERA_DEVICE void weigh(const Scores& p, const Scores& d_p, const Rows& delta, Packed& p_packed,
                                   Packed& ds_packed) {
  #pragma unroll
    for (int i = 0; i < kQueries / 2; i += 8) {
      const float4 mean = delta[i / 8];
  #pragma unroll
      for (int r = i; r < i + 8; r += 2) {
        const float low = r < i + 4 ? mean.x : mean.z, high = r < i + 4 ? mean.y : mean.w;
        p_packed[r / 2] = pack<Scalar>(p[r], p[r + 1]);
        ds_packed[r / 2] = pack<Scalar>(p[r] * (d_p[r] - low), p[r + 1] * (d_p[r + 1] - high));
      }
    }
  }

  /// Leaves a share of d_q where the lane that adds it will find it.
  template <int kCount>
  static TESSERA_DEVICE void store_share(const float (&d_q)[kCount], const Walk& walk, int consumer, int thread,
                                         int share) {
    const int stage = share % kStages;
    const SharedAddress to = walk.pad + kShare + stage * kShareBytes + consumer * kShareBytes0 + 16 * thread;
    barrier_wait(walk.barrier(kShareEmpty + consumer * kStages + stage), (share / kStages & 1) ^ 1);
  #pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      shared_store(to + i / 4 * 16 * kWarpgroupLanes, d_q[i], d_q[i + 1], d_q[i + 2], d_q[i + 3]);
    }
  }
  /// Tells it. Apart from the stores, because the fence waits for them.
  static TESSERA_DEVICE void hand_over_share(const Walk& walk, int consumer, int lane, int share) {
    fence_shared_for_async();
    __syncwarp();
    if (lane == 0) barrier_arrive(walk.barrier(kShareFull + consumer * kStages + share % kStages));
  }

  /// Calls body with the number of columns of d_q that this consumer computes, as a compile-time number.
  template <class Body>
  static TESSERA_DEVICE void with_columns(int consumer, const Body& body) {
    if constexpr (Tiles::kColumns0 == Tiles::kColumns1) {
      body.template operator()<Tiles::kColumns0>();
    } else if (consumer == 0) {
      body.template operator()<Tiles::kColumns0>();
    } else {
      body.template operator()<Tiles::kColumns1>();
    }
  }

  /// A consumer: its 64 keys against every tile of queries.
  TESSERA_DEVICE void differentiate(const Walk& walk, int consumer, int warp) const {
    const int lane = lane_of_warp(), thread = warp * kWarpLanes + lane;
    const int first_key = walk.key_tile * kKeyTile + 64 * consumer + 16 * warp;  // of this warp
    const SharedAddress keys = walk.pad + kK + 64 * consumer * kPanelBytes;
    const SharedAddress values = walk.pad + kV + 64 * consumer * kPanelBytes;
    const SharedAddress ds_read = walk.pad + kDs + (Tiles::kSplitsColumns ? 0 : consumer * kKeyTile * 128);
    const SharedAddress keys_read =
        walk.pad + kK +
        (Tiles::kSplitsColumns ? consumer * (Tiles::kColumns0 / Panels::kWidth) * kKeyTile * kPanelBytes : 0);
    // ds goes to [key, query], 16-byte chunks exchanged by the swizzle; this lane gives the address of one row of 8x8s.
    const int ds_row = 64 * consumer + 16 * warp + (lane & 15);
    const SharedAddress ds_write = walk.pad + kDs + ds_row * 128 + ((lane >> 4 ^ (ds_row & 7)) << 4);
    const bool is_last_incomplete = (walk.key_tile + 1) * kKeyTile > shape.Tk;

    float d_k_sum[D / 2], d_v_sum[D / 2];
  #pragma unroll
    for (int i = 0; i < D / 2; ++i) d_k_sum[i] = d_v_sum[i] = 0;

    const auto wait_for_queries = [&](int step) {
      barrier_wait(walk.barrier(kQueriesFull + (step & 1)), step >> 1 & 1);
    };
    if (walk.count > 0) {
      barrier_wait(walk.barrier(kKeysFull), 0);
      if (consumer == 1) barrier_wait(walk.barrier(kStart), 0);  // half a step behind
      wait_for_queries(0);
    }
    int ds_tile = 0, previous_ds_tile = 1;  // in the ring of kDsTiles
  #pragma unroll 1
    for (int step = 0; step < walk.count; ++step) {
      const int slot = step & 1;
      const int first_query = (walk.first + step) * kQueries;
      const SharedAddress queries = walk.pad + kQ + slot * kQueryBytes;
      const SharedAddress d_outs = walk.pad + kDOut + slot * kQueryBytes;

      // 1. scores and d_p, both transposed: [key, query]
      Scores p, d_p;
      warpgroup_fence();
      score_product(p, keys, queries);
      warpgroup_commit();
      score_product(d_p, values, d_outs);
      warpgroup_commit();
      if (step > 1) hand_over_share(walk, consumer, lane, step - 2);  // stored at the end of the previous step

      // 2. p and ds
      const Rows lse2(walk.pad + kLse + slot * kRowBytes);
      warpgroup_wait<1>(p);
      exponentiate(p, lse2);
      const Rows delta(walk.pad + kDelta + slot * kRowBytes);
      if (is_last_incomplete || first_query + shape.diagonal < walk.key_tile * kKeyTile + kKeyTile - 1) {
        hide(p, first_key, first_query);
      }
      warpgroup_wait<0>(d_p);
      Packed p_packed, ds_packed;
      weigh(p, d_p, delta, p_packed, ds_packed);

      // 3. ds for the other consumer as well. That it is done with the tile that is overwritten shows by its previous
      // ds: of two tiles it tells only after reading the one before, of three it has read two before by then.
      if (step > 0) barrier_wait(walk.barrier(kDsFull + (slot ^ 1)), (step - 1) >> 1 & 1);
  #pragma unroll
      for (int slice = 0; slice < kQueries / 16; ++slice) {
        const SharedAddress to = (ds_write ^ (slice & 3) << 5) + ds_tile * kScoreBytes + slice / 4 * kKeyTile * 128;
        store_matrices(to, ds_packed[4 * slice], ds_packed[4 * slice + 1], ds_packed[4 * slice + 2],
                       ds_packed[4 * slice + 3]);
      }

      // 4. d_v += p^T d_out, d_k += ds^T q, and between them the previous step's share of d_q: of nothing in step 0,
      // where it is not handed over
      warpgroup_fence();
      key_product(d_v_sum, p_packed, d_outs);
      warpgroup_commit();
      fence_shared_for_async();
      if (kDsTiles == 3) {
        __syncwarp();
        if (lane == 0) barrier_arrive(walk.barrier(kDsFull + slot));
      }
      if (step == 0 && consumer == 0 && lane == 0) barrier_arrive(walk.barrier(kStart));
      with_columns(consumer, [&]<int kColumns>() {
        float d_q[kColumns / 2];
        warpgroup_fence();
        query_product<kColumns>(d_q, ds_read + previous_ds_tile * kScoreBytes, keys_read);
        warpgroup_commit();
        key_product(d_k_sum, ds_packed, queries);
        warpgroup_commit();
        warpgroup_wait<1>(d_q);
        if (kDsTiles == 2) __syncwarp();
        if (lane == 0) {
          barrier_arrive(walk.barrier(kDOutEmpty + slot));
          if (kDsTiles == 2) barrier_arrive(walk.barrier(kDsFull + slot));
        }
        if (step > 0) store_share(d_q, walk, consumer, thread, step - 1);
      });
      if (step + 1 < walk.count) wait_for_queries(step + 1);  // beside the product of d_k
      warpgroup_wait<0>();
      if (lane == 0) barrier_arrive(walk.barrier(kQEmpty + slot));
      previous_ds_tile = ds_tile;
      ds_tile = ds_tile + 1 == kDsTiles ? 0 : ds_tile + 1;
    }

    // 5. the last share of d_q
    if (walk.count > 0) {
      if (walk.count > 1) hand_over_share(walk, consumer, lane, walk.count - 2);
      const int slot = (walk.count - 1) & 1;
      barrier_wait(walk.barrier(kDsFull + slot), (walk.count - 1) >> 1 & 1);
      with_columns(consumer, [&]<int kColumns>() {
        float d_q[kColumns / 2];
        warpgroup_fence();
        query_product<kColumns>(d_q, ds_read + previous_ds_tile * kScoreBytes, keys_read);
        warpgroup_commit();
        warpgroup_wait<0>(d_q);
        store_share(d_q, walk, consumer, thread, walk.count - 1);
      });
      hand_over_share(walk, consumer, lane, walk.count - 1);
    }

    // 6. d_k and d_v
    touch(d_k_sum);
    touch(d_v_sum);
    write_keys(d_k, d_k_sum, walk.head, first_key, scale);
    write_keys(d_v, d_v_sum, walk.head, first_key, 1.0f);
  }

  /// Sixteen rows of an accumulator, rounded; a quad exchanges words so that each lane writes 16 bytes.
  TESSERA_DEVICE void write_keys(const HeadTensor<Scalar, Kokkos::Cuda>& to, const float (&sum)[D / 2], int head,
                                 int first_key, float factor) const {
    const int h = head % shape.H, b = head / shape.H, lane = threadIdx.x;
    Scalar* rows = to.data() + b * to.stride(0) + h * to.stride(1);
  #pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = first_key + lane / 4 + 8 * half;
      Scalar* row = rows + key * to.stride(2);
      const auto word = [&](int tile) {
        return pack<Scalar>(sum[4 * tile + 2 * half] * factor, sum[4 * tile + 2 * half + 1] * factor);
      };
      constexpr int kWhole = D / 32 * 4;  // tiles of 8 columns that come in fours
  #pragma unroll
      for (int tile = 0; tile < kWhole; tile += 4) {
        const uint4 piece = quad_transpose(word(tile), word(tile + 1), word(tile + 2), word(tile + 3));
        if (key < shape.Tk) *reinterpret_cast<uint4*>(row + 8 * (tile + (lane & 3))) = piece;
      }
  #pragma unroll
      for (int tile = kWhole; tile < D / 8; ++tile) {
        if (key < shape.Tk) *reinterpret_cast<std::uint32_t*>(row + 8 * tile + 2 * (lane & 3)) = word(tile);
      }
    }
  }
#endif
};

}  // namespace tessera::kernels::detail::hopper_backward
