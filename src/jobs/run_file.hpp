/// run.h5 of a training run, which rank 0 writes between steps that all ranks make, with what each rank has measured.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/event_log.hpp"
#include "io/trace.hpp"
#include "kernels/core/events.hpp"
#include "kernels/core/kernel_timer.hpp"
#include "parallel/world.hpp"
#include "train/trainer.hpp"

namespace tessera::jobs {

/// Adds the seconds that `work` takes to `total_s`.
template <class Work>
void timed(double& total_s, const Work& work) {
  const double begin_s = events::now_s();
  work();
  total_s += events::now_s() - begin_s;
}

/// Free memory of this rank's GPU and memory of its process, read at most once a second.
class MemorySample {
 public:
  void refresh();
  float device_free_bytes() const { return device_free_; }  // NaN where it computes on a host
  float resident_bytes() const { return resident_; }

 private:
  double read_s_ = -1;  // events::now_s
  float device_free_ = io::kNoNumber, resident_ = io::kNoNumber;
};

/// Row `step` of /steps, as far as it follows from `numbers` and the mean loss of all ranks. Without times if the step
/// was profiled: its kernels were timed one by one.
io::StepRecord step_record(std::int64_t step, const train::StepNumbers& numbers, double loss,
                           const config::Settings& settings, bool is_profiled);

/// The same for this rank.
io::RankRecord rank_record(const train::StepNumbers& numbers, bool is_profiled, const MemorySample& memory);

/// Brings the records of all ranks, as many on each, to `steps` on rank 0; null on the others. Up to `most_ranks` ranks
/// send them whole, more reduce them first. Collective.
void gather(const parallel::World& world, const std::vector<io::RankRecord>& mine, io::RankSteps* steps,
            std::size_t most_ranks = io::kMostRanks);

/// Refuses (exit 2) trace.profile_ranks that do not exist. Collective.
void require_profiled_ranks(parallel::World& world, const config::Trace& keys);

class RunFile {
 public:
  explicit RunFile(parallel::World& world) : world_(world) {}

  /// On rank 0; the other ranks have no trace.
  void open(std::unique_ptr<io::Trace> trace) {
    trace_ = std::move(trace);
    earlier_kernels_.assign(trace_->kernels().begin(), trace_->kernels().end());
  }
  /// On every other rank whose events are kept, which goes on after `step` steps.
  void open_log(std::int64_t step) { log_ = std::make_unique<io::EventLog>(step + 1); }
  void close() {
    trace_.reset();
    log_.reset();
  }
  explicit operator bool() const { return trace_ != nullptr; }
  io::Trace* operator->() const { return trace_.get(); }

  /// Whether this rank's reports become rows of the file, from now on.
  void record_events(bool is_recording) {
    if (trace_) trace_->record_events(is_recording);
    if (log_) log_->record_events(is_recording);
  }

  /// Adds a step: of the run on rank 0, and of this rank. On all ranks, but not collective: nothing is exchanged or
  /// written before the next flush().
  void add(const io::StepRecord& record, const train::StepNumbers& numbers, bool is_profiled) {
    memory_.refresh();
    mine_.push_back(rank_record(numbers, is_profiled, memory_));
    if (trace_) trace_->add(record);
    if (log_) log_->set_step(record.step + 1);
  }
  /// Goes back to the end of a step, on all ranks: its rows of later steps, which must have been flushed, are dropped.
  void cut(std::int64_t step) {
    if (trace_) trace_->cut(step);
    if (log_) log_->set_step(step + 1);
    kernels_.erase(kernels_.upper_bound(step), kernels_.end());
    set_kernels();
  }
  bool is_flush_due() const { return trace_ && trace_->is_flush_due(); }  // on rank 0

  /// The kernels of a profiled step.
  void add(const kernels::KernelTimer& timer, std::int64_t step) {
    std::vector<io::KernelRow>& kernels = kernels_[step];
    for (const auto& row : timer.rows()) kernels.push_back({row.label, row.calls, row.total_s, row.min_s, row.max_s});
    set_kernels();
  }

  /// Writes the file, after `work` on it, on rank 0, with what all ranks have added; a failure there is that of all.
  /// Collective.
  void flush(const std::function<void(io::Trace&)>& work = [](io::Trace&) {}) {
    const auto watch = world_.watch("run.h5", parallel::kPatience);
    timed(seconds_, [&] {
      gather(world_, mine_, trace_ ? &trace_->rank_steps() : nullptr);
      mine_.clear();
      gather_events();
      world_.agree_on_root([&] {
        work(*trace_);
        trace_->flush();
      });
    });
  }

  /// How this start ends, for the next flush: on rank 0.
  void set_end(const std::string& reason) {
    if (trace_) trace_->set_end(reason);
  }

  double seconds() const { return seconds_; }  // spent here, on rank 0

 private:
  /// Adds up the kernels of the profiled steps.
  void set_kernels() {
    if (!trace_) return;
    std::vector<io::KernelRow> sums = earlier_kernels_;
    for (const auto& [step, kernels] : kernels_) {
      for (const io::KernelRow& row : kernels) {
        const auto same =
            std::find_if(sums.begin(), sums.end(), [&](const io::KernelRow& k) { return k.label == row.label; });
        if (same == sums.end()) {
          sums.push_back(row);
        } else {
          same->calls += row.calls;
          same->total_s += row.total_s;
          same->min_s = std::min(same->min_s, row.min_s);
          same->max_s = std::max(same->max_s, row.max_s);
        }
      }
    }
    trace_->set_kernels(std::move(sums));
  }

  /// Brings the rows of the other ranks to rank 0, in its time.
  void gather_events() {
    if (!world_.any(log_ && log_->has_rows())) return;
    const double clock_start_s = io::wall_clock_s() - events::now_s();
    std::string mine;
    if (log_) {
      io::EventRows rows = log_->take();
      rows.clock_start_s = clock_start_s;
      mine = io::pack(rows);
    }
    const std::vector<std::string> all = world_.all_gather(mine);
    if (!trace_) return;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].empty()) continue;
      io::EventRows rows = io::unpack(all[rank]);
      rows.shift(rows.clock_start_s - clock_start_s);
      trace_->add(std::move(rows), static_cast<std::int32_t>(rank));
    }
  }

  parallel::World& world_;
  std::unique_ptr<io::Trace> trace_;
  std::vector<io::RankRecord> mine_;  // of this rank's steps since the last flush
  MemorySample memory_;
  std::unique_ptr<io::EventLog> log_;
  std::vector<io::KernelRow> earlier_kernels_;                  // of the file that this start continues
  std::map<std::int64_t, std::vector<io::KernelRow>> kernels_;  // by profiled step of this start
  double seconds_ = 0;
};

}  // namespace tessera::jobs
