/// Products of 16 rows of w with 8 rows of h on the tensor cores, straight from packets that lanes read from memory.
///
///   sums[i, m] += sum over 32 columns of w[i, k] h[m, k]
///
/// Lane l of a thread, with g = l / 4 and t = l % 4, gives packets of 8 neighbouring elements, those of columns 8t to
/// 8t + 7: of rows g and g + 8 of w, and of row g of h. It gets
///
///   sums[0], sums[1]   of row g of w with rows 2t, 2t + 1 of h
///   sums[2], sums[3]   of row g + 8 of w with the same
///
/// The instruction takes its 16 columns in another order than memory has them; h comes in the same order as w, and a
/// sum needs no more. All lanes of the thread take part.
///
/// Numerics   products of Scalar, sums in float.
/// Limits     bfloat16 and float16, on GPUs, threads of 32 lanes: kernels that call it are not built for anything else.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/packet.hpp"
#include "kernels/cuda/tile_scores.hpp"

namespace tessera::kernels {

/// Whether add_row_products exists for the pair.
template <class Exec, class Scalar>
inline constexpr bool kHasRowProducts = kHasTileScores<Exec, Scalar>;

template <class Scalar>
KOKKOS_FORCEINLINE_FUNCTION void add_row_products([[maybe_unused]] float (&sums)[4],
                                                  [[maybe_unused]] const Packet<Scalar, 8>& w_low,
                                                  [[maybe_unused]] const Packet<Scalar, 8>& w_high,
                                                  [[maybe_unused]] const Packet<Scalar, 8>& h) {
  TESSERA_ON_CUDA(
      const std::uint32_t first[4] = {w_low.element[0], w_high.element[0], w_low.element[1], w_high.element[1]};
      const std::uint32_t second[4] = {w_low.element[2], w_high.element[2], w_low.element[3], w_high.element[3]};
      cuda::multiply_add<Scalar>(sums, first, h.element[0], h.element[1]);
      cuda::multiply_add<Scalar>(sums, second, h.element[2], h.element[3]);)
}

/// Eight numbers, rounded to Scalar; on a GPU two by one instruction.
template <class Scalar>
KOKKOS_FORCEINLINE_FUNCTION Packet<Scalar, 8> rounded(const float (&x)[8]) {
  Packet<Scalar, 8> packet;
  TESSERA_UNROLL
  for (int i = 0; i < 8; i += 2) {
    TESSERA_ON_CUDA(packet.element[i / 2] = cuda::pack<Scalar>(x[i], x[i + 1]); continue;)
    packet.set(i, x[i]);
    packet.set(i + 1, x[i + 1]);
  }
  return packet;
}

/// The sum over the four lanes with one g.
KOKKOS_FORCEINLINE_FUNCTION float sum_over_quad(float mine) {
  TESSERA_ON_CUDA(return cuda::quad_sum(mine);)
  return mine;
}

}  // namespace tessera::kernels
