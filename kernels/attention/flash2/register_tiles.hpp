/// The tiles of flash2 on GPUs without tensor cores: how large they are, and how the threads of a team share them.
///
/// A team owns `row_tile` rows (queries forward, keys backward) and walks the others `column_tile` at a time. Sizes are
/// arithmetic only: a plan asks for those of any device.
///
/// Every width from 1 to kMaxHead has two sets: one for teams of 48 KiB, which every GPU grants, and one for sm_90,
/// which grants 227 KiB.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

#include "kernels/core/packet.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/target.hpp"

namespace tessera::kernels {

struct RegisterTiles {
  int width;             // numbers of a row in the pad; the head width is at most that
  int down, across;      // threads of a team
  int rows, columns;     // of scores that a thread owns
  int teams = 1;         // that a multiprocessor should hold: bounds the registers of a thread
  bool overlay = false;  // forward, v takes the place of k in the pad; backward, ds that of p
  int ahead = 0;         // tiles that travel while another is processed: forward k, and v; backward q and d_out

  constexpr int threads() const { return down * across; }
  constexpr int row_tile() const { return down * rows; }
  constexpr int column_tile() const { return across * columns; }
  constexpr bool operator==(const RegisterTiles&) const = default;

  /// On a step of the ladder (ladder_sizes.hpp): its blocks, and nothing ahead.
  constexpr RegisterTiles on_step(int steps) const {
    RegisterTiles tiles = *this;
    tiles.ahead = 0;
    if (steps == 4) {
      tiles.rows = rows < 4 ? rows : 4;
      tiles.columns = columns < 4 ? columns : 4;
    }
    return tiles;
  }
};

/// The pitch of a row of `columns` numbers of `real_bytes`, `columns` a multiple of two packets of 16 bytes: an odd
/// number of packets.
constexpr int row_pitch(int columns, int real_bytes) { return columns + kPacketBytes / real_bytes; }

/// The pitch of a transposed tile of `rows` rows: two packets more than a multiple of eight of them, which keeps the
/// packets apart that 2 x 4 threads write to neighbouring columns.
constexpr int transposed_pitch(int rows, int real_bytes) {
  const int pack = kPacketBytes / real_bytes;
  return round_up(rows, 8 * pack) + 2 * pack;
}

/// Bytes of the pad of a team: forward, and of backward's pass of keys.
constexpr int forward_pad_bytes(const RegisterTiles& t, int real_bytes) {
  const int rows = t.row_tile() + (t.overlay ? 1 : 2) * t.column_tile();
  return real_bytes * (rows * row_pitch(t.width, real_bytes) +
                       (t.column_tile() + t.across) * transposed_pitch(t.row_tile(), real_bytes));
}
constexpr int backward_pad_bytes(const RegisterTiles& t, int real_bytes) {
  return real_bytes *
         (2 * (t.row_tile() + t.column_tile()) * row_pitch(t.width, real_bytes) +
          (t.overlay ? 1 : 2) * t.column_tile() * transposed_pitch(t.row_tile(), real_bytes) + 2 * t.column_tile());
}

/// The tiles of one width, and of one type of numbers.
struct RegisterSet {
  RegisterTiles forward, backward;
};

inline constexpr int kRegisterWidths[] = {32, 64, 96, 128, 192, 256};

/// The narrowest of those widths that holds D.
constexpr int register_width(int D) {
  for (const int width : kRegisterWidths) {
    if (D <= width) return width;
  }
  return 0;
}

namespace detail {

/// For fp32 and 16 bits, whose numbers are fp32 in the pad. The fastest tried on an H200 or H100: T 4096, causal.
inline constexpr RegisterSet kLargeSets[] = {
    {{32, 16, 8, 8, 8, 2, false, 1}, {32, 8, 16, 8, 4, 3, false, 1}},
    {{64, 16, 8, 8, 8, 2}, {64, 8, 16, 8, 4, 2}},
    {{96, 16, 8, 8, 4, 2, false, 1}, {96, 32, 8, 4, 8}},
    {{128, 16, 16, 8, 4, 1, true, 1}, {128, 16, 16, 4, 4}},
    {{192, 16, 16, 8, 2, 1, true}, {192, 16, 16, 4, 4, 1, true}},
    {{256, 16, 16, 4, 4, 1, true}, {256, 8, 32, 4, 2}},
};
inline constexpr RegisterSet kSmallSets[] = {
    {{32, 16, 8, 8, 4, 1, true}, {32, 8, 8, 8, 4, 1, true}}, {{64, 8, 8, 8, 4, 1, true}, {64, 8, 8, 4, 4, 1, true}},
    {{96, 8, 8, 8, 2, 1, true}, {96, 8, 8, 4, 2, 1, true}},  {{128, 8, 8, 4, 2}, {128, 8, 8, 4, 1, 1, true}},
    {{192, 8, 8, 4, 1}, {192, 4, 8, 4, 1, 1, true}},         {{256, 8, 8, 4, 1, 1, true}, {256, 2, 8, 4, 1, 1, true}},
};
/// For fp64.
inline constexpr RegisterSet kLargeSets64[] = {
    {{32, 16, 16, 4, 4}, {32, 16, 16, 4, 2}},
    {{64, 16, 16, 4, 4}, {64, 8, 16, 4, 2}},
    {{96, 16, 16, 4, 2, 1, true}, {96, 8, 16, 4, 2, 1, true}},
    {{128, 16, 16, 4, 2, 1, true}, {128, 16, 16, 4, 2, 1, true}},
    {{192, 8, 16, 4, 2, 1, true}, {192, 16, 16, 2, 2}},
    {{256, 8, 16, 4, 2, 1, true}, {256, 16, 16, 2, 1}},
};
inline constexpr RegisterSet kSmallSets64[] = {
    {{32, 8, 8, 4, 2, 1, true}, {32, 8, 8, 4, 2, 1, true}}, {{64, 8, 8, 4, 2, 1, true}, {64, 8, 8, 2, 1, 1, true}},
    {{96, 8, 8, 4, 1, 1, true}, {96, 8, 8, 2, 1, 1, true}}, {{128, 8, 8, 2, 1}, {128, 4, 8, 2, 1, 1, true}},
    {{192, 8, 4, 2, 1}, {192, 4, 4, 2, 1, 1, true}},        {{256, 8, 4, 2, 1, 1, true}, {256, 2, 4, 2, 1, 1, true}},
};

}  // namespace detail

/// The tiles for head width D, in numbers of `real_bytes`.
constexpr RegisterSet register_tiles(const Target& target, int real_bytes, int D) {
  const int width = register_width(D);
  const bool is_large = target.team_scratch_kib > 200;
  const auto& sets = real_bytes == 8 ? (is_large ? detail::kLargeSets64 : detail::kSmallSets64)
                                     : (is_large ? detail::kLargeSets : detail::kSmallSets);
  for (const RegisterSet& set : sets) {
    if (set.forward.width == width) return set;
  }
  return sets[0];
}

/// What backward's launches share, in the workspace. Rows of queries are padded to whole tiles.
template <class Real>
struct RegisterRows {
  static constexpr int kPadding = 128, kLeastTile = 4;  // every tile of queries is a multiple of one, divides the other

  Real* lse;            // [B*H, rows]  +inf past Tq and where no key is seen, so that p = 0
  Real* delta;          // [B*H, rows]
  Real* d_q;            // [B*H, rows, width]  16 bits: sums of d_q / scale; other dtypes sum in d_q itself
  std::int32_t* turns;  // [B*H, rows / kLeastTile]  tiles of keys that have added to a tile of queries
  std::int32_t* next;   // []  teams that have started
  int rows;

  static constexpr std::int64_t rows_of(int Tq) {
    return round_up(Tq > 0 ? Tq : std::int64_t{1}, std::int64_t{kPadding});
  }
  static constexpr std::int64_t sums(bool is_16_bit, int D) { return is_16_bit ? register_width(D) : 0; }
  static constexpr std::int64_t bytes(bool is_16_bit, int B, int H, int Tq, int D) {
    const std::int64_t all = rows_of(Tq) * B * H;
    return all * (2 + sums(is_16_bit, D)) * sizeof(Real) + (all / kLeastTile + 1) * 4;
  }
  static RegisterRows in(std::byte* workspace, bool is_16_bit, int B, int H, int Tq, int D) {
    const std::int64_t all = rows_of(Tq) * B * H;
    Real* first = reinterpret_cast<Real*>(workspace);
    auto* turns = reinterpret_cast<std::int32_t*>(first + all * (2 + sums(is_16_bit, D)));
    return {first, first + all, first + 2 * all, turns, turns + all / kLeastTile, static_cast<int>(rows_of(Tq))};
  }
};

}  // namespace tessera::kernels
