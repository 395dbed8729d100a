#include "kernels/core/kernel_timer.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "kernels/core/compat.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/launch_callbacks.hpp"

namespace tessera::kernels {
namespace detail {

using SteadyClock = std::chrono::steady_clock;

struct KernelTimerSession {
  struct Running {  // a launch that has begun: its row, and the time
    KernelTimer::Row* row;
    SteadyClock::time_point start;
  };

  LaunchCallbacks before;  // the tool that was there, or empty slots
  std::map<std::string, KernelTimer::Row, std::less<>> rows;
  std::vector<Running> running;  // a stack: a kernel's launch may launch another
  StepCounts counts;
  bool is_own_fence = false;
};

}  // namespace detail

namespace {

using detail::KernelTimerSession;
using detail::SteadyClock;

KernelTimerSession* active = nullptr;  // callbacks carry no context of their own

// Launches on a host space return when the kernel has ended; only a device needs fences around it.
void fence_device() {
  using Exec = Kokkos::DefaultExecutionSpace;
  if constexpr (!std::is_same_v<Exec, Kokkos::DefaultHostExecutionSpace>) {
    active->is_own_fence = true;
    Kokkos::fence();
    active->is_own_fence = false;
  }
}

void begin_kernel(const char* name) {
  ++active->counts.launches;
  auto found = active->rows.find(std::string_view(name));
  if (found == active->rows.end()) {
    found = active->rows.emplace(name, KernelTimer::Row{name, 0, 0.0, 0.0, 0.0}).first;
  }
  fence_device();
  active->running.push_back({&found->second, SteadyClock::now()});
}

void end_kernel() {
  if (active->running.empty()) return;  // began before the timer did
  fence_device();
  const auto [row, start] = active->running.back();
  active->running.pop_back();
  const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  row->min_s = row->calls == 0 ? seconds : std::min(row->min_s, seconds);
  row->max_s = std::max(row->max_s, seconds);
  row->total_s += seconds;
  ++row->calls;
  const double end_s = events::now_s();
  events::report(events::Region{row->label, "compute", end_s - seconds, end_s});
}

struct Timed {
  static const LaunchCallbacks& before() { return active->before; }
  static void begin(const char* name) { begin_kernel(name); }
  static void end() { end_kernel(); }
};

void count_allocation(const Kokkos::Tools::SpaceHandle space, const char* label, const void* data,
                      const std::uint64_t bytes) {
  if (bytes > 0) ++active->counts.allocations;  // Kokkos asks for none at each launch of teams on a GPU
  if (active->before.allocate_data) active->before.allocate_data(space, label, data, bytes);
}

void count_fence(const char* name, const std::uint32_t device, std::uint64_t* id) {
  // Kokkos fences before it calls a tool about a kernel; that fence is not the program's either.
  const bool is_for_tools = std::string_view(name).find("Kokkos Profile Tool Fence") != std::string_view::npos;
  if (!active->is_own_fence && !is_for_tools) ++active->counts.fences;
  if (active->before.begin_fence) active->before.begin_fence(name, device, id);
}

}  // namespace

KernelTimer::KernelTimer() = default;
KernelTimer::~KernelTimer() { stop(); }

bool KernelTimer::is_running() const { return session_ && active == session_.get(); }

void KernelTimer::start() {
  if (active) throw std::logic_error("kernel timer: another one is running; stop it first");
  session_ = std::make_unique<KernelTimerSession>();
  session_->before = Kokkos::Tools::Experimental::get_callbacks();
  active = session_.get();

  LaunchCallbacks ours = session_->before;
  LaunchesOf<Timed>::observe(ours);
  ours.allocate_data = count_allocation;
  ours.begin_fence = count_fence;
  Kokkos::Tools::Experimental::set_callbacks(ours);
}

void KernelTimer::stop() {
  if (!is_running()) return;
  Kokkos::Tools::Experimental::set_callbacks(session_->before);
  active = nullptr;
}

std::vector<KernelTimer::Row> KernelTimer::rows() const {
  std::vector<Row> list;
  if (!session_) return list;
  for (const auto& [label, row] : session_->rows) {
    if (row.calls > 0) list.push_back(row);
  }
  std::stable_sort(list.begin(), list.end(), [](const Row& a, const Row& b) { return a.total_s > b.total_s; });
  return list;
}

StepCounts KernelTimer::counts() const { return session_ ? session_->counts : StepCounts{}; }

}  // namespace tessera::kernels
