/// FlashAttention-2, forward, with scores and output in the registers of a team's threads (core/thread_tiles.hpp).
#pragma once

#include <cmath>

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/rows_in_flight.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/core/thread_tiles.hpp"
#include "kernels/cuda/scratch.hpp"

namespace tessera::kernels {

/// How a team shares its tile. With kValuesOverKeys, v takes the place of k in the pad; with kAhead the next tile's keys
/// travel while the output of this one is computed.
template <int kWidth_, int kDown_, int kAcross_, int kRows_, int kKeys_, int kTeams_, bool kValuesOverKeys_,
          int kAhead_>
struct ForwardShape {
  static constexpr int kWidth = kWidth_, kDown = kDown_, kAcross = kAcross_, kRows = kRows_, kKeys = kKeys_,
                       kTeams = kTeams_, kAhead = kAhead_;
  static constexpr bool kValuesOverKeys = kValuesOverKeys_;
  static constexpr int kThreads = kDown * kAcross, kQueryTile = kDown * kRows, kKeyTile = kAcross * kKeys;

  template <class Real>
  static constexpr std::size_t pad_bytes() {
    const int rows = kQueryTile + (kValuesOverKeys ? 1 : 2) * kKeyTile;
    return sizeof(Real) * (rows * row_pitch<Real>(kWidth) + (kKeyTile + kAcross) * row_pitch<Real>(kQueryTile));
  }
};

template <class Exec, class Scalar, class Shape>
struct RegisterForward {
  using Real = Accum<Scalar>;

  ForwardTask<Exec, Scalar> task;
  bool fits_packets = false;

  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<Shape::kThreads, Shape::kTeams>>;
  using Member = typename Policy::member_type;

  void launch(const Exec& exec) const {
    const std::int64_t teams = std::int64_t{task.q.extent_int(0)} * task.q.extent_int(1) *
                               ceil_div(task.q.extent_int(2), Shape::kQueryTile);
    if (teams == 0) return;
    allow_large_scratch<RegisterForward, Policy>();
    Kokkos::parallel_for("tessera::attention::flash2::register_forward",
                         Policy(exec, league_of(teams), Shape::kThreads, 1)
                             .set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(Shape::template pad_bytes<Real>() + 16))),
                         *this);
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    run(team, static_cast<Real*>(team.team_scratch(0).get_shmem_aligned(Shape::template pad_bytes<Real>(), 16)));
  }

  template <class Team>
  KOKKOS_FORCEINLINE_FUNCTION void run(const Team& team, Real* pad) const {
    constexpr int kWidth = Shape::kWidth, kRows = Shape::kRows, kKeys = Shape::kKeys, kThreads = Shape::kThreads;
    constexpr int kQueryTile = Shape::kQueryTile, kKeyTile = Shape::kKeyTile, kAcross = Shape::kAcross;
    using Tiles = ThreadTiles<Real, Shape::kDown, kAcross, kRows>;
    using Pack = typename Tiles::Pack;
    constexpr int kPack = Tiles::kPack, kPacks = kWidth / (kAcross * kPack);
    static_assert(kPacks * kAcross * kPack == kWidth);
    constexpr int kPitch = row_pitch<Real>(kWidth), kPitchT = row_pitch<Real>(kQueryTile);

    const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2), D = task.q.extent_int(3);
    const int depth = round_up(D, kPack);
    const int tiles = ceil_div(Tq, kQueryTile);
    const int first = (tiles - 1 - team.league_rank() % tiles) * kQueryTile;
    const int h = team.league_rank() / tiles % task.q.extent_int(1);
    const int b = team.league_rank() / tiles / task.q.extent_int(1);
    const int queries = Tq - first < kQueryTile ? Tq - first : kQueryTile;
    const int diagonal = Tk - Tq;
    const int all_keys = keys_seen(task.causal, first + queries - 1 + diagonal, Tk);
    const int rank = team.team_rank();
    const Tiles own(rank);

    Real* q = pad;                                                  // [query_tile, width]
    Real* k = q + kQueryTile * kPitch;                              // [key_tile, width]
    Real* v = Shape::kValuesOverKeys ? k : k + kKeyTile * kPitch;   // [key_tile, width]
    Real* p_t = v + kKeyTile * kPitch;                              // [key_tile, query_tile]
    Real* part = p_t + kKeyTile * kPitchT;                          // [across, query_tile]

    constexpr Real kLog2E = 1.442695040888963407359924681;
    constexpr Real kLn2 = 0.693147180559945309417232121;
    const Scalar* k_rows = &task.k(b, h, 0, 0);
    const Scalar* v_rows = &task.v(b, h, 0, 0);
    const long k_stride = task.k.stride(2), v_stride = task.v.stride(2);

    {
      RowsInFlight<Scalar, kQueryTile, kWidth, kThreads> rows;
      rows.fetch(rank, &task.q(b, h, first, 0), task.q.stride(2), queries, D, fits_packets);
      rows.put(rank, task.scale * kLog2E, q, kPitch);
    }
    Real out[kRows][kPacks * kPack] = {}, top[kRows], sum[kRows];
    TESSERA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      top[i] = -HUGE_VAL;
      sum[i] = 0;
    }
    using KeyRows = RowsInFlight<Scalar, kKeyTile, kWidth, kThreads>;
    KeyRows ahead;
    if constexpr (Shape::kAhead > 0) ahead.fetch(rank, k_rows, k_stride, all_keys, D, fits_packets);

    for (int first_key = 0; first_key < all_keys; first_key += kKeyTile) {
      const int keys = all_keys - first_key;
      team.team_barrier();  // the previous tiles have been read
      if constexpr (Shape::kAhead == 0)
        ahead.fetch(rank, k_rows + first_key * k_stride, k_stride, keys, D, fits_packets);
      if constexpr (!Shape::kValuesOverKeys && Shape::kAhead < 2) {
        KeyRows values;
        values.fetch(rank, v_rows + first_key * v_stride, v_stride, keys, D, fits_packets);
        values.put(rank, Real(1), v, kPitch);
      }
      ahead.put(rank, Real(1), k, kPitch);
      team.team_barrier();  // the tiles are complete

      KeyRows values;
      if constexpr (Shape::kAhead == 2) values.fetch(rank, v_rows + first_key * v_stride, v_stride, keys, D, fits_packets);
      Real s[kRows][kKeys] = {};
      own.multiply_rows(q, kPitch, k, kPitch, depth, s);

      const bool on_edge = (task.causal && first_key + kKeyTile - 1 > first + diagonal) || keys < kKeyTile;
      if (on_edge) {
        TESSERA_UNROLL
        for (int i = 0; i < kRows; ++i) {
          const int seen = keys_seen(task.causal, first + own.row(i) + diagonal - first_key, keys);
          TESSERA_UNROLL
          for (int j = 0; j < kKeys; ++j) s[i][j] = own.column(j) < seen ? s[i][j] : Real(-HUGE_VAL);
        }
      }
      Real most[kRows][1];
      TESSERA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        most[i][0] = s[i][0];
        TESSERA_UNROLL
        for (int j = 1; j < kKeys; ++j) most[i][0] = larger(most[i][0], s[i][j]);
      }
      own.store_column(most, 0, part + own.x * kPitchT);
      team.team_barrier();  // maxima are complete; the keys have been read

      if constexpr (Shape::kValuesOverKeys && Shape::kAhead < 2)
        values.fetch(rank, v_rows + first_key * v_stride, v_stride, keys, D, fits_packets);
      if constexpr (Shape::kValuesOverKeys || Shape::kAhead == 2) values.put(rank, Real(1), v, kPitch);
      TESSERA_UNROLL
      for (int i = 0; i < kRows; i += kPack) {
        Real new_top[kPack];
        TESSERA_UNROLL
        for (int e = 0; e < kPack; ++e) new_top[e] = top[i + e];
        TESSERA_UNROLL
        for (int x = 0; x < kAcross; ++x) {
          const Pack pack = load<kPack>(part + x * kPitchT + own.position() + i);
          TESSERA_UNROLL
          for (int e = 0; e < kPack; ++e) new_top[e] = larger(new_top[e], pack.element[e]);
        }
        TESSERA_UNROLL
        for (int e = 0; e < kPack; ++e) {
          const Real safe_top = new_top[e] == Real(-HUGE_VAL) ? Real(0) : new_top[e];
          const Real shrink = Kokkos::exp2(top[i + e] - safe_top);
          top[i + e] = new_top[e];
          sum[i + e] *= shrink;
          TESSERA_UNROLL
          for (int j = 0; j < kKeys; ++j) {
            s[i + e][j] = Kokkos::exp2(s[i + e][j] - safe_top);
            sum[i + e] += s[i + e][j];
          }
          TESSERA_UNROLL
          for (int c = 0; c < kPacks * kPack; ++c) out[i + e][c] *= shrink;
        }
      }
      TESSERA_UNROLL
      for (int j = 0; j < kKeys; ++j) own.store_column(s, j, p_t + own.column(j) * kPitchT);
      team.team_barrier();  // exponentials and values are complete

      if constexpr (Shape::kAhead > 0) {
        if (keys > kKeyTile)
          ahead.fetch(rank, k_rows + (first_key + kKeyTile) * k_stride, k_stride, keys - kKeyTile, D, fits_packets);
      }
      own.template multiply_columns<kPacks>(p_t, kPitchT, v, kPitch, kKeyTile, out);
    }

    // normalise and write
    Real shares[kRows][1];
    TESSERA_UNROLL
    for (int i = 0; i < kRows; ++i) shares[i][0] = sum[i];
    own.store_column(shares, 0, part + own.x * kPitchT);
    team.team_barrier();
    TESSERA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      Real total = 0;
      for (int x = 0; x < kAcross; ++x) total += part[x * kPitchT + own.position() + i];
      const int n = own.row(i);
      if (n >= queries) continue;
      const Real inverse = total == 0 ? Real(0) : 1 / total;
      Scalar* row = &task.out(b, h, first + n, 0);
      TESSERA_UNROLL
      for (int g = 0; g < kPacks; ++g) {
        const int c = own.channel(g);
        if (fits_packets) {
          if (c < D) {
            Packet<Scalar, kPack> packet;
            TESSERA_UNROLL
            for (int e = 0; e < kPack; ++e) packet.set(e, out[i][g * kPack + e] * inverse);
            write_packet(row + c, packet);
          }
        } else {
          TESSERA_UNROLL
          for (int e = 0; e < kPack; ++e) {
            if (c + e < D) row[c + e] = static_cast<Scalar>(out[i][g * kPack + e] * inverse);
          }
        }
      }
      if (own.x == 0) task.lse(b, h, first + n) = total == 0 ? Real(-HUGE_VAL) : (top[i] + Kokkos::log2(total)) * kLn2;
    }
  }
};

}  // namespace tessera::kernels
