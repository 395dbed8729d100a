/// The body of AmpereForward for one width of rows: what a team does, and the sizes of its tiles.
#pragma once

#include "kernels/attention/flash2/ampere/forward_products.hpp"
#include "kernels/attention/flash2/ampere/tile.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/large_scratch.hpp"

namespace tessera::kernels::ampere {

/// The cuts that measured best on an H200 (B*T = 16,384, T = 4096).
template <int kWidth>
struct ForwardCutOf;
template <>
struct ForwardCutOf<16> : ForwardCut<2, 4, 64, 1, 3, 1> {};
template <>
struct ForwardCutOf<32> : ForwardCut<2, 4, 128, 1, 2, 2> {};
template <>
struct ForwardCutOf<64> : ForwardCut<2, 4, 64, 1, 3> {};
template <>
struct ForwardCutOf<80> : ForwardCut<2, 4, 32, 3, 2, 5> {};
template <>
struct ForwardCutOf<96> : ForwardCut<2, 4, 80, 1, 2> {};
template <>
struct ForwardCutOf<128> : ForwardCut<2, 4, 64, 1, 2> {};
template <>
struct ForwardCutOf<160> : ForwardCut<2, 4, 48, 1, 2> {};
template <>
struct ForwardCutOf<192> : ForwardCut<1, 4, 96, 1, 2> {};
template <>
struct ForwardCutOf<256> : ForwardCut<1, 4, 64, 1, 2, 4> {};

template <class Products, int kWidth, class Cut>
struct ForwardTeam {
  using Scalar = typename Products::Scalar;

  ForwardTask<Kokkos::Cuda, Scalar> task;
  int heads_of_group;  // heads processed together, so that their keys and values share the L2 cache

  static constexpr int kThreads = Cut::kWarps * cuda::kWarpLanes;
  static constexpr int kWarpRows = Cut::kRowTiles * 16;
  static constexpr int kQueryTile = Cut::kWarps * kWarpRows;
  static constexpr int kKeyTile = Cut::kKeyTile, kStages = Cut::kStages;
  using Layout = typename Products::Layout;
  static constexpr int kTileBytes = Layout::bytes(kKeyTile);
  static constexpr int kScratchBytes = Layout::bytes(kQueryTile) + 2 * kStages * kTileBytes;

  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kThreads, Cut::kTeams>>;
  using Member = typename Policy::member_type;

  static void launch(const Kokkos::Cuda& exec, const ForwardTask<Kokkos::Cuda, Scalar>& task) {
    const int heads = task.q.extent_int(0) * task.q.extent_int(1);
    const int tiles = ceil_div(task.q.extent_int(2), kQueryTile);
    cuda::enable_large_scratch<ForwardTeam, Policy>();
    Kokkos::parallel_for(
        "tessera::attention::flash2::ampere_forward",
        Policy(exec, heads * tiles, Cut::kWarps, cuda::kWarpLanes)
            .set_scratch_size(0, Kokkos::PerTeam(cuda::aligned_scratch_bytes(kScratchBytes, 128))),
        ForwardTeam{task, heads_in_cache(task.k.extent(2), task.k.extent(3) * (sizeof(Scalar) / 2), heads)});
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

 private:
  static constexpr float kUnset = -3e38f;   // the bound before any key was seen: finite, so that -inf - bound = -inf
  static constexpr float kHeadroom = 8.0f;  // a score may exceed the bound by this, in powers of two

  using Scores = typename Products::Scores;
  using Output = typename Products::Output;
  using Weights = typename Products::Weights;
  using Held = typename Products::Held;
  using Rows = float[Cut::kRowTiles][2];  // one number for each row of a lane

  TESSERA_DEVICE void run(const Member& team) const {
    const int warp = cuda::warp_of_team(), lane = threadIdx.x, thread = warp * cuda::kWarpLanes + lane;
    const int H = task.q.extent_int(1), Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
    // Quotients are written out here: with ceil_div ptxas (CUDA 13.0) generates code that is 5 % slower at D = 128.
    const int heads = task.q.extent_int(0) * H, tiles = (Tq + kQueryTile - 1) / kQueryTile;

    // 1. which tile: groups of heads; inside a group the longest rows first, heads fastest
    const TilePlace place = place_of(team.league_rank(), heads_of_group, heads, tiles);
    const int head = place.head, b = head / H, h = head % H;
    const int first_query = (tiles - 1 - place.tile) * kQueryTile;
    const int queries = min(kQueryTile, Tq - first_query);
    const int first_row = first_query + warp * kWarpRows;  // the warp's first query
    const int beyond = task.causal ? Tk - Tq + 1 : Tk;     // query i sees the keys below i + beyond (causal), or beyond
    const int keys = keys_below(task.causal ? first_query + queries - 1 + beyond : beyond, Tk);
    const int warp_keys = keys_below(task.causal ? first_row + kWarpRows - 1 + beyond : beyond, keys);
    const int clear_keys = keys_below(task.causal ? first_row + beyond : beyond, Tk);  // seen by all of the warp's rows
    const int key_tiles = (keys + kKeyTile - 1) / kKeyTile, warp_tiles = (warp_keys + kKeyTile - 1) / kKeyTile;

    const SharedAddress q_tile = cuda::shared_address(team.team_scratch(0).get_shmem_aligned(kScratchBytes + 0, 128));
    const SharedAddress k_ring = q_tile + Layout::bytes(kQueryTile), v_ring = k_ring + kStages * kTileBytes;
    const auto copy_tile = [&](const auto& tensor, int first_key, SharedAddress to) {
      if (first_key < keys) {
        Layout::template copy_rows<kKeyTile, kThreads>(to, row_of(tensor, b, h, first_key), tensor.stride(2),
                                                       Tk - first_key, D, thread);
      }
    };

    Output output;
    clear(output);
    Rows bound, sum;
    TESSERA_UNROLL
    for (int m = 0; m < Cut::kRowTiles; ++m) bound[m][0] = bound[m][1] = kUnset, sum[m][0] = sum[m][1] = 0;
    const float factor = task.scale * kLog2e<>;  // exponentials are powers of two
    const auto q_read = Layout::Reader::as_rows(q_tile + Layout::bytes(warp * kWarpRows), lane);
    const auto k_read = Layout::Reader::as_columns(k_ring, lane), v_read = Products::values_of(v_ring, lane);
    const auto settle = [&](Scores& scores, int tile) {  // masks the scores and raises their bound
      if ((tile + 1) * kKeyTile > clear_keys) hide(scores, first_row, tile * kKeyTile, beyond, lane);
      raise_bound(scores, factor, bound, sum, output);
    };

    Layout::template copy_rows<kQueryTile, kThreads>(q_tile, row_of(task.q, b, h, first_query), task.q.stride(2),
                                                     queries, D, thread);
    if constexpr (kStages == 1) {
      // 2. tile by tile; loads of the values overlap the products with the keys, those of the next keys the products
      //    with the values
      copy_tile(task.k, 0, k_ring);
      cuda::commit_copies();
      Held held;
      for (int tile = 0; tile < key_tiles; ++tile) {
        cuda::wait_for_copies<0>();
        team.team_barrier();  // the keys have arrived; the previous values have been read
        copy_tile(task.v, tile * kKeyTile, v_ring);
        cuda::commit_copies();
        if (tile == 0) Products::hold(q_read, held);
        Scores scores;
        Weights weights;
        if (tile < warp_tiles) {
          Products::scores(held, q_read, k_read, scores, [](int) {});
          settle(scores, tile);
          Rows tile_sum = {};
          weigh(scores, factor, bound, tile_sum, weights, 0, 1);
          add(sum, tile_sum);
        }
        cuda::wait_for_copies<0>();
        team.team_barrier();  // the values have arrived; the keys have been read
        copy_tile(task.k, (tile + 1) * kKeyTile, k_ring);
        cuda::commit_copies();
        if (tile < warp_tiles) Products::add_values(weights, v_read, output);
      }
    } else {
      // 2. start the copies of the first keys and values, and compute the first scores
      TESSERA_UNROLL
      for (int i = 0; i < kStages; ++i) {
        copy_tile(task.k, i * kKeyTile, k_ring + i * kTileBytes);
        if (i > 0) copy_tile(task.v, (i - 1) * kKeyTile, v_ring + (i - 1) * kTileBytes);
        cuda::commit_copies();
      }
      cuda::wait_for_copies<kStages - 1>();
      team.team_barrier();  // q and the first keys have arrived
      Held held;
      Products::hold(q_read, held);
      Scores even, odd;
      if (warp_tiles > 0) Products::scores(held, q_read, k_read, even, [](int) {});

      // 3. tile by tile: exponentials of the scores, interleaved with the products of the next; then add the weighted
      //    values
      int slot = 0, last_slot = kStages - 1;  // of the ring: this tile's, and the one before it
      const auto step = [&](int tile, Scores& scores, Scores& next) {
        cuda::wait_for_copies<(kStages > 2 ? kStages - 2 : 0)>();
        team.team_barrier();  // values of this tile and keys of the next have arrived; what they replace has been read
        copy_tile(task.k, (tile + kStages) * kKeyTile, k_ring + slot * kTileBytes);
        copy_tile(task.v, (tile + kStages - 1) * kKeyTile, v_ring + last_slot * kTileBytes);
        cuda::commit_copies();
        const int here = slot;
        slot = slot + 1 < kStages ? slot + 1 : 0;
        last_slot = here;
        if (tile >= warp_tiles) return;  // all beyond this warp's rows

        settle(scores, tile);
        Weights weights;
        Rows tile_sum = {};
        if (tile + 1 < warp_tiles) {
          Products::scores(held, q_read, k_read.of_tile(slot * kTileBytes), next,
                           [&](int k) { weigh(scores, factor, bound, tile_sum, weights, k, kWidth / 16); });
        } else {
          weigh(scores, factor, bound, tile_sum, weights, 0, 1);
        }
        add(sum, tile_sum);
        Products::add_values(weights, v_read.of_tile(here * kTileBytes), output);
      };
      for (int tile = 0; tile < key_tiles; tile += 2) {
        step(tile, even, odd);
        if (tile + 1 < key_tiles) step(tile + 1, odd, even);
      }
    }

    // 4. normalise; the warp's part of the tile of queries, which only it reads, may stage its rows
    cuda::wait_for_copies<0>();
    team.team_barrier();  // q has arrived (also where there was no key to wait for) and has been read
    const int quad = lane / 4, pair = lane % 4;
    Rows inverse;
    TESSERA_UNROLL
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int query = first_row + m * 16 + half * 8 + quad;
        const float total = cuda::quad_sum(sum[m][half]);
        inverse[m][half] = total == 0 ? 0.0f : 1 / total;  // 0: no key was seen; NaN stays NaN
        if (pair == 0 && query < Tq) {
          task.lse(b, h, query) = total == 0 ? -HUGE_VALF : (bound[m][half] + log2f(total)) * kLn2<>;
        }
      }
    }
    Products::write(output, inverse, q_tile + Layout::bytes(warp * kWarpRows), row_of(task.out, b, h, first_row),
                    task.out.stride(2), min(kWarpRows, Tq - first_row), D, lane);
  }

  /// A tile is summed first: in a sum of all keys, one by one, the error would grow with their number.
  static TESSERA_DEVICE void add(Rows& sum, const Rows& tile_sum) {
    TESSERA_UNROLL
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) sum[m][half] += tile_sum[m][half];
    }
  }

  /// The part-th of `parts` shares of: scores become exponentials, which are summed, rounded and packed.
  static TESSERA_DEVICE void weigh(Scores& scores, float factor, const Rows& bound, Rows& sum, Weights& weights,
                                   int part, int parts) {
    constexpr int kShares = Cut::kRowTiles * (kKeyTile / 16);
    TESSERA_UNROLL
    for (int share = 0; share < kShares; ++share) {
      if (share * parts / kShares != part) continue;
      const int m = share % Cut::kRowTiles, n = share / Cut::kRowTiles;
      TESSERA_UNROLL
      for (int i = 0; i < 8; ++i) {
        float& score = scores[m][2 * n + i / 4][i % 4];
        score = cuda::exp2_approx(fmaf(score, factor, -bound[m][i / 2 % 2]));
        sum[m][i / 2 % 2] += score;
      }
      Products::weigh(scores, m, n, weights);
    }
  }

  /// Scores that a row must not see become -inf.
  TESSERA_DEVICE void hide(Scores& scores, int first_row, int first_key, int beyond, int lane) const {
    TESSERA_UNROLL
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + m * 16 + half * 8 + lane / 4;
        const int end = min(task.causal ? row + beyond : beyond, task.k.extent_int(2)) - first_key - lane % 4 * 2;
        TESSERA_UNROLL
        for (int n = 0; n < kKeyTile / 8; ++n) {
          if (n * 8 >= end) scores[m][n][2 * half] = -HUGE_VALF;
          if (n * 8 + 1 >= end) scores[m][n][2 * half + 1] = -HUGE_VALF;
        }
      }
    }
  }

  /// Moves the bound of rows, and with it their sums and output, where a score exceeds it by more than the headroom.
  static TESSERA_DEVICE void raise_bound(const Scores& scores, float factor, Rows& bound, Rows& sum, Output& output) {
    Rows top;
    bool is_exceeded = false;
    TESSERA_UNROLL
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        float largest = fmaxf(scores[m][0][2 * half], scores[m][0][2 * half + 1]);
        TESSERA_UNROLL
        for (int n = 1; n < kKeyTile / 8; ++n) {
          largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        top[m][half] = largest * factor;
        is_exceeded |= top[m][half] > bound[m][half] + kHeadroom;
      }
    }
    if (!__any_sync(0xffffffffu, is_exceeded)) return;  // the usual case, from the second tile on
    TESSERA_UNROLL
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float new_bound = fmaxf(bound[m][half], cuda::quad_max(top[m][half]));
        const float shrink = cuda::exp2_approx(bound[m][half] - new_bound);
        bound[m][half] = new_bound;
        sum[m][half] *= shrink;
        TESSERA_UNROLL
        for (int n = 0; n < kWidth / 8; ++n) {
          output[m][n][2 * half] *= shrink;
          output[m][n][2 * half + 1] *= shrink;
        }
      }
    }
  }
};

}  // namespace tessera::kernels::ampere
