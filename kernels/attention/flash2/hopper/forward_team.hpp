/// HopperForward's kernel for one head width: what its teams do, a producer and consumers in each.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/attention/flash2/hopper/forward_order.hpp"
#include "kernels/attention/flash2/hopper/forward_rows.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/barrier.hpp"
#include "kernels/cuda/registers.hpp"
#include "kernels/cuda/shared.hpp"
#include "kernels/cuda/tma.hpp"
#include "kernels/cuda/wgmma.hpp"

namespace tessera::kernels::detail::hopper_forward {

using namespace cuda;

/// kConsumers warpgroups of 64 queries; keys and values pass in tiles of kKeyTile through kKeyStages buffers each.
/// kHalves says how consumers take a tile: as two halves, or whole and in turns.
template <class Scalar, int D, int kConsumers, int kKeyTile, int kQueryStages, int kKeyStages, bool kHalves>
struct TileKernel {
  using Panels = HeadPanels<D>;
  using Descriptor = TileDescriptor<Panels::kBytes>;
  static constexpr int kQueryTile = 64 * kConsumers, kKeys = kKeyTile;
  static constexpr int kQueryBytes = 2 * kQueryTile * D;
  static constexpr int kKeyBytes = 2 * kKeyTile * D;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroupLanes;
  static constexpr int kTurnThreads = 2 * kWarpgroupLanes;  // one consumer waits, one tells it
  // The multiprocessor has 65,536 registers; what the producer gives up goes to the consumers.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kHalf = kKeyTile / 2, kPiece = kHalves ? kHalf : kKeyTile;
  static_assert(!kHalves || kKeyTile % 32 == 0);  // a half is a multiple of 16, the depth of a product
  static constexpr int kTileBytes = 16;
  static constexpr int kBarriers = 2 * kQueryStages + 4 * kKeyStages;
  static constexpr int kPadBytes =
      kQueryStages * kQueryBytes + 2 * kKeyStages * kKeyBytes + kBarriers * kBarrierBytes + kTileBytes * kQueryStages;
  static constexpr int kPadAlignment = 1024;  // of a swizzled tile

  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kThreads, 1>>;
  using Member = typename Policy::member_type;

  CUtensorMap q_map, k_map, v_map;
  Scalar* out;
  long out_b, out_h, out_t;  // strides
  float* lse;                // [B,H,Tq]
  int* tile_counter;
  TileOrder order;
  int H, Tq, Tk;
  int diagonal;             // query i sees keys j <= i + diagonal
  float scale, scale_log2;  // as given, and times log2(e): weights are powers of two

  /// A stage of a ring of buffers: which one the n-th use takes, and the parity of the n-th time it fills.
  template <int kStages>
  struct Use {
    int stage, parity;
    TESSERA_DEVICE explicit Use(unsigned n) : stage(n % kStages), parity(n / kStages & 1) {}
  };
  using QueryUse = Use<kQueryStages>;
  using KeyUse = Use<kKeyStages>;

  /// Addresses in the pad.
  struct Pad {
    SharedAddress start;
    TESSERA_DEVICE SharedAddress q(int stage) const { return start + stage * kQueryBytes; }
    TESSERA_DEVICE SharedAddress k(int stage) const { return q(kQueryStages) + stage * kKeyBytes; }
    TESSERA_DEVICE SharedAddress v(int stage) const { return k(kKeyStages) + stage * kKeyBytes; }
    TESSERA_DEVICE SharedAddress q_full(int stage) const { return v(kKeyStages) + stage * kBarrierBytes; }
    TESSERA_DEVICE SharedAddress q_empty(int stage) const { return q_full(kQueryStages + stage); }
    TESSERA_DEVICE SharedAddress k_full(int stage) const { return q_empty(kQueryStages + stage); }
    TESSERA_DEVICE SharedAddress k_empty(int stage) const { return k_full(kKeyStages + stage); }
    TESSERA_DEVICE SharedAddress v_full(int stage) const { return k_empty(kKeyStages + stage); }
    TESSERA_DEVICE SharedAddress v_empty(int stage) const { return v_full(kKeyStages + stage); }
    /// The tile whose queries lie in a stage.
    TESSERA_DEVICE SharedAddress tile(int stage) const { return v_empty(kKeyStages) + kTileBytes * stage; }
  };

  struct Tile {
    int first_query;  // negative in an incomplete tile
    int b, h;
    int key_tiles;  // 0: there are no more tiles

    TESSERA_DEVICE void store(SharedAddress to) const {
      shared_store(to, __int_as_float(first_query), __int_as_float(b), __int_as_float(h), __int_as_float(key_tiles));
    }
    TESSERA_DEVICE static Tile load(SharedAddress from) {
      const uint4 word = shared_load_words(from);
      return {static_cast<int>(word.x), static_cast<int>(word.y), static_cast<int>(word.z), static_cast<int>(word.w)};
    }
  };
  TESSERA_DEVICE Tile tile_at(int number) const {
    const TileOrder::Place place = order(number);
    const int end = Tq - place.p * kQueryTile, b = place.head / H;
    return {end - kQueryTile, b, place.head - b * H, key_tiles_before(end)};
  }
  /// Key tiles that queries before `end` see, at least one: so that every tile has one to begin with.
  TESSERA_DEVICE int key_tiles_before(int end) const { return max(1, ceil_div(min(Tk, end + diagonal), kKeyTile)); }

  __device__ void operator()(const Member& team) const {
#ifdef TESSERA_HOPPER_CODE
    const Pad pad{shared_address(team.team_scratch(0).get_shmem_aligned(int{kPadBytes}, int{kPadAlignment}))};
    const int warp = warp_of_team(), lane = threadIdx.x;
    if (warp == 0 && lane == 0) {
      for (int i = 0; i < kQueryStages; ++i) {
        barrier_init(pad.q_full(i), 1);
        barrier_init(pad.q_empty(i), kConsumers * kWarpgroupLanes);  // each lane reads which tile it is
      }
      for (int i = 0; i < kKeyStages; ++i) {
        barrier_init(pad.k_full(i), 1);
        barrier_init(pad.v_full(i), 1);
        barrier_init(pad.k_empty(i), kConsumers * kWarpgroupWarps);
        barrier_init(pad.v_empty(i), kConsumers * kWarpgroupWarps);
      }
      fence_barrier_init();
    }
    team.team_barrier();  // barriers are initialised; from here on warpgroups diverge, without another team barrier

    if (warp < kWarpgroupWarps) {
      give_registers<kProducerRegisters>();
      if (warp == 0 && lane == 0) produce(pad, team.league_rank(), team.league_size());
    } else {
      take_registers<kConsumerRegisters>();
      consume(pad, warp / kWarpgroupWarps - 1, warp % kWarpgroupWarps, lane);
    }
#else
    Kokkos::abort("attention: this kernel was compiled for an architecture without wgmma");
#endif
  }

  /// Requests tiles in the order in which consumers want them: keys, queries (once), values.
  TESSERA_DEVICE void produce(const Pad& pad, int rank, int teams) const {
    const int tiles = order.query_tiles * order.heads;
    unsigned round = 0, n = 0;  // tiles of queries and of keys so far
    for (int tile = rank; tile < tiles; ++round) {
      // Drawn early: the answer is there when it is needed.
      const int next = order.on_demand ? teams + Kokkos::atomic_fetch_add(tile_counter, 1) : tile + teams;
      const Tile now = tile_at(tile);
      const QueryUse query(round);
      for (int j = 0; j < now.key_tiles; ++j, ++n) {
        const KeyUse key(n);
        barrier_wait(pad.k_empty(key.stage), key.parity ^ 1);
        barrier_arrive_expecting(pad.k_full(key.stage), kKeyBytes);
        load_head_tile(pad.k(key.stage), k_map, pad.k_full(key.stage), j * kKeyTile, now.h, now.b);
        if (j == 0) {
          barrier_wait(pad.q_empty(query.stage), query.parity ^ 1);
          now.store(pad.tile(query.stage));
          barrier_arrive_expecting(pad.q_full(query.stage), kQueryBytes);
          load_head_tile(pad.q(query.stage), q_map, pad.q_full(query.stage), now.first_query, now.h, now.b);
        }
        barrier_wait(pad.v_empty(key.stage), key.parity ^ 1);
        barrier_arrive_expecting(pad.v_full(key.stage), kKeyBytes);
        load_head_tile(pad.v(key.stage), v_map, pad.v_full(key.stage), j * kKeyTile, now.h, now.b);
      }
      // There are as many draws as tiles: the last one resets the counter.
      if (order.on_demand && next == teams + tiles - 1) *tile_counter = 0;
      tile = next;
    }
    const QueryUse query(round);
    barrier_wait(pad.q_empty(query.stage), query.parity ^ 1);
    Tile{0, 0, 0, 0}.store(pad.tile(query.stage));
    barrier_arrive(pad.q_full(query.stage));
  }

  /// Barriers by which consumers take turns at the tensor cores.
  TESSERA_DEVICE static int my_turn(int consumer) { return 1 + consumer; }
  TESSERA_DEVICE static int next_turn(int consumer) { return consumer + 1 == kConsumers ? 1 : 2 + consumer; }

  /// A consumer's 64 queries of a tile, from the view of one lane.
  struct OwnQueries {
    Descriptor q_rows;
    int first;      // negative in an incomplete tile
    int key_tiles;  // that any of the 64 sees
    int unmasked;   // leading pieces that all 64 see
    int last_seen;  // last visible column of row g (of row g + 8: 8 more), counted from this lane's first, and
    int last_key;   // last column of all, counted alike
    bool leads;     // this lane arrives on barriers for its warp
  };

  TESSERA_DEVICE void consume(const Pad& pad, int consumer, int warp, int lane) const {
    float output[D / 2];
    unsigned n = 0;                                                                     // tiles of keys so far
    if (!kHalves && consumer == kConsumers - 1) named_barrier_arrive(1, kTurnThreads);  // the first consumer begins

    for (unsigned round = 0;; ++round) {
      const QueryUse query(round);
      barrier_wait(pad.q_full(query.stage), query.parity);
      Tile tile = Tile::load(pad.tile(query.stage));
      if (tile.key_tiles == 0) break;
      const int first = tile.first_query + consumer * 64, column = 2 * (lane % 4);
      const OwnQueries my{.q_rows = Descriptor(pad.q(query.stage) + consumer * 64 * Panels::kBytes),
                          .first = first,
                          .key_tiles = first + 64 <= 0 ? 0 : min(tile.key_tiles, key_tiles_before(first + 64)),
                          .unmasked = min(Tk, first + 1 + diagonal) / kPiece,
                          .last_seen = first + warp * 16 + lane / 4 + diagonal - column,
                          .last_key = Tk - 1 - column,
                          .leads = lane == 0};
      Rows rows;
      // Without these zeros the registers of `output` are undefined around the loop over tiles, and ptxas spills; the
      // first product overwrites them anyway.
#pragma unroll
      for (int i = 0; i < D / 2; ++i) output[i] = 0;

      if (my.key_tiles > 0) {
        if constexpr (kHalves) {
          attend_in_halves(pad, query, my, tile, n, rows, output);
        } else {
          attend_in_turns(pad, query, my, consumer, tile, n, rows, output);
        }
      } else {
        barrier_arrive(pad.q_empty(query.stage));
      }
      for (int j = my.key_tiles; j < tile.key_tiles; ++j, ++n) {  // tiles that only other consumers see: pass them on
        const KeyUse key(n);
        barrier_wait(pad.k_full(key.stage), key.parity);
        if constexpr (!kHalves) {
          named_barrier_sync(my_turn(consumer), kTurnThreads);
          named_barrier_arrive(next_turn(consumer), kTurnThreads);
        }
        if (my.leads) barrier_arrive(pad.k_empty(key.stage));
        barrier_wait(pad.v_full(key.stage), key.parity);
        if (my.leads) barrier_arrive(pad.v_empty(key.stage));
      }

      // normalise and write
      const int row = tile.first_query + consumer * 64 + warp * 16 + lane / 4;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = quad_sum(rows.sum[r]);
        const float inverse = sum == 0 ? 0 : __fdividef(1, sum);  // 0: no key was seen; NaN stays NaN
        const int t = row + 8 * r;
        const bool is_row = t >= 0 && t < Tq;
        if (is_row && lane % 4 == 0) {
          lse[(static_cast<long>(tile.b) * H + tile.h) * Tq + t] =
              sum == 0 ? -INFINITY : rows.top[r] * scale + __logf(sum);
        }
        write_row(output, r, inverse, out + tile.b * out_b + tile.h * out_h + t * out_t, is_row, lane % 4);
      }
    }
    if (!kHalves && consumer == 0)
      named_barrier_sync(1, kTurnThreads);  // takes the last turn: no barrier stays half full
  }

  /// D <= 160: tiles of keys as two halves.
  TESSERA_DEVICE void attend_in_halves(const Pad& pad, const QueryUse& query, const OwnQueries& my, Tile& tile,
                                       unsigned& n, Rows& rows, float (&output)[D / 2]) const {
    float first_scores[kHalf / 2], second_scores[kHalf / 2];
    std::uint32_t first_weights[kHalf / 4], second_weights[kHalf / 4];
    const auto hide = [&](float(&half_scores)[kHalf / 2], int half) {
      if (half >= my.unmasked) hide_unseen(half_scores, my.last_seen - half * kHalf, my.last_key - half * kHalf);
    };
    /// Weights of a half, relative to the current tops: those of the first half serve to the end, with few exceptions.
    const auto weigh = [&](float(&half_scores)[kHalf / 2], std::uint32_t(&weights)[kHalf / 4]) {
      float sums[2];
      rows.weigh<Scalar>(half_scores, scale_log2, weights, sums);
      if (Rows::has_outgrown(sums)) [[unlikely]] {
        warpgroup_wait<0>(output);
        float shrink[2];
        rows.raise(half_scores, scale_log2, shrink, {sums[0] > Rows::kMaxSum, sums[1] > Rows::kMaxSum});
        rescale(output, shrink);
        rows.weigh<Scalar>(half_scores, scale_log2, weights, sums);
      }
      rows.add(sums);
    };
    {  // 1. the first tile of keys: scores, and weights of its first half
      const KeyUse key(n);
      barrier_wait(pad.k_full(key.stage), key.parity);
      warpgroup_fence();
      multiply_scores(first_scores, my.q_rows, pad.k(key.stage));
      warpgroup_commit();
      multiply_scores(second_scores, my.q_rows, pad.k(key.stage) + kHalf * Panels::kBytes);
      warpgroup_commit();
      warpgroup_wait<1>(first_scores);
      hide(first_scores, 0);
      float shrink[2], sums[2];
      rows.raise(first_scores, scale_log2, shrink);
      rows.weigh<Scalar>(first_scores, scale_log2, first_weights, sums);
      rows.add(sums);
      warpgroup_wait<0>(second_scores);
      ++n;
    }
    // 2. the others. While the weights of one half are computed, the tensor cores compute the scores of the next and
    //    the output of the previous one.
    for (int j = 1; j < my.key_tiles; ++j, ++n) {
      const KeyUse key(n), last(n - 1);
      barrier_wait(pad.k_full(key.stage), key.parity);
      barrier_wait(pad.v_full(last.stage), last.parity);
      warpgroup_fence();
      multiply_scores(first_scores, my.q_rows, pad.k(key.stage));
      warpgroup_commit();
      multiply_output<kHalf / 16>(output, first_weights, pad.v(last.stage), j > 1);
      warpgroup_commit();
      if (my.leads) barrier_arrive(pad.k_empty(last.stage));
      hide(second_scores, 2 * j - 1);
      weigh(second_scores, second_weights);
      warpgroup_wait<0>(first_scores);
      touch(output);
      warpgroup_fence();
      multiply_scores(second_scores, my.q_rows, pad.k(key.stage) + kHalf * Panels::kBytes);
      warpgroup_commit();
      multiply_output<kHalf / 16>(output, second_weights, pad.v(last.stage) + kHalf * Panels::kBytes, true);
      warpgroup_commit();
      // The result of this barrier test is not used. Without it ptxas (CUDA 13.0) keeps the tiles' descriptors in
      // vector registers, moves them before every product, and spills: 4 to 12 % slower.
      barrier_test(pad.v_full(key.stage), key.parity);
      hide(first_scores, 2 * j);
      weigh(first_scores, first_weights);
      warpgroup_wait<0>(second_scores);
      touch(output);
      if (my.leads) barrier_arrive(pad.v_empty(last.stage));
    }
    // 3. the output of the last tile, of which half is enough if the mask hides the rest
    const bool ends_in_half = min(Tk, my.first + 64 + diagonal) <= (my.key_tiles - 1) * kKeyTile + kHalf;
    tile = Tile::load(pad.tile(query.stage));  // again, instead of keeping it in registers through the loop
    const KeyUse last(n - 1);
    barrier_wait(pad.v_full(last.stage), last.parity);
    if (my.leads) barrier_arrive(pad.k_empty(last.stage));
    barrier_arrive(pad.q_empty(query.stage));
    // Each branch contains its whole chain of products: ptxas serialises products that are in flight across a branch.
    if (ends_in_half) {
      warpgroup_fence();
      multiply_output<kHalf / 16>(output, first_weights, pad.v(last.stage), my.key_tiles > 1);
      warpgroup_commit();
      warpgroup_wait<0>(output);
    } else {
      warpgroup_fence();
      multiply_output<kHalf / 16>(output, first_weights, pad.v(last.stage), my.key_tiles > 1);
      warpgroup_commit();
      hide(second_scores, 2 * my.key_tiles - 1);
      weigh(second_scores, second_weights);
      touch(output);
      warpgroup_fence();
      multiply_output<kHalf / 16>(output, second_weights, pad.v(last.stage) + kHalf * Panels::kBytes, true);
      warpgroup_commit();
      warpgroup_wait<0>(output);
    }
    if (my.leads) barrier_arrive(pad.v_empty(last.stage));
  }

  /// D > 160: whole tiles of keys, in turns.
  TESSERA_DEVICE void attend_in_turns(const Pad& pad, const QueryUse& query, const OwnQueries& my, int consumer,
                                      Tile& tile, unsigned& n, Rows& rows, float (&output)[D / 2]) const {
    float scores[kKeyTile / 2];
    std::uint32_t weights[kKeyTile / 4];
    const auto weigh = [&] {
      float sums[2];
      rows.weigh<Scalar>(scores, scale_log2, weights, sums);
      rows.add(sums);
    };
    float shrink[2];
    {  // 1. the first tile of keys: scores and weights
      const KeyUse key(n);
      barrier_wait(pad.k_full(key.stage), key.parity);
      named_barrier_sync(my_turn(consumer), kTurnThreads);
      warpgroup_fence();
      multiply_scores(scores, my.q_rows, pad.k(key.stage));
      warpgroup_commit();
      named_barrier_arrive(next_turn(consumer), kTurnThreads);
      warpgroup_wait<0>(scores);
      if (my.leads) barrier_arrive(pad.k_empty(key.stage));
      if (my.unmasked < 1) hide_unseen(scores, my.last_seen, my.last_key);
      rows.raise(scores, scale_log2, shrink);
      weigh();
      ++n;
    }
    bool has_key = false, has_value = false;  // whether the tiles for the next step had arrived when last tested
    for (int j = 1; j < my.key_tiles; ++j) {  // 2. scores of tile j and output of tile j - 1
      const KeyUse key(n), value(n - 1), next_key(n + 1);
      if (!has_key) barrier_wait(pad.k_full(key.stage), key.parity);
      if (!has_value) barrier_wait(pad.v_full(value.stage), value.parity);
      named_barrier_sync(my_turn(consumer), kTurnThreads);
      warpgroup_fence();
      multiply_scores(scores, my.q_rows, pad.k(key.stage));
      warpgroup_commit();
      multiply_output<kKeyTile / 16>(output, weights, pad.v(value.stage), j > 1);
      warpgroup_commit();
      named_barrier_arrive(next_turn(consumer), kTurnThreads);

      warpgroup_wait<1>(scores);  // the output is still being computed while the tops are found
      if (my.leads) barrier_arrive(pad.k_empty(key.stage));
      if (j >= my.unmasked) hide_unseen(scores, my.last_seen - j * kKeyTile, my.last_key - j * kKeyTile);
      rows.raise(scores, scale_log2, shrink);
      warpgroup_wait_after(shrink[0] + shrink[1], output);
      if (my.leads) barrier_arrive(pad.v_empty(value.stage));
      // Testing the barriers here costs nothing; a wait between the exponentials and the next products would.
      has_key = barrier_test(pad.k_full(next_key.stage), next_key.parity);
      has_value = barrier_test(pad.v_full(key.stage), key.parity);
      // Rescaling and packing fill the gaps between exponentials, which keep the special-function unit busy.
      weigh();
      rescale(output, shrink);
      ++n;
    }
    // 3. output of the last tile
    {
      tile = Tile::load(pad.tile(query.stage));  // again, instead of keeping it in registers through the loop
      barrier_arrive(pad.q_empty(query.stage));
      const KeyUse value(n - 1);
      if (!has_value) barrier_wait(pad.v_full(value.stage), value.parity);
      touch(output);
      warpgroup_fence();
      multiply_output<kKeyTile / 16>(output, weights, pad.v(value.stage), my.key_tiles > 1);
      warpgroup_commit();
      warpgroup_wait<0>(output);
      if (my.leads) barrier_arrive(pad.v_empty(value.stage));
    }
  }

  /// scores = q k^T for 64 queries and the first 2 * kCount keys of a tile.
  template <int kCount>
  TESSERA_DEVICE static void multiply_scores(float (&scores)[kCount], Descriptor q_rows, SharedAddress k_tile) {
    const Descriptor k_rows(k_tile);
#pragma unroll
    for (int panel = 0; panel < Panels::kCount; ++panel) {
#pragma unroll
      for (int step = 0; step < Panels::kWidth / 16; ++step) {
        const Descriptor a = q_rows + (panel * kQueryTile * Panels::kBytes + 32 * step);
        const Descriptor b = k_rows + (panel * kKeyTile * Panels::kBytes + 32 * step);
        if (panel + step == 0) {
          Wgmma<Scalar, 2 * kCount>::template from_shared_fresh<false, false>(scores, a, b);
        } else {
          Wgmma<Scalar, 2 * kCount>::template from_shared<false, false>(scores, a, b, true);
        }
      }
    }
  }

  /// output (= or +=) weights v for 64 queries and the first 16 * kSteps keys of a tile.
  template <int kSteps, int kWords>
  TESSERA_DEVICE static void multiply_output(float (&output)[D / 2], const std::uint32_t (&weights)[kWords],
                                             SharedAddress v_tile, bool accumulate) {
    const Descriptor v_rows(v_tile, kKeyTile * Panels::kBytes);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Wgmma<Scalar, D>::template from_registers<true>(output, weights[4 * step], weights[4 * step + 1],
                                                      weights[4 * step + 2], weights[4 * step + 3],
                                                      v_rows + 16 * step * Panels::kBytes, step > 0 || accumulate);
    }
  }

  TESSERA_DEVICE static void rescale(float (&output)[D / 2], const float (&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) output[i] *= shrink[i >> 1 & 1];
  }

  /// Row r of the fragment, normalised, in pieces of 16 bytes; the last 16 columns of a D that 32 does not divide go
  /// word by word. All lanes of the warp take part.
  TESSERA_DEVICE static void write_row(const float (&output)[D / 2], int r, float inverse, Scalar* row, bool is_row,
                                       int quad_lane) {
    const auto word = [&](int block) {
      return pack<Scalar>(output[4 * block + 2 * r] * inverse, output[4 * block + 2 * r + 1] * inverse);
    };
#pragma unroll
    for (int block = 0; block + 3 < D / 8; block += 4) {
      const uint4 piece = quad_transpose(word(block), word(block + 1), word(block + 2), word(block + 3));
      if (is_row) *reinterpret_cast<uint4*>(row + 8 * (block + quad_lane)) = piece;
    }
    if constexpr (D % 32 == 16) {
#pragma unroll
      for (int block = D / 8 - 2; block < D / 8; ++block) {
        if (is_row) *reinterpret_cast<std::uint32_t*>(row + 8 * block + 2 * quad_lane) = word(block);
      }
    }
  }
};

}  // namespace tessera::kernels::detail::hopper_forward
