/// HopperBackward's main kernel: teams that take place after place, a tile of keys of one head, and walk every tile of
/// queries that sees it.
///
/// Warp 0 takes the places and loads k and the tiles of q, warp 1 v and those of d_out, warps 2 and 3 add shares of d_q
/// to the sums; the two following warpgroups are the consumers, 64 keys each. They exchange only ds: a step's share of
/// d_q needs that of both, and is computed one step late, so that neither waits for the other. Steps and rings are
/// counted continuously from one place to the next.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/attention/flash2/hopper/backward_fragments.hpp"
#include "kernels/attention/flash2/hopper/backward_tiles.hpp"
#include "kernels/core/round_up.hpp"
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
  static constexpr int kQueries = Tiles::kQueries, kStages = Tiles::kStages, kDsTiles = Tiles::kDsTiles,
                       kKTiles = Tiles::kKTiles, kQTiles = Tiles::kQTiles, kDOutTiles = Tiles::kDOutTiles;
  static constexpr int kPanelBytes = Panels::kBytes;
  static constexpr int kWarps = kWarpgroupWarps * (1 + kConsumers);

  CUtensorMap q, k, v, d_out;
  HeadTensor<Scalar, Kokkos::Cuda> d_k, d_v;
  BackwardShape shape;
  BackwardSums sums;
  float scale;
  bool in_order;

  // The pad. Tiles are aligned to 1024 bytes, as the swizzle requires.
  static constexpr int kKeyBytes = kKeyTile * D * 2, kQueryBytes = kQueries * D * 2;
  static constexpr int kScoreBytes = kQueries / 64 * kKeyTile * 128;  // ds transposed: panels of 64 queries
  static constexpr int kShareBytes = kQueries * D * 4;                // of d_q, both consumers
  static constexpr int kShareBytes0 = 64 * Tiles::kColumns0 * 4;      // of consumer 0, which lies first
  static constexpr int kRowBytes = kQueries * 4;                      // lse or delta of a tile
  static constexpr int kK = 0, kV = kK + kKTiles * kKeyBytes, kQ = kV + kKeyBytes, kDOut = kQ + kQTiles * kQueryBytes,
                       kDs = kDOut + kDOutTiles * kQueryBytes, kShare = kDs + kDsTiles * kScoreBytes,
                       kLse = kShare + kStages * kShareBytes, kDelta = kLse + kDOutTiles * kRowBytes,
                       kBarriers = kDelta + kDOutTiles * kRowBytes;
  enum Barrier {
    kPlaceFull,
    kPlaceEmpty = kPlaceFull + 2,
    kKFull = kPlaceEmpty + 2,
    kKEmpty = kKFull + kKTiles,
    kVFull = kKEmpty + kKTiles,
    kVEmpty,
    kQFull,
    kQEmpty = kQFull + kQTiles,
    kDOutFull = kQEmpty + kQTiles,
    kDOutEmpty = kDOutFull + kDOutTiles,
    kDsFull = kDOutEmpty + kDOutTiles,
    kShareFull = kDsFull + 2,
    kShareEmpty = kShareFull + kConsumers * kStages,
    kStart = kShareEmpty + kConsumers * kStages,
    kBarrierCount
  };
  static constexpr int kPlaces = round_up(kBarriers + kBarrierCount * kBarrierBytes, 16);  // a ring of two
  static constexpr int kPadBytes = kPlaces + 2 * 16;
  static constexpr int kPlaceReaders = 3 + kConsumers * kWarpgroupWarps;

  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kWarps * kWarpLanes, 1>>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

  /// The team's pad. Its n-th place is read from there when needed, to save registers.
  struct Pad {
    SharedAddress start;

    TESSERA_DEVICE SharedAddress operator+(int bytes) const { return start + bytes; }
    TESSERA_DEVICE SharedAddress barrier(int which) const { return start + kBarriers + which * kBarrierBytes; }
    TESSERA_DEVICE SharedAddress place(int n) const { return start + kPlaces + (n & 1) * 16; }
    TESSERA_DEVICE int key_tile(int n) const { return shared_load_int(place(n)); }  // -1: there is no n-th place
    TESSERA_DEVICE int head(int n) const { return shared_load_int(place(n) + 4); }
    TESSERA_DEVICE int first(int n) const { return shared_load_int(place(n) + 8); }  // tile of queries
    TESSERA_DEVICE int hiding_steps(int n) const { return shared_load_int(place(n) + 12); }
    TESSERA_DEVICE void wait_for_place(int n) const { barrier_wait(barrier(kPlaceFull + (n & 1)), n >> 1 & 1); }
    TESSERA_DEVICE void release_place(int n) const { barrier_arrive(barrier(kPlaceEmpty + (n & 1))); }
  };

  __device__ void run(const Member& team) const {
#ifdef TESSERA_HOPPER_CODE
    const void* scratch = team.team_scratch(0).get_shmem_aligned(kPadBytes + 0, 1024);
    const int warp = warp_of_team(), lane = threadIdx.x;
    const Pad pad{shared_address(scratch)};
    if (warp == 0 && lane == 0) initialise_barriers(pad);
    team.team_barrier();  // barriers are initialised

    if (warp < kWarpgroupWarps) {
      give_registers<24>();
      if (lane == 0) {
        if (warp == 0) {
          load_tiles<true>(pad, k, q, kK, kQ, kQFull, kQEmpty);
        } else if (warp == 1) {
          load_tiles<false>(pad, v, d_out, kV, kDOut, kDOutFull, kDOutEmpty);
        } else {
          add_shares(pad, warp - 2);
        }
      }
    } else {
      take_registers<240>();
      differentiate(pad, warp / kWarpgroupWarps - 1, warp % kWarpgroupWarps);
    }
#endif
  }

#ifdef TESSERA_HOPPER_CODE
 private:
  static TESSERA_DEVICE void initialise_barriers(const Pad& pad) {
    constexpr int kConsumerWarps = kConsumers * kWarpgroupWarps;
    barrier_init(pad.barrier(kVFull), 1);
    barrier_init(pad.barrier(kVEmpty), kConsumerWarps);
    barrier_init(pad.barrier(kStart), kWarpgroupWarps);
    for (int slot = 0; slot < 2; ++slot) {
      barrier_init(pad.barrier(kPlaceFull + slot), 1);
      barrier_init(pad.barrier(kPlaceEmpty + slot), kPlaceReaders);
      barrier_init(pad.barrier(kDsFull + slot), kConsumerWarps);
    }
    for (int slot = 0; slot < kConsumers * kStages; ++slot) {
      barrier_init(pad.barrier(kShareFull + slot), kWarpgroupWarps);
      barrier_init(pad.barrier(kShareEmpty + slot), 1);
    }
    for (int slot = 0; slot < kKTiles; ++slot) {
      barrier_init(pad.barrier(kKFull + slot), 1);
      barrier_init(pad.barrier(kKEmpty + slot), kConsumerWarps);
    }
    for (int slot = 0; slot < kQTiles; ++slot) {
      barrier_init(pad.barrier(kQFull + slot), 1);
      barrier_init(pad.barrier(kQEmpty + slot), kConsumerWarps);
    }
    for (int slot = 0; slot < kDOutTiles; ++slot) {
      barrier_init(pad.barrier(kDOutFull + slot), 1);
      barrier_init(pad.barrier(kDOutEmpty + slot), kConsumerWarps * kWarpLanes);  // each lane has read rows
    }
    fence_barrier_init();
  }

  /// Takes the next place and publishes it to the team.
  TESSERA_DEVICE void take_place(const Pad& pad, int n) const {
    const int number = atomicAdd(sums.taken, 1);
    barrier_wait(pad.barrier(kPlaceEmpty + (n & 1)), (n >> 1 & 1) ^ 1);
    const SharedAddress to = pad.place(n);
    if (number < shape.heads * shape.key_tiles) {
      const BackwardShape::Place place = shape.place(number);
      const int first = shape.first_query_tile(place.key_tile);
      // The steps that must mask keys: all if the tile of keys is incomplete, otherwise those at the diagonal.
      const int first_hidden = place.key_tile * kKeyTile + kKeyTile - 1 - shape.diagonal - first * kQueries;
      shared_store(to, place.key_tile);
      shared_store(to + 4, place.head);
      shared_store(to + 8, first);
      shared_store(to + 12,
                   (place.key_tile + 1) * kKeyTile > shape.Tk ? shape.query_tiles : ceil_div(first_hidden, kQueries));
    } else {
      shared_store(to, -1);
    }
    barrier_arrive(pad.barrier(kPlaceFull + (n & 1)));
  }

  /// A producer lane: loads for every place its tile of keys, then the tiles of queries. The one that loads k also
  /// takes the places, the other loads lse and delta.
  template <bool kLoadsK>
  TESSERA_DEVICE void load_tiles(const Pad& pad, const CUtensorMap& keys, const CUtensorMap& queries, int keys_at,
                                 int queries_at, int queries_full, int queries_empty) const {
    constexpr int kTiles = kLoadsK ? kQTiles : kDOutTiles, kKeyTiles = kLoadsK ? kKTiles : 1;
    int turn = 0;
  #pragma unroll 1
    for (int n = 0;; ++n) {
      if (kLoadsK) {
        take_place(pad, n);  // not ahead of time: places taken later may have to wait for this one
      } else {
        pad.wait_for_place(n);
      }
      const int key_tile = pad.key_tile(n), head = pad.head(n), first = pad.first(n);
      if (!kLoadsK) pad.release_place(n);
      if (key_tile < 0) return;
      const int h = head % shape.H, b = head / shape.H;
      const std::size_t head_row = std::size_t(head) * shape.query_tiles * kQueries;
  #pragma unroll 1
      for (int tile = first; tile < shape.query_tiles; ++tile, ++turn) {
        const int slot = turn % kTiles;
        const SharedAddress full = pad.barrier(queries_full + slot);
        barrier_wait(pad.barrier(queries_empty + slot), (turn / kTiles & 1) ^ 1);
        barrier_arrive_expecting(full, kQueryBytes + (kLoadsK ? 0 : 2 * kRowBytes));
        load_head_tile(pad + queries_at + slot * kQueryBytes, queries, full, tile * kQueries, h, b);
        if (!kLoadsK) {
          const std::size_t row = head_row + tile * kQueries;
          load_bytes(pad + kLse + slot * kRowBytes, sums.lse2 + row, kRowBytes, full);
          load_bytes(pad + kDelta + slot * kRowBytes, sums.delta + row, kRowBytes, full);
        }
        if (tile == first) {
          const int key_slot = n % kKeyTiles;
          const SharedAddress keys_full = pad.barrier((kLoadsK ? kKFull : kVFull) + key_slot);
          barrier_wait(pad.barrier((kLoadsK ? kKEmpty : kVEmpty) + key_slot), (n / kKeyTiles & 1) ^ 1);
          barrier_arrive_expecting(keys_full, kKeyBytes);
          load_head_tile(pad + keys_at + key_slot * kKeyBytes, keys, keys_full, key_tile * kKeyTile, h, b);
        }
      }
    }
  }

  /// A lane that adds one consumer's shares of d_q to the sums.
  TESSERA_DEVICE void add_shares(const Pad& pad, int consumer) const {
    ShareRing ring{pad, consumer};
  #pragma unroll 1
    for (int n = 0;; ++n) {
      pad.wait_for_place(n);
      const int key_tile = pad.key_tile(n), head = pad.head(n), first = pad.first(n);
      pad.release_place(n);
      if (key_tile < 0) break;
      const std::size_t first_tile = std::size_t(head) * shape.query_tiles + first;
      float* to = sums.d_q + first_tile * kQueries * D + consumer * (kShareBytes0 / 4);
      std::int32_t* ticket = sums.tickets + first_tile * kConsumers + consumer;
      if (in_order) {
        add_in_order(ring, key_tile, first, to, ticket);
      } else {
        add_as_they_come(ring, key_tile, first, to, ticket);
      }
    }
    bulk_wait<0>();
  }

  /// The shares of a consumer as they are handed over.
  struct ShareRing {
    const Pad& pad;
    int consumer;
    int stage = 0, parity = 0;

    TESSERA_DEVICE SharedAddress barrier(int which) const { return pad.barrier(which + consumer * kStages + stage); }
    TESSERA_DEVICE int bytes() const { return consumer == 0 ? kShareBytes0 : kShareBytes - kShareBytes0; }
    TESSERA_DEVICE SharedAddress wait_for_share() const {
      barrier_wait(barrier(kShareFull), parity);
      return pad + kShare + consumer * kShareBytes0 + stage * kShareBytes;
    }
    /// Frees the slot as soon as the copy engine has read it.
    TESSERA_DEVICE void release_share() {
      bulk_commit();
      bulk_wait_read<0>();
      barrier_arrive(barrier(kShareEmpty));
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  };

  /// A place's shares, each in its turn: later tiles of keys come first, because a causal walk starts at its diagonal.
  TESSERA_DEVICE void add_in_order(ShareRing& ring, int key_tile, int first, float* to, std::int32_t* ticket) const {
    int seen = 0;
  #pragma unroll 1
    for (int tile = first; tile < shape.query_tiles; ++tile, to += kQueries * D, ticket += kConsumers) {
      const SharedAddress share = ring.wait_for_share();
      const int turn = shape.last_key_tile(tile) - key_tile;
      if (seen != turn) wait_for_turn(ticket, turn);
      if (turn == 0) {
        store_bytes(to, share, ring.bytes());
      } else {
        add_floats(to, share, ring.bytes());
      }
      ring.release_share();
      seen = tile + 1 < shape.query_tiles ? read_ticket(ticket + kConsumers) : 0;  // while the copy engine adds
      bulk_wait<0>();
      pass_ticket(ticket);
    }
  }

  /// A place's shares in order of arrival. If the sums were not cleared, the head's first place, taken before the
  /// others, stores its shares, and the others add after it.
  TESSERA_DEVICE void add_as_they_come(ShareRing& ring, int key_tile, int first, float* to,
                                       std::int32_t* ticket) const {
    const bool stores = !sums.are_cleared && key_tile == 0;
    int seen = sums.are_cleared ? 1 : 0;
  #pragma unroll 1
    for (int tile = first; tile < shape.query_tiles; ++tile, to += kQueries * D, ticket += kConsumers) {
      const SharedAddress share = ring.wait_for_share();
      if (stores) {
        store_bytes(to, share, ring.bytes());
        ring.release_share();
        bulk_wait<0>();
        pass_ticket(ticket);
      } else {
        if (seen == 0) wait_for_turn(ticket, 1);
        add_floats(to, share, ring.bytes());
        ring.release_share();
        if (!sums.are_cleared) seen = tile + 1 < shape.query_tiles ? read_ticket(ticket + kConsumers) : 0;
      }
    }
  }

  using Products = BackwardProducts<Scalar, D, kKeyTile, kQueries>;
  using Numbers = QueryNumbers<kQueries, kQueries == 64>;
  using Scores = float[kQueries / 2];          // [64 keys, kQueries] of a warpgroup, or their gradient
  using Packed = std::uint32_t[kQueries / 4];  // the same as an operand

  /// p = 0 where the query does not see the key, or there is no key. Applied after the exponential, because a masked
  /// one may be infinite.
  TESSERA_DEVICE void hide(Scores& p, const Pad& pad, int n, int first_row, int step) const {
    const int lane = threadIdx.x;
    const int key = pad.key_tile(n) * kKeyTile + first_row + lane / 4;
    const int query = (pad.first(n) + step) * kQueries + 2 * (lane & 3);
    // How far the lane's keys of rows g and g+8 lie beyond the last key that its first query sees.
    const int over[2] = {key < shape.Tk ? key - query - shape.diagonal : kEveryKey,
                         key + 8 < shape.Tk ? key + 8 - query - shape.diagonal : kEveryKey};
  #pragma unroll
    for (int i = 0; i < kQueries / 2; ++i) {
      if (over[i >> 1 & 1] > 8 * (i >> 2) + (i & 1)) p[i] = 0;
    }
  }

  /// Stores a share of d_q for the lane that adds it.
  template <int kCount>
  static TESSERA_DEVICE void store_share(const float (&d_q)[kCount], const Pad& pad, int consumer, int thread,
                                         int share) {
    const int stage = share % kStages;
    const SharedAddress to = pad + kShare + stage * kShareBytes + consumer * kShareBytes0 + 16 * thread;
    barrier_wait(pad.barrier(kShareEmpty + consumer * kStages + stage), (share / kStages & 1) ^ 1);
  #pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      shared_store(to + i / 4 * 16 * kWarpgroupLanes, d_q[i], d_q[i + 1], d_q[i + 2], d_q[i + 3]);
    }
  }
  /// Signals that lane. Separate from the stores, because the fence waits for them.
  static TESSERA_DEVICE void hand_over_share(const Pad& pad, int consumer, int lane, int share) {
    fence_shared_for_async();
    __syncwarp();
    if (lane == 0) barrier_arrive(pad.barrier(kShareFull + consumer * kStages + share % kStages));
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

  /// Where a consumer's product of d_q reads ds and k.
  static TESSERA_DEVICE SharedAddress ds_read(const Pad& pad, int consumer) {
    return pad + kDs + (Tiles::kSplitsColumns ? 0 : consumer * kKeyTile * 128);
  }
  static TESSERA_DEVICE SharedAddress keys_read(const Pad& pad, int consumer, int key_slot) {
    return pad + kK + key_slot * kKeyBytes +
           (Tiles::kSplitsColumns ? consumer * (Tiles::kColumns0 / Panels::kWidth) * kKeyTile * kPanelBytes : 0);
  }
  /// The same number, opaque to the compiler: values derived from it are recomputed each step, to save registers.
  template <class Number>
  static TESSERA_DEVICE Number computed_here(Number number) {
    asm volatile("" : "+r"(number));
    return number;
  }

  /// A consumer: its 64 keys of every place's tile against every tile of queries.
  TESSERA_DEVICE void differentiate(const Pad& pad, int consumer, int warp) const {
    const int lane = lane_of_warp();
    const auto wait_for_queries = [&](unsigned turn) {
      barrier_wait(pad.barrier(kQFull + turn % kQTiles), turn / kQTiles & 1);
      barrier_wait(pad.barrier(kDOutFull + (turn & 1)), turn >> 1 & 1);
    };
    unsigned turn = 0, places = 0;  // steps and places so far
  #pragma unroll 1
    for (;; ++places) {
      const unsigned n = places;
      pad.wait_for_place(n);
      if (pad.key_tile(n) < 0) break;
      const int count = shape.query_tiles - pad.first(n);  // steps
      const int key_slot = n % kKTiles;
      float d_k_sum[D / 2], d_v_sum[D / 2];
  #pragma unroll
      for (int i = 0; i < D / 2; ++i) d_k_sum[i] = d_v_sum[i] = 0;
      barrier_wait(pad.barrier(kKFull + key_slot), n / kKTiles & 1);
      barrier_wait(pad.barrier(kVFull), n & 1);
      if (n == 0 && consumer == 1) barrier_wait(pad.barrier(kStart), 0);  // half a step behind
      wait_for_queries(turn);

  #pragma unroll 1
      for (int step = 0; step < count; ++step, ++turn) {
        const unsigned n = computed_here(places);
        const int lane = lane_of_warp(), key_slot = n % kKTiles;
        const int slot = turn & 1, q_slot = turn % kQTiles;
        const SharedAddress queries = pad + kQ + q_slot * kQueryBytes;
        const SharedAddress d_outs = pad + kDOut + slot * kQueryBytes;

        const int ds_tile = turn % kDsTiles;
        const int previous_ds_tile = (turn + kDsTiles - 1) % kDsTiles;

        // 1. scores and d_p, both transposed: [key, query]
        Scores p, d_p;
        warpgroup_fence();
        Products::of_scores(p, pad + kK + key_slot * kKeyBytes + 64 * consumer * kPanelBytes, queries);
        warpgroup_commit();
        Products::of_scores(d_p, pad + kV + 64 * consumer * kPanelBytes, d_outs);
        warpgroup_commit();
        // Stored at the end of the previous step.
        if (kKTiles == 2 ? step > 0 && turn > 1 : step > 1) hand_over_share(pad, consumer, lane, turn - 2);

        // 2. p and ds
        const Numbers lse2(pad + kLse + slot * kRowBytes);
        warpgroup_wait<1>(p);
        exponentiate(p, lse2, scale);
        const Numbers delta(pad + kDelta + slot * kRowBytes);
        if (step < pad.hiding_steps(n)) hide(p, pad, n, 64 * consumer + 16 * warp, step);
        warpgroup_wait<0>(d_p);
        if (lane == 0 && step + 1 == count) barrier_arrive(pad.barrier(kVEmpty));
        Packed p_packed, ds_packed;
        round_weights<Scalar>(p, p_packed);
        weigh<Scalar>(p, d_p, delta, ds_packed);

        // 3. publish ds to the other consumer. Its previous ds shows that it is done with the tile overwritten here: of
        // two tiles, it signals only after reading the one before; of three, it has by then read the one before that.
        if (turn > 0) barrier_wait(pad.barrier(kDsFull + (slot ^ 1)), (turn - 1) >> 1 & 1);
        // ds is stored as [key, query], 16-byte chunks permuted by the swizzle; a lane gives the address of a row of
        // 8x8s.
        const int ds_row = 64 * consumer + 16 * warp + (lane & 15);
        const SharedAddress ds_write =
            pad + kDs + ds_tile * kScoreBytes + ds_row * 128 + ((lane >> 4 ^ (ds_row & 7)) << 4);
  #pragma unroll
        for (int slice = 0; slice < kQueries / 16; ++slice) {
          const SharedAddress to = (ds_write ^ (slice & 3) << 5) + slice / 4 * kKeyTile * 128;
          store_matrices(to, ds_packed[4 * slice], ds_packed[4 * slice + 1], ds_packed[4 * slice + 2],
                         ds_packed[4 * slice + 3]);
        }

        // 4. d_v += p^T d_out, d_k += ds^T q, and between them the previous step's share of d_q. In a place's first
        //    step that share belongs to the previous place, with its k if that is still loaded; otherwise it is
        //    meaningless and not stored.
        warpgroup_fence();
        Products::of_keys(d_v_sum, p_packed, d_outs);
        warpgroup_commit();
        fence_shared_for_async();
        if (kDsTiles == 3) {
          __syncwarp();
          if (lane == 0) barrier_arrive(pad.barrier(kDsFull + slot));
        }
        if (turn == 0 && consumer == 0 && lane == 0) barrier_arrive(pad.barrier(kStart));
        with_columns(consumer, [&]<int kColumns>() {
          float d_q[kColumns / 2];
          warpgroup_fence();
          Products::of_queries(d_q, ds_read(pad, consumer) + previous_ds_tile * kScoreBytes,
                               keys_read(pad, consumer, kKTiles == 2 && step == 0 ? key_slot ^ 1 : key_slot));
          warpgroup_commit();
          Products::of_keys(d_k_sum, ds_packed, queries);
          warpgroup_commit();
          warpgroup_wait<1>(d_q);
          if (kDsTiles == 2) __syncwarp();
          barrier_arrive(pad.barrier(kDOutEmpty + slot));
          if (lane == 0) {
            if (kDsTiles == 2) barrier_arrive(pad.barrier(kDsFull + slot));
            if (kKTiles == 2 && step == 0 && turn > 0) barrier_arrive(pad.barrier(kKEmpty + (key_slot ^ 1)));
          }
          if (kKTiles == 2 ? turn > 0 : step > 0) store_share(d_q, pad, consumer, warp * kWarpLanes + lane, turn - 1);
        });
        if (step + 1 < count) wait_for_queries(turn + 1);  // beside the product of d_k
        warpgroup_wait<0>();
        if (lane == 0) barrier_arrive(pad.barrier(kQEmpty + q_slot));
      }
      if (kKTiles == 2 ? turn > 1 : count > 1) hand_over_share(pad, consumer, lane, turn - 2);
      if (kKTiles == 1) {
        give_last_share(pad, consumer, warp, lane, turn - 1, 0);
        if (lane == 0) barrier_arrive(pad.barrier(kKEmpty));
      }

      // 5. d_k and d_v
      touch(d_k_sum);
      touch(d_v_sum);
      const int head = pad.head(n), first_key = pad.key_tile(n) * kKeyTile + 64 * consumer + 16 * warp;
      write_keys(d_k, d_k_sum, shape, head, first_key, 0, scale);
      write_keys(d_v, d_v_sum, shape, head, first_key, 0, 1.0f);
      __syncwarp();
      if (lane == 0) pad.release_place(n);
    }

    if (kKTiles == 2 && turn > 0) give_last_share(pad, consumer, warp, lane, turn - 1, (places - 1) % kKTiles);
  }

  /// The share of d_q of the last step with this k.
  TESSERA_DEVICE void give_last_share(const Pad& pad, int consumer, int warp, int lane, unsigned turn,
                                      int key_slot) const {
    barrier_wait(pad.barrier(kDsFull + (turn & 1)), turn >> 1 & 1);
    with_columns(consumer, [&]<int kColumns>() {
      float d_q[kColumns / 2];
      warpgroup_fence();
      Products::of_queries(d_q, ds_read(pad, consumer) + turn % kDsTiles * kScoreBytes,
                           keys_read(pad, consumer, key_slot));
      warpgroup_commit();
      warpgroup_wait<0>(d_q);
      store_share(d_q, pad, consumer, warp * kWarpLanes + lane, turn);
    });
    hand_over_share(pad, consumer, lane, turn);
  }

#endif
};

}  // namespace tessera::kernels::detail::hopper_backward
