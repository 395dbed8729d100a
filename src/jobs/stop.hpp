/// Reasons to stop at the next step boundary: SIGTERM, SIGINT, SIGUSR1, or the wall-clock limit.
///
/// Signals are caught from main's first line to the end of the process: one that arrives during MPI's start stops the
/// run before its first step. The handler only sets a flag; the job checks it between steps and at every token of its
/// sample, and all ranks agree. A second SIGINT ends the process at once, also with other signals in between.
///
/// Limits  a signal before main, while the shared libraries load (0.03 s), ends the process with the signal's own code.
#pragma once

#include <chrono>
#include <string>

namespace tessera::jobs {

void remember_signals();

/// For jobs that cannot be resumed: restores the signals' earlier dispositions and raises any that has arrived. Unless
/// ignored, they end the process.
void end_on_signals();

/// Throws Failure(Exit::stopped) if remember_signals() has kept a signal on this rank. For rank 0 alone, before a row
/// of an experiment's benchmark: ranks that checked for themselves would not stop at the same row.
void stop_on_signal();

/// The name of the signal that has arrived on this rank, such as "SIGTERM"; "" if none has.
std::string arrived_signal();

class StopRequest {
 public:
  /// 0: no limit; `key` is the deck's for it. Installs the handlers again, in case a library has replaced them.
  explicit StopRequest(double time_limit_s, std::string key = "train.time_limit_s");

  bool is_due() const;         // on this rank
  std::string reason() const;  // "SIGTERM", "train.time_limit_s"; empty if nothing is due on this rank

 private:
  std::chrono::steady_clock::time_point start_;
  double time_limit_s_;
  std::string key_;
};

}  // namespace tessera::jobs
