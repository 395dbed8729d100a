/// Times every kernel by its label, from inside the program, through Kokkos' profiling callbacks.
///
/// Kokkos has one slot per callback: setting it replaces the tool that KOKKOS_TOOLS_LIBS has loaded. So the timer saves
/// the callbacks that are set, passes every call on to them, and restores them in `stop`.
///
///   KernelTimer timer;
///   timer.start();  ...a step...  timer.stop();
///   for (const auto& row : timer.rows()) ...
///
/// Timing     on a device, kernels run after their launch returns: while a timer runs, each launch is fenced before
///            and after. Such a step is slower than others; report it separately and exclude it from averages.
/// Counting   launches, fences and allocations since `start` (the timer's own fences are not counted). Kokkos before
///            3.5 does not report fences (kFencesAreObservable): their count stays 0 there and proves nothing.
/// Throws     std::logic_error from `start` while another timer runs: there is one set of slots.
/// Threads    one thread launches kernels and owns the timer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::kernels {

namespace detail {
struct KernelTimerSession;
}

struct StepCounts {
  std::int64_t launches = 0;     // parallel_for, parallel_reduce, parallel_scan
  std::int64_t fences = 0;       // see above
  std::int64_t allocations = 0;  // Views and scratch memory
};

class KernelTimer {
 public:
  struct Row {
    std::string label;
    std::int64_t calls;
    double total_s, min_s, max_s;  // wall seconds, launch to completion
  };

  KernelTimer();
  ~KernelTimer();  // stops
  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;

  void start();  // discards earlier measurements
  void stop();   // does nothing when not started

  bool is_running() const;
  std::vector<Row> rows() const;  // most expensive label first
  StepCounts counts() const;

 private:
  std::unique_ptr<detail::KernelTimerSession> session_;
};

}  // namespace tessera::kernels
