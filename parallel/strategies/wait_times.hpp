/// How long a step waits for its transfers, wherever in the step: two marks around each wait, on the instance that
/// waits, so that they may be captured with it and are valid once the step is done. Where join() blocks the host, the
/// instance idles between them.
#pragma once

#include "kernels/core/stream_timer.hpp"
#include "parallel/collectives/collective.hpp"

namespace tessera::parallel {

class WaitTimes {
 public:
  /// For steps of at most `most` waits. Allocates all marks.
  explicit WaitTimes(int most) : timer_(2 * most) {}

  void begin_step() { count_ = 0; }
  int count() const { return count_; }  // of this step, or of its latest replay, so far

  /// Joins `transfer` on `exec` and counts that as a wait.
  void join(Transfer& transfer, const kernels::Device& exec) {
    timer_.mark(exec, 2 * count_);
    transfer.join(exec);
    timer_.mark(exec, 2 * count_ + 1);
    ++count_;
  }

  /// Of waits first .. last - 1. The step must be done, and the next one not started.
  double seconds(int first, int last) const {
    double sum_s = 0;
    for (int wait = first; wait < last; ++wait) sum_s += timer_.seconds(2 * wait, 2 * wait + 1);
    return sum_s;
  }

 private:
  kernels::StreamTimer<kernels::Device> timer_;
  int count_ = 0;
};

/// The same, untimed if `waits` is null.
inline void join(Transfer& transfer, const kernels::Device& exec, WaitTimes* waits) {
  waits != nullptr ? waits->join(transfer, exec) : transfer.join(exec);
}

}  // namespace tessera::parallel
