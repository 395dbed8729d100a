/// out[i] = part[0][i] + part[1][i] + ..., in this order: the sum of the ranks' values.
///
///   squares[b] = sum_i out[i]^2      optional; i in block b of kSquaresBlock neighbours: for the norm of the sums
///
/// `copies` are further places for the same sums, on other GPUs, say. `out` and each of them may be one of the parts: a
/// lane reads a packet of all parts before it writes the sum.
///
/// Numerics   added in Accum<Scalar> (16-bit numbers in fp32) and rounded once; squares of what was rounded, in double.
/// Error      of a block's squares: E<double>(kSquaresBlock) relative (kernels/core/scalar.hpp).
/// Order      that of the parts; of squares fixed for a given length and alignment: bitwise repeatable.
/// Cost       squares cost no traffic but their own; each copy costs a write.
/// Async      returns after enqueue on `exec`; never fences.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct SumParts {
  static constexpr int kMaxParts = 16;
  static constexpr std::int64_t kSquaresBytes = 16384;
  static constexpr std::int64_t kSquaresBlock = kSquaresBytes / static_cast<std::int64_t>(sizeof(Scalar));  // elements

  Kokkos::Array<const Scalar*, kMaxParts> part;  // [parts] of [n]  in
  int parts;
  Vector<Scalar, Exec> out;                       // [n]                           out
  Vector<double, Exec> squares = {};              // [ceil(n / kSquaresBlock)]     out, optional
  Kokkos::Array<Scalar*, kMaxParts> copies = {};  // [copy_count] of [n]           out
  int copy_count = 0;

  void launch(const Exec& exec) const {
    TESSERA_REQUIRE(parts >= 1 && parts <= kMaxParts, "sum of parts: 1 to 16 of them", parts);
    TESSERA_REQUIRE(copy_count >= 0 && copy_count <= kMaxParts, "sum of parts: at most 16 copies", copy_count);
    bool fit = packets_fit(1, 1, out.data());
    for (int p = 0; p < parts; ++p) fit = fit && packets_fit(1, 1, part[p]);
    for (int c = 0; c < copy_count; ++c) fit = fit && packets_fit(1, 1, copies[c]);
    if (!squares.data()) {
      return for_packets<kPacketWidth<Exec, Scalar>>("tessera::core::sum_parts", exec, fit, out.extent(0), *this);
    }
    const std::int64_t blocks = ceil_div(static_cast<std::int64_t>(out.extent(0)), kSquaresBlock);
    TESSERA_REQUIRE(squares.extent_int(0) == blocks, "sum of parts: squares must be [ceil(n / kSquaresBlock)]",
                    squares.extent(0), blocks);
    in_packets<Exec, Scalar>(fit, [&]<int kWidth>(InPackets<kWidth>) {
      using Policy = Kokkos::TeamPolicy<Exec, InBlocks<kWidth>>;
      if (blocks > 0) {
        Kokkos::parallel_for("tessera::core::sum_parts_squares", team_policy<Policy>(exec, blocks, kTeamLanes), *this);
      }
    });
  }

  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, std::int64_t packet) const {
    sum_each<kWidth, 1, 4>([&](const auto& each) { each(0, packet * kWidth); });
  }

  /// Work tag: a team per block of squares, in packets of kWidth elements.
  template <int kWidth>
  struct InBlocks {};
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InBlocks<kWidth>, const Member& team) const {
    const std::int64_t first = team.league_rank() * kSquaresBlock, n = static_cast<std::int64_t>(out.extent(0));
    const int count = static_cast<int>(n - first < kSquaresBlock ? n - first : kSquaresBlock);
    double in_packets = 0;
    if constexpr (kIsHost<Exec> || kWidth == 1) {
      Kokkos::parallel_reduce(
          Kokkos::TeamVectorRange(team, count / kWidth),
          [&](int p, double& total) {
            total += sum_each<kWidth, 1, 4>([&](const auto& each) { each(0, first + p * kWidth); });
          },
          in_packets);
    } else {  // a lane has all its packets of two parts in flight
      constexpr int kSlots = static_cast<int>(kSquaresBlock) / kWidth / kTeamLanes;
      static_assert(kSlots * kWidth * kTeamLanes == kSquaresBlock, "the slots of a team's lanes must cover a block");
      const RowShare<kWidth, kSlots> share(team, count);
      const double of_lane = sum_each<kWidth, kSlots, 2>(
          [&](const auto& each) { share.each([&](int slot, int column) { each(slot, first + column); }); });
      Kokkos::parallel_reduce(
          Kokkos::TeamVectorRange(team, share.lanes), [&](int, double& total) { total += of_lane; }, in_packets);
    }
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      double behind = 0;  // the last whole packet
      for (std::int64_t i = count / kWidth * kWidth; i < count; ++i) {
        behind += sum_each<1, 1, 4>([&](const auto& each) { each(0, first + i); });
      }
      squares(team.league_rank()) = in_packets + behind;
    });
  }

 private:
  /// Sums packets and returns the sum of their squares: for_each(body) calls body(slot, first element) for each packet
  /// of a lane, kSlots at most; kTogether parts of all of them are in flight at once.
  template <int kWidth, int kSlots, int kTogether, class ForEach>
  KOKKOS_FORCEINLINE_FUNCTION double sum_each(const ForEach& for_each) const {
    Accum<Scalar> sum[kSlots][kWidth] = {};
    for (int p = 0; p < parts; p += kTogether) {
      Packet<Scalar, kWidth> read[kTogether][kSlots];
      TESSERA_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if (p + j >= parts) break;
        for_each([&](int slot, std::int64_t first) { read[j][slot] = load<kWidth>(part[p + j] + first); });
      }
      TESSERA_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if (p + j >= parts) break;
        for_each([&](int slot, std::int64_t) {
          for (int i = 0; i < kWidth; ++i) sum[slot][i] += read[j][slot][i];
        });
      }
    }
    double squares_of_sums = 0;
    for_each([&](int slot, std::int64_t first) {
      Packet<Scalar, kWidth> rounded;
      for (int i = 0; i < kWidth; ++i) {
        rounded.set(i, sum[slot][i]);
        squares_of_sums += square(rounded[i]);
      }
      store(out.data() + first, rounded);
      for (int c = 0; c < copy_count; ++c) store(copies[c] + first, rounded);
    });
    return squares_of_sums;
  }

  KOKKOS_FUNCTION static double square(Accum<Scalar> value) {
    return static_cast<double>(value) * static_cast<double>(value);
  }
};

}  // namespace tessera::kernels
