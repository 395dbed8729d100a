/// Records every kernel launch while it exists: label, time, and the execution instance it was enqueued on; and every
/// fence and allocation by its label. Kokkos before 3.5 reports no fences.
///
/// Limits  only what goes through Kokkos. A cudaMalloc or a wait that a library or our code calls directly is not
///         recorded; capturing the same work in a graph, where the driver refuses both, finds it (StepAsGraph).
///
/// On a host space every instance reports the same number, so a test of instances proves nothing there; on a GPU it
/// does if the launches are on an OtherInstance (support/instance.hpp).
#pragma once

#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/core/events.hpp"

namespace tessera::test {

class LaunchRecorder {
 public:
  struct Launch {
    std::string label;
    std::uint32_t instance;
    double time_s;  // events::now_s()
  };

  LaunchRecorder() : before_(Kokkos::Tools::Experimental::get_callbacks()) {
    launches_.clear();
    fences_.clear();
    allocations_.clear();
    auto ours = before_;
    ours.begin_parallel_for = ours.begin_parallel_reduce = ours.begin_parallel_scan = record;
    ours.end_parallel_for = ours.end_parallel_reduce = ours.end_parallel_scan = nullptr;
    ours.begin_fence = record_fence;
    ours.allocate_data = record_allocation;
    Kokkos::Tools::Experimental::set_callbacks(ours);
  }
  ~LaunchRecorder() { Kokkos::Tools::Experimental::set_callbacks(before_); }
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;

  const std::vector<Launch>& launches() const { return launches_; }
  const std::vector<std::string>& fences() const { return fences_; }  // except those that Kokkos makes for tools
  const std::vector<std::string>& allocations() const { return allocations_; }

  std::vector<std::string> labels() const {
    std::vector<std::string> list;
    for (const Launch& launch : launches_) list.push_back(launch.label);
    return list;
  }

 private:
  /// Kokkos copies large arrays of a host with threads by a kernel of its own.
  static void record(const char* label, std::uint32_t instance, std::uint64_t* id) {
    if (std::strstr(label, "host_space_deepcopy")) return;
    *id = launches_.size();
    launches_.push_back({label, instance, events::now_s()});
  }

  static void record_fence(const char* label, std::uint32_t, std::uint64_t*) {
    if (!std::strstr(label, "Kokkos Profile Tool Fence")) fences_.push_back(label);
  }
  /// Kokkos reports scratch of no bytes for each team kernel on an instance whose kernels use none.
  static void record_allocation(Kokkos::Tools::SpaceHandle, const char* label, const void*, std::uint64_t bytes) {
    if (bytes > 0) allocations_.push_back(label);
  }

  Kokkos::Tools::Experimental::EventSet before_;
  static inline std::vector<Launch> launches_;  // callbacks carry no context
  static inline std::vector<std::string> fences_, allocations_;
};

/// Whether something was launched, everything under the prefix, and all of it on `exec`.
template <class Exec>
::testing::AssertionResult launched_under(const LaunchRecorder& recorder, const std::string& prefix, const Exec& exec) {
  if (recorder.launches().empty()) return ::testing::AssertionFailure() << "nothing was launched";
  for (const auto& [label, instance, time_s] : recorder.launches()) {
    if (label.rfind(prefix, 0) != 0) return ::testing::AssertionFailure() << label << " does not begin with " << prefix;
    if (instance != Kokkos::Tools::Experimental::device_id(exec)) {
      return ::testing::AssertionFailure() << label << " runs on instance " << instance << ", not on the caller's";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tessera::test
