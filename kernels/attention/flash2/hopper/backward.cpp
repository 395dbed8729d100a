#include "kernels/attention/flash2/hopper/backward.hpp"  // the contract is there; here is how

#include "kernels/attention/check.hpp"
#include "kernels/attention/flash2/hopper/backward_team.hpp"
#include "kernels/attention/flash2/hopper/backward_wide_team.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/cuda/large_scratch.hpp"
#include "kernels/cuda/registers.hpp"
#include "kernels/cuda/tma.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace tessera::kernels {
namespace detail::hopper_backward {

/// 1. delta_i and lse_i in base 2; clears the counters and, where no first share is stored, the sums of d_q.
template <class Scalar, int D, bool kClearsDq>
struct BackwardPrepare {
  static constexpr int kWarps = 8;
  static constexpr int kLanes = D <= 32 ? 4 : D <= 64 ? 8 : D <= 128 ? 16 : 32;  // lanes of a row, eight numbers each
  static constexpr int kEach = 4;                                                // rows of a lane: loads in flight
  static constexpr int kRowsAtOnce = kWarps * kWarpLanes / kLanes, kRows = kRowsAtOnce * kEach;  // of a team

  HeadTensor<const Scalar, Kokkos::Cuda> out, d_out;
  HeadRows<const float, Kokkos::Cuda> lse;
  BackwardShape shape;
  BackwardSums sums;

  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kWarps * kWarpLanes, 1>>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

  __device__ void run(const Member& team) const {
    const int thread = threadIdx.y * kWarpLanes + threadIdx.x, part = thread % kLanes;
    const int padded = shape.query_tiles * shape.query_tile;
    const unsigned rows = unsigned(shape.heads) * padded;  // heads are the fastest: they are neighbours in memory
    struct Row {
      unsigned number;
      int b, h, i;
    };
    const auto row_of = [&](int n) {
      const unsigned number = unsigned(team.league_rank()) * kRows + n * kRowsAtOnce + thread / kLanes;
      return Row{number, static_cast<int>(number / shape.H / padded), static_cast<int>(number % shape.H),
                 static_cast<int>(number / shape.H % padded)};
    };

    uint4 outs[kEach], d_outs[kEach];
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      const auto [number, b, h, i] = row_of(n);
      const bool has_numbers = number < rows && i < shape.Tq && part < D / 8;
      outs[n] = has_numbers ? *reinterpret_cast<const uint4*>(&out(b, h, i, 8 * part)) : uint4{};
      d_outs[n] = has_numbers ? *reinterpret_cast<const uint4*>(&d_out(b, h, i, 8 * part)) : uint4{};
    }
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      float dot = product(outs[n].x, d_outs[n].x) + product(outs[n].y, d_outs[n].y) + product(outs[n].z, d_outs[n].z) +
                  product(outs[n].w, d_outs[n].w);
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) dot += __shfl_xor_sync(0xffffffffu, dot, step);
      const auto [number, b, h, i] = row_of(n);
      if (number >= rows) continue;
      if (part == 0) {
        const std::size_t at = (std::size_t(b) * shape.H + h) * padded + (i & ~15) + fragment_position(i & 15);
        const float top = i < shape.Tq ? lse(b, h, i) : -INFINITY;
        sums.delta[at] = dot;
        sums.lse2[at] = top == -INFINITY ? INFINITY : top * kLog2e<>;
      }
      if (kClearsDq && part < D / 8) {  // any row will do: all are cleared
        float4* row_sums = reinterpret_cast<float4*>(sums.d_q + std::size_t(number) * D);
        row_sums[part] = row_sums[part + D / 8] = float4{0, 0, 0, 0};
      }
    }
    const unsigned ticket = unsigned(team.league_rank()) * kWarps * kWarpLanes + thread;
    if (ticket < unsigned(shape.heads) * shape.query_tiles * kConsumers) sums.tickets[ticket] = 0;
    if (ticket == 0) *sums.taken = 0;
  }

  static TESSERA_DEVICE float product(std::uint32_t a, std::uint32_t b) {
    const float2 x = unpack<Scalar>(a), y = unpack<Scalar>(b);
    return x.x * y.x + x.y * y.y;
  }
};

/// 3. Scales and rounds the sums of d_q, and reorders them from accumulators to rows.
template <class Scalar, int D>
struct BackwardFinish {
  using Tiles = BackwardTiles<D>;
  static constexpr int kWarps = 8;
  static constexpr int kTileThreads = Tiles::kQueries * D / 16;  // eight columns of two rows, g and g+8, each

  HeadTensor<Scalar, Kokkos::Cuda> d_q;
  BackwardShape shape;
  BackwardSums sums;
  float scale;

  using Policy = Kokkos::TeamPolicy<Kokkos::Cuda, Kokkos::LaunchBounds<kWarps * kWarpLanes, 1>>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const { KOKKOS_IF_ON_DEVICE((run(team);)) }

  __device__ void run(const Member& team) const {
    const unsigned thread = unsigned(team.league_rank()) * kWarps * kWarpLanes + threadIdx.y * kWarpLanes + threadIdx.x;
    const unsigned tile_of_all = thread / kTileThreads, inside = thread % kTileThreads;
    if (tile_of_all >= unsigned(shape.heads) * shape.query_tiles) return;
    const int tile = tile_of_all % shape.query_tiles, head = tile_of_all / shape.query_tiles;

    // The warp and consumer that own these sums, and the index among its blocks of eight columns.
    const int eight = inside % (D / 8), pair = inside / (D / 8), g = pair % 8, slab = pair / 8;
    constexpr int kEights0 = Tiles::kColumns0 / 8;
    const int consumer = Tiles::kSplitsColumns ? eight >= kEights0 : slab / kWarpgroupWarps;
    const int its_eight = Tiles::kSplitsColumns && consumer ? eight - kEights0 : eight;
    const std::size_t first = std::size_t(tile_of_all) * Tiles::kQueries * D + consumer * 64 * Tiles::kColumns0;
    const float4* from = reinterpret_cast<const float4*>(sums.d_q + first) + its_eight * kWarpgroupLanes +
                         slab % kWarpgroupWarps * kWarpLanes + 4 * g;

    float4 sum[4] = {};
    if (sums.are_cleared || shape.last_key_tile(tile) >= 0) {
#pragma unroll
      for (int t = 0; t < 4; ++t) sum[t] = from[t];
    }
    const int h = head % shape.H, b = head / shape.H;
    const int i = tile * Tiles::kQueries + 16 * slab + g;
    Scalar* row = d_q.data() + b * d_q.stride(0) + h * d_q.stride(1) + i * d_q.stride(2) + 8 * eight;
    if (i < shape.Tq) {
      *reinterpret_cast<uint4*>(row) = {word(sum[0].x, sum[0].y), word(sum[1].x, sum[1].y), word(sum[2].x, sum[2].y),
                                        word(sum[3].x, sum[3].y)};
    }
    if (i + 8 < shape.Tq) {
      *reinterpret_cast<uint4*>(row + 8 * d_q.stride(2)) = {word(sum[0].z, sum[0].w), word(sum[1].z, sum[1].w),
                                                            word(sum[2].z, sum[2].w), word(sum[3].z, sum[3].w)};
    }
  }

  TESSERA_DEVICE std::uint32_t word(float low, float high) const { return pack<Scalar>(low * scale, high * scale); }
};

template <class Scalar>
void clear_heads(const Kokkos::Cuda& exec, const HeadTensor<Scalar, Kokkos::Cuda>& heads) {
  using Policy = Kokkos::MDRangePolicy<Kokkos::Cuda, Kokkos::Rank<4>>;
  if (heads.size() == 0) return;
  Kokkos::parallel_for(
      "tessera::attention::flash2::backward::clear[hopper]",
      Policy(exec, {0, 0, 0, 0}, {heads.extent_int(0), heads.extent_int(1), heads.extent_int(2), heads.extent_int(3)}),
      KOKKOS_LAMBDA(int b, int h, int i, int d) { heads(b, h, i, d) = Scalar(0.0f); });
}

constexpr int teams_for(std::int64_t items, int per_team) { return static_cast<int>(ceil_div(items, per_team)); }

template <class Scalar, int D>
void launch_backward(const HopperBackward<Scalar>& problem, const Kokkos::Cuda& exec) {
  using Tiles = BackwardTiles<D>;
  const auto& task = problem.task;
  const int B = task.q.extent_int(0), H = task.q.extent_int(1);
  const int Tq = task.q.extent_int(2), Tk = task.k.extent_int(2);
  const bool in_order = problem.order == DqOrder::fixed;
  BackwardWorkspace<D> workspace(problem.workspace.data(), std::int64_t{B} * H, Tq);

  BackwardShape shape{.heads = B * H, .H = H, .Tq = Tq, .Tk = Tk};
  shape.query_tile = Tiles::kQueries;
  shape.query_tiles = teams_for(Tq, Tiles::kQueries);
  shape.keys_of_tile = Tiles::kKeys;
  shape.key_tiles = teams_for(Tk, Tiles::kKeys);
  shape.diagonal = task.causal ? Tk - Tq : kEveryKey;
  // With a causal mask, q, d_out and the sums of d_q of a group's heads fit the L2 cache together. Without one all
  // places of a head take the same time: a group is then as many heads as run at once, so that the order of tickets, in
  // which a head's places follow each other, carries over from one group to the next.
  const int processors = exec.cuda_device_prop().multiProcessorCount;
  const double bytes_of_head = 8.0 * Tq * D;
  shape.heads_per_group = task.causal ? std::clamp(static_cast<int>((32 << 20) / bytes_of_head), 1, shape.heads)
                                      : std::clamp(processors / shape.key_tiles, 1, shape.heads);
  shape.is_descending = in_order;
  // In any order and without a mask all places of a head walk the same tiles. The first one stores its shares, so that
  // nothing needs clearing; for wide heads, where concurrent additions to the same sums cost more, walks start at
  // different tiles instead.
  shape.is_ring = !in_order && !task.causal && Tiles::kIsWide;
  workspace.sums.are_cleared = !in_order && (task.causal || Tiles::kIsWide);
  const std::int64_t rows = std::int64_t{shape.heads} * shape.query_tiles * Tiles::kQueries;
  TESSERA_REQUIRE(rows * std::max(D / 8, 8) < std::int64_t{1} << 32, "hopper backward: too many queries for one launch",
                  B, H, Tq, D);

  const auto prepare = [&]<bool kClearsDq>() {
    using Prepare = BackwardPrepare<Scalar, D, kClearsDq>;
    Kokkos::parallel_for("tessera::attention::flash2::backward::prepare[hopper]",
                         typename Prepare::Policy(exec, teams_for(rows, Prepare::kRows), Prepare::kWarps, kWarpLanes),
                         Prepare{task.out, task.d_out, task.lse, shape, workspace.sums});
  };
  if (workspace.sums.are_cleared) {
    prepare.template operator()<true>();
  } else {
    prepare.template operator()<false>();
  }

  const int places = shape.heads * shape.key_tiles;
  const int teams = Tiles::kIsWide ? places : std::min(processors, places);
  using Main = std::conditional_t<Tiles::kIsWide, BackwardWide<Scalar, D>, BackwardMain<Scalar, D>>;
  enable_large_scratch<Main, typename Main::Policy>();
  const Main main{head_tensor_map<D>(task.q, Tiles::kQueries),
                  head_tensor_map<D>(task.k, Tiles::kKeys),
                  head_tensor_map<D>(task.v, Tiles::kKeys),
                  head_tensor_map<D>(task.d_out, Tiles::kQueries),
                  task.d_k,
                  task.d_v,
                  shape,
                  workspace.sums,
                  task.scale,
                  in_order};
  Kokkos::parallel_for("tessera::attention::flash2::backward::main[hopper]",
                       typename Main::Policy(exec, teams, Main::kWarps, kWarpLanes)
                           .set_scratch_size(0, Kokkos::PerTeam(aligned_scratch_bytes(Main::kPadBytes, 1024))),
                       main);

  using Finish = BackwardFinish<Scalar, D>;
  const Finish finish{task.d_q, shape, workspace.sums, task.scale};
  const std::int64_t threads = std::int64_t{shape.heads} * shape.query_tiles * Finish::kTileThreads;
  Kokkos::parallel_for(
      "tessera::attention::flash2::backward::finish[hopper]",
      typename Finish::Policy(exec, teams_for(threads, Finish::kWarps * kWarpLanes), Finish::kWarps, kWarpLanes),
      finish);
}

}  // namespace detail::hopper_backward

template <class Scalar>
bool HopperBackward<Scalar>::runs_on(const Exec& exec) {
  return cuda::kBuiltForHopper && exec.cuda_device_prop().major == 9;
}

template <class Scalar>
bool HopperBackward<Scalar>::supports(int D) {
  return detail::hopper_backward::supports(D);
}

template <class Scalar>
bool HopperBackward<Scalar>::accepts() const {
  return cuda::is_copyable(task.q) && cuda::is_copyable(task.k) && cuda::is_copyable(task.v) &&
         cuda::is_copyable(task.out) && cuda::is_copyable(task.d_out) && cuda::is_copyable(task.d_q) &&
         cuda::is_copyable(task.d_k) && cuda::is_copyable(task.d_v);
}

template <class Scalar>
std::int64_t HopperBackward<Scalar>::workspace_bytes(int B, int H, int Tq, int D) {
  return detail::hopper_backward::workspace_bytes(B, H, Tq, D);
}

template <class Scalar>
void HopperBackward<Scalar>::launch(const Exec& exec) const {
  const auto& [q, k, v, out, lse, d_out, d_q, d_k, d_v, scale, causal] = task;
  detail::require_backward_tensors("hopper backward", task, 256);
  TESSERA_REQUIRE(runs_on(exec), "hopper backward: the device, or the architecture this was built for, is another",
                  exec.cuda_device_prop().major, cuda::kBuiltForHopper);
  TESSERA_REQUIRE(supports(q.extent_int(3)), "hopper backward: no kernel for this head width", q.extent(3));
  TESSERA_REQUIRE(scale > 0, "hopper backward: scale must be positive", scale);
  TESSERA_REQUIRE(accepts(), "hopper backward: addresses and strides must be multiples of 16 bytes", q.stride(0),
                  q.stride(1), q.stride(2));
  const int B = q.extent_int(0), H = q.extent_int(1), Tq = q.extent_int(2), Tk = k.extent_int(2);
  if (B * H == 0) return;
  if (Tq == 0 || Tk == 0) {
    detail::hopper_backward::clear_heads(exec, d_q);
    detail::hopper_backward::clear_heads(exec, d_k);
    detail::hopper_backward::clear_heads(exec, d_v);
    return;
  }
  detail::require_workspace("hopper backward: workspace_bytes() are needed, on a multiple of 128", workspace,
                            workspace_bytes(B, H, Tq, q.extent_int(3)), 128);
  detail::hopper_backward::with_head_width(
      q.extent_int(3), [&]<int D>() { detail::hopper_backward::launch_backward<Scalar, D>(*this, exec); });
}

template struct HopperBackward<bfloat16>;
template struct HopperBackward<float16>;

}  // namespace tessera::kernels
