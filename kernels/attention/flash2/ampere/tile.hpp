/// Tiles of 16-bit rows in scratch, and products of them on mma.sync; shared by the sm_80 attention kernels.
///
/// A tile has rows of kWidth elements, a multiple of 16, without padding. The 16-byte chunks of a row are permuted
/// (chunk c of row r lies at place c ^ x(r)) so that eight consecutive rows of one chunk lie in different banks:
/// neither ldmatrix nor cp.async has bank conflicts. Columns from D to kWidth are zero.
#pragma once

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>

#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/core/compat.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/cuda/mma_sync.hpp"
#include "kernels/cuda/registers.hpp"
#include "kernels/cuda/shared.hpp"

namespace tessera::kernels::ampere {

using cuda::SharedAddress;

/// Address of row `row` of head h of sequence b.
template <class Heads>
TESSERA_DEVICE auto row_of(const Heads& heads, int b, int h, int row) {
  return heads.data() + b * heads.stride(0) + h * heads.stride(1) + row * heads.stride(2);
}

template <int kWidth_>
struct TileLayout {
  static constexpr int kWidth = kWidth_;
  static constexpr int kChunks = kWidth / 8;  // 16-byte chunks of a row
  static constexpr int kRowBytes = tile_bytes(kWidth, 1);
  static constexpr int kFactor = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;  // chunks permuted among each other
  static constexpr int kRowsPerTurn = 8 / kFactor;                                 // rows with the same permutation

  static constexpr int bytes(int rows) { return tile_bytes(kWidth, rows); }
  static TESSERA_DEVICE int place(int row, int chunk) { return chunk ^ (row / kRowsPerTurn % kFactor); }
  static TESSERA_DEVICE int offset(int row, int chunk) { return row * kRowBytes + place(row, chunk) * 16; }

  /// Starts the copy of kRows rows of D elements each, of which the first `count` exist; the rest becomes zero.
  template <int kRows, int kThreads, class Scalar>
  static TESSERA_DEVICE void copy_rows(SharedAddress tile, const Scalar* rows, std::int64_t stride, int count, int D,
                                       int thread) {
    constexpr int kPassRows = kThreads / kFactor;  // a thread keeps its row and its chunk modulo kFactor
    static_assert(kPassRows % 8 == 0);
    const int first_row = thread / kFactor, first_chunk = thread % kFactor;
    const Scalar* from = rows + first_row * stride + first_chunk * 8;
    const SharedAddress to = tile + offset(first_row, first_chunk);
    const bool is_whole = count >= kRows && D == kWidth;
    TESSERA_UNROLL
    for (int pass_row = 0; pass_row < kRows; pass_row += kPassRows) {
      const int row = pass_row + first_row;
      if (kRows % kPassRows == 0 || row < kRows) {
        if (is_whole) {
          TESSERA_UNROLL
          for (int chunk = 0; chunk < kChunks; chunk += kFactor) {
            cuda::copy_16(to + pass_row * kRowBytes + chunk * 16, from + chunk * 8);
          }
        } else {
          TESSERA_UNROLL
          for (int chunk = 0; chunk < kChunks; chunk += kFactor) {
            cuda::copy_16_or_zero(to + pass_row * kRowBytes + chunk * 16, from + chunk * 8,
                                  row < count && (first_chunk + chunk) * 8 < D);
          }
        }
      }
      from += kPassRows * stride;
    }
  }

  /// Addresses from which a lane loads 16x16 blocks of a tile whose first row is a multiple of 16.
  ///
  /// `as_rows`: matrices in the order (rows 0-7, 8-15) x (columns 0-7), then columns 8-15: an a fragment; transposed on
  /// the way, the b fragments of two neighbouring columns of 8 with the block's rows as depth.
  /// `as_columns`: columns 0-7, 8-15 of rows 0-7, then of rows 8-15: the b fragments of two times 8 rows, the block's
  /// columns as depth.
  struct Reader {
    SharedAddress row;
    int turn;  // the lane's chunk parity and its row's places, times 16

    static TESSERA_DEVICE Reader as_rows(SharedAddress tile, int lane) { return at(tile, lane & 15, lane >> 4); }
    static TESSERA_DEVICE Reader as_columns(SharedAddress tile, int lane) {
      return at(tile, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
    }
    /// For the first half of each row of matrices only: rows 0-15 of chunk `chunk`, for loads of two matrices.
    static TESSERA_DEVICE Reader as_rows_of_half(SharedAddress tile, int lane, int chunk) {
      return {tile + offset(lane & 15, chunk), 0};
    }
    /// The same place in a tile that lies `bytes` further.
    TESSERA_DEVICE Reader of_tile(int bytes) const { return {row + bytes, turn}; }

    /// The same place, `block` columns of 16 further right.
    TESSERA_DEVICE Reader of_block(int block) const {
      const int low = 2 * block % kFactor;
      return {row + (2 * block - low) * 16, turn ^ low * 16};
    }

    /// Block column `block` (16 elements wide), `row_offset` rows (a multiple of 16) further down.
    TESSERA_DEVICE SharedAddress operator()(int row_offset, int block) const {
      const int low = 2 * block % kFactor, high = 2 * block - low;
      return row + (turn ^ low * 16) + (row_offset * kRowBytes + high * 16);
    }

   private:
    static TESSERA_DEVICE Reader at(SharedAddress tile, int row, int chunk) {
      return {tile + row * kRowBytes, place(row, chunk) * 16};
    }
  };
};

/// Writes the first `count` rows of a tile, D elements each.
template <class Layout, int kThreads, class Scalar>
TESSERA_DEVICE void write_rows(SharedAddress tile, Scalar* rows, std::int64_t stride, int count, int D, int thread) {
  for (int piece = thread; piece < count * Layout::kChunks; piece += kThreads) {
    const int row = piece / Layout::kChunks, chunk = piece % Layout::kChunks;
    if (chunk * 8 < D) {
      *reinterpret_cast<uint4*>(rows + row * stride + chunk * 8) =
          cuda::shared_load_words(tile + Layout::offset(row, chunk));
    }
  }
}

/// Which tile of which head a team owns: groups of heads that share the L2 cache one after the other; inside a group
/// tile by tile, heads fastest.
struct TilePlace {
  int head, tile;
};
TESSERA_DEVICE TilePlace place_of(int rank, int heads_of_group, int heads, int tiles) {
  const int group = rank / (heads_of_group * tiles), first_head = group * heads_of_group;
  const int in_group = rank - first_head * tiles, group_heads = min(heads_of_group, heads - first_head);
  return {first_head + in_group % group_heads, in_group / group_heads};
}

/// Heads whose two tensors of T rows fit in about half of the L2 cache of the larger chips.
inline int heads_in_cache(std::int64_t T, std::int64_t D, int heads) {
  constexpr double kBytes = 24 << 20;
  return static_cast<int>(std::clamp(kBytes / (4.0 * T * D + 1), 1.0, static_cast<double>(heads)));
}

/// How many keys of [0, most) lie below `end`.
TESSERA_DEVICE int keys_below(int end, int most) { return max(0, min(end, most)); }

/// Accumulators of kRows x kColumns: 16-row tiles of 8-column tiles.
template <int kRowTiles, int kColumns>
using Sums = float[kRowTiles][kColumns / 8][4];

template <int kRowTiles, int kColumns>
TESSERA_DEVICE void clear(float (&sums)[kRowTiles][kColumns][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0;
    }
  }
}

/// The a fragment that two neighbouring 8-column tiles of sums are, rounded to Scalar.
template <class Scalar>
TESSERA_DEVICE void pack_fragment(const float (&left)[4], const float (&right)[4], std::uint32_t (&a)[4]) {
  a[0] = cuda::pack<Scalar>(left[0], left[1]);
  a[1] = cuda::pack<Scalar>(left[2], left[3]);
  a[2] = cuda::pack<Scalar>(right[0], right[1]);
  a[3] = cuda::pack<Scalar>(right[2], right[3]);
}

}  // namespace tessera::kernels::ampere
