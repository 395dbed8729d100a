/// Ranges (ranges.hpp) for a profiler that watches this process, those of kernels included.
///
///   const kernels::ProfilerRanges ranges(kernels::listening_profiler());
///   const Kokkos::ScopeGuard kokkos(argc, argv);
///
/// Kernels    come through Kokkos' profiling callbacks, which are set only if there is a sink: otherwise launches
///            cost nothing extra. A callback that was set before is still called.
/// Fences     none: Kokkos fences before it calls a tool, unless the tool is set before Kokkos starts and declines
///            fences, as this one does. Otherwise no graph could be recorded.
/// Limits     a tool of KOKKOS_TOOLS_LIBS takes the callbacks when Kokkos starts: kernels have no ranges then.
#pragma once

#include "kernels/core/ranges.hpp"

namespace tessera::kernels {

/// The profiler that listens to ranges in this process; null if none does. On CUDA: a tool of NVTX, asked for when this
/// is first called. On hosts there is none.
ranges::Sink* listening_profiler();

class ProfilerRanges {
 public:
  /// Ranges go to `sink` while this exists; null: nowhere. One at a time.
  explicit ProfilerRanges(ranges::Sink* sink);
  ~ProfilerRanges();
  ProfilerRanges(const ProfilerRanges&) = delete;
  ProfilerRanges& operator=(const ProfilerRanges&) = delete;

 private:
  bool is_active_;
};

}  // namespace tessera::kernels
