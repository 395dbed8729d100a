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

#include <fmt/format.h>

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
    if (ranks.size() > 1) text += fmt::format("ranks {} would share the GPU {}\n", fmt::join(ranks, ", "), device);
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
  const std::string text = fmt::format(
      "{} has compute capability {}.{}, but this build has code only for sm_{}: ", device, major, minor, compiled);
  if (here == 90) return text + "build with the preset cuda (scripts/build cuda)";
  if (here / 10 == 8) return text + "build with the preset cuda-ampere80 (scripts/build cuda-ampere80)";
  return text +
         "this version supports compute capability 8.0 to 9.0 (presets cuda-ampere80 and cuda); choose such a GPU "
         "with CUDA_VISIBLE_DEVICES";
}

#ifdef TESSERA_VENDOR_CUDA

namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

[[noreturn]] void refuse(cudaError_t error, const std::string& what) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string seen = visible ? fmt::format(" (CUDA_VISIBLE_DEVICES={})", visible) : "";
  int driver = 0;
  if (error == cudaErrorNoDevice) {
    throw EnvironmentError(
        "this build computes on GPUs but sees none{}: start it on a machine with an NVIDIA GPU, or build for CPUs with "
        "scripts/build cpu",
        seen);
  }
  if (error == cudaErrorInsufficientDriver || error == cudaErrorUnsupportedPtxVersion) {
    cudaDriverGetVersion(&driver);
    if (driver == 0) {
      throw EnvironmentError(
          "this build computes on GPUs but there is no NVIDIA driver here: install one, or build for CPUs with "
          "scripts/build cpu");
    }
    throw EnvironmentError(
        "the NVIDIA driver supports CUDA up to {} but this build uses CUDA {}: update the driver, or build with a CUDA "
        "toolkit that it supports",
        version_text(driver), version_text(CUDART_VERSION));
  }
  if (error == cudaErrorNoKernelImageForDevice) {
    throw EnvironmentError(what + ": build again, for this GPU (scripts/build cuda, or cuda-ampere80)");
  }
  throw EnvironmentError("{}: {}{}; nvidia-smi shows what is wrong with the GPU or its driver", what,
                         cudaGetErrorString(error), seen);
}

void check(cudaError_t status, const std::string& what) {
  if (status != cudaSuccess) refuse(status, what);
}

/// "GPU-" and five groups of hexadecimal digits, as nvidia-smi writes it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    const bool begins_group = i == 4 || i == 6 || i == 8 || i == 10;
    text += fmt::format("{}{:02x}", begins_group ? "-" : "", static_cast<unsigned char>(uuid.bytes[i]));
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

namespace {

/// Makes GPU `index` current, if this build's code runs there, and names it.
Place take_device(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), fmt::format("querying GPU {}", index));
  char bus_id[32] = "";
  check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index), fmt::format("querying the PCI address of GPU {}", index));
  const std::string id = fmt::format("{} at {}", properties.name, bus_id);
  const std::string fault = architecture_fault(TESSERA_CUDA_ARCH, properties.major, properties.minor, id);
  if (!fault.empty()) throw EnvironmentError(fault);
  check(cudaSetDevice(index), "using " + id);
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, probe),
        fmt::format("{} has no code to run in this build ({})", id, compiled_architecture()));
  return {.gpu = properties.name, .bus_id = bus_id, .uuid = uuid_text(properties.uuid)};
}

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
int visible_devices() { return kernels::device_count(); }

namespace {

/// Kokkos, which knows the GPU's name, starts later.
Place take_device(int index) {
  if (index < 0) throw EnvironmentError("this build computes on GPUs but sees none: start it on a machine with one");
  return {.gpu = "GPU", .bus_id = std::to_string(index)};
}

}  // namespace

std::string device_fault() { return ""; }
FaultExit::FaultExit(int, int) {}
FaultExit::~FaultExit() = default;

#endif

DeviceChoice::DeviceChoice(World& world, bool allow_shared) {
  if (!has_gpu_backend()) return;
  Place mine;
  world.agree([&] {  // if one rank fails, all do: none waits for one that left
    index_ = choose_device(world.local_rank(), visible_devices());
    mine = take_device(index_);
  });
  std::vector<Place> places = world.places();
  const std::vector<std::string> gpus = world.all_gather(mine.gpu), bus_ids = world.all_gather(mine.bus_id),
                                 uuids = world.all_gather(mine.uuid);
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    places[rank].gpu = gpus[rank];
    places[rank].bus_id = bus_ids[rank];
    places[rank].uuid = uuids[rank];
  }
  is_shared_ = check_sharing(places, allow_shared);
  world.set_places(std::move(places));
}

std::vector<std::string> DeviceChoice::kokkos_arguments() const {
  if (index_ < 0) return {};
  return {fmt::format("--kokkos-device-id={}", index_)};
}

}  // namespace tessera::parallel
