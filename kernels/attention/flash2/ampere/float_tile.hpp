/// Tiles of float rows in scratch, and products of them on mma.sync in TF32; shared by the sm_80 kernels for float.
///
/// TF32 keeps 10 of a float's 23 fraction bits. One product cuts both factors to it. Three products split each factor
/// into big + rest, both TF32, and add big*rest, rest*big and big*big; rest*rest, left out, is 2^-22 of the product.
///
/// Tensor cores truncate each sum. So the small products are summed apart, where the truncation is as small as they
/// are, and long sums are made of parts that start from zero and are added in float.
///
/// Rows are kWidth + 4 elements apart, an odd multiple of 16 bytes: no bank conflicts, neither for ldmatrix nor for
/// pairs. Columns from D to kWidth are zero.
///
/// The order of the depth is free if both operands share it, and so is that of columns. Where b has its depth down the
/// rows of a tile, depth t and t+4 of a fragment are rows 2t and 2t+1, as accumulators have them, so accumulators
/// become a operands without an exchange; column g of two neighbouring fragments are columns 2g and 2g+1, so that one
/// load of 8 bytes serves both, and a lane ends with four neighbouring columns (four_of).
#pragma once

#include <cstdint>

#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/flash2/ampere/tile.hpp"
#include "kernels/cuda/mma_sync.hpp"

namespace tessera::kernels::ampere {

template <int kWidth_>
struct FloatTile {
  static constexpr int kWidth = kWidth_, kRowBytes = float_tile_bytes(kWidth, 1);
  static constexpr int bytes(int rows) { return float_tile_bytes(kWidth, rows); }

  /// Starts the copy of kRows rows of D elements each, of which the first `count` exist; the rest becomes zero.
  template <int kRows, int kThreads>
  static TESSERA_DEVICE void copy_rows(SharedAddress tile, const float* rows, std::int64_t stride, int count, int D,
                                       int thread) {
    constexpr int kChunks = kWidth / 4, kPieces = kRows * kChunks;
    const bool is_whole = count >= kRows && D == kWidth;
    TESSERA_UNROLL
    for (int first = 0; first < kPieces; first += kThreads) {
      const int piece = first + thread, row = piece / kChunks, chunk = piece % kChunks;
      if (kPieces % kThreads != 0 && piece >= kPieces) break;
      const SharedAddress to = tile + row * kRowBytes + chunk * 16;
      const float* from = rows + row * stride + chunk * 4;
      if (is_whole) {
        cuda::copy_16(to, from);
      } else {
        cuda::copy_16_or_zero(to, from, row < count && chunk * 4 < D);
      }
    }
  }

  /// Where a lane reads. `as_rows`: 16 rows of 8 columns, an a fragment. `as_columns`: two times 8 rows of 8 columns,
  /// the b fragments of which these columns are the depth. `as_pairs`: columns 2g, 2g+1 of rows 2t and, with `odd`,
  /// 2t+1 of 8 rows by 16 columns.
  struct Reader {
    SharedAddress first;

    static TESSERA_DEVICE Reader as_rows(SharedAddress tile, int lane) {
      return {tile + (lane & 15) * kRowBytes + (lane >> 4) * 16};
    }
    static TESSERA_DEVICE Reader as_columns(SharedAddress tile, int lane) {
      return {tile + ((lane & 7) + (lane >> 4) * 8) * kRowBytes + (lane >> 3 & 1) * 16};
    }
    static TESSERA_DEVICE Reader as_pairs(SharedAddress tile, int lane) {
      return {tile + lane % 4 * 2 * kRowBytes + lane / 4 * 8};
    }
    TESSERA_DEVICE Reader of_tile(int bytes) const { return {first + bytes}; }
    TESSERA_DEVICE SharedAddress operator()(int row, int column) const { return first + row * kRowBytes + column * 4; }
  };
};

/// N floats as factors of TF32 products.
template <int kProducts, int N>
struct Factors {
  static_assert(kProducts == 1 || kProducts == 3);
  std::uint32_t big[N], rest[kProducts == 3 ? N : 1];

  TESSERA_DEVICE void set(int i, float x) {
    if constexpr (kProducts == 3) {
      big[i] = cuda::upper_tf32(x);
      rest[i] = __float_as_uint(x - __uint_as_float(big[i]));
    } else {
      big[i] = cuda::to_tf32(x);
    }
  }
  /// The a fragment that an 8-column tile of sums is, as depth of a product with pairs of rows.
  TESSERA_DEVICE void set_sums(const float (&sums)[4]) {
    set(0, sums[0]);
    set(1, sums[2]);
    set(2, sums[1]);
    set(3, sums[3]);
  }
};

/// sum + rest += a b, for 16x8 times 8x8; `rest` only of three products.
template <int kProducts>
TESSERA_DEVICE void multiply_add(float (&sum)[4], float (&rest)[4], const Factors<kProducts, 4>& a,
                                 const Factors<kProducts, 2>& b) {
  if constexpr (kProducts == 3) {
    cuda::multiply_add_tf32(rest, a.rest, b.big[0], b.big[1]);
    cuda::multiply_add_tf32(rest, a.big, b.rest[0], b.rest[1]);
  }
  cuda::multiply_add_tf32(sum, a.big, b.big[0], b.big[1]);
}

template <int kRowTiles, int kColumns>
TESSERA_DEVICE void add(float (&sums)[kRowTiles][kColumns][4], const float (&more)[kRowTiles][kColumns][4]) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) sums[m][n][i] += more[m][n][i];
    }
  }
}

/// Rows over the width as a operands: the first kHeld steps of 8 columns in registers, the others loaded at each use.
template <int kProducts, int kRowTiles, int kHeld>
struct RowFactors {
  using Part = Factors<kProducts, 4>[kRowTiles];
  Part held[kHeld + 1];

  template <class Reader>
  static TESSERA_DEVICE void load(const Reader& rows, int step, Part& part) {
    TESSERA_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      std::uint32_t words[4];
      cuda::load_matrices(rows(m * 16, step * 8), words);
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) part[m].set(i, __uint_as_float(words[i]));
    }
  }
  template <class Reader>
  TESSERA_DEVICE void hold(const Reader& rows) {
    TESSERA_UNROLL
    for (int step = 0; step < kHeld; ++step) load(rows, step, held[step]);
  }
};

/// sums = rows times the transpose of other rows, over kWidth columns; after each 16 of them between(number). Of three
/// products, kPart columns at a time are summed from zero.
template <int kWidth, int kPart, int kProducts, int kRowTiles, int kHeld, int kTiles, class Reader, class Between>
TESSERA_DEVICE void multiply_rows(const RowFactors<kProducts, kRowTiles, kHeld>& factors, const Reader& rows,
                                  const Reader& others, float (&sums)[kRowTiles][kTiles][4], const Between& between) {
  constexpr bool kHasParts = kProducts == 3 && kPart < kWidth;
  float part[kRowTiles][kTiles][4], rest[kRowTiles][kTiles][4];
  clear(sums);
  clear(part);
  clear(rest);
  TESSERA_UNROLL
  for (int step = 0; step < kWidth / 8; ++step) {
    if (kHasParts && step > 0 && step % (kPart / 8) == 0) {
      add(sums, part);
      clear(part);
    }
    typename RowFactors<kProducts, kRowTiles, kHeld>::Part loaded;
    if (step >= kHeld) RowFactors<kProducts, kRowTiles, kHeld>::load(rows, step, loaded);
    const auto& a = step < kHeld ? factors.held[step < kHeld ? step : 0] : loaded;
    TESSERA_UNROLL
    for (int n = 0; n < kTiles / 2; ++n) {
      std::uint32_t words[4];
      cuda::load_matrices(others(n * 16, step * 8), words);
      TESSERA_UNROLL
      for (int i = 0; i < 2; ++i) {
        Factors<kProducts, 2> b;
        b.set(0, __uint_as_float(words[2 * i]));
        b.set(1, __uint_as_float(words[2 * i + 1]));
        TESSERA_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add(kHasParts ? part[m][2 * n + i] : sums[m][2 * n + i], rest[m][2 * n + i], a[m], b);
        }
      }
    }
    if (step % 2 == 1) between(step / 2);
  }
  if constexpr (kHasParts) add(rest, part);
  if constexpr (kProducts == 3) add(sums, rest);
}

/// The b fragments of 8 rows by 16 columns of a tile, the rows as depth.
template <int kProducts>
struct PairFactors {
  Factors<kProducts, 2> of[2];

  template <class Reader>
  TESSERA_DEVICE void load(const Reader& pairs, int row, int column) {
    const float2 even = cuda::shared_load_float2(pairs(row, column));
    const float2 odd = cuda::shared_load_float2(pairs(row + 1, column));
    of[0].set(0, even.x);
    of[0].set(1, odd.x);
    of[1].set(0, even.y);
    of[1].set(1, odd.y);
  }
};

/// sums += weights times rows, for kDepth steps of 8 rows.
template <int kProducts, int kRowTiles, int kDepth, int kTiles, class Reader>
TESSERA_DEVICE void multiply_weights(const Factors<kProducts, 4> (&weights)[kRowTiles][kDepth], const Reader& pairs,
                                     float (&sums)[kRowTiles][kTiles][4]) {
  TESSERA_UNROLL
  for (int n = 0; n < kTiles / 2; ++n) {
    float sum[kRowTiles][2][4], rest[kRowTiles][2][4];
    clear(sum);
    clear(rest);
    TESSERA_UNROLL
    for (int step = 0; step < kDepth; ++step) {
      PairFactors<kProducts> b;
      b.load(pairs, step * 8, n * 16);
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        TESSERA_UNROLL
        for (int i = 0; i < 2; ++i) {
          multiply_add(kProducts == 3 ? sum[m][i] : sums[m][2 * n + i], rest[m][i], weights[m][step], b.of[i]);
        }
      }
    }
    if constexpr (kProducts == 3) {
      TESSERA_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        TESSERA_UNROLL
        for (int i = 0; i < 8; ++i) sums[m][2 * n + i / 4][i % 4] += sum[m][i / 4][i % 4] + rest[m][i / 4][i % 4];
      }
    }
  }
}

/// Columns 4t to 4t+3 of row g, or g+8, from two neighbouring column tiles of sums, times `factor`.
TESSERA_DEVICE float4 four_of(const float (&left)[4], const float (&right)[4], int half, float factor) {
  return make_float4(factor * left[2 * half], factor * right[2 * half], factor * left[2 * half + 1],
                     factor * right[2 * half + 1]);
}

/// Writes the rows of sums below `count` that are a warp's 16-row tiles, times factor[m][half], D columns of them.
template <int kRowTiles, int kTiles>
TESSERA_DEVICE void write_sums(const float (&sums)[kRowTiles][kTiles][4], const float (&factor)[kRowTiles][2],
                               float* rows, std::int64_t stride, int count, int D, int lane) {
  TESSERA_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = m * 16 + half * 8 + lane / 4;
      TESSERA_UNROLL
      for (int n = 0; n < kTiles / 2; ++n) {
        const int column = n * 16 + lane % 4 * 4;
        if (row < count && column < D) {
          *reinterpret_cast<float4*>(rows + row * stride + column) =
              four_of(sums[m][2 * n], sums[m][2 * n + 1], half, factor[m][half]);
        }
      }
    }
  }
}

}  // namespace tessera::kernels::ampere
