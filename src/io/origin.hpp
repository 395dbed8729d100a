/// What made a file, as its attributes: sentences for people, numbers and names for programs.
///
///   version, git_hash         of the program
///   build                     compiler, Kokkos, flags
///   transport                 what the ranks talk through, with its version; empty for one rank
///   command, deck             as typed; resolved, TOML
///   hosts, devices            "node1: 4 ranks", "rank 0 on node1: NVIDIA H200 at 0000:1b:00.0; ..." (empty on CPUs)
///   ranks, host_count         of the launch
///   ranks_per_host            on the host that has most
///   gpu_count                 different GPUs; 0 on CPUs
///   gpu_models                [model] names as the driver gives them, in the order of the ranks
///   ranks_of_gpu_models       [model] ranks that have a GPU of it
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/h5.hpp"

namespace tessera::io {

struct Launch {
  std::string hosts, devices;
  std::int64_t ranks = 1, host_count = 1, ranks_per_host = 1, gpu_count = 0;
  std::vector<std::string> gpu_models = {};
  std::vector<std::int64_t> ranks_of_gpu_models = {};
};

struct Origin {
  std::string version, git_hash, build;
  Launch launch;
  std::string transport, command, deck;
};

void write_origin(h5::Object& object, const Origin& origin);

/// The launch, without `ranks_of_gpu_models`, which scripts read.
/// Throws  Failure(Exit::files) if an older version wrote the file, with sentences alone, or if counts of ranks are
///         below 1.
Launch read_launch(const h5::Object& object);

}  // namespace tessera::io
