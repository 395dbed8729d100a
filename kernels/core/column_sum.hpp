/// Second stage of every "sum over rows" in a backward kernel: adds up partial rows, column by column.
///
///   out[c] = (accumulate ? out[c] : 0) + sum_r partial[r,c]
///
/// The first stage gives each team a group of rows and one row of `partial` of its own, so no two teams write to
/// one place: no atomics, and the order of the sum depends on the shapes alone. Slice s adds up the rows s, s +
/// kSlices,
/// ... in this order, and then the slices are added up in order: on a host there is one, on a GPU a slice per thread,
/// so that enough reads are under way.
///
/// Memory     pad: level 0, Real kSlices*kColumns.
/// Async      returns after enqueue on `exec`; never fences.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/team.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Real>
struct ColumnSum {
  Matrix<const Real, Exec> partial;  // [>= rows, C]  in
  int rows;                          // rows of partial that hold something
  Vector<Real, Exec> out;            // [C]  out, or in and out when accumulate
  bool accumulate;

  static constexpr int kColumns = kIsHost<Exec> ? 64 : 32;  // columns per team
  static constexpr int kSlices = kIsHost<Exec> ? 1 : 32;

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;

  void launch(const Exec& exec, const char* label) const {
    const int C = out.extent_int(0);
    if (C == 0) return;
    Kokkos::parallel_for(label,
                         team_policy<Policy>(exec, (C + kColumns - 1) / kColumns, kSlices * kVectorLanes)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(kSlices * kColumns))),
                         *this);
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int first = team.league_rank() * kColumns, C = out.extent_int(0);
    const int columns = C - first < kColumns ? C - first : kColumns;
    Pad<Real, Exec> sum(team.team_scratch(0), kSlices * kColumns);

    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, kSlices + 0), [&](int slice) {
      Real* sum_s = &sum(slice * kColumns);
      if constexpr (kIsHost<Exec>) {  // row by row: a host wants long runs of a row
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, columns), [&](int c) { sum_s[c] = Real(0); });
        for (int r = slice; r < rows; r += kSlices) {
          Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, columns),
                               [&](int c) { sum_s[c] += partial(r, first + c); });
        }
      } else {  // column by column: the sum stays in a register, and several rows are under way
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, columns), [&](int c) {
          Real sum_c = 0;
          for (int r = slice; r < rows; r += kSlices) sum_c += partial(r, first + c);
          sum_s[c] = sum_c;
        });
      }
    });
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int c) {
      Real all = accumulate ? out(first + c) : Real(0);
      for (int slice = 0; slice < kSlices; ++slice) all += sum(slice * kColumns + c);
      out(first + c) = all;
    });
  }
};

}  // namespace tessera::kernels
