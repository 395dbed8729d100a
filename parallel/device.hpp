/// Which GPU a rank works on, and whether this program can run there. Without a GPU backend in the build there is
/// nothing to choose: the rank works on its host.
///
/// Faults of the machine are found here, before Kokkos starts, as EnvironmentError that names the fix.
#pragma once

#include <string>
#include <vector>

namespace tessera::parallel {

class World;

/// Whether this build computes on GPUs.
bool has_gpu_backend();

/// The architecture of the GPU code in this build: "sm_90a"; empty without a GPU backend.
std::string compiled_architecture();

/// GPUs that this process sees; 0 without a GPU backend. Throws where the build wants one and the driver has none.
int visible_devices();

/// The device of a rank: its local rank, round the devices there are. -1 where there are none.
int choose_device(int local_rank, int devices);

/// Different devices among `ids`, one per rank ("node7: NVIDIA H200 at 0000:1b:00.0").
int count_devices(const std::vector<std::string>& ids);

/// Throws when two of `ids` are the same device, unless `allow_shared`; true when some are, and may be.
bool check_sharing(const std::vector<std::string>& ids, bool allow_shared);

/// Chooses this rank's device, checks that this build's code runs there, makes it current and tells the world.
/// Collective, before Kokkos starts; where one rank fails, all do. Without a GPU backend: no device.
class DeviceChoice {
 public:
  DeviceChoice(World& world, bool allow_shared);

  int index() const { return index_; }
  bool is_shared() const { return is_shared_; }  // some rank shares its device with another

  /// What Kokkos is to be told: one argument, or none.
  std::vector<std::string> kokkos_arguments() const;

 private:
  int index_ = -1;
  bool is_shared_ = false;
};

/// What the GPU reports after which this process can compute there no more ("an illegal memory access was
/// encountered"); empty: nothing, or no GPU backend. Does not wait for what the GPU is at; where the driver itself
/// hangs, it does too.
std::string device_fault();

/// While it lives, a process that aborts after such a fault says so and leaves with `exit_code`, which ends the
/// launch. Kokkos aborts as soon as it meets one, and so does memory that is given back while an exception is
/// on its way; every other abort stays one.
class FaultExit {
 public:
  FaultExit(int rank, int exit_code);  // `rank` is who speaks; one at a time
  ~FaultExit();
  FaultExit(const FaultExit&) = delete;
  FaultExit& operator=(const FaultExit&) = delete;
};

/// Why code compiled for `compiled` ("90a", "80") does not run on a GPU of compute capability major.minor, and what to
/// do; empty where it does.
std::string architecture_fault(const std::string& compiled, int major, int minor, const std::string& device);

/// Whether the host must copy what lies there.
bool is_device_memory(const void* data);

}  // namespace tessera::parallel
