/// Second stage of every "sum over rows" in a backward kernel: adds up partial rows, column by column.
///
///   out[c] = (accumulate ? out[c] : 0) + sum_r partial[r,c]
///
/// The first stage gives each team a group of rows and a row of `partial` of its own, so no two teams write to the same
/// address. Slice s sums the rows s, s + kSlices, ...; then the slices are summed: one on a host, on a GPU one per
/// thread, so that enough reads are in flight.
///
/// Order      fixed for given shapes: bitwise repeatable. No atomics.
/// Memory     pad: level 0, Real kSlices*kColumns.
/// Async      returns after enqueue on `exec`; never fences.
#pragma once

#include <Kokkos_Core.hpp>

#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"
#include "kernels/core/tensor.hpp"

namespace tessera::kernels {

template <class Exec, class Real, class Out = Real>
struct ColumnSum {
  Matrix<const Real, Exec> partial;  // [>= rows, C]  in
  int rows;                          // rows of partial in use
  Vector<Out, Exec> out;             // [C]  out, or in and out when accumulate
  bool accumulate;

  static constexpr int kColumns = kIsHost<Exec> ? 64 : 16;  // columns per team
  static constexpr int kSlices = kIsHost<Exec> ? 1 : 64;
  static constexpr int kAtOnce = 8;  // rows that a lane has in flight

  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;

  void launch(const Exec& exec, const char* label) const {
    const int C = out.extent_int(0);
    if (C == 0) return;
    Kokkos::parallel_for(label,
                         team_policy<Policy>(exec, ceil_div(C, kColumns), kSlices * kColumns)
                             .set_scratch_size(0, Kokkos::PerTeam(Pad<Real, Exec>::shmem_size(kSlices * kColumns))),
                         *this);
  }

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const int first = team.league_rank() * kColumns, C = out.extent_int(0);
    const int columns = C - first < kColumns ? C - first : kColumns;
    Pad<Real, Exec> sum(team.team_scratch(0), kSlices * kColumns);

    if constexpr (kIsHost<Exec>) {  // row by row: a host reads contiguously
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int c) { sum(c) = Real(0); });
      for (int r = 0; r < rows; ++r) {
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int c) { sum(c) += partial(r, first + c); });
      }
    } else {  // column by column: the sum stays in a register
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, kSlices * kColumns), [&](int lane) {
        const int c = lane % kColumns;
        Real sum_c = 0;
        for (int r = lane / kColumns; c < columns && r < rows; r += kAtOnce * kSlices) {
          Real value[kAtOnce];
          TESSERA_UNROLL
          for (int j = 0; j < kAtOnce; ++j) {
            value[j] = r + j * kSlices < rows ? partial(r + j * kSlices, first + c) : Real(0);
          }
          TESSERA_UNROLL
          for (int j = 0; j < kAtOnce; ++j) sum_c += value[j];
        }
        sum(lane) = sum_c;
      });
    }
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int c) {
      Real all = accumulate ? static_cast<Real>(out(first + c)) : Real(0);
      for (int slice = 0; slice < kSlices; ++slice) all += sum(slice * kColumns + c);
      out(first + c) = static_cast<Out>(all);
    });
  }
};

}  // namespace tessera::kernels
