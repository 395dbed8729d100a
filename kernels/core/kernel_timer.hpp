/// Times every kernel by its label, from inside the program, through Kokkos' profiling callbacks.
///
///   KernelTimer timer;
///   timer.start();  ...a step...  timer.stop();
///   for (const auto& row : timer.rows()) ...
///
/// Callbacks  Kokkos has one slot for each: the timer saves those that are set (the tool of KOKKOS_TOOLS_LIBS), passes
///            every call on to them, and restores them in `stop`.
/// Timing     on a device, each launch is fenced before and after while a timer runs. Such a step is slower than
///            others: report it separately and exclude it from averages.
/// Counting   launches, fences and allocations since `start`, without the timer's own fences. Kokkos before 3.5 does
///            not report fences (kFencesAreObservable): their count stays 0 there and proves nothing.
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
