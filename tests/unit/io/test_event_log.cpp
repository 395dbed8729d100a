/// What a rank reports, as rows, and on their way to rank 0.
#include "io/event_log.hpp"

#include <gmock/gmock.h>

#include <stdexcept>

namespace tessera::test {
namespace {

using io::EventLog;
using io::EventRows;

/// One row of each kind, and a second one of memory.
EventRows some_rows() {
  EventLog log(7);
  log.record_events(true);
  events::report(events::Region{"forward/block.00", "compute", 1.0, 1.5});
  events::report(events::MemoryChange{"block.00.out", "activations", "forward", 1000, true, 1.1, "bf16"});
  log.set_step(8);
  events::report(events::MemoryChange{"", "activations", "backward", 1000, false, 1.2});
  events::report(events::Communication{"all_reduce", "grad.bucket.0", 4096, 1.3, 1.4, 0.05});
  return log.take();
}

TEST(EventLog, rows_arrive_as_they_left) {
  const std::string bytes = io::pack(some_rows());
  const EventRows rows = io::unpack(bytes);
  EXPECT_EQ(io::pack(rows), bytes);
  ASSERT_EQ(rows.regions.size(), 1u);
  EXPECT_EQ(rows.regions[0].label, "forward/block.00");
  EXPECT_EQ(rows.regions[0].end_s, 1.5);
  ASSERT_EQ(rows.memory.size(), 2u);
  EXPECT_EQ(rows.memory[0].dtype, "bf16");
  EXPECT_EQ(rows.memory[0].step, 7);
  EXPECT_EQ(rows.memory[1].step, 8);
  EXPECT_EQ(rows.memory[1].live_bytes, 0);
  ASSERT_EQ(rows.comm.size(), 1u);
  EXPECT_EQ(rows.comm[0].exposed_s, 0.05);
  EXPECT_TRUE(io::unpack(io::pack({})).is_empty());
  EXPECT_THROW(io::unpack(bytes.substr(0, bytes.size() - 1)), std::logic_error);
}

TEST(EventLog, rows_go_over_to_another_clock) {
  EventRows rows = some_rows();
  rows.shift(100);
  EXPECT_EQ(rows.regions[0].start_s, 101);
  EXPECT_EQ(rows.regions[0].end_s, 101.5);
  EXPECT_DOUBLE_EQ(rows.memory[1].time_s, 101.2);
  EXPECT_DOUBLE_EQ(rows.comm[0].start_s, 101.3);
  EXPECT_DOUBLE_EQ(rows.comm[0].end_s, 101.4);
  EXPECT_EQ(rows.comm[0].exposed_s, 0.05);
}

TEST(EventLog, rows_are_taken_once_and_get_their_rank_and_start) {
  EventLog log(1);
  log.record_events(true);
  events::report(events::Region{"forward", "compute", 1.0, 1.5});
  EXPECT_TRUE(log.has_rows());
  EventRows all = some_rows();
  const std::size_t before = all.regions.size();
  all.append(log.take(), 2, 5);
  EXPECT_FALSE(log.has_rows());
  ASSERT_GT(all.regions.size(), before);
  EXPECT_EQ(all.regions.back().attempt, 2);
  EXPECT_EQ(all.regions.back().rank, 5);
  EXPECT_EQ(all.regions.front().rank, 0);
}

}  // namespace
}  // namespace tessera::test
