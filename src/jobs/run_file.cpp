#include "jobs/run_file.hpp"

#include <algorithm>
#include <utility>

namespace tessera::jobs {

void RunFile::open(std::unique_ptr<io::Trace> trace) {
  trace_ = std::move(trace);
  kernels_.assign(trace_->kernels().begin(), trace_->kernels().end());
}

void RunFile::add(const io::StepRecord& record) {
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

void RunFile::add(const kernels::KernelTimer& timer) {
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

void RunFile::work(const std::function<void(io::Trace&)>& work) {
  const auto watch = world_.watch("run.h5", parallel::kPatience);
  world_.agree_on_root([&] {
    if (fault_) throw Failure(*fault_);
    timed(seconds_, [&] { work(*trace_); });
  });
}

}  // namespace tessera::jobs
