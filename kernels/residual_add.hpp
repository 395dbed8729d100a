/// out[i] = round(x[i] + delta[i]): the addition to the residual stream as a pass of its own, which the plain step
/// takes (train.fused = false). RmsnormForward does the same on the way.
///
/// Error   half an eps<Scalar> of itself.
/// Cost    moves 3 Scalar per element.
/// Async   returns after enqueue on `exec`; never fences.
/// Throws  std::invalid_argument when extents disagree.
#pragma once

#include "kernels/core/packet.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Scalar>
struct ResidualAdd {
  Vector<const Scalar, Exec> x;      // [n]  in
  Vector<const Scalar, Exec> delta;  // [n]  in
  Vector<Scalar, Exec> out;          // [n]  out; may be x or delta

  void launch(const Exec& exec) const;

  template <int kWidth>
  KOKKOS_FUNCTION void operator()(InPackets<kWidth>, std::int64_t p) const;
};

}  // namespace tessera::kernels
