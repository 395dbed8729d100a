/// The first kernel of AmpereBackward: it fills what the others share in the workspace (BackwardRows in sizes.hpp).
#pragma once

#include "kernels/attention/flash2/dq_order.hpp"
#include "kernels/attention/task.hpp"
#include "kernels/attention/flash2/ampere/sizes.hpp"
#include "kernels/attention/flash2/ampere/tile.hpp"
#include "kernels/core/math.hpp"
#include "kernels/core/packet.hpp"

namespace tessera::kernels::ampere {

/// Lanes that share a row of `width` elements of 2 bytes, 16 bytes each at a time.
constexpr int lanes_of_row(int width) {
  int lanes = 2;
  while (lanes * 8 < width) lanes *= 2;
  return lanes;
}

/// Fills BackwardRows: computes log_sum and delta, and zeroes turns (fixed order) or the sums of d_q (any order). Of
/// float, d_q itself holds the sums, and is zeroed. kRowLanes lanes share a row; a team has kPadding rows.
template <class Scalar, int kRowLanes>
struct BackwardRowsTeam {
  BackwardTask<Kokkos::Cuda, Scalar> task;
  DqOrder order;
  BackwardRows rows;

  static constexpr int kWarps = 8, kTeamRows = BackwardRows::kPadding;
  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kWarps * cuda::kWarpLanes>>;
  using Member = typename Policy::member_type;

  static void launch(const Kokkos::Cuda& exec, const BackwardTask<Kokkos::Cuda, Scalar>& task, DqOrder order,
                     const BackwardRows& rows) {
    const int heads = task.q.extent_int(0) * task.q.extent_int(1);
    Kokkos::parallel_for("tessera::attention::flash2::ampere_backward::rows",
                         Policy(exec, heads * (rows.rows / kTeamRows), kWarps, cuda::kWarpLanes),
                         BackwardRowsTeam{task, order, rows});
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

 private:
  TESSERA_DEVICE void run(const Member& team) const {
    constexpr int kAtATime = kWarps * cuda::kWarpLanes / kRowLanes;
    const int H = task.q.extent_int(1), Tq = task.q.extent_int(2), D = task.q.extent_int(3);
    const int tiles = rows.rows / kTeamRows, head = team.league_rank() / tiles, b = head / H, h = head % H;
    const int thread = threadIdx.y * cuda::kWarpLanes + threadIdx.x, lane = thread % kRowLanes;
    const std::int64_t first = static_cast<std::int64_t>(team.league_rank()) * kTeamRows;  // of all rows of all heads
    if (kIsFloat) {
      if (thread < BackwardRows::kTurns) rows.turns[team.league_rank() * BackwardRows::kTurns + thread] = 0;
    } else if (order == DqOrder::any) {
      float4* sums = reinterpret_cast<float4*>(rows.d_q + first * rows.width);
      for (int i = thread; i < kTeamRows * rows.width / 4; i += kWarps * cuda::kWarpLanes) sums[i] = float4{0, 0, 0, 0};
    } else if (thread < BackwardRows::kTurns) {
      rows.turns[team.league_rank() * BackwardRows::kTurns + thread] = 0;
    }
    for (int row = thread / kRowLanes; row < kTeamRows; row += kAtATime) {
      const int query = team.league_rank() % tiles * kTeamRows + row;
      float sum = 0;
      if (query < Tq) {
        const auto* out = row_of(task.out, b, h, query);
        const auto* d_out = row_of(task.d_out, b, h, query);
        for (int d = lane * kPacket; d < D; d += kRowLanes * kPacket) {
          if constexpr (kIsFloat) *reinterpret_cast<float4*>(row_of(task.d_q, b, h, query) + d) = float4{0, 0, 0, 0};
          const uint4 x = *reinterpret_cast<const uint4*>(out + d), y = *reinterpret_cast<const uint4*>(d_out + d);
          sum += dot(x.x, y.x) + dot(x.y, y.y) + dot(x.z, y.z) + dot(x.w, y.w);
        }
      }
      TESSERA_UNROLL
      for (int step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane == 0) {
        const float lse = query < Tq ? task.lse(b, h, query) : -HUGE_VALF;
        const std::int64_t at = first + row;
        rows.log_sum[at] = lse == -HUGE_VALF ? HUGE_VALF : lse * kLog2e<>;
        rows.delta[at] = sum;
      }
    }
  }

  static constexpr bool kIsFloat = std::is_same_v<Scalar, float>;
  static constexpr int kPacket = kPacketElements<Scalar>;

  static TESSERA_DEVICE float dot(std::uint32_t x, std::uint32_t y) {
    if constexpr (kIsFloat) {
      return __uint_as_float(x) * __uint_as_float(y);
    } else {
      const float2 a = cuda::unpack<Scalar>(x), b = cuda::unpack<Scalar>(y);
      return a.x * b.x + a.y * b.y;
    }
  }
};

}  // namespace tessera::kernels::ampere
