#include "lab/step_events.hpp"  // the contract is there; here is how

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace tessera::lab {
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
  std::vector<StepTransfer>& each = communication_.each;
  std::sort(each.begin(), each.end(), [](const auto& a, const auto& b) { return a.start_s < b.start_s; });
  double covered_s = -INFINITY;  // the latest end so far
  for (const StepTransfer& transfer : each) {
    communication_.under_way_s += std::max(0.0, transfer.end_s - std::max(transfer.start_s, covered_s));
    covered_s = std::max(covered_s, transfer.end_s);
  }
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
  communication_.each.push_back(
      {std::string(communication.label), communication.bytes, communication.start_s, communication.end_s});
}

void StepEvents::on(const events::Region& region) {
  if (region.label == "forward" && std::isnan(communication_.begin_s)) communication_.begin_s = region.start_s;
}

}  // namespace tessera::lab
