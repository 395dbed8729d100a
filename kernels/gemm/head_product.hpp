/// Products of one matrix per head by a team kernel: c[b,h] = factor * a[b,h] * b[b,h], or +=, any strides, so a
/// transpose is a swap of two.
///
/// One team owns a kTile x kTile tile of c of one (b,h) and walks the inner dimension tile by tile through the pad.
/// Simple on purpose: attention's lessons in storing scores ("standard/0", "tiled") are made of it. Tiled attention
/// keeps scores and sums in Accum<Scalar>: Left of one product, Result of both.
///
/// Numerics   sums in Accum<Scalar>, c rounded to Result once.
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     pad, level 0, Accum: 3*kTile*kTile.
/// Cost       2*B*H*M*N*K flop.
/// Async      returns after enqueue on `exec`; never fences.
/// Throws     std::invalid_argument when shapes disagree.
#pragma once

#include "kernels/core/require.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {
namespace detail {

/// a, b and c are [B,H,M,K], [B,H,K,N] and [B,H,M,N].
template <class A, class B, class C>
void require_head_product(const A& a, const B& b, const C& c) {
  TESSERA_REQUIRE(a.extent(0) == c.extent(0) && b.extent(0) == c.extent(0) && a.extent(1) == c.extent(1) &&
                      b.extent(1) == c.extent(1),
                  "head product: a, b and c must have the same B and H", a.extent(0), b.extent(0), c.extent(0),
                  a.extent(1), b.extent(1), c.extent(1));
  TESSERA_REQUIRE(a.extent(2) == c.extent(2) && b.extent(3) == c.extent(3) && a.extent(3) == b.extent(2),
                  "head product: shapes must be [M,K] x [K,N] = [M,N]", a.extent(2), a.extent(3), b.extent(2),
                  b.extent(3), c.extent(2), c.extent(3));
}

}  // namespace detail

template <class Exec, class Scalar, class Left = Scalar, class Result = Scalar>
struct HeadProduct {
  using Real = Accum<Scalar>;

  const char* label;                 // "tessera::attention::standard::..."
  HeadTensor<const Left, Exec> a;    // [B,H,M,K]  in
  HeadTensor<const Scalar, Exec> b;  // [B,H,K,N]  in
  HeadTensor<Result, Exec> c;        // [B,H,M,N]  out
  Real factor;
  bool accumulate = false;  // c += instead of c =

  static constexpr int kTile = kIsHost<Exec> ? 64 : 32;

  void launch(const Exec& exec) const;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const;
};

/// The same tensor with its last two dimensions exchanged.
template <class View>
View transposed(const View& heads) {
  return View(heads.data(), Kokkos::LayoutStride(heads.extent(0), heads.stride(0), heads.extent(1), heads.stride(1),
                                                 heads.extent(3), heads.stride(3), heads.extent(2), heads.stride(2)));
}

}  // namespace tessera::kernels
