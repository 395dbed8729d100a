#include "kernels/core/profiler.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/core/launch_callbacks.hpp"

namespace tessera::kernels {
namespace {

LaunchCallbacks callbacks_before;  // that were set, or empty slots
std::vector<ranges::Id> running;   // a stack: a kernel's launch may launch another

struct Ranges {
  static const LaunchCallbacks& before() { return callbacks_before; }
  static void begin(const char* label) { running.push_back(ranges::open(label)); }
  static void end() {
    if (running.empty()) return;  // the launch began before the callbacks were set
    ranges::close(running.back());
    running.pop_back();
  }
};

void decline_fences(const std::uint32_t, Kokkos_Tools_ToolSettings* settings) {
  settings->requires_global_fencing = false;
}

}  // namespace

ProfilerRanges::ProfilerRanges(ranges::Sink* sink) : is_active_(sink != nullptr) {
  if (!is_active_) return;
  if (ranges::has_sink()) throw std::logic_error("profiler ranges: there is a sink already");
  ranges::set_sink(sink);
  running.clear();
  callbacks_before = Kokkos::Tools::Experimental::get_callbacks();
  LaunchCallbacks ours = callbacks_before;
  LaunchesOf<Ranges>::observe(ours);
  if (!ours.request_tool_settings) ours.request_tool_settings = decline_fences;
  Kokkos::Tools::Experimental::set_callbacks(ours);
}

ProfilerRanges::~ProfilerRanges() {
  if (!is_active_) return;
  Kokkos::Tools::Experimental::set_callbacks(callbacks_before);
  ranges::set_sink(nullptr);
}

}  // namespace tessera::kernels
