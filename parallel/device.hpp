/// Chooses the GPU of a rank, and checks that this program can run there. Builds without a GPU backend compute on the
/// host.
///
/// Throws an EnvironmentError that names the fix for faults of the machine, before Kokkos starts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/place.hpp"

namespace tessera::parallel {

class World;

/// Whether this build computes on GPUs.
bool has_gpu_backend();

/// The architecture of the GPU code in this build: "sm_90a"; empty without a GPU backend; "portable" with
/// TESSERA_VENDOR=OFF, where Kokkos knows.
std::string compiled_architecture();

/// GPUs that this process sees; 0 without a GPU backend.
/// Throws  EnvironmentError if the build needs a GPU and the driver reports none.
int visible_devices();

/// The device of a rank: its local rank modulo the number of devices. -1 if there are none.
int choose_device(int local_rank, int devices);

/// Whether ranks share a device.
/// Throws  EnvironmentError if so, unless `allow_shared`.
bool check_sharing(std::span<const Place> places, bool allow_shared);

/// Chooses this rank's device, checks that this build's code runs there, makes it current and registers it with the
/// world. Collective, before Kokkos starts; if one rank fails, all do (World::agree). Without a GPU backend: no device.
class DeviceChoice {
 public:
  DeviceChoice(World& world, bool allow_shared);

  int index() const { return index_; }
  bool is_shared() const { return is_shared_; }  // any two ranks share a device

  /// Arguments for Kokkos::initialize: one, or none.
  std::vector<std::string> kokkos_arguments() const;

 private:
  int index_ = -1;
  bool is_shared_ = false;
};

/// The GPU's sticky error, after which this process can no longer compute there ("an illegal memory access was
/// encountered"); empty: none, or no GPU backend. Does not wait for running kernels, but hangs if the driver does.
std::string device_fault();

/// While it exists, an abort after such a fault prints a message and exits with `exit_code`, which ends the launch.
/// Kokkos aborts at the first such fault, as does freeing memory during unwinding. Other aborts stay aborts.
class FaultExit {
 public:
  FaultExit(int rank, int exit_code);  // `rank` is named in messages; one at a time
  ~FaultExit();
  FaultExit(const FaultExit&) = delete;
  FaultExit& operator=(const FaultExit&) = delete;
};

/// Why code compiled for `compiled` ("90a", "80") does not run on a GPU of compute capability major.minor, and what to
/// do; empty if it does.
std::string architecture_fault(const std::string& compiled, int major, int minor, const std::string& device);

}  // namespace tessera::parallel
