/// Sums over the events of a rank's steps: live bytes, as the memory timeline counts them, and communication.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/events.hpp"
#include "memory/layout.hpp"

namespace tessera::lab {

/// Live bytes at one moment, by category, within the arena.
struct LiveBytes {
  std::array<std::int64_t, memory::kCategories> by_category{};
  std::int64_t total() const;
};

/// One collective operation of a step.
struct StepTransfer {
  std::string label;  // what crossed
  std::int64_t bytes = 0;
  double start_s = 0, end_s = 0;  // events::now_s
};

/// The collective operations of one step.
struct StepCommunication {
  std::int64_t transfers = 0, bytes = 0;  // number of operations; bytes of all their messages
  double total_s = 0;                     // sum of their durations
  double under_way_s = 0;                 // with at least one in flight
  double exposed_s = 0;                   // the rank only waited for one
  double begin_s = NAN;                   // when the host enqueued the first forward pass (events::now_s)
  std::vector<StepTransfer> each;         // in the order of their starts
};

/// Listens from its construction on. Construct it before the first step.
class StepEvents final : public events::Listener {
 public:
  StepEvents() { events::add_listener(*this); }
  ~StepEvents() override { events::remove_listener(*this); }
  StepEvents(const StepEvents&) = delete;
  StepEvents& operator=(const StepEvents&) = delete;

  // Live bytes at three moments: before the first step; at the largest sum in a step's passes; and in its update.
  const LiveBytes& initial() const { return initial_; }
  const LiveBytes& before_update() const { return before_update_; }
  const LiveBytes& in_update() const { return in_update_; }

  /// The sums since the last call.
  StepCommunication take_communication();

  using events::Listener::on;
  void on(const events::MemoryChange& change) override;
  void on(const events::Communication& communication) override;
  void on(const events::Region& region) override;

 private:
  LiveBytes live_, initial_, before_update_, in_update_;
  StepCommunication communication_;  // each: in the order of their ends
};

}  // namespace tessera::lab
