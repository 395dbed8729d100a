/// Moving rows of a head tensor between global memory and the pads; shared by the portable attention kernels.
#pragma once

#include "kernels/core/tensor.hpp"
#include "kernels/core/tiles.hpp"

namespace tessera::kernels::detail {

/// pad[n, d] = factor * rows[n, d] for n < count, d < D; columns D..width-1 become zero. Ends without a barrier.
template <class Member, class Scalar, class Real>
KOKKOS_INLINE_FUNCTION void stage_rows(const Member& team, const Scalar* rows, long row_stride, int count, int D,
                                       int width, Real factor, Real* pad) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, count), [&](int n) {
    const Scalar* from = rows + n * row_stride;
    Real* to = pad + n * width;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, width),
                         [&](int d) { to[d] = d < D ? factor * static_cast<Real>(from[d]) : Real(0); });
  });
}

/// pad[d, n] = factor * rows[n, d] for n < count; lanes count..lanes-1 become zero. Ends without a barrier.
template <class Member, class Scalar, class Real>
KOKKOS_INLINE_FUNCTION void stage_transposed(const Member& team, const Scalar* rows, long row_stride, int count, int D,
                                             int lanes, Real factor, Real* pad) {
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, D), [&](int d) {
    Real* to = pad + d * lanes;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, lanes), [&](int n) {
      to[n] = n < count ? factor * static_cast<Real>(rows[n * row_stride + d]) : Real(0);
    });
  });
}

}  // namespace tessera::kernels::detail
