/// Products of small tiles in scratch-pad memory, blocked in registers.
///
///   c[r, l] (= or +=) sum_k a[r, k] * b[k, l]        r < rows, l < lanes, k < depth
///
/// `b` and `c` are contiguous along the lanes, and `lanes` is a multiple of kLaneBlock (pads are rounded up to it);
/// `a` may have any two strides, so the same routine computes A*B and A^T*B. Every micro-tile of kRowBlock x kLaneBlock
/// results stays in registers over the whole depth: as vectors on a host, as scalars of one lane on a device. Sums run
/// over k in order, so a result does not depend on how the tile is distributed.
///
/// Source  the register blocking of Goto & van de Geijn 2008 (doi:10.1145/1356052.1356053), inner kernel only: the
///         tiles are small enough that nothing needs packing.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/compat.hpp"
#include "kernels/core/cpu_level.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/target.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Bytes of a host's widest vectors: pads have room for them at every level.
inline constexpr int kVectorBytes = V4::kVectorBytes;

/// Numbers of `bytes` each in a Pack, and along the lanes of a micro-tile.
constexpr int pack_width(const Target& target, std::size_t bytes) {
  return target.is_host ? kVectorBytes / static_cast<int>(bytes) : 1;
}
constexpr int lane_block(const Target& target, std::size_t bytes) {
  return (target.is_host ? 2 : 4) * pack_width(target, bytes);
}

/// The numbers that one instruction processes: a vector register of a host, one number of a device's lane.
template <class Exec, class Real, class Level = BuildLevel, bool = kIsHost<Exec>>
struct Pack {
  using Type = Real;
  static constexpr int kWidth = 1;
};
template <class Exec, class Real, class Level>
struct Pack<Exec, Real, Level, true> {
  typedef Real Type __attribute__((vector_size(Level::kVectorBytes), aligned(sizeof(Real)), may_alias));
  static constexpr int kWidth = Level::kVectorBytes / static_cast<int>(sizeof(Real));
};

template <class Exec, class Real, class Level = BuildLevel>
struct TileProduct {
  using Vec = typename Pack<Exec, Real, Level>::Type;
  static constexpr int kWidth = Pack<Exec, Real, Level>::kWidth;
  static constexpr int kRowBlock = kIsHost<Exec> ? Level::kRowBlock : 4;
  static constexpr int kVecs = kIsHost<Exec> ? 2 : 4;
  static constexpr int kLaneBlock = kVecs * kWidth;

  const Real* a;
  int a_row, a_depth;  // strides of a
  const Real* b;
  int b_depth;  // stride between rows of b
  Real* c;
  int c_row;        // stride between rows of c
  bool accumulate;  // c += instead of c =

  /// Distributes the micro-tiles over the team. Ends without a barrier.
  template <class Member>
  KOKKOS_INLINE_FUNCTION void run(const Member& team, int rows, int lanes, int depth) const {
    const int row_blocks = ceil_div(rows, kRowBlock);
    const int lane_blocks = lanes / kLaneBlock;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, row_blocks * lane_blocks), [&](int block) {
      // Neighbouring lanes of a device share rows of a, which lie a power of two apart and so in one bank of its
      // memory.
      const int row = (kIsHost<Exec> ? block % row_blocks : block / lane_blocks) * kRowBlock;
      const int lane = (kIsHost<Exec> ? block / row_blocks : block % lane_blocks) * kLaneBlock;
      if (rows - row >= kRowBlock) {
        micro<kRowBlock>(row, lane, depth);
      } else {
        remainder<kRowBlock - 1>(rows - row, row, lane, depth);
      }
    });
  }

 private:
  template <int Rows>
  KOKKOS_INLINE_FUNCTION void remainder(int rows, int row, int lane, int depth) const {
    if constexpr (Rows > 0) {
      if (rows == Rows) return micro<Rows>(row, lane, depth);
      remainder<Rows - 1>(rows, row, lane, depth);
    }
  }

  template <int Rows>
  KOKKOS_INLINE_FUNCTION void micro(int row, int lane, int depth) const {
    Vec sum[Rows][kVecs] = {};
    const Real* a_k = a + static_cast<long>(row) * a_row;
    const Real* b_k = b + lane;
    for (int k = 0; k < depth; ++k, a_k += a_depth, b_k += b_depth) {
      Vec b_vec[kVecs];
      TESSERA_UNROLL
      for (int v = 0; v < kVecs; ++v) b_vec[v] = *reinterpret_cast<const Vec*>(b_k + v * kWidth);
      TESSERA_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const Real a_r = a_k[static_cast<long>(r) * a_row];
        TESSERA_UNROLL
        for (int v = 0; v < kVecs; ++v) sum[r][v] += a_r * b_vec[v];
      }
    }
    TESSERA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      Real* c_r = c + static_cast<long>(row + r) * c_row + lane;
      TESSERA_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        Vec& out = *reinterpret_cast<Vec*>(c_r + v * kWidth);
        out = accumulate ? out + sum[r][v] : sum[r][v];
      }
    }
  }
};

}  // namespace tessera::kernels
