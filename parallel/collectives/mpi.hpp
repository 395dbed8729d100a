/// Collectives through MPI in host memory: data on a device is copied to the host and back.
///
/// A message crosses the network in pieces of at most kPieceBytes, of which a communicator has at most kPiecesInFlight
/// under way, in the order in which the transfers were started. So neither what is copied to the host nor what the
/// library sets aside for its sums grows with a message or with the number of transfers. An all-gather or a broadcast
/// of memory that MPI can reach needs neither: up to 1 GiB it is not cut, and a longer broadcast in pieces of 1 GiB.
///
/// Memory  staging_bytes() per communicator, in the host's memory, from the first transfer made on: where pieces are
///         packed for a reduce-scatter, and where those of memory on a device are copied.
/// Limits  MPI makes progress only in test() and join() of any transfer of the same communicator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

class FlightRecorder;

inline constexpr std::int64_t kPieceBytes = std::int64_t{2} << 20;
inline constexpr int kPiecesInFlight = 4;

/// Staging for messages of at most `message_bytes` that are reduce-scattered, or in a device's memory; if they are
/// both, their sums count, too.
inline std::int64_t staging_bytes(std::int64_t message_bytes) {
  return kPiecesInFlight * std::min(kPieceBytes, message_bytes);
}

/// What Open MPI 4.1 allocates by itself for sums under way, of at most `under_way_bytes` together: once the pieces for
/// an all-reduce, twice for a reduce-scatter.
inline std::int64_t mpi_sum_bytes(std::int64_t under_way_bytes, bool is_reduce_scatter) {
  return (is_reduce_scatter ? 2 : 1) * std::min(kPiecesInFlight * kPieceBytes, under_way_bytes);
}

/// Transfers are recorded in `recorder`, which must outlive the result.
std::unique_ptr<Collectives> make_mpi_collectives(FlightRecorder& recorder);

}  // namespace tessera::parallel
