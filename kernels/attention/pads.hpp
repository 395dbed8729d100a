/// Moving rows of a head tensor between global memory and the pads; shared by the portable attention kernels.
#pragma once

#include <cmath>

#include "kernels/attention/task.hpp"
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

/// What backward needs of queries first .. first + count - 1: top, their lse (+inf if a query sees no key, so that its
/// exponentials are 0), and delta_i = d_out_i . out_i. Lanes count .. lanes-1 see no key. Ends without a barrier.
template <class Member, class Exec, class Scalar>
KOKKOS_INLINE_FUNCTION void stage_row_sums(const Member& team, const BackwardTask<Exec, Scalar>& task, int b, int h,
                                           int first, int count, int lanes, Accum<Scalar>* top, Accum<Scalar>* delta) {
  using Real = Accum<Scalar>;
  const int D = task.q.extent_int(3);
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, lanes), [&](int i) {
    Real dot = 0;
    if (i < count) {
      const Scalar* out = &task.out(b, h, first + i, 0);
      const Scalar* d_out = &task.d_out(b, h, first + i, 0);
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, D),
          [&](int d, Real& sum) { sum += static_cast<Real>(out[d]) * static_cast<Real>(d_out[d]); }, dot);
    }
    Kokkos::single(Kokkos::PerThread(team), [&] {
      const Real lse = i < count ? task.lse(b, h, first + i) : Real(-HUGE_VAL);
      delta[i] = dot;
      top[i] = lse == Real(-HUGE_VAL) ? Real(HUGE_VAL) : lse;
    });
  });
}

}  // namespace tessera::kernels::detail
