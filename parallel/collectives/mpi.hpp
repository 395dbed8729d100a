/// Collectives through MPI in host memory: data on a device is copied to the host and back.
///
/// A message crosses the network in pieces of at most kPieceBytes, in start order, at most kPiecesInFlight in flight
/// per communicator. So neither staging on the host nor the library's memory for sums grows with message size or the
/// number of transfers. An all-gather or broadcast of memory that MPI can reach needs neither: it is not cut up to
/// 1 GiB, and a longer broadcast goes in pieces of 1 GiB.
///
/// Memory  staging_bytes() of host memory per communicator, from the first transfer made on: for packing the pieces of
///         a reduce-scatter, and for copies of device memory.
/// Limits  MPI makes progress only in test() and join() of any transfer of the same communicator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

class FlightRecorder;

inline constexpr std::int64_t kPieceBytes = std::int64_t{2} << 20;
inline constexpr int kPiecesInFlight = 4;

/// Bytes of staging for messages of at most `message_bytes` that are reduce-scattered or lie in device memory. If both
/// apply, the sums fit there, too.
inline std::int64_t staging_bytes(std::int64_t message_bytes) {
  return kPiecesInFlight * std::min(kPieceBytes, message_bytes);
}

/// Bytes that Open MPI 4.1 itself allocates for sums in flight, whose messages have `under_way_bytes` or less together:
/// as many as the pieces of all-reduces, twice as many as those of reduce-scatters.
inline std::int64_t mpi_sum_bytes(std::int64_t under_way_bytes, bool is_reduce_scatter) {
  return (is_reduce_scatter ? 2 : 1) * std::min(kPiecesInFlight * kPieceBytes, under_way_bytes);
}

/// Transfers are recorded in `recorder`, which must outlive the result; each piece that arrives calls `on_piece`.
std::unique_ptr<Collectives> make_mpi_collectives(
    FlightRecorder& recorder, std::function<void()> on_piece = [] {});

}  // namespace tessera::parallel
