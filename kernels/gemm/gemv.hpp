/// A few rows times a weight matrix, y = f(x) W^T: what generation computes for a token of each sequence.
///
///   plain      y[m,n] = sum_k h[m,k] W[n,k]                                         h = x
///   normed     y[m,n] = rrms[m] sum_k h[m,k] gain[k] W[n,k]                         h = x, or round(x + delta)
///              rrms[m] = 1 / sqrt(mean_k h[m,k]^2 + eps)                            (kernels/rmsnorm.hpp)
///   gated      y[m,n] = silu(g[m,n]) u[m,n], where g and u are the results for rows n and N + n of a W [2N,K]
///                                                                                   (kernels/swiglu.hpp)
///
/// A product with so few rows is bound by reading the weights. They are read once, in packets, for all rows of x, and
/// what precedes and follows the product costs no launch of its own. On a GPU a team computes kTile rows of W: its
/// lanes share the sum over k, and each has two packets of all these rows in flight; the norm's factor is applied at
/// the end, so that nothing waits for it. Every team sums the squares of its own copy of h.
///
/// From 3 rows of x on, bfloat16 and float16 take the tensor cores of a GPU, whose tile is 16 rows of W by 8 rows of x:
/// a team computes 16 rows, or 32 of a normed product, and lanes read W in the packets that the cores are fed with
/// (kernels/cuda/row_products.hpp). A normed row h gain enters as two Scalars, what it is rounded to and the rest.
///
/// On GPUs the kernel waits for its predecessor in a chain (kernels/cuda/chain.hpp) after it has asked for the first
/// packets of W, in registers, and for kAhead packets of each row, in the shared cache: the memory has work while the
/// kernel before ends.
///
/// Source     as those of the kernels named above.
/// Numerics   products and sums in Real = Accum<Scalar>; h is rounded to Scalar, the normed row and g, u are not; y is
///            rounded once.
/// Error      eps<Scalar> relative, plus E<Real>(K) (1 + sqrt(K)) for operands up to 1 (kernels/core/scalar.hpp);
///            gated: 2 (1 + sqrt(K)) times that, for the other factor's size.
/// Order      fixed for given shapes: bitwise repeatable. No atomics. A row of y does not depend on the others; that
///            there are more than two can change the order of its sums.
/// Memory     pad: level 0, Real K on hosts; on GPUs per thread Real (kTile + 1) * M, M rounded up to 1, 2, 4 or 8, or
///            with tensor cores Real (tile_rows + 1) * kMaxRows.
/// Cost       2*M*N*K flop; reads N*K elements of W.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree or x has more than kMaxRows rows.
/// Limits     in a chain, W is not written by a kernel of the chain. float16 on tensor cores: |h gain| up to 65,504.
/// Fast       on GPUs: rows aligned to 16 bytes and K a multiple of a packet.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct Gemv {
  using Real = Accum<Scalar>;

  Matrix<const Scalar, Exec> x;           // [M,K]  in
  Matrix<const Scalar, Exec> w;           // [N,K]  in; gated: [2N,K], gates before ups
  Matrix<Scalar, Exec> y;                 // [M,N]  out
  Vector<const Scalar, Exec> gain = {};   // [K]    in, optional: normed
  Matrix<const Scalar, Exec> delta = {};  // [M,K]  in, optional, of a normed product: added to x
  Matrix<Scalar, Exec> residual = {};     // [M,K]  out, optional, with delta: x + delta; neither x nor delta
  Real eps = 0;                           // added to the mean square
  bool is_gated = false;

  static constexpr int kMaxRows = 8;                    // M
  static constexpr int kTile = kIsHost<Exec> ? 64 : 4;  // rows of W per team
  static constexpr int kLanes = 128;                    // of a team, on GPUs
  static constexpr int kTileThreads = 8;                // of a team that uses tensor cores
  /// Rows of W of such a team.
  static constexpr int tile_rows(bool is_normed) { return is_normed ? 32 : 16; }
  static constexpr int kAhead = 256;  // packets of a row that a team asks for before its first sums

  void launch(const Exec& exec) const;

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  struct Plain {};
  KOKKOS_FUNCTION void operator()(Plain, const Member& team) const;
  /// Work tag: up to kRows rows of x, packets of kWidth elements.
  template <int kWidth, int kRows, bool kIsNormed>
  struct Packets {};
  template <int kWidth, int kRows, bool kIsNormed>
  KOKKOS_FUNCTION void operator()(Packets<kWidth, kRows, kIsNormed>, const Member& team) const;
  /// Work tag: 3 to kMaxRows rows of x, 16 bits, on the tensor cores.
  template <bool kIsNormed>
  struct Tiles {};
  template <bool kIsNormed>
  KOKKOS_FUNCTION void operator()(Tiles<kIsNormed>, const Member& team) const;

 private:
  template <bool kIsNormed>
  void launch_tiles(const Exec& exec) const;
  template <int kWidth, int kRows>
  void launch_packets(const Exec& exec) const;
  template <int kWidth, int kRows, bool kIsNormed>
  void launch_teams(const Exec& exec) const;
};

}  // namespace tessera::kernels
