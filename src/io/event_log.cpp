#include "io/event_log.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace tessera::io {
namespace {

std::size_t index_of(std::vector<std::string>& names, std::string_view name) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return names.emplace_back(name), names.size() - 1;
  return static_cast<std::size_t>(at - names.begin());
}

/// Writes values one behind the other, text with its length.
class Packer {
 public:
  template <class... Values>
  void operator()(const Values&... values) {
    (add(values), ...);
  }
  std::string bytes;

 private:
  template <class Number>
  void add(const Number& number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void add(const std::string& text) {
    add(text.size());
    bytes += text;
  }
};

/// Reads them in the same order.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  template <class... Values>
  void operator()(Values&... values) {
    (get(values), ...);
  }

 private:
  std::string_view next(std::size_t count) {
    if (count > bytes_.size()) throw std::logic_error("event log: its bytes end early");
    const std::string_view found = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return found;
  }
  template <class Number>
  void get(Number& number) {
    std::memcpy(&number, next(sizeof number).data(), sizeof number);
  }
  void get(std::string& text) {
    std::size_t length = 0;
    get(length);
    text = next(length);
  }
  std::string_view bytes_;
};

// What a row carries, for both ways.
template <class Way, class Row>
void carry_region(Way& way, Row& r) {
  way(r.label, r.stream, r.start_s, r.end_s, r.step);
}
template <class Way, class Row>
void carry_memory(Way& way, Row& r) {
  way(r.label, r.phase, r.category, r.dtype, r.time_s, r.bytes, r.live_bytes, r.is_begin, r.step);
}
template <class Way, class Row>
void carry_comm(Way& way, Row& r) {
  way(r.operation, r.label, r.bytes, r.start_s, r.end_s, r.exposed_s, r.step);
}

template <class Row>
void move_behind(std::vector<Row>& all, std::vector<Row> rows, std::int32_t attempt, std::int32_t rank) {
  for (Row& row : rows) {
    row.attempt = attempt;
    row.rank = rank;
  }
  all.insert(all.end(), std::move_iterator(rows.begin()), std::move_iterator(rows.end()));
}

}  // namespace

void EventRows::shift(double seconds) {
  for (RegionRow& row : regions) row.start_s += seconds, row.end_s += seconds;
  for (MemoryRow& row : memory) row.time_s += seconds;
  for (CommRow& row : comm) row.start_s += seconds, row.end_s += seconds;
}

void EventRows::append(EventRows rows, std::int32_t attempt, std::int32_t rank) {
  move_behind(regions, std::move(rows.regions), attempt, rank);
  move_behind(memory, std::move(rows.memory), attempt, rank);
  move_behind(comm, std::move(rows.comm), attempt, rank);
}

void EventRows::cut(std::int32_t attempt, std::int64_t step) {
  const auto is_later = [&](const auto& row) { return row.attempt == attempt && row.step > step; };
  std::erase_if(regions, is_later);
  std::erase_if(memory, is_later);
  std::erase_if(comm, is_later);
}

std::string pack(const EventRows& rows) {
  Packer way;
  way(rows.clock_start_s, rows.regions.size(), rows.memory.size(), rows.comm.size());
  for (const RegionRow& row : rows.regions) carry_region(way, row);
  for (const MemoryRow& row : rows.memory) carry_memory(way, row);
  for (const CommRow& row : rows.comm) carry_comm(way, row);
  return std::move(way.bytes);
}

EventRows unpack(std::string_view bytes) {
  Unpacker way(bytes);
  EventRows rows;
  std::size_t regions = 0, memory = 0, comm = 0;
  way(rows.clock_start_s, regions, memory, comm);
  rows.regions.resize(regions);
  rows.memory.resize(memory);
  rows.comm.resize(comm);
  for (RegionRow& row : rows.regions) carry_region(way, row);
  for (MemoryRow& row : rows.memory) carry_memory(way, row);
  for (CommRow& row : rows.comm) carry_comm(way, row);
  return rows;
}

EventLog::EventLog(std::int64_t step_in_progress) : step_in_progress_(step_in_progress) {
  category_index("total");
  events::add_listener(*this);
}

EventLog::~EventLog() { events::remove_listener(*this); }

EventRows EventLog::take() { return std::exchange(rows_, {}); }

std::size_t EventLog::category_index(std::string_view category) {
  const std::size_t index = index_of(categories_, category);
  if (index == live_.size()) {
    live_.push_back(0);
    recorded_live_.push_back(0);
    for (auto& peaks : peaks_) peaks.push_back(0);
  }
  return index;
}

std::size_t EventLog::phase_index(std::string_view phase) {
  const std::size_t index = index_of(phases_, phase);
  if (index == peaks_.size()) peaks_.emplace_back(categories_.size(), 0);
  return index;
}

void EventLog::set_peak(std::string_view phase, std::string_view category, std::int64_t bytes) {
  const std::size_t c = category_index(category);
  peaks_[phase_index(phase)][c] = bytes;
}

void EventLog::record_events(bool is_recording) {
  if (is_recording && !is_recording_) {
    std::int64_t total = recorded_live_[0];
    for (std::size_t c = 1; c < categories_.size(); ++c) {
      const std::int64_t change = live_[c] - std::exchange(recorded_live_[c], live_[c]);
      if (change == 0) continue;
      total += change;
      rows_.memory.push_back({"(not recorded)", "(not recorded)", categories_[c], "", events::now_s(), std::abs(change),
                              total, change > 0, step_in_progress_});
    }
    recorded_live_[0] = total;
  }
  is_recording_ = is_recording;
}

void EventLog::on(const events::Region& region) {
  if (!is_recording_) return;
  rows_.regions.push_back(
      {std::string(region.label), std::string(region.stream), region.start_s, region.end_s, step_in_progress_});
}

void EventLog::on(const events::MemoryChange& change) {
  const std::size_t category = category_index(change.category), phase = phase_index(change.phase);
  const std::int64_t bytes = change.is_begin ? change.bytes : -change.bytes;
  live_[0] += bytes;
  live_[category] += bytes;
  for (std::size_t c = 0; c < live_.size(); ++c) peaks_[phase][c] = std::max(peaks_[phase][c], live_[c]);
  if (!is_recording_) return;
  recorded_live_ = live_;
  rows_.memory.push_back({std::string(change.label), std::string(change.phase), std::string(change.category),
                          std::string(change.dtype), change.time_s, change.bytes, live_[0], change.is_begin,
                          step_in_progress_});
}

void EventLog::on(const events::Communication& call) {
  if (!is_recording_) return;
  rows_.comm.push_back({std::string(call.operation), std::string(call.label), call.bytes, call.start_s, call.end_s,
                        call.exposed_s, step_in_progress_});
}

}  // namespace tessera::io
