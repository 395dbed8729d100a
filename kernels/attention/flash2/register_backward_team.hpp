/// The teams of RegisterBackward's two passes, for rows of one width; its files are compiled one per width.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/attention/flash2/register_backward.hpp"
#include "kernels/attention/flash2/rows_in_flight.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/thread_tiles.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar, RegisterTiles kKeysTiles, RegisterTiles kQueriesTiles>
struct RegisterBackwardTeam {
  using Real = Accum<Scalar>;

  BackwardTask<Exec, Scalar> task;
  bool fits_packets;  // rows start and end at multiples of 16 bytes

  static constexpr int kKeysPadBytes = keys_pad_bytes(kKeysTiles, sizeof(Real));
  static constexpr int kQueriesPadBytes = queries_pad_bytes(kQueriesTiles, sizeof(Real));
  static constexpr Real kLog2E = std::numbers::log2e_v<Real>, kLn2 = std::numbers::ln2_v<Real>;

  struct Keys {
    static constexpr int kThreads = kKeysTiles.threads(), kTeams = kKeysTiles.teams, kRowTile = kKeysTiles.row_tile();
    static constexpr int kBytes = kKeysPadBytes;
    static constexpr const char* kLabel = "tessera::attention::flash2::backward::keys";
  };
  struct Queries {
    static constexpr int kThreads = kQueriesTiles.threads(), kTeams = kQueriesTiles.teams,
                         kRowTile = kQueriesTiles.row_tile();
    static constexpr int kBytes = kQueriesPadBytes;
    static constexpr const char* kLabel = "tessera::attention::flash2::backward::queries";
  };
  template <class Pass>
  using Policy = Kokkos::TeamPolicy<Exec, Pass, Kokkos::LaunchBounds<Pass::kThreads, Pass::kTeams>>;
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;

  void launch(const Exec& exec) const {
    launch_pass<Keys>(exec, task.k.extent_int(2));
    launch_pass<Queries>(exec, task.q.extent_int(2));
  }

  /// A team for each tile of the `rows` keys, or queries, of a head.
  template <class Pass>
  void launch_pass(const Exec& exec, int rows) const {
    const std::int64_t heads = std::int64_t{task.q.extent_int(0)} * task.q.extent_int(1);
    const std::int64_t teams = heads * ceil_div(rows, Pass::kRowTile);
    if (teams == 0) return;
    allow_large_scratch<RegisterBackwardTeam, Policy<Pass>>();
    Kokkos::parallel_for(Pass::kLabel,
                         Policy<Pass>(exec, league_of(teams), Pass::kThreads, 1)
                             .set_scratch_size(0, Kokkos::PerTeam(Pass::kBytes + kPacketAlignment)),
                         *this);
  }

  KOKKOS_FUNCTION void operator()(Keys, const Member& team) const {
    constexpr int kBytes = kKeysPadBytes;
    run_keys(team, static_cast<Real*>(team.team_scratch(0).get_shmem_aligned(kBytes, kPacketAlignment)));
  }
  KOKKOS_FUNCTION void operator()(Queries, const Member& team) const {
    constexpr int kBytes = kQueriesPadBytes;
    run_queries(team, static_cast<Real*>(team.team_scratch(0).get_shmem_aligned(kBytes, kPacketAlignment)));
  }

  /// Writes factor * gradient, of the rows that this thread owns.
  template <class Tiles, int kColumns>
  KOKKOS_FORCEINLINE_FUNCTION void write(const Tiles& own, const Real (&gradient)[Tiles::kRows][kColumns], Real factor,
                                         int count, int D, Scalar* rows, long stride) const {
    TESSERA_UNROLL_ON_DEVICE
    for (int i = 0; i < Tiles::kRows; ++i) {
      if (own.row(i) < count) write_channels(own, gradient[i], factor, D, fits_packets, rows + own.row(i) * stride);
    }
  }

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void run_keys(const Team& team, Real* pad) const {
    constexpr int kWidth = kKeysTiles.width, kRows = kKeysTiles.rows, kColumns = kKeysTiles.columns,
                  kThreads = kKeysTiles.threads();
    constexpr int kKeyTile = kKeysTiles.row_tile(), kQueryTile = kKeysTiles.column_tile();
    using Tiles = ThreadTiles<Real, kKeysTiles.down, kKeysTiles.across, kRows>;
    constexpr int kPack = Tiles::kPack, kPacks = kWidth / (kKeysTiles.across * kPack);
    static_assert(kPacks * kKeysTiles.across * kPack == kWidth && kQueryTile % 4 == 0);
    constexpr int kPitch = row_pitch(kWidth, sizeof(Real)), kPitchT = transposed_pitch(kKeyTile, sizeof(Real));
    constexpr int kPartials = delta_partials(kKeysTiles, sizeof(Real));

    const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
    const int depth = round_up(D, kPack);
    const int tiles = ceil_div(Tk, kKeyTile);
    const int first_key = team.league_rank() % tiles * kKeyTile;  // the keys that most queries see first
    const int h = team.league_rank() / tiles % task.q.extent_int(1);
    const int b = team.league_rank() / tiles / task.q.extent_int(1);
    const int keys = Tk - first_key < kKeyTile ? Tk - first_key : kKeyTile;
    const int diagonal = Tk - Tq;
    const int rank = team.team_rank();
    const Tiles own(rank);

    Real* k = pad;                                                       // [key_tile, width]
    Real* v = k + kKeyTile * kPitch;                                     // [key_tile, width]
    Real* q = v + kKeyTile * kPitch;                                     // [query_tile, width]
    Real* d_out = q + kQueryTile * kPitch;                               // [query_tile, width]
    Real* p_t = d_out + kQueryTile * kPitch;                             // [query_tile, key_tile]
    Real* ds_t = kKeysTiles.overlay ? p_t : p_t + kQueryTile * kPitchT;  // [query_tile, key_tile]
    Real* top = ds_t + kQueryTile * kPitchT;                             // [query_tile]
    Real* delta = top + kQueryTile;                                      // [query_tile]
    Real* partials = delta + kQueryTile;                                 // [query_tile, partials]

    {
      RowsInFlight<Scalar, kKeyTile, kWidth, kThreads> rows;
      rows.fetch(rank, &task.k(b, h, first_key, 0), task.k.stride(2), keys, D, fits_packets);
      rows.put(rank, Real(1), k, kPitch);
      rows.fetch(rank, &task.v(b, h, first_key, 0), task.v.stride(2), keys, D, fits_packets);
      rows.put(rank, Real(1), v, kPitch);
    }
    Real d_k[kRows][kPacks * kPack] = {}, d_v[kRows][kPacks * kPack] = {};
    const int seeing = task.causal ? first_key - diagonal : 0;  // the first query that sees one of these keys
    for (int first = seeing <= 0 ? 0 : seeing / kQueryTile * kQueryTile; first < Tq; first += kQueryTile) {
      const int queries = Tq - first;
      team.team_barrier();  // the previous tiles have been read
      {
        using Rows = RowsInFlight<Scalar, kQueryTile, kWidth, kThreads>;
        Rows rows, out;
        rows.fetch(rank, &task.q(b, h, first, 0), task.q.stride(2), queries, D, fits_packets);
        rows.put(rank, task.scale * kLog2E, q, kPitch);
        rows.fetch(rank, &task.d_out(b, h, first, 0), task.d_out.stride(2), queries, D, fits_packets);
        out.fetch(rank, &task.out(b, h, first, 0), task.out.stride(2), queries, D, fits_packets);
        rows.put(rank, Real(1), d_out, kPitch);
        rows.each_packet(rank, [&](int s, int n, int packet) { partials[n * kPartials + packet] = rows.dot(s, out); });
        for (int i = rank; i < kQueryTile; i += kThreads) {
          const Real lse = i < queries ? task.lse(b, h, first + i) : Real(-HUGE_VAL);
          top[i] = lse == Real(-HUGE_VAL) ? Real(HUGE_VAL) : lse * kLog2E;
        }
      }
      team.team_barrier();  // the tiles are complete

      for (int i = rank; i < kQueryTile; i += kThreads) {
        Real sum = 0;
        TESSERA_UNROLL_ON_DEVICE
        for (int packet = 0; packet < RowsInFlight<Scalar, kQueryTile, kWidth, kThreads>::kPackets; ++packet)
          sum += partials[i * kPartials + packet];
        delta[i] = sum;
      }
      Real p[kRows][kColumns] = {};
      own.multiply_rows(k, kPitch, q, kPitch, depth, p);
      const bool on_edge = task.causal && first_key + kKeyTile - 1 > first + diagonal;
      TESSERA_UNROLL_ON_DEVICE
      for (int j = 0; j < kColumns; ++j) {
        const Real top_j = top[own.column(j)];
        const int seen = on_edge ? keys_seen(true, first + own.column(j) + diagonal - first_key, kKeyTile) : kKeyTile;
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < kRows; ++i) p[i][j] = exp2(own.row(i) < seen ? p[i][j] - top_j : Real(-HUGE_VAL));
        own.store_column(p, j, p_t + own.column(j) * kPitchT);
      }
      if constexpr (kKeysTiles.overlay) team.team_barrier();  // p and delta are complete
      Real ds[kRows][kColumns] = {};
      own.multiply_rows(v, kPitch, d_out, kPitch, depth, ds);
      if constexpr (kKeysTiles.overlay) {
        own.template multiply_columns<kPacks>(p_t, kPitchT, d_out, kPitch, kQueryTile, d_v);
      }
      team.team_barrier();  // delta is complete; where ds takes the place of p, p has been read
      TESSERA_UNROLL_ON_DEVICE
      for (int j = 0; j < kColumns; ++j) {
        const Real delta_j = delta[own.column(j)];
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < kRows; ++i) ds[i][j] = p[i][j] * (ds[i][j] - delta_j);
        own.store_column(ds, j, ds_t + own.column(j) * kPitchT);
      }
      if constexpr (!kKeysTiles.overlay) {
        own.template multiply_columns<kPacks>(p_t, kPitchT, d_out, kPitch, kQueryTile, d_v);
      }
      team.team_barrier();  // ds is complete
      own.template multiply_columns<kPacks>(ds_t, kPitchT, q, kPitch, kQueryTile, d_k);
    }
    write(own, d_k, kLn2, keys, D, &task.d_k(b, h, first_key, 0), task.d_k.stride(2));
    write(own, d_v, Real(1), keys, D, &task.d_v(b, h, first_key, 0), task.d_v.stride(2));
  }

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void run_queries(const Team& team, Real* pad) const {
    constexpr int kWidth = kQueriesTiles.width, kRows = kQueriesTiles.rows, kColumns = kQueriesTiles.columns,
                  kThreads = kQueriesTiles.threads();
    constexpr int kQueryTile = kQueriesTiles.row_tile(), kKeyTile = kQueriesTiles.column_tile();
    using Tiles = ThreadTiles<Real, kQueriesTiles.down, kQueriesTiles.across, kRows>;
    constexpr int kPack = Tiles::kPack, kPacks = kWidth / (kQueriesTiles.across * kPack);
    static_assert(kPacks * kQueriesTiles.across * kPack == kWidth && kKeyTile % 4 == 0);
    constexpr int kPitch = row_pitch(kWidth, sizeof(Real)), kPitchT = transposed_pitch(kQueryTile, sizeof(Real));

    const int D = task.q.extent_int(3), depth = round_up(D, kPack);
    const QueryTile tile = query_tile_of(task, team.league_rank(), kQueryTile);
    const int b = tile.b, h = tile.h, first = tile.first, queries = tile.queries, all_keys = tile.all_keys;
    const int diagonal = tile.diagonal;
    const int rank = team.team_rank();
    const Tiles own(rank);

    Real* q = pad;                                                   // [query_tile, width]
    Real* d_out = q + kQueryTile * kPitch;                           // [query_tile, width]
    Real* k = d_out + kQueryTile * kPitch;                           // [key_tile, width]
    Real* v = k + kKeyTile * kPitch;                                 // [key_tile, width]
    Real* ds_t = kQueriesTiles.overlay ? v : v + kKeyTile * kPitch;  // [key_tile, query_tile]

    Real top[kRows], delta[kRows];
    {
      RowsInFlight<Scalar, kQueryTile, kWidth, kThreads> rows;
      rows.fetch(rank, &task.out(b, h, first, 0), task.out.stride(2), queries, D, fits_packets);
      rows.put(rank, Real(1), q, kPitch);  // for delta; the queries come after
      rows.fetch(rank, &task.d_out(b, h, first, 0), task.d_out.stride(2), queries, D, fits_packets);
      rows.put(rank, Real(1), d_out, kPitch);
      rows.fetch(rank, &task.q(b, h, first, 0), task.q.stride(2), queries, D, fits_packets);
      team.team_barrier();
      TESSERA_UNROLL_ON_DEVICE
      for (int i = 0; i < kRows; ++i) {
        const Real lse = own.row(i) < queries ? task.lse(b, h, first + own.row(i)) : Real(-HUGE_VAL);
        top[i] = lse == Real(-HUGE_VAL) ? Real(HUGE_VAL) : lse * kLog2E;
        delta[i] = 0;
        for (int d = 0; d < depth; d += kPack) {
          const auto a = load<kPack>(q + own.row(i) * kPitch + d), c = load<kPack>(d_out + own.row(i) * kPitch + d);
          TESSERA_UNROLL_ON_DEVICE
          for (int e = 0; e < kPack; ++e) delta[i] += a.element[e] * c.element[e];
        }
      }
      team.team_barrier();
      rows.put(rank, task.scale * kLog2E, q, kPitch);
    }
    Real d_q[kRows][kPacks * kPack] = {};

    for (int first_key = 0; first_key < all_keys; first_key += kKeyTile) {
      const int keys = all_keys - first_key;
      team.team_barrier();  // the previous tiles have been read
      {
        RowsInFlight<Scalar, kKeyTile, kWidth, kThreads> rows;
        rows.fetch(rank, &task.k(b, h, first_key, 0), task.k.stride(2), keys, D, fits_packets);
        rows.put(rank, Real(1), k, kPitch);
        rows.fetch(rank, &task.v(b, h, first_key, 0), task.v.stride(2), keys, D, fits_packets);
        rows.put(rank, Real(1), v, kPitch);
      }
      team.team_barrier();  // the tiles are complete
      Real p[kRows][kColumns] = {}, ds[kRows][kColumns] = {};
      own.multiply_rows(q, kPitch, k, kPitch, depth, p);
      own.multiply_rows(d_out, kPitch, v, kPitch, depth, ds);
      const bool on_edge = (task.causal && first_key + kKeyTile - 1 > first + diagonal) || keys < kKeyTile;
      if constexpr (kQueriesTiles.overlay) team.team_barrier();  // the values have been read
      TESSERA_UNROLL_ON_DEVICE
      for (int i = 0; i < kRows; ++i) {
        const int seen = on_edge ? keys_seen(task.causal, first + own.row(i) + diagonal - first_key, keys) : kKeyTile;
        TESSERA_UNROLL_ON_DEVICE
        for (int j = 0; j < kColumns; ++j) {
          const Real exponent = own.column(j) < seen ? p[i][j] - top[i] : Real(-HUGE_VAL);
          ds[i][j] = exp2(exponent) * (ds[i][j] - delta[i]);
        }
      }
      TESSERA_UNROLL_ON_DEVICE
      for (int j = 0; j < kColumns; ++j) own.store_column(ds, j, ds_t + own.column(j) * kPitchT);
      team.team_barrier();  // ds is complete
      own.template multiply_columns<kPacks>(ds_t, kPitchT, k, kPitch, kKeyTile, d_q);
    }
    write(own, d_q, task.scale, queries, D, &task.d_q(b, h, first, 0), task.d_q.stride(2));
  }
};

}  // namespace tessera::kernels
