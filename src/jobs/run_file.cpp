#include "jobs/run_file.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace tessera::jobs {

void RunFile::open(std::unique_ptr<io::Trace> trace) {
  trace_ = std::move(trace);
  kernels_.assign(trace_->kernels().begin(), trace_->kernels().end());
}

void RunFile::add(const io::StepRecord& record, const train::StepNumbers& numbers, bool is_profiled) {
  memory_.refresh();
  mine_.push_back(rank_record(numbers, is_profiled, memory_));
  if (trace_) trace_->add(record);
  if (log_) log_->set_step(record.step + 1);
}

void RunFile::record_events(bool is_recording) {
  if (trace_) trace_->record_events(is_recording);
  if (log_) log_->record_events(is_recording);
}

/// Brings the rows of the other ranks to rank 0, in its time.
void RunFile::gather_events() {
  if (!world_.any(log_ && log_->has_rows())) return;
  const double since_1970_s = io::wall_clock_s() - events::now_s();  // of this process's time 0
  std::string mine;                                                  // that time, then the rows
  if (log_) {
    mine.resize(sizeof since_1970_s);
    std::memcpy(mine.data(), &since_1970_s, sizeof since_1970_s);
    mine += io::pack(log_->take());
  }
  const std::vector<std::string> all = world_.all_gather(mine);
  if (!trace_) return;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    double theirs_s = 0;
    std::memcpy(&theirs_s, all[rank].data(), sizeof theirs_s);
    io::EventRows rows = io::unpack(std::string_view(all[rank]).substr(sizeof theirs_s));
    rows.shift(theirs_s - since_1970_s);
    trace_->add(std::move(rows), static_cast<std::int32_t>(rank));
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

void RunFile::flush(const std::function<void(io::Trace&)>& work) {
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

}  // namespace tessera::jobs
