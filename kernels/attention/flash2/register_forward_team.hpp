/// The team of RegisterForward, for rows of one width; its files are compiled one per width.
#pragma once

#include <cmath>

#include "kernels/attention/flash2/register_forward.hpp"
#include "kernels/attention/flash2/rows_in_flight.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/thread_tiles.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar, RegisterTiles kTiles>
struct RegisterForwardTeam {
  using Real = Accum<Scalar>;

  ForwardTask<Exec, Scalar> task;
  bool fits_packets;  // rows start and end at multiples of 16 bytes

  static constexpr int kPadBytes = forward_pad_bytes(kTiles, sizeof(Real));
  /// Keys whose values are summed apart: in one sum the error would grow with Tk. 16 bits do not show it.
  static constexpr int kRun = 1024;
  static constexpr bool kSumsInPlace = std::is_same_v<Scalar, Real>;

  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<kTiles.threads(), kTiles.teams>>;
  using Member = typename Policy::member_type;

  void launch(const Exec& exec) const {
    const std::int64_t heads = std::int64_t{task.q.extent_int(0)} * task.q.extent_int(1);
    const std::int64_t teams = heads * ceil_div(task.q.extent_int(2), kTiles.row_tile());
    if (teams == 0) return;
    allow_large_scratch<RegisterForwardTeam, Policy>();
    Kokkos::parallel_for("tessera::attention::flash2::forward",
                         Policy(exec, league_of(teams), kTiles.threads(), 1)
                             .set_scratch_size(0, Kokkos::PerTeam(kPadBytes + kPacketBytes)),
                         *this);
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    constexpr int kBytes = kPadBytes;
    run(team, static_cast<Real*>(team.team_scratch(0).get_shmem_aligned(kBytes, kPacketBytes)));
  }

  /// What a team does, in kPadBytes aligned to 16 bytes. Team is Kokkos' or, in tests, threads of the host.
  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void run(const Team& team, Real* pad) const {
    constexpr int kWidth = kTiles.width, kRows = kTiles.rows, kKeys = kTiles.columns, kThreads = kTiles.threads();
    constexpr int kQueryTile = kTiles.row_tile(), kKeyTile = kTiles.column_tile(), kAcross = kTiles.across;
    using Tiles = ThreadTiles<Real, kTiles.down, kAcross, kRows>;
    using Pack = typename Tiles::Pack;
    constexpr int kPack = Tiles::kPack, kPacks = kWidth / (kAcross * kPack);
    static_assert(kPacks * kAcross * kPack == kWidth);
    constexpr int kPitch = row_pitch(kWidth, sizeof(Real)), kPitchT = transposed_pitch(kQueryTile, sizeof(Real));

    const int D = task.q.extent_int(3), depth = round_up(D, Tiles::kDepth);
    const QueryTile tile = query_tile_of(task, team.league_rank(), kQueryTile);
    const int b = tile.b, h = tile.h, first = tile.first, queries = tile.queries, all_keys = tile.all_keys;
    const int diagonal = tile.diagonal;
    const int rank = team.team_rank();
    const Tiles own(rank);

    Real* q = pad;                                         // [query_tile, width]
    Real* k = q + kQueryTile * kPitch;                     // [key_tile, width]
    Real* v = kTiles.overlay ? k : k + kKeyTile * kPitch;  // [key_tile, width]
    Real* p_t = v + kKeyTile * kPitch;                     // [key_tile, query_tile]
    Real* part = p_t + kKeyTile * kPitchT;                 // [across, query_tile]

    const Scalar* k_rows = &task.k(b, h, 0, 0);
    const Scalar* v_rows = &task.v(b, h, 0, 0);
    const long k_stride = task.k.stride(2), v_stride = task.v.stride(2);

    // 1. stage the queries, scaled so that exponentials are powers of two; clear the running state
    {
      RowsInFlight<Scalar, kQueryTile, kWidth, kThreads> rows;
      rows.fetch(rank, &task.q(b, h, first, 0), task.q.stride(2), queries, D, fits_packets);
      rows.put(rank, task.scale * kLog2e<Real>, q, kPitch);
    }
    Real out[kRows][kPacks * kPack] = {}, top[kRows], sum[kRows];
    TESSERA_UNROLL_ON_DEVICE
    for (int i = 0; i < kRows; ++i) {
      top[i] = -HUGE_VAL;
      sum[i] = 0;
    }
    using KeyRows = RowsInFlight<Scalar, kKeyTile, kWidth, kThreads>;
    KeyRows ahead;
    if constexpr (kTiles.ahead > 0) ahead.fetch(rank, k_rows, k_stride, all_keys, D, fits_packets);

    int first_key = 0;
    do {
      const int run = first_key, end = kSumsInPlace && all_keys - run > kRun ? run + kRun : all_keys;
      for (; first_key < end; first_key += kKeyTile) {
        const int keys = all_keys - first_key;
        // 2. stage keys, and values unless they come later
        team.team_barrier();  // the previous tiles have been read
        if constexpr (kTiles.ahead == 0)
          ahead.fetch(rank, k_rows + first_key * k_stride, k_stride, keys, D, fits_packets);
        if constexpr (!kTiles.overlay && kTiles.ahead < 2) {
          KeyRows values;
          values.fetch(rank, v_rows + first_key * v_stride, v_stride, keys, D, fits_packets);
          values.put(rank, Real(1), v, kPitch);
        }
        ahead.put(rank, Real(1), k, kPitch);
        team.team_barrier();  // the tiles are complete

        KeyRows values;
        if constexpr (kTiles.ahead == 2)
          values.fetch(rank, v_rows + first_key * v_stride, v_stride, keys, D, fits_packets);
        // 3. scores
        Real s[kRows][kKeys] = {};
        own.multiply_rows(q, kPitch, k, kPitch, depth, s);

        // 4. running softmax; the maximum of a row is that of the threads that share it
        const bool on_edge = (task.causal && first_key + kKeyTile - 1 > first + diagonal) || keys < kKeyTile;
        if (on_edge) {
          TESSERA_UNROLL_ON_DEVICE
          for (int i = 0; i < kRows; ++i) {
            const int seen = keys_seen(task.causal, first + own.row(i) + diagonal - first_key, keys);
            TESSERA_UNROLL_ON_DEVICE
            for (int j = 0; j < kKeys; ++j) s[i][j] = own.column(j) < seen ? s[i][j] : Real(-HUGE_VAL);
          }
        }
        Real most[kRows][1];
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < kRows; ++i) {
          most[i][0] = s[i][0];
          TESSERA_UNROLL_ON_DEVICE
          for (int j = 1; j < kKeys; ++j) most[i][0] = larger(most[i][0], s[i][j]);
        }
        own.store_column(most, 0, part + own.x * kPitchT);
        team.team_barrier();  // maxima are complete; the keys have been read

        if constexpr (kTiles.overlay && kTiles.ahead < 2)
          values.fetch(rank, v_rows + first_key * v_stride, v_stride, keys, D, fits_packets);
        if constexpr (kTiles.overlay || kTiles.ahead == 2) values.put(rank, Real(1), v, kPitch);
        TESSERA_UNROLL_ON_DEVICE
        for (int i = 0; i < kRows; i += kPack) {
          Real new_top[kPack];
          TESSERA_UNROLL_ON_DEVICE
          for (int e = 0; e < kPack; ++e) new_top[e] = top[i + e];
          TESSERA_UNROLL_ON_DEVICE
          for (int x = 0; x < kAcross; ++x) {
            const Pack pack = load<kPack>(part + x * kPitchT + own.position(i));
            TESSERA_UNROLL_ON_DEVICE
            for (int e = 0; e < kPack; ++e) new_top[e] = larger(new_top[e], pack.element[e]);
          }
          TESSERA_UNROLL_ON_DEVICE
          for (int e = 0; e < kPack; ++e) {
            const Real safe_top = finite_top(new_top[e]), shrink = exp2(top[i + e] - safe_top);
            top[i + e] = new_top[e];
            Real tile_sum = 0;
            TESSERA_UNROLL_ON_DEVICE
            for (int j = 0; j < kKeys; ++j) {
              s[i + e][j] = exp2(s[i + e][j] - safe_top);
              tile_sum += s[i + e][j];
            }
            sum[i + e] = sum[i + e] * shrink + tile_sum;
            TESSERA_UNROLL_ON_DEVICE
            for (int c = 0; c < kPacks * kPack; ++c) out[i + e][c] *= shrink;
          }
        }
        TESSERA_UNROLL_ON_DEVICE
        for (int j = 0; j < kKeys; ++j) own.store_column(s, j, p_t + own.column(j) * kPitchT);
        team.team_barrier();  // exponentials and values are complete

        // 5. out += p v, while the next keys travel
        if constexpr (kTiles.ahead > 0) {
          if (keys > kKeyTile)
            ahead.fetch(rank, k_rows + (first_key + kKeyTile) * k_stride, k_stride, keys - kKeyTile, D, fits_packets);
        }
        own.template multiply_columns<kPacks, kKeyTile>(p_t, kPitchT, v, kPitch, out);
      }

      // 6. what the runs before have left in out, relative to the maxima in lse, joins; the next run will find it there
      if constexpr (kSumsInPlace) {
        if (run > 0) {
          TESSERA_UNROLL_ON_DEVICE
          for (int i = 0; i < kRows; ++i) {
            const int n = own.row(i);
            if (n >= queries) continue;
            const Real shrink = exp2(task.lse(b, h, first + n) - finite_top(top[i]));
            add_channels(own, &task.out(b, h, first + n, 0), shrink, D, fits_packets, out[i]);
          }
        }
        if (first_key < all_keys) {
          team.team_barrier();  // the maxima have been read
          TESSERA_UNROLL_ON_DEVICE
          for (int i = 0; i < kRows; ++i) {
            if (const int n = own.row(i); n < queries) {
              write_channels(own, out[i], Real(1), D, fits_packets, &task.out(b, h, first + n, 0));
              if (own.x == 0) task.lse(b, h, first + n) = top[i];
            }
            TESSERA_UNROLL_ON_DEVICE
            for (int c = 0; c < kPacks * kPack; ++c) out[i][c] = 0;
          }
        }
      }
    } while (first_key < all_keys);

    // 7. normalise and write; each thread has summed its own keys
    Real shares[kRows][1];
    TESSERA_UNROLL_ON_DEVICE
    for (int i = 0; i < kRows; ++i) shares[i][0] = sum[i];
    own.store_column(shares, 0, part + own.x * kPitchT);
    team.team_barrier();  // the sums are complete
    TESSERA_UNROLL_ON_DEVICE
    for (int i = 0; i < kRows; ++i) {
      Real total = 0;
      for (int x = 0; x < kAcross; ++x) total += part[x * kPitchT + own.position(i)];
      const int n = own.row(i);
      if (n >= queries) continue;
      const Real inverse = total == 0 ? Real(0) : 1 / total;
      write_channels(own, out[i], inverse, D, fits_packets, &task.out(b, h, first + n, 0));
      if (own.x == 0) task.lse(b, h, first + n) = total == 0 ? Real(-HUGE_VAL) : top[i] * kLn2<Real> + log(total);
    }
  }
};

}  // namespace tessera::kernels
