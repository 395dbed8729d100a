/// run.h5 of a training run, which rank 0 writes between steps that all ranks make.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "errors.hpp"
#include "io/trace.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "parallel/world.hpp"

namespace tessera::jobs {

/// Adds the seconds that `work` takes to `total_s`.
template <class Work>
void timed(double& total_s, const Work& work) {
  const double begin_s = events::now_s();
  work();
  total_s += events::now_s() - begin_s;
}

class RunFile {
 public:
  explicit RunFile(parallel::World& world) : world_(world) {}

  /// On rank 0; the other ranks have no trace.
  void open(std::unique_ptr<io::Trace> trace);
  void close() { trace_.reset(); }
  explicit operator bool() const { return trace_ != nullptr; }
  io::Trace* operator->() const { return trace_.get(); }

  /// Adds a step, on rank 0. Other ranks may already be in the next step, so all ranks fail in the next work().
  void add(const io::StepRecord& record);
  bool has_failed() const { return fault_.has_value(); }  // and the other ranks do not know it yet

  /// Adds up the kernels of profiled steps.
  void add(const kernels::KernelTimer& timer);

  /// Works on it, on rank 0; a failure there, now or since the last call, is that of all ranks. Collective, as the next
  /// two.
  void work(const std::function<void(io::Trace&)>& work);
  void flush() {
    work([](io::Trace& trace) { trace.flush(); });
  }
  void meet() {  // only learns of a failure
    work([](io::Trace&) {});
  }

  double seconds() const { return seconds_; }  // spent here, on rank 0

 private:
  parallel::World& world_;
  std::unique_ptr<io::Trace> trace_;
  std::optional<Failure> fault_;
  std::vector<io::KernelRow> kernels_;
  double seconds_ = 0;
};

}  // namespace tessera::jobs
