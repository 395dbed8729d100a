#include "parallel/device.hpp"

#ifdef TESSERA_VENDOR_CUDA
  #include <cuda_runtime.h>
#endif

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "kernels/core/device_info.hpp"
#include "kernels/core/tensor.hpp"
#include "parallel/errors.hpp"
#include "parallel/world.hpp"

namespace tessera::parallel {

int choose_device(int local_rank, int devices) { return devices == 0 ? -1 : local_rank % devices; }

bool check_sharing(std::span<const Place> places, bool allow_shared) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (const Place& place : places) {
    if (!place.gpu.empty()) ranks_of[device_name(place)].push_back(place.rank);
  }
  std::string text;
  for (const auto& [device, ranks] : ranks_of) {
    if (ranks.size() == 1) continue;
    std::string numbers;
    for (const int rank : ranks) numbers += (numbers.empty() ? "" : ", ") + std::to_string(rank);
    text += "ranks " + numbers + " would share the GPU " + device + "\n";
  }
  if (text.empty() || allow_shared) return !text.empty();
  throw EnvironmentError(text +
                         "start one rank per GPU (scripts/run -n <GPUs>), or set parallel.allow_shared_device=true");
}

std::string architecture_fault(const std::string& compiled, int major, int minor, const std::string& device) {
  const bool is_specific = !compiled.empty() && std::isalpha(static_cast<unsigned char>(compiled.back())) != 0;
  const int number = std::atoi(compiled.c_str());  // 90 of "90a"
  const int here = 10 * major + minor;
  // Machine code runs on GPUs of the same major and an equal or higher minor version; code for an "a" architecture on
  // that one only.
  if (is_specific ? here == number : here / 10 == number / 10 && here >= number) return "";
  std::string text = device + " has compute capability " + std::to_string(major) + "." + std::to_string(minor) +
                     ", but this build has code only for sm_" + compiled + ": ";
  if (here == 90) return text + "build with the preset cuda (scripts/build cuda)";
  if (here / 10 == 8) return text + "build with the preset cuda-ampere80 (scripts/build cuda-ampere80)";
  return text +
         "this version supports compute capability 8.0 to 9.0 (presets cuda-ampere80 and cuda); choose such a GPU "
         "with CUDA_VISIBLE_DEVICES";
}

#ifdef TESSERA_VENDOR_CUDA

namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

[[noreturn]] void refuse(cudaError_t error, const std::string& what) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string seen = visible ? " (CUDA_VISIBLE_DEVICES=" + std::string(visible) + ")" : "";
  int driver = 0;
  if (error == cudaErrorNoDevice) {
    throw EnvironmentError("this build computes on GPUs but sees none" + seen +
                           ": start it on a machine with an NVIDIA GPU, or build for CPUs with "
                           "scripts/build cpu");
  }
  if (error == cudaErrorInsufficientDriver || error == cudaErrorUnsupportedPtxVersion) {
    cudaDriverGetVersion(&driver);
    if (driver == 0) {
      throw EnvironmentError(
          "this build computes on GPUs but there is no NVIDIA driver here: install one, or "
          "build for CPUs with scripts/build cpu");
    }
    throw EnvironmentError("the NVIDIA driver supports CUDA up to " + version_text(driver) +
                           " but this build uses CUDA " + version_text(CUDART_VERSION) +
                           ": update the driver, or build with a CUDA toolkit that it supports");
  }
  if (error == cudaErrorNoKernelImageForDevice) {
    throw EnvironmentError(what + ": build again, for this GPU (scripts/build cuda, or cuda-ampere80)");
  }
  throw EnvironmentError(what + ": " + cudaGetErrorString(error) + seen +
                         "; nvidia-smi shows what is wrong with the GPU or its driver");
}

void check(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) refuse(status, what);
}

/// "GPU-" and five groups of hexadecimal digits, as nvidia-smi writes it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits);
  }
  return text;
}

/// A kernel to ask the driver whether this program has code for the current device: the only reliable test.
__global__ void probe() {}

}  // namespace

bool has_gpu_backend() { return true; }

std::string compiled_architecture() { return "sm_" TESSERA_CUDA_ARCH; }

int visible_devices() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "counting GPUs");
  return devices;
}

DeviceChoice::DeviceChoice(World& world, bool allow_shared) {
  std::string gpu, bus_id, uuid;
  world.agree([&] {  // if one rank fails, all do: none waits for one that left
    index_ = choose_device(world.local_rank(), visible_devices());
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, index_), "querying GPU " + std::to_string(index_));
    char bus[32] = "";
    check(cudaDeviceGetPCIBusId(bus, sizeof bus, index_), "querying the PCI address of GPU " + std::to_string(index_));
    gpu = properties.name;
    bus_id = bus;
    uuid = uuid_text(properties.uuid);
    const std::string id = gpu + " at " + bus_id;
    const std::string fault = architecture_fault(TESSERA_CUDA_ARCH, properties.major, properties.minor, id);
    if (!fault.empty()) throw EnvironmentError(fault);
    check(cudaSetDevice(index_), "using " + id);
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, probe),
          id + " has no code to run in this build (" + compiled_architecture() + ")");
  });
  std::vector<Place> places = world.places();
  const std::vector<std::string> gpus = world.all_gather(gpu), bus_ids = world.all_gather(bus_id),
                                 uuids = world.all_gather(uuid);
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    places[rank].gpu = gpus[rank];
    places[rank].bus_id = bus_ids[rank];
    places[rank].uuid = uuids[rank];
  }
  is_shared_ = check_sharing(places, allow_shared);
  world.set_places(std::move(places));
}

namespace {

/// CUDA's message; null: no fault.
const char* fault_of_device() {
  cudaGetLastError();  // clears errors of single calls; every call reports a fault of the GPU again
  std::size_t free = 0, total = 0;
  const cudaError_t status = cudaMemGetInfo(&free, &total);
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

}  // namespace

std::string device_fault() {
  const char* fault = fault_of_device();
  return fault == nullptr ? "" : fault;
}

namespace {

// The handler of SIGABRT may neither allocate nor format: its texts are prepared beforehand.
struct sigaction abort_before;  // the previous action, restored by the destructor
char who_is_lost[64] = "", who_leaves[160] = "";
int exit_code_of_loss = 1;
constexpr unsigned kAskingTime_s = 5;

void say(const char* text) { static_cast<void>(!::write(STDERR_FILENO, text, std::strlen(text))); }

void go_on_with_abort(int) { std::raise(SIGABRT); }

/// Runs on the thread that called abort(), possibly inside malloc, which aborts on a damaged heap and may hold a lock.
/// Only CUDA knows whether the GPU is lost, and its calls are not async-signal-safe: if one fails, or does not return
/// within kAskingTime_s, the abort continues. SIGABRT now has its default action: Open MPI's handler allocates, and
/// would wait for this thread's lock.
void leave_after_fault(int) {
  std::signal(SIGABRT, SIG_DFL);
  std::signal(SIGALRM, go_on_with_abort);
  ::alarm(kAskingTime_s);
  const char* fault = fault_of_device();
  ::alarm(0);
  if (fault == nullptr) {
    std::raise(SIGABRT);
    return;
  }
  say(who_is_lost);
  say(fault);
  say(who_leaves);
  ::_exit(exit_code_of_loss);
}

}  // namespace

FaultExit::FaultExit(int rank, int exit_code) {
  exit_code_of_loss = exit_code;
  std::snprintf(who_is_lost, sizeof who_is_lost, "tessera: rank %d: its GPU is lost: ", rank);
  std::snprintf(who_leaves, sizeof who_leaves, "\ntessera: rank %d leaves with exit code %d%s\n", rank, exit_code,
                kAfterLoss);
  struct sigaction action {};
  action.sa_handler = leave_after_fault;
  action.sa_flags = SA_NODEFER;  // a signal that the handler raises is delivered at once
  ::sigaction(SIGABRT, &action, &abort_before);
}
FaultExit::~FaultExit() { ::sigaction(SIGABRT, &abort_before, nullptr); }

#else

bool has_gpu_backend() { return !kernels::kIsHost<kernels::Device>; }
std::string compiled_architecture() { return has_gpu_backend() ? "portable" : ""; }
int visible_devices() { return kernels::device_count<kernels::Device>(); }

DeviceChoice::DeviceChoice(World& world, bool allow_shared) {
  if (!has_gpu_backend()) return;
  world.agree([&] {
    index_ = choose_device(world.local_rank(), visible_devices());
    if (index_ < 0) throw EnvironmentError("this build computes on GPUs but sees none: start it on a machine with one");
  });
  std::vector<Place> places = world.places();
  const std::vector<std::string> numbers = world.all_gather(std::to_string(index_));
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    places[rank].gpu = "GPU";  // Kokkos, which knows its name, starts later
    places[rank].bus_id = numbers[rank];
  }
  is_shared_ = check_sharing(places, allow_shared);
  world.set_places(std::move(places));
}

std::string device_fault() { return ""; }
FaultExit::FaultExit(int, int) {}
FaultExit::~FaultExit() = default;

#endif

std::vector<std::string> DeviceChoice::kokkos_arguments() const {
  if (index_ < 0) return {};
  return {"--kokkos-device-id=" + std::to_string(index_)};
}

}  // namespace tessera::parallel
