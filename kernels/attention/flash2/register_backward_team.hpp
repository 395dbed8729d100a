/// The teams of RegisterBackward's two launches, for rows of one width; its files are compiled one per width.
#pragma once

#include <cmath>

#include "kernels/attention/flash2/register_backward.hpp"
#include "kernels/attention/flash2/rows_in_flight.hpp"
#include "kernels/attention/pads.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/thread_tiles.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar, RegisterTiles kTiles>
struct RegisterBackwardTeam {
  using Real = Accum<Scalar>;

  BackwardTask<Exec, Scalar> task;
  RegisterRows<Real> rows;
  bool fits_packets;  // rows start and end at multiples of 16 bytes

  static constexpr int kPadBytes = backward_pad_bytes(kTiles, sizeof(Real));
  static constexpr int kThreads = kTiles.threads(), kWidth = kTiles.width;
  static constexpr int kKeyTile = kTiles.row_tile(), kQueryTile = kTiles.column_tile();
  static constexpr int kGroup = 16;  // heads whose tiles of keys alternate, so that few teams of a head wait in a row
  static constexpr bool kSumsInPlace = std::is_same_v<Scalar, Real>;
  /// Tiles of queries that are summed apart: in one sum the error would grow with Tq. 16 bits do not show it.
  static constexpr int kRun = 256 / kQueryTile;
  static_assert(RegisterRows<Real>::kPadding % kQueryTile == 0 && kQueryTile % RegisterRows<Real>::kLeastTile == 0);

  /// The thread's share of scores [keys, queries]; of d_k or d_v [keys, channels], or of both; of d_q.
  static constexpr int kHalves = !kTiles.overlay && kTiles.across % 2 == 0 ? 2 : 1;
  using Keys = ThreadTiles<Real, kTiles.down, kTiles.across, kTiles.rows>;
  using Gradients = ThreadTiles<Real, kTiles.down, kTiles.across / kHalves, kTiles.rows>;
  static constexpr int kPack = Keys::kPack;
  static constexpr int kQueryAcross = kTiles.across < kWidth / kPack ? kTiles.across : kWidth / kPack;
  using Queries = ThreadTiles<Real, kThreads / kQueryAcross, kQueryAcross, kQueryTile * kQueryAcross / kThreads>;
  static constexpr int kPacks = kWidth / (Gradients::kAcross * kPack),
                       kQueryPacks = kWidth / (Queries::kAcross * kPack);
  static_assert(kPacks * Gradients::kAcross * kPack == kWidth && kQueryPacks * Queries::kAcross * kPack == kWidth);
  static_assert(Queries::kTileRows == kQueryTile);

  struct Rows {};  // the tags of the launches
  struct Products {};
  using RowsPolicy = Kokkos::TeamPolicy<Exec, Rows>;
  using ProductsPolicy = Kokkos::TeamPolicy<Exec, Products, Kokkos::LaunchBounds<kThreads, kTiles.teams>>;
  using Member = typename RowsPolicy::member_type;

  void launch(const Exec& exec) const {
    const std::int64_t heads = std::int64_t{task.q.extent_int(0)} * task.q.extent_int(1);
    launch_rows(exec);
    const std::int64_t teams = heads * ceil_div(task.k.extent_int(2), kKeyTile);
    if (teams == 0) return;
    allow_large_scratch<RegisterBackwardTeam, ProductsPolicy>();
    Kokkos::parallel_for("tessera::attention::flash2::backward",
                         ProductsPolicy(exec, league_of(teams), kThreads, 1)
                             .set_scratch_size(0, Kokkos::PerTeam(kPadBytes + kPacketBytes)),
                         *this);
  }
  void launch_rows(const Exec& exec) const {
    const std::int64_t heads = std::int64_t{task.q.extent_int(0)} * task.q.extent_int(1);
    if (heads == 0) return;
    Kokkos::parallel_for("tessera::attention::flash2::backward_rows",
                         team_policy<RowsPolicy>(exec, heads * (rows.rows / rows.kPadding)), *this);
  }

  /// lse and delta of kPadding queries; d_q of those that see no key; the counters.
  KOKKOS_FUNCTION void operator()(Rows, const Member& team) const {
    const int tiles = rows.rows / rows.kPadding, head = team.league_rank() / tiles;
    const int h = head % task.q.extent_int(1), b = head / task.q.extent_int(1);
    const int first = team.league_rank() % tiles * rows.kPadding, Tq = task.q.extent_int(2), Tk = task.k.extent_int(2);
    const int queries = Tq - first < rows.kPadding ? Tq - first : rows.kPadding;
    const std::int64_t at = static_cast<std::int64_t>(team.league_rank()) * rows.kPadding;
    detail::stage_row_sums(team, task, b, h, first, queries, rows.kPadding, rows.lse + at, rows.delta + at);
    const int blind = Tk == 0 ? queries : !task.causal || first + Tk >= Tq ? 0 : Tq - Tk - first;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, blind < queries ? blind : queries), [&](int i) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, task.q.extent_int(3)),
                           [&](int d) { task.d_q(b, h, first + i, d) = Scalar(0.0f); });
    });
    constexpr int kTurns = RegisterRows<Real>::kPadding / RegisterRows<Real>::kLeastTile;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, kTurns),
                         [&](int i) { rows.turns[at / RegisterRows<Real>::kLeastTile + i] = 0; });
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      if (team.league_rank() == 0) *rows.next = 0;
    });
  }

  KOKKOS_FUNCTION void operator()(Products, const Member& team) const {
    constexpr int kBytes = kPadBytes;
    run(team, static_cast<Real*>(team.team_scratch(0).get_shmem_aligned(kBytes, kPacketBytes)));
  }

  KOKKOS_FORCEINLINE_FUNCTION static void wait_for(std::int32_t* counter, int turn) {
    for (int polls = 0; Kokkos::atomic_fetch_add(counter, 0) != turn; ++polls) {
      if (polls == 1 << 27) Kokkos::abort("flash2 backward: the turn of a tile of keys has not come");
    }
    Kokkos::memory_fence();
  }
  KOKKOS_FORCEINLINE_FUNCTION static void pass(std::int32_t* counter) {
    Kokkos::memory_fence();
    Kokkos::atomic_fetch_add(counter, 1);
  }

  /// What a team does, in kPadBytes aligned to 16 bytes. Team is Kokkos' or, in tests, threads of the host.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void run(const Team& team, Real* pad) const {
    constexpr int kRows = kTiles.rows, kColumns = kTiles.columns, kKept = 2 / kHalves;
    constexpr int kPitch = row_pitch(kWidth, sizeof(Real)), kPitchT = transposed_pitch(kKeyTile, sizeof(Real));
    const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
    const int depth = round_up(D, Keys::kDepth);
    const int rank = team.team_rank();
    const Keys own(rank);
    const Gradients owned(rank % (kThreads / kHalves));
    const Queries query(rank);
    const int half = rank / (kThreads / kHalves);

    // 1. which tile: groups of heads, inside a group in the order of keys (most queries see the first), heads fastest
    int* number = reinterpret_cast<int*>(pad);
    if (rank == 0) *number = Kokkos::atomic_fetch_add(rows.next, 1);
    team.team_barrier();
    const int claim = *number;
    team.team_barrier();  // before the pad is used
    const int heads = task.q.extent_int(0) * task.q.extent_int(1), tiles = ceil_div(Tk, kKeyTile);
    const int group = claim / (kGroup * tiles) * kGroup, size = heads - group < kGroup ? heads - group : kGroup;
    const int head = group + (claim - group * tiles) % size, turn = (claim - group * tiles) / size;
    const int h = head % task.q.extent_int(1), b = head / task.q.extent_int(1);
    const int first_key = turn * kKeyTile, keys = Tk - first_key < kKeyTile ? Tk - first_key : kKeyTile;
    const int diagonal = Tk - Tq;
    const int seeing = task.causal ? first_key - diagonal : 0;  // the first query that sees one of these keys
    const int first_tile = seeing <= 0 ? 0 : seeing / kQueryTile;
    std::int32_t* turns = rows.turns + static_cast<std::int64_t>(head) * (rows.rows / rows.kLeastTile);

    Real* k = pad;                                                   // [key_tile, width]
    Real* v = k + kKeyTile * kPitch;                                 // [key_tile, width]
    Real* q = v + kKeyTile * kPitch;                                 // [query_tile, width]
    Real* d_out = q + kQueryTile * kPitch;                           // [query_tile, width]
    Real* p_t = d_out + kQueryTile * kPitch;                         // [query_tile, key_tile]
    Real* ds_t = kTiles.overlay ? p_t : p_t + kQueryTile * kPitchT;  // [query_tile, key_tile]
    Real* top = ds_t + kQueryTile * kPitchT;                         // [query_tile]
    Real* delta = top + kQueryTile;                                  // [query_tile]

    // 2. stage keys and values
    {
      RowsInFlight<Scalar, kKeyTile, kWidth, kThreads> in;
      in.fetch(rank, &task.k(b, h, first_key, 0), task.k.stride(2), keys, D, fits_packets);
      in.put(rank, Real(1), k, kPitch);
      in.fetch(rank, &task.v(b, h, first_key, 0), task.v.stride(2), keys, D, fits_packets);
      in.put(rank, Real(1), v, kPitch);
    }
    RowsInFlight<Scalar, kQueryTile, kWidth, kThreads> q_rows, d_out_rows;
    constexpr int kNumbers = ceil_div(kQueryTile, kThreads);
    Real lses[kNumbers] = {}, deltas[kNumbers] = {};
    const auto fetch = [&](int tile) {
      const int first = tile * kQueryTile;
      q_rows.fetch(rank, &task.q(b, h, first, 0), task.q.stride(2), Tq - first, D, fits_packets);
      d_out_rows.fetch(rank, &task.d_out(b, h, first, 0), task.d_out.stride(2), Tq - first, D, fits_packets);
      const std::int64_t at = static_cast<std::int64_t>(head) * rows.rows + first;
      TESSERA_UNROLL_ON_DEVICE
      for (int s = 0; s < kNumbers; ++s) {
        const int i = rank + s * kThreads;
        if (i < kQueryTile) lses[s] = rows.lse[at + i], deltas[s] = rows.delta[at + i];
      }
    };
    const int last_tile = ceil_div(Tq, kQueryTile) - 1;
    int tile = last_tile;
    if constexpr (kTiles.ahead > 0) {
      if (tile >= first_tile) fetch(tile);
    }
    do {
      const int run = tile;
      const bool has_more = kSumsInPlace && run - first_tile >= kRun;
      const int end = has_more ? run + 1 - kRun : first_tile;
      Real gradient[kKept][kRows][kPacks * kPack] = {};  // of d_v, d_k or both
      for (; tile >= end; --tile) {
        // 3. stage queries and d_out
        const int first = tile * kQueryTile, queries = Tq - first;
        team.team_barrier();  // the previous tiles have been read, and the previous d_q has been written
        if constexpr (kTiles.ahead == 0) fetch(tile);
        q_rows.put(rank, task.scale * kLog2e<Real>, q, kPitch);
        d_out_rows.put(rank, Real(1), d_out, kPitch);
        TESSERA_UNROLL_ON_DEVICE
        for (int s = 0; s < kNumbers; ++s) {
          const int i = rank + s * kThreads;
          if (i < kQueryTile) top[i] = lses[s] * kLog2e<Real>, delta[i] = deltas[s];
        }
        team.team_barrier();  // the tiles are complete
        if (rank == 0 && tile < run) pass(turns + tile + 1);

        // 4. p and ds, transposed
        Real p[kRows][kColumns] = {}, ds[kRows][kColumns] = {};
        own.multiply_rows(k, kPitch, q, kPitch, depth, p);
        own.multiply_rows(v, kPitch, d_out, kPitch, depth, ds);
        const bool on_edge = (task.causal && first_key + kKeyTile - 1 > first + diagonal) || keys < kKeyTile;
        TESSERA_UNROLL_ON_DEVICE
        for (int j = 0; j < kColumns; ++j) {
          const Real top_j = top[own.column(j)], delta_j = delta[own.column(j)];
          const int last = first + own.column(j) + diagonal - first_key;  // that this query sees
          const int seen = on_edge ? keys_seen(task.causal, last, keys) : kKeyTile;
          TESSERA_UNROLL_ON_DEVICE
          for (int i = 0; i < kRows; ++i) {
            p[i][j] = exp2(own.row(i) < seen ? p[i][j] - top_j : Real(-HUGE_VAL));
            ds[i][j] = p[i][j] * (ds[i][j] - delta_j);
          }
          own.store_column(p, j, p_t + own.column(j) * kPitchT);
          if constexpr (!kTiles.overlay) own.store_column(ds, j, ds_t + own.column(j) * kPitchT);
        }
        team.team_barrier();  // p, and ds unless it takes its place, are complete

        // 5. d_v += p d_out, d_k += ds q, while the next queries travel
        if constexpr (kTiles.ahead > 0) {
          if (tile > first_tile) fetch(tile - 1);
        }
        if constexpr (kHalves == 2) {
          owned.template multiply_columns<kPacks, kQueryTile>(half == 0 ? p_t : ds_t, kPitchT, half == 0 ? d_out : q,
                                                              kPitch, gradient[0]);
        } else {
          owned.template multiply_columns<kPacks, kQueryTile>(p_t, kPitchT, d_out, kPitch, gradient[0]);
          if constexpr (kTiles.overlay) {
            team.team_barrier();  // p has been read
            TESSERA_UNROLL_ON_DEVICE
            for (int j = 0; j < kColumns; ++j) own.store_column(ds, j, ds_t + own.column(j) * kPitchT);
            team.team_barrier();  // ds is complete
          }
          owned.template multiply_columns<kPacks, kQueryTile>(ds_t, kPitchT, q, kPitch, gradient[kKept - 1]);
        }

        // 6. this tile's share of d_q, in its turn
        Real d_q[Queries::kRows][kQueryPacks * kPack] = {};
        query.template multiply_stored<Keys, kQueryPacks>(ds_t, kPitchT, k, kPitch, d_q);
        if (rank == 0) wait_for(turns + tile, turn);
        team.team_barrier();  // the turn has come
        const int last_query = queries < kQueryTile ? Tq - 1 : first + kQueryTile - 1;
        const bool is_last = first_key + kKeyTile >= keys_seen(task.causal, last_query + diagonal, Tk);
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < Queries::kRows; ++i) {
          const int n = query.row(i);
          if (n >= queries) continue;
          Scalar* row = &task.d_q(b, h, first + n, 0);
          const Real factor = is_last ? task.scale : Real(1);
          if constexpr (kSumsInPlace) {
            if (turn > 0) add_channels(query, row, Real(1), D, fits_packets, d_q[i]);
            write_channels(query, d_q[i], factor, D, fits_packets, row);
          } else {
            Real* sums = rows.d_q + (static_cast<std::int64_t>(head) * rows.rows + first + n) * kWidth;
            if (turn > 0) add_channels(query, sums, Real(1), D, true, d_q[i]);
            if (is_last) {
              write_channels(query, d_q[i], factor, D, fits_packets, row);
            } else {
              write_channels(query, d_q[i], factor, kWidth, true, sums);
            }
          }
        }
      }

      team.team_barrier();  // the run's last d_q has been written
      if (rank == 0 && end * kQueryTile < Tq) pass(turns + end);

      // 7. the run's share of d_v and d_k
      TESSERA_UNROLL_ON_DEVICE
      for (int kept = 0; kept < kKept; ++kept) {
        const bool is_of_v = half + kept == 0;
        const auto& d_rows = is_of_v ? task.d_v : task.d_k;
        const Real factor = is_of_v || has_more ? Real(1) : kLn2<Real>;
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < kRows; ++i) {
          if (owned.row(i) >= keys) continue;
          Scalar* row = &d_rows(b, h, first_key + owned.row(i), 0);
          if constexpr (kSumsInPlace) {
            if (run < last_tile) add_channels(owned, row, Real(1), D, fits_packets, gradient[kept][i]);
          }
          write_channels(owned, gradient[kept][i], factor, D, fits_packets, row);
        }
      }
    } while (tile >= first_tile);
  }
};

}  // namespace tessera::kernels
