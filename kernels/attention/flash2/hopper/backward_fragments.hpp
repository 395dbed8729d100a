/// Operations of a consumer of either main kernel of HopperBackward on its fragments: the products, the exponentials,
/// the gradient of the scores, and the final rows.
///
/// A warpgroup's accumulator [64, n] is n/2 floats of each lane: of the rows g and g+8 of its warp's sixteen, g =
/// lane/4, the columns 2t and 2t+1 of every eight, t = lane%4. Scores are transposed, [key, query].
#pragma once

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/flash2/hopper/backward_tiles.hpp"
#include "kernels/core/tensor.hpp"
#include "kernels/cuda/registers.hpp"
#include "kernels/cuda/shared.hpp"
#include "kernels/cuda/tma.hpp"
#include "kernels/cuda/wgmma.hpp"

namespace tessera::kernels::detail::hopper_backward {

using namespace cuda;

#ifdef TESSERA_HOPPER_CODE

/// The products, of heads of D channels. Tiles lie in the pad in panels (HeadPanels), those of k and v with kKeyRows
/// rows each, those of q and d_out with kQueryRows; addresses are of a warpgroup's first row or column of them.
template <class Scalar, int D, int kKeyRows, int kQueryRows>
struct BackwardProducts {
  static constexpr int kPanelBytes = HeadPanels<D>::kBytes;

  /// scores[64 keys, queries] = keys queries^T: rows of both run along the head width.
  template <int kCount>
  static TESSERA_DEVICE void of_scores(float (&scores)[kCount], SharedAddress keys, SharedAddress queries) {
    using Product = Wgmma<Scalar, 2 * kCount>;
    const TileDescriptor<kPanelBytes> a(same_in_warp(keys)), b(same_in_warp(queries));
    constexpr int kSlices = HeadPanels<D>::kWidth / 16;  // of 16 numbers, 32 bytes, in a panel
  #pragma unroll
    for (int slice = 0; slice < D / 16; ++slice) {
      const int panel = slice / kSlices, inside = slice % kSlices * 32;
      const auto a_slice = a + (panel * kKeyRows * kPanelBytes + inside);
      const auto b_slice = b + (panel * kQueryRows * kPanelBytes + inside);
      if (slice == 0) {
        Product::template from_shared_fresh<false, false>(scores, a_slice, b_slice);
      } else {
        Product::template from_shared<false, false>(scores, a_slice, b_slice, true);
      }
    }
  }

  /// gradient[64 keys, columns] += weights[64 keys, queries] rows[queries, columns], for d_k and d_v.
  template <int kCount, int kWords>
  static TESSERA_DEVICE void of_keys(float (&gradient)[kCount], const std::uint32_t (&weights)[kWords],
                                     SharedAddress rows) {
    const TileDescriptor<kPanelBytes> b(same_in_warp(rows), kQueryRows * kPanelBytes);
  #pragma unroll
    for (int slice = 0; slice < kWords / 4; ++slice) {
      Wgmma<Scalar, 2 * kCount>::template from_registers<true>(gradient, weights[4 * slice], weights[4 * slice + 1],
                                                               weights[4 * slice + 2], weights[4 * slice + 3],
                                                               b + slice * 16 * kPanelBytes, true);
    }
  }

  /// d_q[64 queries, columns] = ds[kKeyRows, 64 queries]^T k[kKeyRows, columns].
  template <int kCount>
  static TESSERA_DEVICE void of_queries(float (&d_q)[kCount], SharedAddress ds, SharedAddress keys) {
    using Product = Wgmma<Scalar, 2 * kCount>;
    const TileDescriptor<128> a(same_in_warp(ds));
    const TileDescriptor<kPanelBytes> b(same_in_warp(keys), kKeyRows * kPanelBytes);
  #pragma unroll
    for (int slice = 0; slice < kKeyRows / 16; ++slice) {
      if (slice == 0) {
        Product::template from_shared_fresh<true, true>(d_q, a, b);
      } else {
        Product::template from_shared<true, true>(d_q, a + slice * 16 * 128, b + slice * 16 * kPanelBytes, true);
      }
    }
  }
};

/// One number per query of a tile: of every 16, the four of this lane's columns 2t, 2t+1, 2t+8, 2t+9. Loaded ahead of a
/// wait if there are registers for it, otherwise on use.
template <int kQueries, bool kAhead>
struct QueryNumbers {
  SharedAddress from;
  float4 fours[kAhead ? kQueries / 16 : 1];

  TESSERA_DEVICE explicit QueryNumbers(SharedAddress numbers) : from(numbers + 16 * (threadIdx.x & 3)) {
    if constexpr (kAhead) {
  #pragma unroll
      for (int i = 0; i < kQueries / 16; ++i) fours[i] = shared_load_float4(from + 64 * i);
    }
  }
  TESSERA_DEVICE float4 operator[](int i) const {
    if constexpr (kAhead) return fours[i];
    return shared_load_float4(from + 64 * i);
  }
};

/// p = exp2(scale log2e s - lse2), in place.
template <int kCount, class Numbers>
TESSERA_DEVICE void exponentiate(float (&scores)[kCount], const Numbers& lse2, float scale) {
  const float to_base_2 = scale * kLog2e<>;
  #pragma unroll
  for (int i = 0; i < kCount; i += 8) {
    const float4 top = lse2[i / 8];
  #pragma unroll
    for (int r = i; r < i + 4; r += 2) {  // rows g and g+8
      scores[r] = exp2_approx(fmaf(scores[r], to_base_2, -top.x));
      scores[r + 1] = exp2_approx(fmaf(scores[r + 1], to_base_2, -top.y));
      scores[r + 4] = exp2_approx(fmaf(scores[r + 4], to_base_2, -top.z));
      scores[r + 5] = exp2_approx(fmaf(scores[r + 5], to_base_2, -top.w));
    }
  }
}

/// p as an operand.
template <class Scalar, int kCount>
TESSERA_DEVICE void round_weights(const float (&p)[kCount], std::uint32_t (&packed)[kCount / 2]) {
  #pragma unroll
  for (int r = 0; r < kCount; r += 2) packed[r / 2] = pack<Scalar>(p[r], p[r + 1]);
}

/// ds = p (d_p - delta), as an operand.
template <class Scalar, int kCount, class Numbers>
TESSERA_DEVICE void weigh(const float (&p)[kCount], const float (&d_p)[kCount], const Numbers& delta,
                          std::uint32_t (&ds)[kCount / 2]) {
  #pragma unroll
  for (int i = 0; i < kCount; i += 8) {
    const float4 mean = delta[i / 8];
  #pragma unroll
    for (int r = i; r < i + 8; r += 2) {
      const float low = r < i + 4 ? mean.x : mean.z, high = r < i + 4 ? mean.y : mean.w;
      ds[r / 2] = pack<Scalar>(p[r] * (d_p[r] - low), p[r + 1] * (d_p[r + 1] - high));
    }
  }
}

/// A warp's sixteen rows of an accumulator to d_k or d_v, times `factor` and rounded: rows from first_key on, columns
/// from first_column on. A quad exchanges words so that each lane writes 16 bytes.
template <class Scalar, int kCount>
TESSERA_DEVICE void write_keys(const HeadTensor<Scalar, Kokkos::Cuda>& to, const float (&sum)[kCount],
                               const BackwardShape& shape, int head, int first_key, int first_column, float factor) {
  const int h = head % shape.H, b = head / shape.H, lane = threadIdx.x;
  Scalar* rows = to.data() + b * to.stride(0) + h * to.stride(1) + first_column;
  #pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = first_key + lane / 4 + 8 * half;
    Scalar* row = rows + key * to.stride(2);
    const auto word = [&](int tile) {
      return pack<Scalar>(sum[4 * tile + 2 * half] * factor, sum[4 * tile + 2 * half + 1] * factor);
    };
    constexpr int kTiles = kCount / 4, kWhole = kTiles / 4 * 4;  // tiles of 8 columns; those that come in fours
  #pragma unroll
    for (int tile = 0; tile < kWhole; tile += 4) {
      const uint4 piece = quad_transpose(word(tile), word(tile + 1), word(tile + 2), word(tile + 3));
      if (key < shape.Tk) *reinterpret_cast<uint4*>(row + 8 * (tile + (lane & 3))) = piece;
    }
  #pragma unroll
    for (int tile = kWhole; tile < kTiles; ++tile) {
      if (key < shape.Tk) *reinterpret_cast<std::uint32_t*>(row + 8 * tile + 2 * (lane & 3)) = word(tile);
    }
  }
}

#endif

}  // namespace tessera::kernels::detail::hopper_backward
