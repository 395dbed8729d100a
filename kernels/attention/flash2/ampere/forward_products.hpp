/// The products of ForwardTeam, for 16-bit and for float operands.
#pragma once

#include "kernels/attention/flash2/ampere/float_tile.hpp"
#include "kernels/attention/flash2/ampere/tile.hpp"
#include "kernels/cuda/mma_sync.hpp"

namespace tessera::kernels::ampere {

/// Of bf16 and fp16. Cut: see ForwardCut.
template <class Scalar_, int kWidth, class Cut>
struct HalfProducts {
  using Scalar = Scalar_;
  using Layout = TileLayout<kWidth>;
  using Scores = Sums<Cut::kRowTiles, Cut::kKeyTile>;
  using Output = Sums<Cut::kRowTiles, kWidth>;
  using Weights = std::uint32_t[Cut::kRowTiles][Cut::kKeyTile / 16][4];  // exponentials as a fragments
  using Held = std::uint32_t[Cut::kHeld + 1][Cut::kRowTiles][4];         // the first blocks of the warp's rows of q
  using Reader = typename Layout::Reader;

  static TESSERA_DEVICE Reader values_of(SharedAddress ring, int lane) { return Reader::as_rows(ring, lane); }

  static TESSERA_DEVICE void hold(const Reader& q_read, Held& held) {
    TESSERA_UNROLL
    for (int k = 0; k < Cut::kHeld; ++k) {
      TESSERA_UNROLL
      for (int m = 0; m < Cut::kRowTiles; ++m) cuda::load_matrices(q_read(m * 16, k), held[k][m]);
    }
  }

  /// scores = q k^T for the warp's rows and one tile of keys; between the steps over the width, `between(step)`.
  template <class Between>
  static TESSERA_DEVICE void scores(const Held& held, const Reader& q_read, const Reader& k_read, Scores& scores,
                                    const Between& between) {
    clear(scores);
    TESSERA_UNROLL
    for (int k = 0; k < kWidth / 16; ++k) {
      std::uint32_t q_loaded[Cut::kRowTiles][4];
      TESSERA_UNROLL
      for (int m = 0; m < Cut::kRowTiles; ++m) {
        if (k >= Cut::kHeld) cuda::load_matrices(q_read(m * 16, k), q_loaded[m]);
      }
      const auto& q_part = k < Cut::kHeld ? held[k] : q_loaded;
      TESSERA_UNROLL
      for (int n = 0; n < Cut::kKeyTile / 16; ++n) {
        std::uint32_t k_part[4];
        cuda::load_matrices(k_read(n * 16, k), k_part);
        TESSERA_UNROLL
        for (int m = 0; m < Cut::kRowTiles; ++m) {
          cuda::multiply_add<Scalar>(scores[m][2 * n], q_part[m], k_part[0], k_part[1]);
          cuda::multiply_add<Scalar>(scores[m][2 * n + 1], q_part[m], k_part[2], k_part[3]);
        }
      }
      between(k);
    }
  }

  /// The weights of rows m and 16 keys from exponentials.
  static TESSERA_DEVICE void weigh(const Scores& scores, int m, int n, Weights& weights) {
    pack_fragment<Scalar>(scores[m][2 * n], scores[m][2 * n + 1], weights[m][n]);
  }

  /// output += weights v for one tile of keys.
  static TESSERA_DEVICE void add_values(const Weights& weights, const Reader& values, Output& output) {
    TESSERA_UNROLL
    for (int k = 0; k < Cut::kKeyTile / 16; ++k) {
      TESSERA_UNROLL
      for (int n = 0; n < kWidth / 16; ++n) {
        std::uint32_t v_part[4];
        cuda::load_matrices_transposed(values(k * 16, n), v_part);
        TESSERA_UNROLL
        for (int m = 0; m < Cut::kRowTiles; ++m) {
          cuda::multiply_add<Scalar>(output[m][2 * n], weights[m][k], v_part[0], v_part[1]);
          cuda::multiply_add<Scalar>(output[m][2 * n + 1], weights[m][k], v_part[2], v_part[3]);
        }
      }
    }
  }

  /// Writes the first `count` rows of output, times their factors; `staging` is free for them.
  static TESSERA_DEVICE void write(const Output& output, const float (&factor)[Cut::kRowTiles][2],
                                   SharedAddress staging, Scalar* rows, std::int64_t stride, int count, int D,
                                   int lane) {
    TESSERA_UNROLL
    for (int m = 0; m < Cut::kRowTiles; ++m) {
      TESSERA_UNROLL
      for (int half = 0; half < 2; ++half) {
        TESSERA_UNROLL
        for (int n = 0; n < kWidth / 8; ++n) {
          cuda::shared_store_word(staging + Layout::offset(m * 16 + half * 8 + lane / 4, n) + lane % 4 * 4,
                                  cuda::pack<Scalar>(output[m][n][2 * half] * factor[m][half],
                                                     output[m][n][2 * half + 1] * factor[m][half]));
        }
      }
    }
    __syncwarp();
    write_rows<Layout, cuda::kWarpLanes>(staging, rows, stride, count, D, lane);
  }
};

/// Of float, by kProducts TF32 products each.
template <int kProducts, int kWidth, class Cut>
struct FloatProducts {
  using Scalar = float;
  using Layout = FloatTile<kWidth>;
  using Scores = Sums<Cut::kRowTiles, Cut::kKeyTile>;
  using Output = Sums<Cut::kRowTiles, kWidth>;
  using Weights = Factors<kProducts, 4>[Cut::kRowTiles][Cut::kKeyTile / 8];
  using Held = RowFactors<kProducts, Cut::kRowTiles, Cut::kHeld>;
  using Reader = typename Layout::Reader;
  static constexpr int kPart = kWidth > 128 ? 64 : kWidth;  // depth that tensor cores sum from zero

  static TESSERA_DEVICE Reader values_of(SharedAddress ring, int lane) { return Reader::as_pairs(ring, lane); }
  static TESSERA_DEVICE void hold(const Reader& q_read, Held& held) { held.hold(q_read); }
  template <class Between>
  static TESSERA_DEVICE void scores(const Held& held, const Reader& q_read, const Reader& k_read, Scores& scores,
                                    const Between& between) {
    multiply_rows<kWidth, kPart>(held, q_read, k_read, scores, between);
  }
  static TESSERA_DEVICE void weigh(const Scores& scores, int m, int n, Weights& weights) {
    weights[m][2 * n].set_sums(scores[m][2 * n]);
    weights[m][2 * n + 1].set_sums(scores[m][2 * n + 1]);
  }
  static TESSERA_DEVICE void add_values(const Weights& weights, const Reader& values, Output& output) {
    multiply_weights(weights, values, output);
  }
  static TESSERA_DEVICE void write(const Output& output, const float (&factor)[Cut::kRowTiles][2], SharedAddress,
                                   float* rows, std::int64_t stride, int count, int D, int lane) {
    write_sums(output, factor, rows, stride, count, D, lane);
  }
};

}  // namespace tessera::kernels::ampere
