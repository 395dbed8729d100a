/// Rates of collective operations, as nccl-tests define them (doc/PERFORMANCE.md there), so that figures compare.
///
///   algorithm bandwidth = S / t
///   bus bandwidth       = S / t * bus_factor
///
/// S [bytes] is the whole message: the buffer of an all-reduce or broadcast, a reduce-scatter's input, an all-gather's
/// output. If the algorithm sends as little as possible, the bus bandwidth is the slowest link's; unlike the algorithm
/// bandwidth, it does not fall with the number of ranks. GB/s are 1e9 bytes per second.
#pragma once

#include <cstdint>

#include "parallel/collectives/collective.hpp"

namespace tessera::lab {

constexpr double bus_factor(parallel::Operation operation, int ranks) {
  const double others = ranks - 1;
  switch (operation) {
    case parallel::Operation::all_reduce: return 2 * others / ranks;
    case parallel::Operation::reduce_scatter:
    case parallel::Operation::all_gather: return others / ranks;
    case parallel::Operation::broadcast: break;
  }
  return 1;
}

constexpr double algorithm_gbyte_per_s(std::int64_t bytes, double seconds) {
  return 1e-9 * static_cast<double>(bytes) / seconds;
}

constexpr double bus_gbyte_per_s(parallel::Operation operation, int ranks, std::int64_t bytes, double seconds) {
  return algorithm_gbyte_per_s(bytes, seconds) * bus_factor(operation, ranks);
}

/// Elements of a message of at most `bytes`. If the operation has parts, each rank's is whole and a multiple of 16
/// bytes, as in nccl-tests.
constexpr std::int64_t message_elements(parallel::Operation operation, int ranks, std::int64_t bytes,
                                        std::int64_t element_bytes) {
  const bool has_parts =
      operation == parallel::Operation::reduce_scatter || operation == parallel::Operation::all_gather;
  if (!has_parts) return bytes / element_bytes;
  return bytes / ranks / 16 * 16 / element_bytes * ranks;
}

}  // namespace tessera::lab
