/// Reasons to stop at the next step boundary: SIGTERM, SIGINT, SIGUSR1, or the wall-clock limit.
///
/// Signals are remembered from main's first line to the end of the process: one that comes while MPI starts stops the
/// run before its first step. A handler only sets a flag; the job asks between steps, and at every token of its sample,
/// and all ranks agree. A second SIGINT ends the process at once, for a person who does not want to wait.
#pragma once

#include <chrono>
#include <string>

namespace tessera::jobs {

void remember_signals();

/// For what cannot stop and go on, after remember_signals: signals do again what they did before it, one that has come
/// included. Unless they were ignored, they end the process.
void end_on_signals();

class StopRequest {
 public:
  /// 0: no limit. Remembers signals, should a library have taken them since main did.
  explicit StopRequest(double time_limit_s);

  bool is_due() const;         // on this rank
  std::string reason() const;  // "SIGTERM", "train.time_limit_s"; empty where nothing is due here

 private:
  std::chrono::steady_clock::time_point start_;
  double time_limit_s_;
};

}  // namespace tessera::jobs
