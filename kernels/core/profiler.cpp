#include "kernels/core/profiler.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace tessera::kernels {
namespace {

using Kokkos::Tools::Experimental::EventSet;

EventSet before;                  // the callbacks that were set, or empty slots; ours carry no context of their own
std::vector<ranges::Id> running;  // a stack: a kernel's launch may launch another

template <auto slot>
void begin(const char* label, const std::uint32_t device, std::uint64_t* id) {
  if (before.*slot) (before.*slot)(label, device, id);
  running.push_back(ranges::open(label));
}

template <auto slot>
void end(const std::uint64_t id) {
  if (!running.empty()) {  // else the launch began before the callbacks were set
    ranges::close(running.back());
    running.pop_back();
  }
  if (before.*slot) (before.*slot)(id);
}

void decline_fences(const std::uint32_t, Kokkos_Tools_ToolSettings* settings) {
  settings->requires_global_fencing = false;
}

}  // namespace

template <>
ranges::Sink* listening_profiler<Kokkos::DefaultHostExecutionSpace>() {
  return nullptr;
}

ProfilerRanges::ProfilerRanges(ranges::Sink* sink) : is_active_(sink != nullptr) {
  if (!is_active_) return;
  if (ranges::has_sink()) throw std::logic_error("profiler ranges: there is a sink already");
  ranges::set_sink(sink);
  running.clear();
  before = Kokkos::Tools::Experimental::get_callbacks();
  EventSet ours = before;
  ours.begin_parallel_for = begin<&EventSet::begin_parallel_for>;
  ours.end_parallel_for = end<&EventSet::end_parallel_for>;
  ours.begin_parallel_reduce = begin<&EventSet::begin_parallel_reduce>;
  ours.end_parallel_reduce = end<&EventSet::end_parallel_reduce>;
  ours.begin_parallel_scan = begin<&EventSet::begin_parallel_scan>;
  ours.end_parallel_scan = end<&EventSet::end_parallel_scan>;
  if (!ours.request_tool_settings) ours.request_tool_settings = decline_fences;
  Kokkos::Tools::Experimental::set_callbacks(ours);
}

ProfilerRanges::~ProfilerRanges() {
  if (!is_active_) return;
  Kokkos::Tools::Experimental::set_callbacks(before);
  ranges::set_sink(nullptr);
}

}  // namespace tessera::kernels
