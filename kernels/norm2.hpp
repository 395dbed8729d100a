/// Squared Euclidean norm of a long vector (all gradients), for clipping.
///
///   total = sum_i x[i]^2
///
/// One team per block of kBlock elements, then one team over the partial sums. The result stays on the device. For a
/// vector in several pieces, call launch_blocks() for each, with contiguous partial sums, then SquareNormTotal for all.
///
/// Source     clipping by the norm of all gradients: Pascanu et al. 2013, arXiv:1211.5063, Alg. 1.
/// Numerics   squares and sums in double; a NaN or an infinity in x makes the total NaN or infinite, which is how the
///            step detects an overflow.
/// Error      E<double>(n) relative (kernels/core/scalar.hpp).
/// Order      fixed for a given length and alignment: bitwise repeatable. No atomics.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument if `partial` is too short.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

/// Scalar is the storage type of gradients.
template <class Exec, class Scalar>
struct SquareNorm {
  Vector<const Scalar, Exec> x;  // [n]  in
  Vector<double, Exec> partial;  // [blocks(n)]  workspace
  Value<double, Exec> total;     // out

  static constexpr std::size_t kBlock = 16384;  // elements per team
  KOKKOS_FUNCTION static constexpr std::size_t blocks(std::size_t n) { return ceil_div(n, kBlock); }

  void launch(const Exec& exec) const;
  void launch_blocks(const Exec& exec) const;  // `total` is not needed

  template <class Tag>
  using Policy = Kokkos::TeamPolicy<Exec, Tag>;
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, const Member& team) const;
};

template <class Exec>
struct SquareNormTotal {
  Vector<const double, Exec> partial;  // [blocks]  in
  Value<double, Exec> total;           // out: scale times their sum
  double scale = 1;

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

}  // namespace tessera::kernels
