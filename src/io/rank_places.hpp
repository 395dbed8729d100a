/// /ranks of run.h5: where each rank of the latest start runs.
///
///   host, local_rank, gpu, bus_id, uuid, numa_node, cores [rank]
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/h5.hpp"

namespace tessera::io {

struct RankPlace {
  std::string host;
  std::int32_t local_rank = 0;    // among the ranks of its host
  std::string gpu, bus_id, uuid;  // "NVIDIA H200", "0000:1b:00.0", "GPU-..."; empty on CPUs
  std::int32_t numa_node = -1;    // that has all its cores; -1: they are of several, or unknown
  std::string cores;              // that it may use: "0-3,8-11"
};

void write_rank_places(h5::Group& file, const std::vector<RankPlace>& ranks);

}  // namespace tessera::io
