/// Sizes of the Hopper attention kernels: their head widths and the workspace of backward. Compiled in every build,
/// since a plan for such a GPU asks for them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"

/// How each width of forward runs: consumers, key tile, stages of q, stages of k and v, in halves or not; the largest
/// that registers and pad hold.
#define TESSERA_FOR_EACH_HOPPER_FORWARD(MACRO) \
  MACRO(16, 3, 128, 2, 4, true)                \
  MACRO(32, 3, 128, 2, 4, true)                \
  MACRO(64, 3, 128, 2, 3, true)                \
  MACRO(80, 2, 128, 2, 2, true)                \
  MACRO(96, 2, 128, 2, 2, true)                \
  MACRO(128, 2, 128, 2, 2, true)               \
  MACRO(160, 2, 128, 1, 2, true)               \
  MACRO(192, 2, 112, 1, 2, false)              \
  MACRO(256, 2, 80, 1, 2, false)

namespace tessera::kernels::detail::hopper_forward {

constexpr bool supports(int D) {
  switch (D) {
#define TESSERA_SUPPORTED(D, ...) case D:
    TESSERA_FOR_EACH_HOPPER_FORWARD(TESSERA_SUPPORTED)
#undef TESSERA_SUPPORTED
    return true;
    default: return false;
  }
}

}  // namespace tessera::kernels::detail::hopper_forward

namespace tessera::kernels::detail::hopper_backward {

inline constexpr int kConsumers = 2;  // warpgroups

/// Rows of q and d_out in one step.
constexpr int backward_queries(int D) { return D <= 64 ? 128 : 64; }

/// The workspace of the three kernels. Rows are padded to whole tiles of queries.
struct BackwardSums {
  float* d_q;    // [heads, query_tiles, query_tile*D]  in the order of accumulators, consumer by consumer
  float* lse2;   // [heads, query_tiles*query_tile]     lse / ln 2, +inf where there is no row or it sees no key
  float* delta;  // [heads, query_tiles*query_tile]     both with every 16 permuted by fragment_position()
  std::int32_t* tickets;  // [heads, query_tiles, kConsumers]    shares of d_q added so far; in any order 1 once a first
                          //                                     one was stored
  std::int32_t* taken;    // [1]                                 places taken so far
  bool are_cleared = false;  // sums of d_q are 0 before the first share; else that one is stored, not added
};

/// Divides a workspace into its parts; with a null address, only adds up their bytes.
template <int D>
struct BackwardWorkspace {
  BackwardSums sums;
  std::int64_t bytes = 0;

  BackwardWorkspace(std::byte* start, std::int64_t heads, std::int64_t Tq) {
    const std::int64_t tiles = ceil_div(Tq, backward_queries(D));
    const std::int64_t rows = heads * tiles * backward_queries(D);
    const auto take = [&]<class Number>(Number*& part, std::int64_t count) {
      part = start ? reinterpret_cast<Number*>(start + bytes) : nullptr;
      bytes += round_up(count * static_cast<std::int64_t>(sizeof(Number)), std::int64_t{128});
    };
    take(sums.d_q, rows * D);
    take(sums.lse2, rows);
    take(sums.delta, rows);
    take(sums.tickets, heads * tiles * kConsumers);
    take(sums.taken, 1);
  }
};

/// Calls body with D as a compile-time number; false when there is no kernel for it.
template <class Body>
constexpr bool with_head_width(int D, const Body& body) {
  switch (D) {
    case 32: body.template operator()<32>(); return true;
    case 64: body.template operator()<64>(); return true;
    case 80: body.template operator()<80>(); return true;
    case 96: body.template operator()<96>(); return true;
    case 128: body.template operator()<128>(); return true;
    case 256: body.template operator()<256>(); return true;
    default: return false;
  }
}

constexpr bool supports(int D) {
  return with_head_width(D, []<int kWidth>() { static_assert(kWidth % 16 == 0); });
}

inline std::int64_t workspace_bytes(int B, int H, int Tq, int D) {
  std::int64_t bytes = 0;
  const bool is_known = with_head_width(
      D, [&]<int kWidth>() { bytes = BackwardWorkspace<kWidth>(nullptr, std::int64_t{B} * H, Tq).bytes; });
  TESSERA_REQUIRE(is_known, "hopper backward: no kernel for this head width", D);
  return bytes;
}

}  // namespace tessera::kernels::detail::hopper_backward
