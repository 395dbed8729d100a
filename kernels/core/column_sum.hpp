/// Second stage of every "sum over rows" in a backward kernel: adds up partial rows, column by column.
///
///   out[c] = (accumulate ? out[c] : 0) + sum_r partial[r,c]      r = 0 .. rows-1, in this order
///
/// The first stage gives each team a group of rows and one row of `partial` of its own, so no two teams write to
/// one place: no atomics, and the order of the sum depends on the shapes alone.
///
/// Memory     pad: level 0, Real kColumns.
/// Async      returns after enqueue on `exec`; never fences.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Real>
struct ColumnSum {
  Matrix<const Real, Exec> partial;  // [>= rows, C]  in
  int rows;                          // rows of partial that hold something
  Vector<Real, Exec> out;            // [C]  out, or in and out when accumulate
  bool accumulate;

  static constexpr int kColumns = 64;  // columns per team

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;

  void launch(const Exec& exec, const char* label) const {
    const int C = out.extent_int(0);
    if (C == 0) return;
    Kokkos::parallel_for(label,
                         Policy(exec, (C + kColumns - 1) / kColumns, Kokkos::AUTO)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(kColumns))),
                         *this);
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int first = team.league_rank() * kColumns, C = out.extent_int(0);
    const int columns = C - first < kColumns ? C - first : kColumns;
    Pad<Real, Exec> sum(team.team_scratch(0), kColumns);

    // A column belongs to the same thread in all three loops, so the pad needs no barrier.
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns),
                         [&](int c) { sum(c) = accumulate ? out(first + c) : Real(0); });
    for (int r = 0; r < rows; ++r) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int c) { sum(c) += partial(r, first + c); });
    }
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int c) { out(first + c) = sum(c); });
  }
};

}  // namespace tessera::kernels
