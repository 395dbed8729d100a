#include "jobs/step_events.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace tessera::jobs {
namespace {

std::size_t index_of(std::string_view category) {
  for (int i = 0; i < memory::kCategories; ++i) {
    if (memory::name_of(static_cast<memory::Category>(i)) == category) return static_cast<std::size_t>(i);
  }
  throw std::logic_error("step events: a tensor of the unknown category " + std::string(category));
}

}  // namespace

std::int64_t LiveBytes::total() const {
  return std::accumulate(by_category.begin(), by_category.end(), std::int64_t{0});
}

StepCommunication StepEvents::take_communication() {
  std::sort(transfers_.begin(), transfers_.end(), [](const Times& a, const Times& b) { return a.start_s < b.start_s; });
  double covered_s = -INFINITY;  // the latest end so far
  for (const Times& times : transfers_) {
    communication_.under_way_s += std::max(0.0, times.end_s - std::max(times.start_s, covered_s));
    covered_s = std::max(covered_s, times.end_s);
  }
  transfers_.clear();
  return std::exchange(communication_, {});
}

void StepEvents::on(const events::MemoryChange& change) {
  live_.by_category[index_of(change.category)] += change.is_begin ? change.bytes : -change.bytes;
  if (!change.is_begin) return;  // the sum is largest behind a begin; a phase may begin with ends of the one before
  if (change.phase == "setup") {
    initial_ = live_;
    return;
  }
  LiveBytes& peak = change.phase == "optimizer" ? in_update_ : before_update_;
  if (live_.total() > peak.total()) peak = live_;
}

void StepEvents::on(const events::Communication& communication) {
  ++communication_.transfers;
  communication_.bytes += communication.bytes;
  communication_.total_s += communication.end_s - communication.start_s;
  communication_.exposed_s += communication.exposed_s;
  transfers_.push_back({communication.start_s, communication.end_s});
}

}  // namespace tessera::jobs
