/// Kokkos' callbacks at the beginning and the end of every launch, with those of another tool kept.
///
/// The other tool is called first at the beginning and last at the end, so that its time is not counted as the
/// kernel's.
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace tessera::kernels {

using LaunchCallbacks = Kokkos::Tools::Experimental::EventSet;

/// Static functions of Observer, since callbacks carry no context of their own:
///
///   const LaunchCallbacks& before()     the callbacks that were set, or empty slots
///   void begin(const char* label)       a launch begins
///   void end()                          the latest one that has begun ends
template <class Observer>
class LaunchesOf {
 public:
  /// Sets the slots of launches in `callbacks`.
  static void observe(LaunchCallbacks& callbacks) {
    callbacks.begin_parallel_for = begin<&LaunchCallbacks::begin_parallel_for>;
    callbacks.end_parallel_for = end<&LaunchCallbacks::end_parallel_for>;
    callbacks.begin_parallel_reduce = begin<&LaunchCallbacks::begin_parallel_reduce>;
    callbacks.end_parallel_reduce = end<&LaunchCallbacks::end_parallel_reduce>;
    callbacks.begin_parallel_scan = begin<&LaunchCallbacks::begin_parallel_scan>;
    callbacks.end_parallel_scan = end<&LaunchCallbacks::end_parallel_scan>;
  }

 private:
  // One callback per slot: `slot` names the member that the call is passed on to.
  template <auto slot>
  static void begin(const char* label, const std::uint32_t device, std::uint64_t* id) {
    if (Observer::before().*slot) (Observer::before().*slot)(label, device, id);
    Observer::begin(label);
  }
  template <auto slot>
  static void end(const std::uint64_t id) {
    Observer::end();
    if (Observer::before().*slot) (Observer::before().*slot)(id);
  }
};

}  // namespace tessera::kernels
