/// out[i] = part[0][i] + part[1][i] + ..., in this order: the sum of the ranks' values.
///
///   squares[b] = sum_i out[i]^2      optional; i in block b of kSquaresBlock neighbours: for the norm of the sums
///
/// One of the parts may be `out` itself: a lane reads a packet of all parts before it writes the sum.
///
/// Numerics   added in Accum<Scalar> (16-bit numbers in fp32) and rounded once; squares of what was rounded, in double.
/// Error      of a block's squares: E<double>(kSquaresBlock) relative (kernels/core/scalar.hpp).
/// Order      that of the parts; of squares fixed for a given length and alignment: bitwise repeatable.
/// Cost       squares cost no traffic but their own.
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
  static constexpr int kTogether = 4;  // parts that a lane has in flight
  static constexpr std::int64_t kSquaresBytes = 16384;
  static constexpr std::int64_t kSquaresBlock = kSquaresBytes / static_cast<std::int64_t>(sizeof(Scalar));  // elements

  Kokkos::Array<const Scalar*, kMaxParts> part;  // [parts] of [n]  in
  int parts;
  Vector<Scalar, Exec> out;           // [n]                           out
  Vector<double, Exec> squares = {};  // [ceil(n / kSquaresBlock)]     out, optional

  void launch(const Exec& exec) const {
    TESSERA_REQUIRE(parts >= 1 && parts <= kMaxParts, "sum of parts: 1 to 16 of them", parts);
    bool fit = packets_fit(1, 1, out.data());
    for (int p = 0; p < parts; ++p) fit = fit && packets_fit(1, 1, part[p]);
    if (!squares.data()) {
      return for_packets<kPacketWidth<Exec, Scalar>>("tessera::core::sum_parts", exec, fit, out.extent(0), *this);
    }
    const std::int64_t blocks = ceil_div(static_cast<std::int64_t>(out.extent(0)), kSquaresBlock);
    TESSERA_REQUIRE(squares.extent_int(0) == blocks, "sum of parts: squares must be [ceil(n / kSquaresBlock)]",
                    squares.extent(0), blocks);
    in_packets<Exec, Scalar>(fit, [&]<int kWidth>(InPackets<kWidth>) {
      using Policy = Kokkos::TeamPolicy<Exec, InBlocks<kWidth>>;
      if (blocks > 0) {
        Kokkos::parallel_for("tessera::core::sum_parts_squares", team_policy<Policy>(exec, blocks), *this);
      }
    });
  }

  template <int kAtOnce>
  KOKKOS_FUNCTION void operator()(InPackets<kAtOnce>, std::int64_t packet) const {
    sum<kAtOnce>(packet * kAtOnce);
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
    Kokkos::parallel_reduce(
        Kokkos::TeamVectorRange(team, count / kWidth),
        [&](int p, double& total) {
          const auto rounded = sum<kWidth>(first + p * kWidth);
          for (int i = 0; i < kWidth; ++i) total += square(rounded[i]);
        },
        in_packets);
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      double behind = 0;  // the last whole packet
      for (int i = count / kWidth * kWidth; i < count; ++i) behind += square(sum<1>(first + i)[0]);
      squares(team.league_rank()) = in_packets + behind;
    });
  }

 private:
  /// Sums a packet from element `first` on.
  template <int kAtOnce>
  KOKKOS_FUNCTION Packet<Scalar, kAtOnce> sum(std::int64_t first) const {
    Accum<Scalar> sum[kAtOnce] = {};
    for (int p = 0; p < parts; p += kTogether) {
      Packet<Scalar, kAtOnce> read[kTogether];
      for (int j = 0; j < kTogether; ++j) {
        if (p + j < parts) read[j] = load<kAtOnce>(part[p + j] + first);
      }
      for (int j = 0; j < kTogether; ++j) {
        for (int i = 0; i < kAtOnce && p + j < parts; ++i) sum[i] += read[j][i];
      }
    }
    Packet<Scalar, kAtOnce> rounded;
    for (int i = 0; i < kAtOnce; ++i) rounded.set(i, sum[i]);
    store(out.data() + first, rounded);
    return rounded;
  }

  KOKKOS_FUNCTION static double square(Accum<Scalar> value) {
    return static_cast<double>(value) * static_cast<double>(value);
  }
};

}  // namespace tessera::kernels
