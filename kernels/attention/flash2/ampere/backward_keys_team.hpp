/// The main kernel of AmpereBackward for one width of rows: what a team does that owns a tile of keys.
#pragma once

#include <algorithm>

#include "kernels/attention/flash2/ampere/backward_cut.hpp"
#include "kernels/attention/flash2/ampere/backward_rows.hpp"
#include "kernels/attention/flash2/ampere/tile.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/large_scratch.hpp"
#include "kernels/cuda/ticket.hpp"

namespace tessera::kernels::ampere {

/// d_k and d_v of a tile of keys, walking the tiles of queries that see them, last queries first; and the tile's share
/// of d_q, added to the sums in the workspace. In the fixed order the key tiles of a head take turns at each
/// tile of d_q, first keys first, and the first one stores instead of adding: since all walk the queries the same way,
/// each follows about one step behind the one before, and a turn has usually come when it is asked for. A turn is
/// passed on in the step after the adding, when that has long been done and passing costs least.
template <class Scalar, int kWidth, class Cut>
struct BackwardKeysTeam {
  BackwardTask<Kokkos::Cuda, Scalar> task;
  DqOrder order;
  BackwardRows rows;
  int heads_of_group;

  static constexpr int kParts = Cut::kParts, kWarps = Cut::kKeyWarps * kParts, kThreads = kWarps * cuda::kWarpLanes;
  static constexpr int kKeyTile = 32 * Cut::kKeyWarps, kQueryTile = Cut::kQueryTile;
  static constexpr int kPartQueries = kQueryTile / kParts;
  static constexpr int kBlocks = kWidth / 16, kPartBlocks = kBlocks / kParts;  // blocks of 16 columns
  static constexpr bool kHasHalf = kBlocks % kParts != 0;  // what is left over is shared out by halves of a block
  static constexpr int kPartColumns = kPartBlocks * 16 + (kHasHalf ? 8 : 0);
  static constexpr int kPartTiles = kPartQueries / 16;
  static constexpr bool kHasStages = Cut::kStages == 2, kKeepsKeys = Cut::kKept & kKeepKeys,
                        kKeepsP = Cut::kKept & kKeepP, kKeepsDs = Cut::kKept & kKeepDs;
  using Piece = QueryPiece<kWidth, Cut>;
  static_assert(kPartQueries % 16 == 0 && (!kHasHalf || kBlocks % kParts * 2 == kParts));

  using Layout = TileLayout<kWidth>;
  using Scores = TileLayout<kQueryTile>;  // [key, query]
  static constexpr int kKeyBytes = Layout::bytes(kKeyTile), kQueryBytes = Layout::bytes(kQueryTile),
                       kScoreBytes = Scores::bytes(kKeyTile), kRowBytes = kQueryTile * 4;
  static constexpr int kScratchBytes = keys_scratch_bytes<kWidth, Cut>();

  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kThreads, Cut::kTeams>>;
  using Member = typename Policy::member_type;

  static void launch(const Kokkos::Cuda& exec, const BackwardTask<Kokkos::Cuda, Scalar>& task, DqOrder order,
                     const BackwardRows& rows) {
    const int heads = task.q.extent_int(0) * task.q.extent_int(1);
    const int tiles = ceil_div(task.k.extent_int(2), kKeyTile);
    if (heads * tiles == 0) return;
    // The tiles of keys of a head follow each other through its queries, in a fixed order about two steps apart. Their
    // common working set (q, d_out, sums of d_q) should stay in the L2 cache: if that of two steps of every team does
    // not fit, that of whole heads must. With a causal mask run times differ between teams, and many heads fill the
    // gaps.
    constexpr double kCache = 32 << 20;
    constexpr bool kIsSpreadLarge = 2.0 * 132 * kQueryTile * 8 * kWidth > kCache;
    const int least = task.causal || (kWidth >= 128 && !kIsSpreadLarge) ? 16 : 1;  // as measured
    const double bytes_of_head = 8.0 * task.q.extent(2) * task.q.extent(3);
    const int in_cache = task.causal ? heads_in_cache(task.q.extent(2), task.q.extent(3), heads)
                                     : static_cast<int>(std::min(kCache / std::max(bytes_of_head, 1.0), 1.0 * heads));
    const int group = std::clamp(in_cache, std::min(least, heads), heads);
    cuda::enable_large_scratch<BackwardKeysTeam, Policy>();
    Kokkos::parallel_for("tessera::attention::flash2::ampere_backward::keys",
                         Policy(exec, heads * tiles, kWarps, cuda::kWarpLanes)
                             .set_scratch_size(0, Kokkos::PerTeam(cuda::aligned_scratch_bytes(kScratchBytes, 128))),
                         BackwardKeysTeam{task, order, rows, group});
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

 private:
  TESSERA_DEVICE bool in_order() const { return order == DqOrder::fixed; }

  TESSERA_DEVICE void run(const Member& team) const {
    const int warp = cuda::warp_of_team(), lane = threadIdx.x, thread = warp * cuda::kWarpLanes + lane;
    const int key_warp = warp / kParts, part = warp % kParts;
    const int H = task.q.extent_int(1), Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
    const int heads = task.q.extent_int(0) * H, tiles = ceil_div(Tk, kKeyTile);

    // 1. which tile: groups of heads; inside a group in the order of keys (most queries see the first), heads fastest
    const TilePlace place = place_of(team.league_rank(), heads_of_group, heads, tiles);
    const int head = place.head, b = head / H, h = head % H;
    const int first_key = place.tile * kKeyTile, keys = min(kKeyTile, Tk - first_key);
    const int before = task.causal ? Tk - Tq : Tk;  // key j is seen by the queries i >= j - before
    const int first_seeing = max(0, first_key - before);
    const int first_tile = first_seeing / kQueryTile, end_tile = ceil_div(Tq, kQueryTile);
    const int first_warp_key = first_key + key_warp * 32;

    const SharedAddress k_tile = cuda::shared_address(team.team_scratch(0).get_shmem_aligned(kScratchBytes + 0, 128));
    const SharedAddress v_tile = k_tile + kKeyBytes, stages = v_tile + kKeyBytes;
    const SharedAddress p_tile = stages + 2 * Cut::kStages * kQueryBytes, number_rows = p_tile + 2 * kScoreBytes;
    const auto copy_queries = [&](const auto& heads, int tile, SharedAddress to) {
      if (tile < first_tile) return;
      const int first = tile * kQueryTile;
      Layout::template copy_rows<kQueryTile, kThreads>(to, row_of(heads, b, h, first), heads.stride(2), Tq - first, D,
                                                       thread);
    };
    const auto copy_numbers = [&](int tile) {
      constexpr int kPieces = kQueryTile / 4;  // 16 bytes of one of the rows of numbers
      static_assert(2 * kPieces <= kThreads);
      if (tile < first_tile || thread >= 2 * kPieces) return;
      const float* numbers = thread < kPieces ? rows.log_sum : rows.delta;
      cuda::copy_16(number_rows + thread * 16,
                    numbers + static_cast<std::int64_t>(head) * rows.rows + tile * kQueryTile + thread % kPieces * 4);
    };

    // 2. start the copies: k and v, and the first queries
    Layout::template copy_rows<kKeyTile, kThreads>(k_tile, row_of(task.k, b, h, first_key), task.k.stride(2), keys, D,
                                                   thread);
    Layout::template copy_rows<kKeyTile, kThreads>(v_tile, row_of(task.v, b, h, first_key), task.v.stride(2), keys, D,
                                                   thread);
    copy_queries(task.q, end_tile - 1, stages);
    copy_queries(task.d_out, end_tile - 1, stages + kQueryBytes);
    copy_numbers(end_tile - 1);
    cuda::commit_copies();

    float d_k[2][kPartColumns / 8][4], d_v[2][kPartColumns / 8][4];
    clear(d_k);
    clear(d_v);
    const float factor = task.scale * kLog2e<>;
    const auto k_read = Layout::Reader::as_rows(k_tile + Layout::bytes(key_warp * 32), lane);
    const auto v_read = Layout::Reader::as_rows(v_tile + Layout::bytes(key_warp * 32), lane);
    const auto q_columns = Layout::Reader::as_columns(stages + Layout::bytes(part * kPartQueries), lane);
    const auto q_rows = Layout::Reader::as_rows(stages, lane).of_block(part);
    const auto q_half = Layout::Reader::as_rows_of_half(stages, lane, kPartBlocks * kParts * 2 + part);
    const auto p_read = Scores::Reader::as_rows(p_tile + Scores::bytes(key_warp * 32), lane);
    const auto ds_columns = Scores::Reader::as_columns(p_tile + kScoreBytes, lane);
    const auto k_rows = Layout::Reader::as_rows(k_tile, lane);
    const SharedAddress numbers = number_rows + (part * kPartQueries + lane % 4 * 2) * 4;

    const auto piece = Piece::of_warp(warp);
    float* d_q_sums = rows.d_q + static_cast<std::int64_t>(head) * rows.rows * kWidth;
    std::int32_t* turns = rows.turns + head * (rows.rows / kQueryTile);

    const auto pass_turn = [&](int tile) {  // after a barrier that follows the adding; the warps pass by turns
      if (in_order() && warp == tile % kWarps && lane == 0) cuda::pass_ticket(turns + tile);
    };

    const SharedAddress p_here = p_tile + lane % 4 * 4;
    const auto place_of_scores = [&](int m, int half, int n) {
      return p_here + Scores::offset(key_warp * 32 + m * 16 + half * 8 + lane / 4, part * (kPartQueries / 8) + n);
    };

    Rows32<kKeepsKeys> k_kept, v_kept;
    if constexpr (kKeepsKeys) {
      cuda::wait_for_copies<0>();
      team.team_barrier();  // k and v have arrived
      k_kept.load(k_read);
      v_kept.load(v_read);
    }

    int odd = 0;  // which stage is in use
    for (int tile = end_tile - 1; tile >= first_tile; --tile, odd ^= kHasStages) {
      const int here = odd * 2 * kQueryBytes;
      cuda::wait_for_copies<0>();
      team.team_barrier();  // this tile has arrived; what is overwritten from here on has been read
      if constexpr (kHasStages) {
        copy_queries(task.q, tile - 1, stages + (2 * kQueryBytes - here));
        copy_queries(task.d_out, tile - 1, stages + (3 * kQueryBytes - here));
      }

      // 3. scores, transposed: keys down, this part's queries across
      float p[2][kPartQueries / 8][4], ds[2][kPartQueries / 8][4];
      products(k_kept, k_read, q_columns.of_tile(here), p, [](int) { return 0; });
      PartWords p_words, ds_words;  // rounded: the a operands of this part
      const int first_query = tile * kQueryTile + part * kPartQueries;
      if (keys < kKeyTile || first_query + before < first_warp_key + 31) {
        hide(p, first_warp_key + lane / 4, Tk, before + first_query + lane % 4 * 2);
      }

      // 4. their gradients before the softmax; under these products the scores become probabilities
      const auto exponentials = [&](int k) {
        constexpr int kTiles = kPartQueries / 8;
        SharedAddress gate = 0;
        TESSERA_UNROLL
        for (int n = 0; n < kTiles; ++n) {
          if (n * kBlocks / kTiles != k) continue;
          const float2 log_sum = cuda::shared_load_float2(numbers + n * 32);
          TESSERA_UNROLL
          for (int m = 0; m < 2; ++m) {
            TESSERA_UNROLL
            for (int i = 0; i < 4; ++i) {
              p[m][n][i] = cuda::exp2_approx(fmaf(p[m][n][i], factor, -(i % 2 == 0 ? log_sum.x : log_sum.y)));
            }
            TESSERA_UNROLL
            for (int half = 0; half < 2; ++half) {
              auto& word = p_words[n / 2][m][n % 2 * 2 + half];
              word = cuda::pack<Scalar>(p[m][n][2 * half], p[m][n][2 * half + 1]);
              cuda::shared_store_word(place_of_scores(m, half, n), word);
            }
          }
          gate = cuda::zero_after(p[1][n][3]);
        }
        return gate;
      };
      products(v_kept, v_read, q_columns.of_tile(here + kQueryBytes), ds, exponentials);

      // 5. this part's columns of d_v += p^T d_out; under these products the score gradients
      const auto gradients = [&](int k) {
        constexpr int kTiles = kPartQueries / 8, kSteps = kQueryTile / 16;
        TESSERA_UNROLL
        for (int n = 0; n < kTiles; ++n) {
          if (n * kSteps / kTiles != k) continue;
          const float2 delta = cuda::shared_load_float2(numbers + kRowBytes + n * 32);
          TESSERA_UNROLL
          for (int m = 0; m < 2; ++m) {
            TESSERA_UNROLL
            for (int i = 0; i < 4; ++i) ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - (i % 2 == 0 ? delta.x : delta.y));
            TESSERA_UNROLL
            for (int half = 0; half < 2; ++half) {
              auto& word = ds_words[n / 2][m][n % 2 * 2 + half];
              word = cuda::pack<Scalar>(ds[m][n][2 * half], ds[m][n][2 * half + 1]);
              cuda::shared_store_word(place_of_scores(m, half, n) + kScoreBytes, word);
            }
          }
        }
      };
      accumulate<kKeepsP>(p_words, part, p_read, q_rows.of_tile(here + kQueryBytes), q_half.of_tile(here + kQueryBytes),
                          d_v, gradients, [&] {
                            // all parts of these keys' p are complete
                            cuda::named_barrier_sync(1 + key_warp, kParts * cuda::kWarpLanes);
                          });
      team.team_barrier();  // all score gradients are complete; d_out, log_sum and delta have been read
      if constexpr (!kHasStages) copy_queries(task.d_out, tile - 1, stages + kQueryBytes);
      copy_numbers(tile - 1);
      cuda::commit_copies();
      if (tile + 1 < end_tile) pass_turn(tile + 1);

      // 6. d_k += ds^T q, and the tile's share of d_q = ds k
      accumulate<kKeepsDs>(
          ds_words, part, p_read.of_tile(kScoreBytes), q_rows.of_tile(here), q_half.of_tile(here), d_k, [](int) {},
          [] {});
      if constexpr (!kHasStages) {
        team.team_barrier();  // the queries have been read
        copy_queries(task.q, tile - 1, stages);
        cuda::commit_copies();
      }
      const int early = in_order() ? cuda::peek_ticket(turns + tile) : 0;
      TESSERA_UNROLL
      for (int pass = 0; pass < Cut::kPasses; ++pass) {
        typename Piece::Sums d_q;
        query_gradient(ds_columns.of_block(pass * (Cut::kSumTile / 16)), k_rows, k_tile, piece, lane, d_q);
        float* sums = d_q_sums + Piece::offset_of(tile * Cut::kPasses + pass, warp) + lane * 4;
        if (pass == 0 && in_order() && early != place.tile) cuda::wait_for_turn(turns + tile, place.tile);
        if (in_order() && place.tile == 0) {
          Piece::for_each([&](int m, int n) {
            *reinterpret_cast<float4*>(sums + Piece::offset(m, n)) =
                make_float4(d_q[m][n][0], d_q[m][n][1], d_q[m][n][2], d_q[m][n][3]);
          });
        } else {
          Piece::for_each([&](int m, int n) { cuda::add_to_global(sums + Piece::offset(m, n), d_q[m][n]); });
        }
      }
    }

    // 7. write, staged in the former tiles of k and v
    cuda::wait_for_copies<0>();
    team.team_barrier();  // k and v have been read, the last share of d_q has been added
    if (first_tile < end_tile) pass_turn(first_tile);
    stage(d_k, task.scale, k_tile, key_warp * 32, part, lane);
    stage(d_v, 1.0f, v_tile, key_warp * 32, part, lane);
    team.team_barrier();  // all columns are there
    write_rows<Layout, kThreads>(k_tile, row_of(task.d_k, b, h, first_key), task.d_k.stride(2), keys, D, thread);
    write_rows<Layout, kThreads>(v_tile, row_of(task.d_v, b, h, first_key), task.d_v.stride(2), keys, D, thread);
  }

  /// A warp's 32 keys over the width, as a operands.
  template <bool kIsKept>
  struct Rows32 {
    std::uint32_t words[kIsKept ? kBlocks : 1][2][4];

    TESSERA_DEVICE void load(const typename Layout::Reader& rows) {
      TESSERA_UNROLL
      for (int k = 0; k < kBlocks; ++k) {
        cuda::load_matrices(rows(0, k), words[k][0]);
        cuda::load_matrices(rows(16, k), words[k][1]);
      }
    }
  };
  using PartWords = std::uint32_t[kPartTiles][2][4];
  using PartScores = float[2][kPartQueries / 8][4];
  using PartSums = float[2][kPartColumns / 8][4];

  /// Scores of keys that do not exist, or that a query must not see, become -inf. `key` is the lane's first key; query
  /// n of this part lies n queries after the lane's first, which sees the keys up to `seen`.
  static TESSERA_DEVICE void hide(PartScores& p, int key, int Tk, int seen) {
    TESSERA_UNROLL
    for (int m = 0; m < 2; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = key + m * 16 + half * 8;
        const int seeing = row < Tk ? row - seen : kQueryTile;  // the first query that sees the key
        TESSERA_UNROLL
        for (int n = 0; n < kPartQueries / 8; ++n) {
          if (n * 8 < seeing) p[m][n][2 * half] = -HUGE_VALF;
          if (n * 8 + 1 < seeing) p[m][n][2 * half + 1] = -HUGE_VALF;
        }
      }
    }
  }

  /// 32 keys (in registers if they are kept) times this part's queries, over the width. After each step between(step)
  /// does other work and returns a zero on which the loads of the next step but one depend: otherwise the compiler
  /// would schedule all products first, with none left to hide the other work.
  template <bool kIsKept, class Between>
  static TESSERA_DEVICE void products(const Rows32<kIsKept>& kept, const typename Layout::Reader& keys,
                                      const typename Layout::Reader& queries, PartScores& scores,
                                      const Between& between) {
    clear(scores);
    int gates[2] = {0, 0};
    TESSERA_UNROLL
    for (int k = 0; k < kBlocks; ++k) {
      std::uint32_t loaded[2][4];
      if constexpr (!kIsKept) {
        const auto keys_now = keys.of_tile(gates[k % 2]);
        cuda::load_matrices(keys_now(0, k), loaded[0]);
        cuda::load_matrices(keys_now(16, k), loaded[1]);
      }
      const auto& a = kIsKept ? kept.words[kIsKept ? k : 0] : loaded;
      const auto queries_now = queries.of_tile(kIsKept ? gates[k % 2] : 0);
      TESSERA_UNROLL
      for (int n = 0; n < kPartTiles; ++n) {
        std::uint32_t q_part[4];
        cuda::load_matrices(queries_now(n * 16, k), q_part);
        TESSERA_UNROLL
        for (int m = 0; m < 2; ++m) {
          cuda::multiply_add<Scalar>(scores[m][2 * n], a[m], q_part[0], q_part[1]);
          cuda::multiply_add<Scalar>(scores[m][2 * n + 1], a[m], q_part[2], q_part[3]);
        }
      }
      gates[k % 2] = between(k);
    }
  }

  /// sums += scores times rows: 32 keys times this part's columns, over the tile's queries, after wait(). With kIsKept
  /// this part's queries come first, their scores from the registers `own`, and wait() precedes only the others.
  template <bool kIsKept, class Between, class Wait>
  static TESSERA_DEVICE void accumulate(const PartWords& own, int part, const typename Scores::Reader& scores,
                                        const typename Layout::Reader& queries, const typename Layout::Reader& half,
                                        PartSums& sums, const Between& between, const Wait& wait) {
    TESSERA_UNROLL
    for (int turn = 0; turn < kParts; ++turn) {
      if (turn == kIsKept) wait();
      const int from = kIsKept ? (part + turn) % kParts : turn;
      const auto scores_from = scores.of_block(from * kPartTiles);
      const auto queries_from = queries.of_tile(Layout::bytes(from * kPartQueries));
      const auto half_from = half.of_tile(Layout::bytes(from * kPartQueries));
      TESSERA_UNROLL
      for (int k = 0; k < kPartTiles; ++k) {
        std::uint32_t loaded[2][4];
        const bool is_own = kIsKept && turn == 0;
        if (!is_own) {
          cuda::load_matrices(scores_from(0, k), loaded[0]);
          cuda::load_matrices(scores_from(16, k), loaded[1]);
        }
        const auto& a = is_own ? own[k] : loaded;
        TESSERA_UNROLL
        for (int n = 0; n < kPartBlocks; ++n) {
          std::uint32_t q_part[4];
          cuda::load_matrices_transposed(queries_from(k * 16, n * kParts), q_part);
          TESSERA_UNROLL
          for (int m = 0; m < 2; ++m) {
            cuda::multiply_add<Scalar>(sums[m][2 * n], a[m], q_part[0], q_part[1]);
            cuda::multiply_add<Scalar>(sums[m][2 * n + 1], a[m], q_part[2], q_part[3]);
          }
        }
        if constexpr (kHasHalf) {
          std::uint32_t q_part[2];
          cuda::load_2_matrices_transposed(half_from(k * 16, 0), q_part);
          TESSERA_UNROLL
          for (int m = 0; m < 2; ++m) cuda::multiply_add<Scalar>(sums[m][2 * kPartBlocks], a[m], q_part[0], q_part[1]);
        }
        between(turn * kPartTiles + k);
      }
    }
  }

  /// d_q = ds k: this warp's piece, over the tile's keys.
  static TESSERA_DEVICE void query_gradient(const typename Scores::Reader& ds, const typename Layout::Reader& k_rows,
                                            SharedAddress k_tile, const Piece& piece, int lane,
                                            typename Piece::Sums& d_q) {
    clear(d_q);
    const auto ds_of_group = ds.of_block(piece.group * Piece::kRowTiles);
    const auto k_of_column = k_rows.of_block(piece.column);
    const auto k_half =
        Layout::Reader::as_rows_of_half(k_tile, lane, Piece::kBlocks * Piece::kColumnWarps * 2 + piece.column);
    TESSERA_UNROLL
    for (int k = 0; k < kKeyTile / 16; ++k) {
      std::uint32_t a[Piece::kRowTiles][4];
      TESSERA_UNROLL
      for (int m = 0; m < Piece::kRowTiles; ++m) cuda::load_matrices_transposed(ds_of_group(k * 16, m), a[m]);
      TESSERA_UNROLL
      for (int n = 0; n < Piece::kBlocks; ++n) {
        std::uint32_t k_part[4];
        cuda::load_matrices_transposed(k_of_column(k * 16, n * Piece::kColumnWarps), k_part);
        TESSERA_UNROLL
        for (int m = 0; m < Piece::kRowTiles; ++m) {
          cuda::multiply_add<Scalar>(d_q[m][2 * n], a[m], k_part[0], k_part[1]);
          cuda::multiply_add<Scalar>(d_q[m][2 * n + 1], a[m], k_part[2], k_part[3]);
        }
      }
      if constexpr (Piece::kHasHalf) {
        std::uint32_t k_part[2];
        cuda::load_2_matrices_transposed(k_half(k * 16, 0), k_part);
        TESSERA_UNROLL
        for (int m = 0; m < Piece::kRowTiles; ++m) {
          cuda::multiply_add<Scalar>(d_q[m][2 * Piece::kBlocks], a[m], k_part[0], k_part[1]);
        }
      }
    }
  }

  /// tile[first_row.., this part's columns] = factor * sums
  static TESSERA_DEVICE void stage(const PartSums& sums, float factor, SharedAddress tile, int first_row, int part,
                                   int lane) {
    TESSERA_UNROLL
    for (int m = 0; m < 2; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + m * 16 + half * 8 + lane / 4;
        TESSERA_UNROLL
        for (int n = 0; n < kPartColumns / 8; ++n) {
          const int chunk = n < 2 * kPartBlocks ? (n / 2 * kParts + part) * 2 + n % 2 : kPartBlocks * kParts * 2 + part;
          cuda::shared_store_word(tile + Layout::offset(row, chunk) + lane % 4 * 4,
                                  cuda::pack<Scalar>(factor * sums[m][n][2 * half], factor * sums[m][n][2 * half + 1]));
        }
      }
    }
  }
};

}  // namespace tessera::kernels::ampere
