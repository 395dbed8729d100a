/// run.h5 of a training run, which rank 0 writes between steps that all ranks make, with what each rank has measured.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/event_log.hpp"
#include "io/trace.hpp"
#include "jobs/rank_numbers.hpp"
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
  /// On every other rank whose events are kept, which goes on after `step` steps.
  void open_log(std::int64_t step) { log_ = std::make_unique<io::EventLog>(step + 1); }
  /// Whether this rank's reports become rows of the file, from now on.
  void record_events(bool is_recording);
  void close() {
    trace_.reset();
    log_.reset();
  }
  explicit operator bool() const { return trace_ != nullptr; }
  io::Trace* operator->() const { return trace_.get(); }

  /// Adds a step: of the run on rank 0, and of this rank. On all ranks, but not collective: nothing is exchanged or
  /// written before the next flush().
  void add(const io::StepRecord& record, const train::StepNumbers& numbers, bool is_profiled);
  bool is_flush_due() const { return trace_ && trace_->is_flush_due(); }  // on rank 0

  /// Adds up the kernels of profiled steps.
  void add(const kernels::KernelTimer& timer);

  /// Writes the file, after `work` on it, on rank 0, with what all ranks have added; a failure there is that of all.
  /// Collective.
  void flush(const std::function<void(io::Trace&)>& work = [](io::Trace&) {});

  /// How this start ends, for the next flush: on rank 0.
  void set_end(const std::string& reason) {
    if (trace_) trace_->set_end(reason);
  }

  double seconds() const { return seconds_; }  // spent here, on rank 0

 private:
  void gather_events();

  parallel::World& world_;
  std::unique_ptr<io::Trace> trace_;
  std::vector<io::RankRecord> mine_;  // of this rank's steps since the last flush
  MemorySample memory_;
  std::unique_ptr<io::EventLog> log_;
  std::vector<io::KernelRow> kernels_;
  double seconds_ = 0;
};

}  // namespace tessera::jobs
