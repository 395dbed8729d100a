/// The tiles of flash2 on GPUs without tensor cores: how large they are, and how the threads of a team share them.
///
/// A team owns `row_tile` rows (queries forward and in backward's pass of queries, keys in its pass of keys) and walks
/// the others `column_tile` at a time. Sizes are arithmetic only: a plan asks for those of any device.
///
/// Every width from 1 to kMaxHead has two sets: one for teams of 48 KiB, which every GPU grants, and one for sm_90,
/// which grants 227 KiB.
#pragma once

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>

#include "kernels/core/round_up.hpp"
#include "kernels/core/target.hpp"

namespace tessera::kernels {

struct RegisterTiles {
  int width;             // numbers of a row in the pad; the head width is at most that
  int down, across;      // threads of a team
  int rows, columns;     // of scores that a thread owns
  int teams = 1;         // that a multiprocessor should hold: bounds the registers of a thread
  bool overlay = false;  // forward, v takes the place of k in the pad; backward, ds that of p, or of v
  int ahead = 0;         // forward: of k, and v, tiles that travel while another is processed

  constexpr int threads() const { return down * across; }
  constexpr int row_tile() const { return down * rows; }
  constexpr int column_tile() const { return across * columns; }
  constexpr bool operator==(const RegisterTiles&) const = default;
};

/// The pitch of a row of `columns` numbers of `real_bytes`, `columns` a multiple of two packets of 16 bytes: an odd
/// number of packets.
constexpr int row_pitch(int columns, int real_bytes) { return columns + 16 / real_bytes; }

/// The pitch of a transposed tile of `rows` rows: two packets more than a multiple of eight of them, which keeps the
/// packets apart that 2 x 4 threads write to neighbouring columns.
constexpr int transposed_pitch(int rows, int real_bytes) {
  const int pack = 16 / real_bytes;
  return round_up(rows, 8 * pack) + 2 * pack;
}

/// Bytes of the pads of a team: forward, and of backward's two passes.
constexpr int forward_pad_bytes(const RegisterTiles& t, int real_bytes) {
  const int rows = t.row_tile() + (t.overlay ? 1 : 2) * t.column_tile();
  return real_bytes * (rows * row_pitch(t.width, real_bytes) +
                       (t.column_tile() + t.across) * transposed_pitch(t.row_tile(), real_bytes));
}
/// Partial sums of delta of a query: one per packet of d_out, an odd number.
constexpr int delta_partials(const RegisterTiles& t, int real_bytes) { return t.width * real_bytes / 16 + 1; }
constexpr int keys_pad_bytes(const RegisterTiles& t, int real_bytes) {
  return real_bytes * (2 * (t.row_tile() + t.column_tile()) * row_pitch(t.width, real_bytes) +
                       (t.overlay ? 1 : 2) * t.column_tile() * transposed_pitch(t.row_tile(), real_bytes) +
                       t.column_tile() * (delta_partials(t, real_bytes) + 2));
}
constexpr int queries_pad_bytes(const RegisterTiles& t, int real_bytes) {
  const int rows = t.column_tile() * row_pitch(t.width, real_bytes);
  const int ds = t.column_tile() * transposed_pitch(t.row_tile(), real_bytes);
  return real_bytes * (2 * t.row_tile() * row_pitch(t.width, real_bytes) + rows) +
         real_bytes * (t.overlay ? std::max(rows, ds) : rows + ds);
}

/// The tiles of one width, and of one type of numbers.
struct RegisterSet {
  RegisterTiles forward, keys, queries;
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

/// For fp32 and 16 bits, whose numbers are fp32 in the pad. The fastest tried on an H200: T 4096, causal, B 4, H 16.
inline constexpr RegisterSet kLargeSets[] = {
    {{32, 16, 8, 8, 8, 2, false, 1}, {32, 16, 8, 8, 4, 2, true}, {32, 16, 8, 8, 4, 2}},
    {{64, 16, 8, 8, 8, 2}, {64, 8, 16, 8, 4, 2}, {64, 16, 16, 8, 4}},
    {{96, 16, 8, 8, 4, 2, false, 1}, {96, 16, 8, 4, 4, 2, true}, {96, 16, 8, 4, 4, 2}},
    {{128, 16, 16, 8, 8, 1, true}, {128, 16, 16, 4, 4}, {128, 16, 16, 8, 4, 1, true}},
    {{192, 16, 16, 8, 2, 1, true}, {192, 16, 16, 4, 1, 1, true}, {192, 16, 16, 4, 2, 1, true}},
    {{256, 16, 16, 8, 2, 1, true}, {256, 8, 16, 4, 2, 1, true}, {256, 8, 16, 4, 4, 1, true}},
};
inline constexpr RegisterSet kSmallSets[] = {
    {{32, 16, 8, 8, 4, 1, true}, {32, 8, 8, 8, 4, 1, true}, {32, 8, 8, 8, 4}},
    {{64, 8, 8, 8, 4, 1, true}, {64, 8, 8, 4, 4, 1, true}, {64, 8, 8, 4, 4}},
    {{96, 8, 8, 8, 2, 1, true}, {96, 8, 8, 4, 2, 1, true}, {96, 8, 8, 4, 2}},
    {{128, 8, 8, 4, 2}, {128, 8, 8, 4, 1, 1, true}, {128, 8, 8, 4, 1}},
    {{192, 8, 8, 4, 1}, {192, 4, 8, 4, 1, 1, true}, {192, 4, 8, 4, 1}},
    {{256, 8, 8, 4, 1, 1, true}, {256, 2, 8, 4, 1, 1, true}, {256, 2, 8, 4, 1}},
};
/// For fp64.
inline constexpr RegisterSet kLargeSets64[] = {
    {{32, 16, 16, 4, 4}, {32, 16, 16, 4, 2}, {32, 16, 16, 4, 4}},
    {{64, 16, 16, 4, 4}, {64, 16, 16, 4, 2, 1, true}, {64, 16, 16, 4, 2}},
    {{96, 16, 16, 4, 2, 1, true}, {96, 8, 16, 4, 2, 1, true}, {96, 8, 16, 4, 2}},
    {{128, 16, 16, 4, 2, 1, true}, {128, 8, 16, 4, 2, 1, true}, {128, 8, 16, 4, 2}},
    {{192, 8, 16, 4, 2, 1, true}, {192, 8, 16, 4, 1, 1, true}, {192, 8, 16, 4, 1}},
    {{256, 8, 16, 4, 2, 1, true}, {256, 8, 16, 2, 1, 1, true}, {256, 8, 16, 2, 1}},
};
inline constexpr RegisterSet kSmallSets64[] = {
    {{32, 8, 8, 4, 2, 1, true}, {32, 8, 8, 4, 2, 1, true}, {32, 8, 8, 4, 2}},
    {{64, 8, 8, 4, 2, 1, true}, {64, 8, 8, 2, 1, 1, true}, {64, 8, 8, 2, 2}},
    {{96, 8, 8, 4, 1, 1, true}, {96, 8, 8, 2, 1, 1, true}, {96, 8, 8, 2, 1}},
    {{128, 8, 8, 2, 1}, {128, 4, 8, 2, 1, 1, true}, {128, 4, 8, 2, 1}},
    {{192, 8, 4, 2, 1}, {192, 4, 4, 2, 1, 1, true}, {192, 4, 4, 2, 1}},
    {{256, 8, 4, 2, 1, 1, true}, {256, 2, 4, 2, 1, 1, true}, {256, 2, 4, 2, 1}},
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

}  // namespace tessera::kernels
