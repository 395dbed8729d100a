#include "kernels/weighted_sum.hpp"  // the contract is there; here is how

#include "kernels/core/column_sum.hpp"
#include "kernels/core/instantiate.hpp"
#include "kernels/core/require.hpp"
#include "kernels/core/round_up.hpp"
#include "kernels/core/team.hpp"

namespace tessera::kernels {

namespace detail {
/// Offset in the pad of element i of packet p of a tile: neighbouring lanes use neighbouring addresses, and an address
/// belongs to the same lane in every tile.
template <int kWidth, int kColumns>
KOKKOS_FORCEINLINE_FUNCTION constexpr int place(int p, int i) {
  return kWidth == 1 ? p : i * (kColumns / kWidth) + p;
}
}  // namespace detail

// launch runs on the host: 1. check every shape, 2. size the pad, 3. enqueue one team per tile of rows.
template <class Exec, class Scalar>
void WeightedSumForward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = x.extent_int(0), D = x.extent_int(1);
  require_shape("weighted sum forward: w must be [D], as wide as x", w, D);
  require_shape("weighted sum forward: y must be [N], one per row of x", y, N);
  if (N == 0) return;
  const auto pad_bytes = Pad<Real, Exec>::shmem_size(kColumns) + Pad<Real, Exec>::shmem_size(kRows);
  const bool fits = packets_fit(kPacketWidth<Exec, Scalar>, D, x.data(), w.data());
  in_packets<Exec, Scalar>(fits, [&](auto how) {
    using Policy = Kokkos::TeamPolicy<Exec, decltype(how)>;
    Kokkos::parallel_for("tessera::weighted_sum::forward",
                         team_policy<Policy>(exec, ceil_div(N, kRows), kRows * kVectorLanes)
                             .set_scratch_size(0, Kokkos::PerTeam(pad_bytes)),
                         *this);
  });
}

// operator() runs on the device, once per team; every thread of the team executes it. Three levels of parallel work:
// the league (one team per tile of rows), TeamThreadRange (a row per thread), ThreadVectorRange (lanes along a row).
// A lane reads a packet of kWidth elements at once (kernels/core/packet.hpp): 16 bytes on a GPU, one element on a CPU.
template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void WeightedSumForward<Exec, Scalar>::operator()(InPackets<kWidth>, const Member& team) const {
  const int N = x.extent_int(0), D = x.extent_int(1), first_row = team.league_rank() * kRows;
  const int rows = N - first_row < kRows ? N - first_row : kRows;  // the last tile may be ragged
  Pad<Real, Exec> pad_w(team.team_scratch(0), kColumns);
  Pad<Real, Exec> pad_sum(team.team_scratch(0), kRows);

  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, rows), [&](int row) { pad_sum(row) = Real(0); });
  for (int first = 0; first < D; first += kColumns) {
    const int columns = D - first < kColumns ? D - first : kColumns, packets = columns / kWidth;

    // 1. stage the tile of w: read and converted once, used by every row
    Kokkos::parallel_for(Kokkos::TeamVectorRange(team, packets), [&](int p) {
      const auto w_p = load<kWidth>(&w(first + p * kWidth));
      for (int i = 0; i < kWidth; ++i) pad_w(detail::place<kWidth, kColumns>(p, i)) = w_p[i];
    });
    team.team_barrier();  // the pad is complete before any thread reads it

    // 2. each row adds its dot product with the tile
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, rows), [&](int row) {
      const Scalar* x_row = &x(first_row + row, first);
      Real dot = 0;
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, packets),
          [&](int p, Real& sum) {
            const auto x_p = load<kWidth>(x_row + p * kWidth);
            for (int i = 0; i < kWidth; ++i) sum += pad_w(detail::place<kWidth, kColumns>(p, i)) * x_p[i];
          },
          dot);
      Kokkos::single(Kokkos::PerThread(team), [&] { pad_sum(row) += dot; });
    });
    team.team_barrier();  // every thread is done with pad_w before the next tile overwrites it
  }

  // 3. round and write
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, rows),
                       [&](int row) { y(first_row + row) = static_cast<Scalar>(pad_sum(row)); });
}

template <class Exec, class Scalar>
void WeightedSumBackward<Exec, Scalar>::launch(const Exec& exec) const {
  const int N = x.extent_int(0), D = x.extent_int(1);
  require_shape("weighted sum backward: w must be [D], as wide as x", w, D);
  require_shape("weighted sum backward: d_y must be [N], one per row of x", d_y, N);
  require_shape("weighted sum backward: d_x must be [N,D] like x", d_x, N, D);
  require_shape("weighted sum backward: d_w must be [D], as wide as x", d_w, D);
  TESSERA_REQUIRE(partial.extent_int(0) >= tiles(N) && partial.extent_int(1) == D,
                  "weighted sum backward: partial must be [tiles(N),D]", partial.extent(0), partial.extent(1), tiles(N),
                  D);
  if (N > 0) {
    const auto pad_bytes = 2 * Pad<Real, Exec>::shmem_size(kColumns);
    const bool fits = packets_fit(kPacketWidth<Exec, Scalar>, D, x.data(), w.data(), d_x.data(), partial.data());
    in_packets<Exec, Scalar>(fits, [&](auto how) {
      using Policy = Kokkos::TeamPolicy<Exec, decltype(how)>;
      Kokkos::parallel_for("tessera::weighted_sum::backward::rows",
                           team_policy<Policy>(exec, tiles(N), kColumns / decltype(how)::kElements)
                               .set_scratch_size(0, Kokkos::PerTeam(pad_bytes)),
                           *this);
    });
  }
  // With no rows d_w is an empty sum: zero.
  ColumnSum<Exec, Real>{.partial = partial, .rows = tiles(N), .out = d_w, .accumulate = false}.launch(
      exec, "tessera::weighted_sum::backward::d_w");
}

// Here the lanes run along the columns only: an address of the pad belongs to one thread in all loops and rows of a
// tile, so the sums there need neither barriers nor atomics.
template <class Exec, class Scalar>
template <int kWidth>
KOKKOS_FUNCTION void WeightedSumBackward<Exec, Scalar>::operator()(InPackets<kWidth>, const Member& team) const {
  const int N = x.extent_int(0), D = x.extent_int(1), tile = team.league_rank(), first_row = tile * kRows;
  const int rows = N - first_row < kRows ? N - first_row : kRows;
  Pad<Real, Exec> pad_w(team.team_scratch(0), kColumns);
  Pad<Real, Exec> pad_dw(team.team_scratch(0), kColumns);

  for (int first = 0; first < D; first += kColumns) {
    const int columns = D - first < kColumns ? D - first : kColumns, packets = columns / kWidth;

    const auto each_packet = [&](const auto& body) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(team, packets), body);
    };

    // 1. stage the tile of w, laid out as in forward, and clear its gradient
    team.team_barrier();  // the last tile, if it is ragged, gives its columns to other threads
    each_packet([&](int p) {
      const auto w_p = load<kWidth>(&w(first + p * kWidth));
      for (int i = 0; i < kWidth; ++i) {
        pad_w(detail::place<kWidth, kColumns>(p, i)) = w_p[i];
        pad_dw(detail::place<kWidth, kColumns>(p, i)) = Real(0);
      }
    });

    // 2. row by row: collect d_w, write d_x; two loops with one output each, which vectorise better than one with two
    for (int row = first_row; row < first_row + rows; ++row) {
      const Real dy = static_cast<Real>(d_y(row));
      const Scalar* x_row = &x(row, first);
      Scalar* d_x_row = &d_x(row, first);
      each_packet([&](int p) {
        const auto x_p = load<kWidth>(x_row + p * kWidth);
        for (int i = 0; i < kWidth; ++i) pad_dw(detail::place<kWidth, kColumns>(p, i)) += dy * x_p[i];
      });
      each_packet([&](int p) {
        Packet<Scalar, kWidth> d_x_p;
        for (int i = 0; i < kWidth; ++i) d_x_p.set(i, dy * pad_w(detail::place<kWidth, kColumns>(p, i)));
        store(d_x_row + p * kWidth, d_x_p);
      });
    }

    // 3. write this team's share of d_w to its row of `partial`
    each_packet([&](int p) {
      Packet<Real, kWidth> dw_p;
      for (int i = 0; i < kWidth; ++i) dw_p.set(i, pad_dw(detail::place<kWidth, kColumns>(p, i)));
      store(&partial(tile, first + p * kWidth), dw_p);
    });
  }
}

TESSERA_INSTANTIATE_KERNEL(WeightedSumForward);
TESSERA_INSTANTIATE_KERNEL(WeightedSumBackward);

}  // namespace tessera::kernels
