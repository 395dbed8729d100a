/// The rows of /events, /memory/events and /comm of run.h5: what a rank reports while they are recorded. Also the
/// largest live bytes by phase and category, recorded or not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/events.hpp"

namespace tessera::io {

/// `step` is the optimizer step in progress; `attempt` that of the run's start, which rank 0 knows.
struct RegionRow {
  std::string label, stream;
  double start_s = 0, end_s = 0;
  std::int64_t step = 0;
  std::int32_t attempt = 0, rank = 0;
};
struct MemoryRow {
  std::string label, phase, category, dtype;
  double time_s = 0;
  std::int64_t bytes = 0, live_bytes = 0;
  std::uint8_t is_begin = 0;
  std::int64_t step = 0;
  std::int32_t attempt = 0, rank = 0;
};
struct CommRow {
  std::string operation, label;
  std::int64_t bytes = 0;
  double start_s = 0, end_s = 0, exposed_s = 0;
  std::int64_t step = 0;
  std::int32_t attempt = 0, rank = 0;
};
struct EventRows {
  std::vector<RegionRow> regions;
  std::vector<MemoryRow> memory;
  std::vector<CommRow> comm;
  double clock_start_s = 0;  // when their clock began, since 1970: for rows on their way

  bool is_empty() const { return regions.empty() && memory.empty() && comm.empty(); }
  /// Turns their times into those of a clock that is ahead by `seconds`.
  void shift(double seconds);
  /// Adds those of `rank`, in start `attempt` of the run.
  void append(EventRows rows, std::int32_t attempt, std::int32_t rank);
  /// Drops those of start `attempt` in steps after `step`.
  void cut(std::int32_t attempt, std::int64_t step);
};

/// Rows as bytes, on their way to another rank of the same build.
std::string pack(const EventRows& rows);
EventRows unpack(std::string_view bytes);

/// Listens to events while it exists.
class EventLog final : public events::Listener {
 public:
  explicit EventLog(std::int64_t step_in_progress);
  ~EventLog() override;
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void set_step(std::int64_t in_progress) { step_in_progress_ = in_progress; }
  /// Whether reports become rows; initially off. Live bytes and peaks are tracked either way; on switching on, changes
  /// since the last row become one "(not recorded)" row per category.
  void record_events(bool is_recording);
  bool has_rows() const { return !rows_.is_empty(); }
  EventRows take();  // those since the last call

  using events::Listener::on;  // it ignores the starts of communication
  void on(const events::Region&) override;
  void on(const events::MemoryChange&) override;
  void on(const events::Communication&) override;

  // Names in the order of their appearance; categories()[0] is "total".
  const std::vector<std::string>& categories() const { return categories_; }
  const std::vector<std::string>& phases() const { return phases_; }
  const std::vector<std::vector<std::int64_t>>& peaks() const { return peaks_; }  // [phase][category] bytes
  /// Those of an earlier start count, too.
  void set_peak(std::string_view phase, std::string_view category, std::int64_t bytes);

 private:
  std::size_t category_index(std::string_view category);
  std::size_t phase_index(std::string_view phase);

  EventRows rows_;
  std::int64_t step_in_progress_;
  bool is_recording_ = false;
  std::vector<std::string> categories_, phases_;
  std::vector<std::int64_t> live_;           // [category] bytes live now
  std::vector<std::int64_t> recorded_live_;  // [category] bytes live after the last memory row
  std::vector<std::vector<std::int64_t>> peaks_;
};

}  // namespace tessera::io
