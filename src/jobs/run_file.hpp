/// run.h5 of a training run, which rank 0 writes between steps that all ranks make.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
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
  void open(std::unique_ptr<io::Trace> trace) {
    trace_ = std::move(trace);
    kernels_.assign(trace_->kernels().begin(), trace_->kernels().end());
  }
  void close() { trace_.reset(); }
  explicit operator bool() const { return trace_ != nullptr; }
  io::Trace* operator->() const { return trace_.get(); }

  /// Adds a step, on rank 0. Other ranks may already be in the next step, so all ranks fail in the next work().
  void add(const io::StepRecord& record) {
    if (!trace_) return;
    try {
      timed(seconds_, [&] {
        trace_->add(record);
        trace_->flush_if_due();
      });
    } catch (const Failure& failure) {
      if (!fault_) fault_ = failure;
    }
  }
  bool has_failed() const { return fault_.has_value(); }  // and the other ranks do not know it yet

  /// Adds up the kernels of profiled steps.
  void add(const kernels::KernelTimer& timer) {
    for (const auto& row : timer.rows()) {
      auto same =
          std::find_if(kernels_.begin(), kernels_.end(), [&](const io::KernelRow& k) { return k.label == row.label; });
      if (same == kernels_.end()) {
        kernels_.push_back({row.label, row.calls, row.total_s, row.min_s, row.max_s});
      } else {
        same->calls += row.calls;
        same->total_s += row.total_s;
        same->min_s = std::min(same->min_s, row.min_s);
        same->max_s = std::max(same->max_s, row.max_s);
      }
    }
    if (trace_) trace_->set_kernels(kernels_);
  }

  /// Works on it, on rank 0; a failure there, now or since the last call, is that of all ranks. Collective, as the next
  /// two.
  void work(const std::function<void(io::Trace&)>& work) {
    const auto watch = world_.watch("run.h5", parallel::kPatience);
    world_.agree_on_root([&] {
      if (fault_) throw Failure(*fault_);
      timed(seconds_, [&] { work(*trace_); });
    });
  }
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
