/// Reasons to stop at the next step boundary: SIGTERM, SIGINT, SIGUSR1, or the wall-clock limit.
///
/// A handler only sets a flag; the job asks between steps and all ranks agree. A second SIGINT ends the process at
/// once, for a person who does not want to wait.
#pragma once

#include <chrono>
#include <string>

namespace tessera::jobs {

class StopRequest {
 public:
  explicit StopRequest(double time_limit_s);  // 0: no limit. Installs the handlers.
  ~StopRequest();                             // puts the previous handlers back
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool is_due() const;         // on this rank
  std::string reason() const;  // "SIGTERM", "train.time_limit_s"; empty where nothing is due here

 private:
  std::chrono::steady_clock::time_point start_;
  double time_limit_s_;
};

}  // namespace tessera::jobs
