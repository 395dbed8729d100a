/// Where the ranks of a launch run: numbers and names for programs, sentences for people.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tessera::parallel {

/// Where one rank runs.
struct Place {
  int rank = 0, local_rank = 0;  // of the launch; among the ranks of its host
  std::string host = {};
  std::string gpu = {}, bus_id = {}, uuid = {};  // "NVIDIA H200", "0000:1b:00.0", "GPU-..."; empty on CPUs
  double gbyte_per_s = 0, check_s = 0;           // of its device's check at the start (soundness.hpp); 0 before it
};

struct Host {
  std::string name;
  int ranks;
};

/// The hosts of all ranks, by name.
std::vector<Host> hosts_of(std::span<const Place> places);

/// A GPU's name in messages: "node7: NVIDIA H200 at 0000:1b:00.0", a different one for each GPU.
std::string device_name(const Place& place);

/// Different GPUs of all ranks; 0 on CPUs.
int count_devices(std::span<const Place> places);

/// The rank of `place` and those that share its GPU.
int count_ranks_on_device(std::span<const Place> places, const Place& place);

/// "node1: 4 ranks, node2: 4 ranks"
std::string hosts_text(std::span<const Place> places);

/// "rank 0 on node1: NVIDIA H200 at 0000:1b:00.0; rank 1 on ..."; empty on CPUs.
std::string devices_text(std::span<const Place> places);

}  // namespace tessera::parallel
