/// out[i] = round(x[i] + delta[i]): the addition to the residual stream as a separate kernel, used by the plain step
/// (train.fused = false). The fused step adds in RmsnormForward.
///
/// Error   half an eps<Scalar>, relative.
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
