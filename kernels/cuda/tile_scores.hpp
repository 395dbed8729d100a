/// Scores of a tile of queries and a tile of keys in scratch, on the tensor cores of the team's warps.
///
///   scores[i, j] = scale q_i . k_j      i < queries, j < keys
///
/// Rows of q and k are `pitch` elements apart, an odd number of 16-byte packets, so that loads of eight rows have no
/// bank conflicts. The first `depth` columns, a multiple of 16, are multiplied. The tiles have room for whole blocks of
/// 16 rows; scores beyond `queries` and `keys` are computed, but meaningless. Ends without a barrier.
///
/// Numerics   products of Scalar, sums in float.
/// Limits     bfloat16 and float16, on GPUs, threads of 32 lanes: kernels that call it are not built for anything else.
#pragma once

#include "kernels/cuda/portable.hpp"

namespace tessera::kernels {

/// Whether scores_by_mma exists for the pair; and MACRO(Exec, Scalar) for each pair for which it does.
#ifdef TESSERA_VENDOR_CUDA
template <class Exec, class Scalar>
inline constexpr bool kHasTileScores = std::is_same_v<Exec, Kokkos::Cuda> && sizeof(Scalar) == 2;
  #define TESSERA_FOR_EACH_TILE_SCORES(MACRO)  \
    MACRO(::Kokkos::Cuda, ::tessera::bfloat16) \
    MACRO(::Kokkos::Cuda, ::tessera::float16)

namespace cuda {

template <class Scalar>
TESSERA_DEVICE void tile_scores(int warp, int warps, const Scalar* q, const Scalar* k, int pitch, int queries, int keys,
                                int depth, float scale, float* scores, int score_pitch) {
  const int lane = lane_of_warp(), row_blocks = (queries + 15) / 16, key_blocks = (keys + 15) / 16;
  for (int block = warp; block < row_blocks * key_blocks; block += warps) {
    const int row = block % row_blocks * 16, key = block / row_blocks * 16;
    const SharedAddress q_lane = shared_address(q + (row + lane % 16) * pitch + lane / 16 * 8);
    const SharedAddress k_lane = shared_address(k + (key + lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8);
    float sums[2][4] = {};  // of the block's left and right eight keys
    for (int d = 0; d < depth; d += 16) {
      std::uint32_t q_part[4], k_part[4];
      load_matrices(q_lane + d * 2, q_part);
      load_matrices(k_lane + d * 2, k_part);
      multiply_add<Scalar>(sums[0], q_part, k_part[0], k_part[1]);
      multiply_add<Scalar>(sums[1], q_part, k_part[2], k_part[3]);
    }
    float* to = scores + (row + lane / 4) * score_pitch + key + lane % 4 * 2;
  #pragma unroll
    for (int i = 0; i < 8; ++i) to[i / 2 % 2 * 8 * score_pitch + i / 4 * 8 + i % 2] = scale * sums[i / 4][i % 4];
  }
}

}  // namespace cuda
#else
template <class Exec, class Scalar>
inline constexpr bool kHasTileScores = false;
  #define TESSERA_FOR_EACH_TILE_SCORES(MACRO)
#endif

template <class Member, class Scalar>
KOKKOS_FORCEINLINE_FUNCTION void scores_by_mma([[maybe_unused]] const Member& team, [[maybe_unused]] const Scalar* q,
                                               [[maybe_unused]] const Scalar* k, [[maybe_unused]] int pitch,
                                               [[maybe_unused]] int queries, [[maybe_unused]] int keys,
                                               [[maybe_unused]] int depth, [[maybe_unused]] float scale,
                                               [[maybe_unused]] float* scores, [[maybe_unused]] int score_pitch) {
  TESSERA_ON_CUDA(cuda::tile_scores(team.team_rank(), team.team_size(), q, k, pitch, queries, keys, depth, scale,
                                    scores, score_pitch);)
}

}  // namespace tessera::kernels
